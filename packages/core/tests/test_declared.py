"""A project's class that lacks a member is refused by name when it is loaded."""

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
    monkeypatch.setattr(toy_class(), "directions", {"dvh": "down"})
    with pytest.raises(BadInput, match=r"""project toy: directions\['dvh'\] must be "max" or "min", not 'down'"""):
        Plugins.load("toy").project()


def test_members_that_have_moved_are_named_with_their_places(toy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy_class(), "splittable", True, raising=False)
    monkeypatch.setattr(toy_class(), "check", lambda self, record: (), raising=False)
    monkeypatch.setattr(toy_class(), "pictures", lambda self, watched: {})
    monkeypatch.setattr(toy_class(), "baseline", lambda self, record, statistics: None)
    found = "`splittable` is `learning().splittable`, `check` is `checks().record`, "
    found += "`pictures` is `pictures().draw_watched`, `statistics` is `self.statistics` in `baseline(cropped)` and "
    found += (
        "`export(model, folder)`, `record` is `cropped.record` in `predict(cropped, infer)` and `baseline(cropped)`"
    )
    with pytest.raises(BadInput) as raised:
        Plugins.load("toy").project()
    assert f"project toy: members of Toy have new places: {found}" in str(raised.value)
    assert raised.value.exit_code == 2


def test_an_attribute_that_is_gone_is_named_with_what_to_write_now(toy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def records(self: Any, root: Any) -> Any:
        self.left_out = []
        return ()

    monkeypatch.setattr(toy_class(), "records", records)
    with pytest.raises(BadInput, match=r"`left_out` is `runner_core\.leave_out\(text\)`"):
        Plugins.load("toy").project()


@pytest.mark.parametrize(
    "method, old", [("predict", lambda self, record, infer: None), ("baseline", lambda self, record: None)]
)
def test_a_prediction_of_a_record_is_refused_with_the_new_signatures(
    method: str, old: Any, toy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toy_class(), method, old)
    with pytest.raises(BadInput, match=r"`record` is `cropped.record` in `predict\(cropped, infer\)` and") as raised:
        Plugins.load("toy").project()
    assert raised.value.exit_code == 2


def test_a_project_that_asks_for_its_pipeline_is_refused(toy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def predict(self: Any, cropped: Any, infer: Any) -> Any:
        return self.pipeline.decode_cropped(cropped.record)

    monkeypatch.setattr(toy_class(), "predict", predict)
    with pytest.raises(
        BadInput, match=r"`pipeline.decode_cropped` is `cropped` \(its `decoded` and `box`\) in `predict"
    ):
        Plugins.load("toy").project()


def test_an_attribute_of_another_object_may_have_a_name_that_is_gone(
    toy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def records(self: Any, root: Any) -> Any:
        return root.left_out

    monkeypatch.setattr(toy_class(), "records", records)
    assert Plugins.load("toy").project() is toy_class()
