"""Crates of exported networks against the RO-Crate validator (roc-validator); run by `bash .ci/run oracles`.

The validator asks the network for the JSON-LD context. ro-crate-py brings its terms, which are given in its place.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

services = pytest.importorskip("rocrate_validator.services", reason="roc-validator is not installed (group oracles)")


@pytest.fixture(autouse=True)
def terms(monkeypatch: pytest.MonkeyPatch) -> None:
    from rocrate_validator.utils.http import HttpRequester

    context = json.loads(files("rocrate").joinpath("data/ro-crate.jsonld").read_text(encoding="utf-8"))

    def get(self: Any, url: str, **_: Any) -> Any:
        assert url.startswith("https://w3id.org/ro/crate/1.1"), url
        kind = {"Content-Type": "application/ld+json"}
        return SimpleNamespace(status_code=200, json=lambda: context, text=json.dumps(context), headers=kind, links={})

    monkeypatch.setattr(HttpRequester, "get", get, raising=False)


def issues(folder: Path, severity: str) -> list[str]:
    settings = services.ValidationSettings(
        rocrate_uri=str(folder), profile_identifier="ro-crate-1.1", requirement_severity=severity, offline=True
    )
    return [f"{issue.check.identifier}: {issue.message}" for issue in services.validate(settings).get_issues()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    from runner_core.tools.card.crate import CRATE, crate

    training = {"steps": 3, "started": "2026-11-25 07:12:26 +0000", "ended": "2026-11-25 07:15:12 +0000"}
    facts = {
        "project": "toy",
        "task": "Finds discs",
        "limits": "Nothing but discs.",
        "license": "CC-BY-4.0",
        "training": training,
        "versions": {"runner-core": "0.1.0"},
        "data": {"source": "phantom", "identity": "abc"},
    }
    (tmp_path / "figures").mkdir()
    names = ("model.safetensors", "MODEL_CARD.md", "figures/001-a.png")
    for name in names:
        (tmp_path / name).write_bytes(b"content")
    content = crate(facts, tmp_path, [tmp_path / name for name in names])
    (tmp_path / CRATE).write_text(json.dumps(content), encoding="utf-8")
    return tmp_path


def test_the_validator_accepts_a_crate(folder: Path) -> None:
    assert issues(folder, "REQUIRED") == []
    # who exports it is not known: a person may add both
    assert all("`author`" in issue or "publisher" in issue for issue in issues(folder, "RECOMMENDED"))


def test_the_validator_finds_a_missing_file(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert any("model.safetensors" in issue for issue in issues(folder, "REQUIRED"))
