"""The arrays that a project watches, and pictures of them: read back, refused, drawn, shown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from runner_core import BadInput, Pictures
from runner_core.cli import main
from runner_core.engines import returned
from runner_core.output.sinks import JsonlSink
from runner_core.training.snapshots import read_watched


def project(found: Any) -> Any:
    return SimpleNamespace(name="toy", pictures=lambda: Pictures(watch=lambda model: found))


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "it returned NoneType"),
        ({"edges": [1.0, 2.0]}, "'edges' is list"),
        ({"edges": np.array(["low", "high"])}, "'edges' is <U4"),
        ({"edges": np.zeros((100, 100)), "one": np.zeros(1)}, "at most 10,000 of them.* it gave 10,001"),
    ],
)
def test_what_is_no_small_array_is_refused(found: Any, message: str) -> None:
    with pytest.raises(BadInput, match=f"project toy: `watch` must return small NumPy arrays of numbers.*{message}"):
        returned.watch(project(found), None)


def test_what_is_watched_stays_as_it_was() -> None:
    """A network on the CPU gives views of its own weights."""
    weights = np.ones(3, np.float32)
    found = returned.watch(project({"weights": weights}), None)
    weights += 1
    assert found["weights"].tolist() == [1, 1, 1]


def test_the_log_gives_back_what_was_watched(tmp_path: Path) -> None:
    """float32 to the last bit; what was not finite as NaN, for JSON has no infinity."""
    edges = np.array([[1654.3, np.nan], [-np.inf, 1e-30]], np.float32)
    sink = JsonlSink(tmp_path / "log.jsonl")
    sink.event("validation", 4, {"loss": 1.0})
    sink.event("watch", 4, {"epoch": 1, "arrays": {"edges": edges.tolist(), "count": np.int64(3).tolist()}})
    sink.close()
    lines = (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()
    ((step, arrays),) = read_watched(map(json.loads, lines))
    assert step == 4
    assert arrays["edges"].dtype == np.float64
    assert np.array_equal(arrays["edges"], np.where(np.isfinite(edges), edges, np.nan), equal_nan=True)
    assert arrays["count"].tolist() == 3


@pytest.mark.torch
def test_pictures_of_what_was_watched_are_in_the_run_and_its_report(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from toy_project import Toy, declare

    given = []

    def pictures(self: Any, watched: Sequence[tuple[int, Mapping[str, Any]]]) -> Mapping[str, Any]:
        given.append(watched)
        assert self.statistics == {"mean": 3.0}
        return {"bias/over training": np.full((2, 3, 3), 7, np.uint8)}

    words = ["toy", "train", "--run-dir", "run", "--train.steps-per-epoch", "2", "--health.mode", "off"]
    monkeypatch.setattr(Toy, "fit", lambda self, store, training: {"mean": 3.0})
    monkeypatch.setattr(Toy, "pictures", declare(Toy, "pictures", draw_watched=pictures))
    assert main([*words, "--train.epochs", "1"]) == 0
    assert not given, "nothing was watched"
    watching = declare(Toy, "pictures", watch=lambda self, model: {"bias": model[-1].bias.detach().numpy()})
    monkeypatch.setattr(Toy, "pictures", watching)
    words[3] = "other"
    assert main([*words, "--train.epochs", "3"]) == 0
    assert [step for step, _ in given[0]] == [0, 2, 4, 6]
    arrays = given[0][-1][1]
    assert arrays["bias"].shape == (1,)
    picture = here / "other" / "figures" / "bias_over_training.png"
    assert np.asarray(Image.open(picture)).tolist() == np.full((2, 3, 3), 7).tolist()
    assert "<figcaption>bias_over_training</figcaption>" in (here / "other" / "report.html").read_text("utf-8")
    events = [json.loads(line) for line in (here / "other" / "log.jsonl").read_text("utf-8").splitlines()]
    drawn = next(event for event in events if event["event"] == "figure")
    assert drawn == {"event": "figure", "step": 6, "name": "bias_over_training", "file": "bias_over_training.png"}
    assert "watch" not in (here / "other" / "train.log").read_text("utf-8")
    picture.unlink()
    assert main(["toy", "train", "--resume", "other"]) == 0
    assert picture.exists()
    assert [step for step, _ in given[1]] == [0, 2, 4, 6]
