"""A checkpoint whose content was changed and sealed anew, a damaged summary or log, a seed that no generator takes: one
message and exit 2 in every command."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from runner_core.cli import main
from runner_core.training.checkpoints import _checksum_of

pytestmark = pytest.mark.torch
Change = Callable[[Path, dict[str, Any]], None]


def tensors(change: Callable[[dict[str, Any]], None], part: str = "model") -> Change:
    def changed(folder: Path, manifest: dict[str, Any]) -> None:
        from safetensors.torch import load_file, save_file

        content = load_file(folder / f"{part}.safetensors")
        change(content)
        save_file({name: tensor.contiguous() for name, tensor in content.items()}, folder / f"{part}.safetensors")

    return changed


def state(change: Callable[[dict[str, Any]], Any]) -> Change:
    def changed(folder: Path, manifest: dict[str, Any]) -> None:
        content = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        content = change(content) or content
        (folder / "state.json").write_text(json.dumps(content), encoding="utf-8")

    return changed


def first(content: dict[str, Any]) -> str:
    return next(name for name in sorted(content) if name.endswith("weight") and content[name].ndim > 1)


def set_item(content: dict[str, Any], key: str, value: Any) -> None:
    content[key] = value


FORMS: dict[str, Change] = {
    "other shape": tensors(lambda c: set_item(c, first(c), c[first(c)][:1])),
    "missing tensor": tensors(lambda c: c.update(w=c.pop(first(c)))),
    "other dtype": tensors(lambda c: set_item(c, first(c), c[first(c)].half())),
    "whole numbers": tensors(lambda c: set_item(c, first(c), c[first(c)].int())),
    "NaN": tensors(lambda c: set_item(c, first(c), c[first(c)] * float("nan"))),
    "no safetensors": lambda folder, m: (folder / "model.safetensors").write_bytes(b"\xff" * 64) and None,
    "no values": state(lambda c: c.pop("values") and None),
    "values a list": state(lambda c: set_item(c, "values", [1])),
    "a list": state(lambda c: [1, 2]),
    "shared a number": state(lambda c: set_item(c, "shared", 3)),
    "no torch state": state(lambda c: c["values"].pop("torch") and None),
    "torch state text": state(lambda c: set_item(c["values"], "torch", "x")),
    "step of the state": state(lambda c: set_item(c["values"]["loop"], "step", 10**40)),
    "step a text": state(lambda c: set_item(c["values"]["loop"], "step", "7")),
    "deep": lambda folder, m: (folder / "state.json").write_text("[" * 100_000 + "]" * 100_000) and None,
    "no files": lambda folder, m: m.update(files={}),
    "files a list": lambda folder, m: m.update(files=["model.safetensors"]),
    "path outside": lambda folder, m: m["files"].update({"../../config.yaml": m["files"]["state.json"]}),
    "absolute path": lambda folder, m: m["files"].update({"/etc/hostname": m["files"]["state.json"]}),
    "NUL": lambda folder, m: m["files"].update({"a\0b": m["files"]["state.json"]}),
    "step of the manifest": lambda folder, m: m.update(step=m["step"] + 1),
    "negative": lambda folder, m: m.update(step=-1),
    "huge": lambda folder, m: m.update(epoch=10**400),
    "step a float": lambda folder, m: m.update(step=1.5),
    "metric a text": lambda folder, m: m.update(metric="best"),
    "plugins a list": lambda folder, m: m.update(plugins=[1]),
    "version a text": lambda folder, m: m.update(format_version="1"),
}
SAID = {
    "no values": "is damaged or was changed: it lacks `values`. There is no checkpoint before it: start a new run",
    "deep": "state.json is damaged or was changed: it is nested too deeply. ",
    "other shape": "Error(s) in loading state_dict",
    "step of the state": f" is damaged or was changed: its state belongs to step {10**40}. ",
}


@pytest.fixture
def copy(trained: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The trained run with its newest checkpoint alone."""
    run = shutil.copytree(trained, here / "run")
    for older in sorted((run / "checkpoints").glob("step-*"))[:-1]:
        shutil.rmtree(older)
    assert main(["toy", "phantom", "data"]) == 0
    capsys.readouterr()
    return run


def reseal(folder: Path, change: Change) -> None:
    from runner_core.base.files import hash_file

    content = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    del content["checksum"]
    change(folder, content)
    if isinstance(content["files"], dict):
        for name, written in content["files"].items():
            if (folder / name).parent == folder and "\0" not in name:
                written |= {"bytes": (folder / name).stat().st_size, "xxh3_128": hash_file(folder / name)}
    (folder / "manifest.json").write_text(json.dumps({"checksum": _checksum_of(content), **content}), encoding="utf-8")


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    code, said = main(words), capsys.readouterr()
    assert code == 2, (words, said)
    assert said.err.count("runner: ") == 1
    assert "Traceback" not in said.err
    assert "unexpected" not in said.err
    return said.err


@pytest.mark.parametrize("form", FORMS)
def test_a_resealed_checkpoint(form: str, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (checkpoint,) = (copy / "checkpoints").glob("step-*")
    reseal(checkpoint, FORMS[form])
    before = {path: path.read_bytes() for path in sorted(copy.rglob("*")) if path.is_file() and path.name != ".lock"}
    for words in (
        ["toy", "evaluate", "run"],
        ["toy", "predict", "run", "data/p0_a.npy", "--out", "maps"],
        ["toy", "export", "run", "--out", "network"],
        ["toy", "export", str(checkpoint), "--out", "network"],
        ["toy", "train", "--resume", "run"],
    ):
        said = refused(words, capsys)
        assert checkpoint.name in said, "it names the folder"
        assert "start a new run" in said, "there is no checkpoint before it"
        assert "using the" not in said, "what is told as an error is told once"
        assert SAID.get(form, "") in said
    assert {path: path.read_bytes() for path in before} == before
    assert not list(Path("network").glob("*"))
    for words in (["toy", "report", "run"], ["compare", "run", "run"]):
        assert main(words) in (0, 2)


def test_a_resealed_checkpoint_after_another(trained: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message says how to go on, and that is so."""
    run = shutil.copytree(trained, here / "run")
    newest = max((run / "checkpoints").glob("step-*"))
    reseal(newest, FORMS["no values"])
    said = refused(["toy", "train", "--resume", "run"], capsys)
    assert (
        "is damaged or was changed: it lacks `values`. Delete this checkpoint's folder to go on from the one before"
        in said
    )
    shutil.rmtree(newest)
    assert main(["toy", "train", "--resume", "run"]) == 0


def test_an_extra_file(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It may be one that would be read: averaged weights."""
    (checkpoint,) = (copy / "checkpoints").glob("step-*")
    shutil.copy(checkpoint / "model.safetensors", checkpoint / "ema.safetensors")
    assert main(["toy", "export", str(checkpoint), "--out", "network"]) == 2
    assert "ema.safetensors is not a file of this checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", "{", '{"status": 3}', '{"health": [1]}', "[" * 100_000, '{"metrics": []}'])
def test_a_damaged_summary(text: str, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(copy, "other")
    (copy / "summary.json").write_text(text, encoding="utf-8")
    for words in (["toy", "report", "run"], ["compare", "run", "other"]):
        assert "summary.json is damaged" in refused(words, capsys)
    assert (copy / "summary.json").read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 1}',
        '{"event": 1, "step": 1}',
        '{"event": "train", "step": "x"}',
        '{"event": "train", "step": -1}',
        '{"event": "train"}',
        '{"event": "train", "step": 1, "timing": [1]}',
        '{"event": "losses", "step": 1}',
        '{"event": "health", "step": 1}',
        '{"event": "figure", "step": 1, "name": 3, "file": 4}',
    ],
)
def test_a_line_of_the_log_that_was_changed(line: str, copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(copy, "other")
    with (copy / "log.jsonl").open("a", encoding="utf-8") as log:
        log.write(f"{line}\n")
    for words in (["toy", "report", "run"], ["compare", "run", "other"]):
        assert "log.jsonl: " in refused(words, capsys)


def test_a_line_that_a_kill_tore_is_left_out(copy: Path) -> None:
    with (copy / "log.jsonl").open("ab") as log:
        log.write(b'{"event": "train", "st\n' + b"[" * 100_000 + b"\n" + b"1" * 5_000)
    assert main(["toy", "report", "run"]) == 0


def test_too_little_memory_is_no_damage(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")
    monkeypatch.setattr("runner_core.engines.torch.engine.TorchEngine.load", Mock(side_effect=error))
    said = refused(["toy", "evaluate", "run"], capsys)
    assert "there is not enough memory (DefaultCPUAllocator" in said
    assert "changed" not in said


@pytest.mark.parametrize("seed", [-1, 2**64, 10**30])
def test_a_seed_that_no_generator_takes(seed: int, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(["toy", "train", "--train.seed", str(seed)], capsys)
    assert f"setting train.seed must lie from 0 to {2**64 - 1}, not {seed}" in said
    assert not (here / "runs").exists()


def test_the_largest_seed_trains(here: Path) -> None:
    words = ["--run-dir", "run", "--train.epochs", "1", "--train.steps-per-epoch", "2"]
    assert main(["toy", "train", *words, "--train.seed", str(2**64 - 1)]) == 0
