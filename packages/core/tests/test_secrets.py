"""Passwords and signatures of URLs, fed in everywhere: no file, no output and no tracker ever has one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from runner_core import BadInput, DataErrors, Record
from runner_core.base.location import Url, refuse_secrets
from runner_core.base.secrets import hold_no_secrets, without_secrets
from runner_core.cli import main
from runner_core.output.sinks import Sinks

ODD = "-_.~%+!$*"
secrets = st.text("abcdefghijkXYZ0123456789" + ODD, min_size=8, max_size=20).filter(
    lambda text: sum(c.isalnum() for c in text) > 6
)
FORMS = (
    "https://me:{}@host/plates/a.csv",
    "HTTPS://{}@host/a.csv",
    "https://me:{}/x@host/a.csv",
    "https://me:x?{}@host/a.csv",
    "https://me:x@{}@host:8080/a@v1.csv",
    "https://host/a.csv?X-Amz-Credential=x&X-Amz-Signature={}",
    "https://host?{}",
    "az://account/container/a.csv?sv=2024&sig={}",
    "s3://KEY:{}@bucket/a.csv",
    "s3://bucket/a.csv?AWSAccessKeyId=x&Signature={}",
    "gs://bucket/a.csv?X-Goog-Signature={}",
    "abfss://container:{}@account/a.csv",
    "https://host/a.csv#access_token={}",
    "http:/me:{}@host/a.csv",
)
forms = st.sampled_from(FORMS)


@given(secrets, forms, st.sampled_from(["{}", "no {} here", "({})", "'{}': gone.", "{}, {}", '{{"a": "{}"}}', "a={}:"]))
def test_no_text_shows_them(secret: str, form: str, sentence: str) -> None:
    url = form.format(secret)
    text = sentence.replace("{}", url)
    assert secret not in without_secrets(text)
    assert secret not in json.dumps(hold_no_secrets({"a": [{text: (1, text)}]}))
    for error in (BadInput(text), DataErrors([text])):
        assert secret not in str(error)
        assert secret not in "".join(getattr(error, "errors", ()))
    assert without_secrets(without_secrets(text)) == without_secrets(text)
    if "://" in url:
        shown = f"{Url(url)} {Url(url)!r} {[Url(url, 3, 'e')]} {Record('r', 'g', {'image': Url(url)})}"
        assert secret not in shown
        with pytest.raises(BadInput) as refused:
            refuse_secrets(Url(url))
        assert secret not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/what?.tif",
        "abfss://container@account.dfs.core.windows.net/a",
        "s3://b/a@2x",
        "https://host:8080/a@v1/b.tif",
        "file:///data/a?b@c",
        "C:/data/a@b:c@d",
        "https://host/a.csv#row=3",
    ],
)
def test_what_holds_none_stays_as_it_is(text: str) -> None:
    assert without_secrets(text) == text
    assert str(Url(text)) == text
    assert without_secrets(f"ratio 3:/4, me@host, what? {text}") == f"ratio 3:/4, me@host, what? {text}"


def test_a_traceback_is_shown_without_them(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import toy_project

    def gone(*_: Any) -> Any:
        raise RuntimeError("https://me:S3CRET-value@host/a.csv: gone")

    monkeypatch.setattr(toy_project.Toy, "records", gone)
    assert main(["toy", "check", "--debug"]) == 1
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "RuntimeError: https://***@host/a.csv: gone" in said
    assert not _leaks(here, "S3CRET-value", said)


def _leaks(folder: Path, secret: str, *said: str) -> list[str]:
    """Files below `folder` (names too) and texts that hold the secret."""
    paths = list(folder.rglob("*"))
    files = [path for path in paths if path.is_file() and secret.encode() in path.read_bytes()]
    return [text for text in (*map(str, paths), *said) if secret in text] + list(map(str, files))


OPTIONS = ("--data", "--remote.endpoint", "--log.mlflow", "--cache.dir", "--data.split", "--config")
quickly = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@quickly
@given(secrets, forms, st.sampled_from(OPTIONS), st.sampled_from(["train", "check", "config"]), st.booleans())
@example("S3CRETvalue", FORMS[0], "--log.mlflow", "train", True)
def test_commands_refuse_them_and_keep_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], secret: str, form: str, option: str, command: str, in_file: bool
) -> None:
    url = form.format(secret)
    words = [option, url]
    if in_file and option != "--config":
        file = here.parent / f"{here.name}-settings.yaml"
        name = option.removeprefix("--")
        section, _, key = name.partition(".")
        file.write_text(yaml.safe_dump({"source": url} if not key else {section: {key: url}}))
        words = ["--config", str(file)]
    assert main(["toy", command, *words]) == 2
    said = capsys.readouterr()
    assert not _leaks(here, secret, said.out, said.err)
    assert "Traceback" not in said.err


@pytest.mark.torch
@pytest.mark.parametrize("form", [FORMS[0], FORMS[5]])
def test_what_a_project_says_or_raises_is_kept_without_them(
    form: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A health rule's words, a broken tracker's, a manifest's row, and an error in the middle of the training."""
    import toy_project
    from runner_core.contract import Finding

    secret = "S3CRET-value"
    url = form.format(secret)
    payload: list[Any] = []

    class Service:
        name = "service"

        def event(self, kind: str, step: int, values: Any) -> None:
            payload.append(values)
            if kind == "train":
                raise OSError(f"{url} does not answer")

        def figure(self, name: str, step: int, png: Path) -> None: ...

        def close(self) -> None: ...

    begin = Sinks.__init__
    monkeypatch.setattr(Sinks, "__init__", lambda self, sinks, say=print: begin(self, [*sinks, Service()], say))
    from runner_core.training.run import _Run

    report = _Run._start_line
    monkeypatch.setattr(
        _Run, "_start_line", lambda self: self._report(Finding("where", "warning", f"read {url}"), 0, 0) or report(self)
    )
    monkeypatch.setattr(toy_project.Toy, "score", lambda *_: (_ for _ in ()).throw(RuntimeError(f"{url}: gone")))
    code = main(["toy", "train", "--train.epochs", "1", "--train.steps-per-epoch", "6", "--log.every", "2"])
    said = capsys.readouterr()
    assert code == 1
    assert any("***" in json.dumps(values, default=str) for values in payload)
    assert not _leaks(here, secret, said.out, said.err, json.dumps(payload, default=str))
    assert "***" in "".join(path.read_text() for path in here.rglob("train.log"))

    row = Record("r", "g", {"image": Url(url)})
    monkeypatch.setattr(toy_project.Toy, "records", lambda *_: [row])
    (here / "data").mkdir()
    assert main(["toy", "train", "--data", "data"]) == 2
    (run,) = [path.parent for path in (here / "runs").rglob("summary.json")]
    monkeypatch.setattr(toy_project.Toy, "inputs", lambda *_: [row])
    assert main(["toy", "predict", str(run), "data", "--out", "out"]) == 2
    said = capsys.readouterr()
    assert "must not hold a password or a signature" in said.err
    assert not _leaks(here, secret, said.out, said.err)
