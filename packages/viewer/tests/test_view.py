"""What `view` opens: the worst cases first, records without a run, and what is refused. napari is not needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runner_core
from runner_core import Label, Layer, main
from runner_viewer import window
from runner_viewer.cases import Case
from runner_viewer.window import best_slice

Opened = Callable[..., Sequence[Case]]


@pytest.fixture
def opened(toy: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Opened:
    """opened(words…) → the cases that the viewer is given, with the exit code 0."""
    import viewed_toy  # type: ignore[import-not-found]

    monkeypatch.setattr(viewed_toy.Viewed, "predicted", [])
    given: list[Sequence[Case]] = []
    monkeypatch.setattr(window, "refuse_no_viewer", lambda screenshot: None)
    monkeypatch.setattr(window, "show", lambda cases, title, screenshot: given.append(cases))

    def opened(*words: object) -> Sequence[Case]:
        assert main(["toy", "view", *map(str, words)]) == 0
        return given[-1]

    return opened


def predictions() -> list[str]:
    import viewed_toy

    return viewed_toy.Viewed.predicted


def names(case: Case) -> list[str]:
    return [layer.name for layer in case.layers]


def errors(run: Path) -> dict[str, float]:
    return {row["record"]: row["error"] for row in runner_core.open(run).scores.records}


def test_the_worst_cases_come_first_and_only_they_are_predicted(run: Path, opened: Opened) -> None:
    scored = errors(run)
    assert len(scored) > 1
    found = opened(run, "--records", 1)
    assert [case.key for case in found] == [max(scored, key=lambda key: scored[key])] == predictions()
    assert names(found[0]) == ["scan", "annotated", "prediction"]
    assert found[0].text == f"error {max(scored.values()):.3g}"
    image, mask = (np.load(run.parent / "data" / f"{found[0].key}_{what}.npy") for what in ("image", "mask"))
    assert np.array_equal(found[0].layers[0].values, image)
    assert np.array_equal(found[0].layers[1].values, mask)
    assert np.mean(found[0].layers[2].values != mask) == pytest.approx(max(scored.values()))


def test_other_records_are_predicted_and_scored_first(run: Path, opened: Opened) -> None:
    found = opened(run, "--split", "all", "--records", 4)
    assert len(predictions()) == 12
    wrong = [float(np.mean(case.layers[1].values != case.layers[2].values)) for case in found]
    assert wrong == sorted(wrong, reverse=True)
    assert [case.text for case in found] == [f"error {value:.3g}" for value in wrong]
    best = set(predictions()) - {case.key for case in found}
    assert len(best) == 8
    again = {case.key: case for case in opened(run, "--data", run.parent / "data", "--records", 12)}
    assert all(np.mean(again[key].layers[1].values != again[key].layers[2].values) <= min(wrong) for key in best)


def test_files_are_predicted_or_opened_alone(run: Path, opened: Opened) -> None:
    image = run.parent / "data" / "a1_image.npy"
    (found,) = opened(run, "--inputs", image)
    assert (found.key, found.text, names(found)) == ("a1_image", "", ["scan", "prediction"])
    assert len(predictions()) == 1
    (found,) = opened(image)
    assert names(found) == ["scan"]
    every = opened(run.parent / "data", "--records", 5)
    assert [case.key for case in every] == ["a1", "a2", "b1", "b2", "c1"]
    assert {tuple(names(case)) for case in every} == {("scan", "annotated")}
    assert len(predictions()) == 1


@pytest.mark.parametrize(
    "words, said",
    [
        (["no/such"], "no/such: there is no such run, file or folder"),
        (["RUN", "--records", "0"], "--records 0: at least one"),
        (["RUN", "--inputs", "no/such.npy"], "no/such.npy: there is no such file or folder"),
        (["RUN", "--split", "tset"], "did you mean 'test'"),
        (["EMPTY"], "EMPTY"),
        ([], "name the run first"),
    ],
)
def test_what_cannot_be_opened_is_named(
    words: list[str], said: str, run: Path, opened: Opened, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "EMPTY").mkdir()
    places = {"RUN": str(run), "EMPTY": str(tmp_path / "EMPTY")}
    assert main(["toy", "view", *(places.get(word, word) for word in words)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("runner: ") == 1


def test_a_project_without_layers_is_named_before_anything_is_predicted(
    run: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import viewed_toy
    from runner_core import Pictures

    monkeypatch.setattr(viewed_toy.Viewed, "pictures", lambda self: Pictures())
    assert main(["toy", "view", str(run)]) == 2
    assert "project toy declares no layers (Pictures.layers)" in capsys.readouterr().err
    assert predictions() == []


def test_a_viewer_that_cannot_open_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(screenshot: Path | None = None) -> str:
        with pytest.raises(runner_core.BadInput) as caught:
            window.refuse_no_viewer(screenshot)
        return str(caught.value)

    monkeypatch.setattr(window, "find_spec", lambda name: None)
    assert "uv pip install napari pyqt6" in refused()
    monkeypatch.setattr(window, "find_spec", lambda name: object())
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "QT_QPA_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    if sys.platform == "linux":
        assert "xvfb-run -a" in refused()
        monkeypatch.setenv("DISPLAY", ":7")
        monkeypatch.setenv("QT_QPA_PLATFORM", "offscreen")
        assert "unset QT_QPA_PLATFORM" in refused()
        monkeypatch.delenv("QT_QPA_PLATFORM")
    window.refuse_no_viewer(tmp_path / "a.png")
    assert "a.jpg: name a file .png" in refused(tmp_path / "a.jpg")
    assert "name a file .png in a folder that exists" in refused(tmp_path / "no" / "a.png")


def test_the_command_line_says_what_to_install(run: Path, toy: dict[str, str]) -> None:
    words = [sys.executable, "-c", "import sys; sys.modules['napari'] = None; from runner_core import main; "
             "sys.exit(main(['toy', 'view', *sys.argv[1:]]))", str(run)]  # fmt: skip
    done = subprocess.run(words, env=toy, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "uv pip install napari pyqt6" in done.stderr


def test_the_first_slice_is_the_one_to_look_at() -> None:
    def layer(values: Any, labelled: bool = True, visible: bool = True) -> Layer:
        named = (Label(1, "a", (1, 2, 3)),) if labelled else ()
        return Layer("a", np.asarray(values), (1.0, 1.0, 1.0), labels=named, visible=visible)

    scan = layer(np.zeros((5, 4, 4)), labelled=False)
    drawn = np.zeros((5, 4, 4), np.uint8)
    drawn[2, :3] = drawn[3, :2] = 1
    found = drawn.copy()
    found[3] = 0
    assert best_slice([scan, layer(drawn), layer(found)]) == 3  # where they differ
    assert best_slice([scan, layer(drawn), layer(drawn)]) == 2  # they are equal: where there is most
    assert best_slice([scan, layer(found)]) == 2
    ignored = np.where(drawn, 1, 2)  # not annotated elsewhere: no difference
    assert best_slice([scan, layer(ignored), layer(found)]) == 3
    assert best_slice([scan]) == 2  # the middle
    dose = np.zeros((5, 4, 4), np.float32)
    dose[4, 0, 0] = np.nan
    dose[1, 0, 0] = 70
    assert best_slice([scan, layer(dose, labelled=False), layer(drawn, visible=False)]) == 1
