"""Calibration: counts against plain sums, networks of known calibration, and what `evaluate` makes of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runner_core import Combining, Record
from runner_core.output.report import score_blocks
from runner_core.output.report.page import lines
from runner_core.training.calibration import Calibration, tables


def calibrated(kind: Any, pairs: Any, spread: Any = None, networks: int = 1, **more: Any) -> dict[str, Any]:
    """The calibration of records: (soft output, truth) each."""
    combining = Combining(kind, lambda c, infer: {}, lambda c, soft: 0, labels=lambda r, c: c.truth, **more)
    found = Calibration.of(combining)
    assert found is not None
    for number, (soft, truth) in enumerate(pairs):
        cropped: Any = SimpleNamespace(truth=truth)
        found.add(f"r{number}", found.count(Record(f"r{number}", "g", {}), cropped, soft, spread, networks))
    return json.loads(json.dumps(found.json()))


def ece(probabilities: Any, own: Any) -> float:
    """Guo et al. 2017, equation 3, for the probabilities of one class: a plain loop."""
    bins = [
        [(p, y) for p, y in zip(probabilities, own, strict=True) if min(int(15 * p + 1e-5), 14) == n] for n in range(15)
    ]
    gaps = [abs(math.fsum(p for p, _ in found) - sum(y for _, y in found)) for found in bins]
    return math.fsum(gaps) / len(probabilities)


@given(st.integers(1, 4), st.booleans(), st.integers(0, 2**32 - 1))
def test_errors_are_those_of_a_plain_loop(classes: int, packed: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pairs = []
    for side in (5, 3):  # sizes differ; a transposed array is no copy of itself
        soft = rng.beta(0.2, 0.5, (classes, 4, side, 2)).astype(np.float32).transpose(0, 2, 1, 3)
        soft = np.round(soft * 255).astype(np.uint8) if packed else soft
        pairs.append((soft, rng.integers(-1, max(2, classes), soft.shape[1:])))
    names = tuple("abcd"[:classes])
    found = calibrated("probabilities", pairs, classes=names)
    every = []
    for number, curve in enumerate(found["curves"]):
        wanted = number if classes > 1 else 1
        p = np.concatenate([soft[number][truth >= 0] for soft, truth in pairs]) / (255.0 if packed else 1.0)
        own = np.concatenate([truth[truth >= 0] == wanted for _, truth in pairs])
        unsure = (p >= 0.01) & (p <= 0.99)
        every.append(ece(p, own))
        assert curve["error"] == pytest.approx(every[-1], abs=1e-6)
        assert (curve["voxels"], curve["unsure_voxels"]) == (len(p), int(unsure.sum()))
        assert curve["unsure_error"] == pytest.approx(ece(p[unsure], own[unsure]), abs=1e-6)
        assert curve["true"] == pytest.approx(own.mean())
        assert sum(row[2] for row in curve["bins"]) == len(p)
    assert found["error"] == pytest.approx(np.mean(every), abs=1e-6)
    alone = [calibrated("probabilities", [pair], classes=names)["error"] for pair in pairs]
    assert list(found["records"].values()) == pytest.approx(alone)
    assert found["mean_over_records"] == pytest.approx(np.mean(alone))


def test_a_calibrated_network_has_no_error_and_one_that_is_too_sure_has_one() -> None:
    rng = np.random.default_rng(0)
    p = rng.random((1, 400, 500)).astype(np.float32)
    truth = (rng.random(p.shape[1:]) < p[0]).astype(np.int8)
    assert calibrated("probabilities", [(p, truth)], classes=("a",))["error"] < 0.005
    sure = (p > 0.5).astype(np.float32)  # its probabilities are 0 and 1: it is wrong in a quarter of the voxels
    found = calibrated("probabilities", [(sure, truth)], classes=("a",))
    assert found["error"] == pytest.approx(0.25, abs=0.005)
    assert found["curves"][0]["unsure_voxels"] == 0
    # background far away hides the error, but not among the voxels in doubt
    doubt = np.where(p < 0.1, p, 0.2).astype(np.float32)
    wide = np.concatenate([doubt, np.zeros((1, 8000, 500), np.float32)], axis=1)
    there = np.concatenate([truth, np.zeros((8000, 500), np.int8)])
    (curve,) = calibrated("probabilities", [(wide, there)], classes=("a",))["curves"]
    assert curve["error"] < 0.03 < 0.2 < curve["unsure_error"]


@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-6, 1.0, 3e4]), st.sampled_from([0.0, 1e3, -1e3]))
def test_values_are_counted_whatever_their_range(seed: int, scale: float, offset: float) -> None:
    rng = np.random.default_rng(seed)
    pairs = []
    for share in (0.01, 1.0, 0.3):  # the range grows and then stays
        soft = (offset + scale * share * rng.normal(size=(6, 50))).astype(np.float32)
        truth = (soft + scale * rng.normal(size=soft.shape)).astype(np.float32)
        truth[rng.random(soft.shape) < 0.2] = np.nan
        pairs.append((soft, truth))
    found = calibrated(
        "values", pairs, unit="Gy", regions=lambda r, c: [("first rows", np.arange(300).reshape(6, 50) < 100)]
    )
    for name, rows in (("all", 6), ("first rows", 2)):
        soft, truth = (np.concatenate([pair[i][:rows].ravel() for pair in pairs]).astype(np.float64) for i in (0, 1))
        soft, truth = soft[np.isfinite(truth)], truth[np.isfinite(truth)]
        (curve,) = [curve for curve in found["curves"] if curve["name"] == name]
        assert curve["voxels"] == len(soft)
        assert curve["absolute_error"] == pytest.approx(np.abs(soft - truth).mean(), rel=1e-3)
        gaps = 0.0
        for low, high, voxels, predicted, true in curve["bins"]:
            inside = (soft >= low) & (soft < high)
            assert voxels == inside.sum()
            assert (predicted, true) == pytest.approx((soft[inside].mean(), truth[inside].mean()))
            gaps += abs(np.sum(soft[inside] - truth[inside]))
        assert curve["error"] == pytest.approx(gaps / len(soft), rel=1e-3, abs=1e-9 * abs(offset))
        assert 1 <= len(curve["bins"]) <= 21
    other_order = calibrated("values", pairs[::-1], unit="Gy")
    assert other_order["curves"][0]["error"] == pytest.approx(found["curves"][0]["error"], rel=1e-3)


def test_disagreement_covers_the_error_if_the_truth_is_like_one_network_more() -> None:
    networks = np.random.default_rng(0).normal(50, 2, (4, 300, 300)).astype(np.float32)
    truth, members = networks[0], networks[1:]
    pair = (members.mean(0), truth)
    found = calibrated("values", [pair], members.std(0, ddof=1), 3, unit="Gy")
    _, disagreement = tables(found)
    assert disagreement.rows[0][3] == pytest.approx(1, abs=0.02)
    assert "Gy" in disagreement.title
    (alone,) = tables(calibrated("values", [pair], unit="Gy"))
    assert alone.name == "calibration"


def test_what_has_no_truth_or_is_not_finite_is_not_counted() -> None:
    soft = np.array([[0.5, np.nan, 0.5]], np.float32)
    assert calibrated("probabilities", [(soft, None)], classes=("a",)) == {}
    assert calibrated("probabilities", [(soft, np.full(3, -1))], classes=("a",)) == {}
    (curve,) = calibrated("probabilities", [(soft, np.array([1, 1, 0]))], classes=("a",))["curves"]
    assert (curve["voxels"], curve["true"], curve["error"]) == (2, 0.5, 0.0)
    assert Calibration.of(None) is None
    assert Calibration.of(Combining("embeddings", lambda c, i: {}, lambda c, s: 0)) is None


def test_a_class_or_a_value_of_a_whole_record_is_counted_as_one_voxel() -> None:
    soft = np.array([0.7, 0.3], np.float32)
    found = calibrated("probabilities", [(soft, np.array(0)), (soft, np.array(1))], classes=("cat", "dog"))
    assert [curve["voxels"] for curve in found["curves"]] == [2, 2]
    assert found["error"] == pytest.approx(0.2)
    assert calibrated("values", [(np.float32(3), np.array(2.0))])["error"] == pytest.approx(1)


@pytest.mark.torch
def test_evaluate_says_whether_probabilities_can_be_believed(
    trained: Path, runner: Callable[..., Any], tmp_path: Path
) -> None:
    ended = runner("toy", "evaluate", trained, "--out", "out", "--json")
    assert ended.returncode == 0, ended.stderr
    scores = json.loads(ended.stdout)["scores"]
    found = scores["calibration"]
    assert f"calibration of {len(scores['records'])} records: ECE" in ended.stderr
    assert runner("toy", "phantom", "data").returncode == 0
    images = [f"data/{row['record']}.npy" for row in scores["records"]]
    assert runner("toy", "predict", trained, *images, "--out", "maps", "--scaled").returncode == 0
    stems = [Path(image).stem for image in images]
    p = np.concatenate([np.load(tmp_path / "maps" / f"{stem}_probability.npy").ravel() for stem in stems])
    own = np.concatenate([np.load(tmp_path / "data" / f"{stem}_mask.npy").ravel() > 0 for stem in stems])
    assert found["curves"][0]["voxels"] == len(p)
    assert found["error"] == pytest.approx(ece(p.tolist(), own.tolist()), abs=1e-5)
    # the end of a training counts the same
    kept = json.loads((trained / "scores.json").read_text("utf-8"))["calibration"]
    assert kept["error"] == pytest.approx(found["error"], rel=1e-5)
    page = (trained / "report.html").read_text("utf-8")
    assert 'data-across="probability"' in page
    assert any("ECE" in line for line in lines(score_blocks(tmp_path / "out")))
