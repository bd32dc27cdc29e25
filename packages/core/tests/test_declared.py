"""What a project's class must have, refused by name as it is loaded."""

from __future__ import annotations

from typing import Any

import pytest
from runner_core import BadInput, Project
from runner_core.plugins.manager import Plugins


def toy_class() -> Any:
    import toy_project  # type: ignore[import-not-found]

    return toy_project.Toy


def test_what_has_no_default_is_asked_for_by_name(toy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for method in ("prepare", "step"):
        monkeypatch.setattr(toy_class(), method, getattr(Project, method))
    monkeypatch.delattr(toy_class(), "framework")
    with pytest.raises(BadInput, match=r"project toy: its class Toy lacks framework, prepare\(\), step\(\)"):
        Plugins.load("toy").project()


def test_the_presets_that_commands_use_must_be_there(toy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy_class(), "presets", {"default": toy_class().Config})
    with pytest.raises(BadInput, match="project toy lacks the preset demo"):
        Plugins.load("toy").project()


@pytest.mark.parametrize("monitor", ["loss", ("dice", "maximum"), ("dice",), (1, "max"), None])
def test_a_monitor_that_chooses_nothing_is_refused(monitor: Any, toy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy_class(), "monitor", monitor)
    with pytest.raises(BadInput, match=r'project toy: monitor must be .* "max" or "min"'):
        Plugins.load("toy").project()


def test_adjust_is_refused_of_keras(toy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy_class(), "adjust", lambda self, groups, progress: None, raising=False)
    Plugins.load("toy").project()
    monkeypatch.setattr(toy_class(), "framework", "keras")
    with pytest.raises(BadInput, match="project toy: `adjust` is for PyTorch"):
        Plugins.load("toy").project()
