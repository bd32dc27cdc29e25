"""The rule against unannotated pixels that are trained as a class: it stops such a run, and no other."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from runner_core import HealthEvent
from runner_ssmunet import runner_health
from runner_ssmunet.classes import Classes
from runner_ssmunet.config import default
from runner_ssmunet.health import OffTissue, UnannotatedLearned
from runner_ssmunet.statistics import label_shares
from scipy import ndimage

CLASSES = ("a", "b", "c")
SIDE = 40


def store(cores: Sequence[tuple[np.ndarray, np.ndarray]]) -> Any:
    """Return a store of (label, tissue) pairs."""
    labels, tissues = zip(*cores, strict=True)
    arrays = {"label": labels, "tissue": tissues}
    return SimpleNamespace(arrays={n: SimpleNamespace(read=each.__getitem__) for n, each in arrays.items()})


def disc() -> np.ndarray:
    y, x = np.mgrid[:SIDE, :SIDE] - SIDE / 2
    return (np.hypot(y, x) < SIDE * 0.45).astype(np.uint8)


def regions(rng: np.random.Generator) -> np.ndarray:
    """Labels 1 to 3 in coherent regions of the whole grid."""
    fields = [ndimage.gaussian_filter(rng.normal(size=(SIDE, SIDE)), 4) for _ in CLASSES]
    return 1 + np.argmax(fields, axis=0)


def sparse(rng: np.random.Generator, share: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """Few annotated pixels, all on tissue: 0 elsewhere."""
    known = (ndimage.gaussian_filter(rng.random((SIDE, SIDE)), 1) > 0.5) & (rng.random((SIDE, SIDE)) < 2 * share)
    return np.where(known & (disc() > 0), regions(rng), 0).astype(np.uint8), disc()


def observed(cores: Sequence[tuple[np.ndarray, np.ndarray]], ignore: int | None, *facts: dict[str, Any]) -> list[Any]:
    """Return the rule's findings at the first step, and at validations with `facts`."""
    shares = label_shares(store(cores), range(len(cores)))
    project: Any = SimpleNamespace(statistics={"label_shares": shares}, classes=Classes(CLASSES))
    rule = UnannotatedLearned(project, ignore)
    events = [HealthEvent("first_step", 1, 0, {}), *(HealthEvent("validation", 9, 1, f) for f in facts)]
    return [rule.observe(event) for event in events]


@pytest.mark.parametrize("share", [0.02, 0.1, 0.25])
def test_unannotated_pixels_as_a_class_are_an_error(share: float) -> None:
    cores = [sparse(np.random.default_rng(i), share) for i in range(6)]
    (finding,) = observed(cores, None)
    assert finding.level == "error"
    assert "label 0 (unannotated)" in finding.message
    assert "data.ignore to 0" in finding.message


@pytest.mark.parametrize("ignore", [0, 255])
def test_with_the_label_ignored_all_is_well(ignore: int) -> None:
    cores = [sparse(np.random.default_rng(i)) for i in range(6)]
    assert observed(cores, ignore, {"recall_a": 1.0, "recall_b": 0.0, "recall_c": 0.0}) == [None, None]


def test_a_real_background_class_is_no_error() -> None:
    """Every pixel is annotated, and label 0 is what is no tissue: legitimate with nothing ignored."""
    rng = np.random.default_rng(0)
    cores = [(np.where(disc() > 0, regions(rng), 0).astype(np.uint8), disc()) for _ in range(6)]
    assert observed(cores, None) == [None]


def test_a_tissue_that_is_most_of_every_core_is_no_error() -> None:
    cores = []
    for i in range(6):
        label = np.where(disc() > 0, 1, 0).astype(np.uint8)
        label[15:20, 15:20] = 2 + i % 2
        cores.append((label, disc()))
    assert observed(cores, 0, {"recall_a": 1.0, "recall_b": 0.0, "recall_c": 0.0}) == [None, None]


def test_cores_painted_whole_are_no_error() -> None:
    """A label for each core, on its glass too: no label is everywhere."""
    cores = [(np.full((SIDE, SIDE), 1 + (i > 6) + (i > 8), np.uint8), disc()) for i in range(10)]
    assert observed(cores, 0) == [None]


def test_unannotated_pixels_under_another_label_are_an_error() -> None:
    """The file calls them 3, and nobody said so."""
    cores = []
    for i in range(6):
        label, tissue = sparse(np.random.default_rng(i))
        cores.append((np.where(label == 0, 3, np.minimum(label, 2)).astype(np.uint8), tissue))
    (finding,) = observed(cores, 0)
    assert finding.level == "error"
    assert "label 3 (c)" in finding.message
    assert "label 0 in the files" in finding.message


def test_without_anything_off_the_tissue_label_zero_is_an_error_and_others_need_a_validation() -> None:
    everywhere = np.ones((SIDE, SIDE), np.uint8)
    cores = [(sparse(np.random.default_rng(i))[0], everywhere) for i in range(6)]
    assert observed(cores, None)[0].level == "error"
    renamed = [(np.where(label == 0, 3, np.minimum(label, 2)).astype(np.uint8), tissue) for label, tissue in cores]
    starved = {"recall_a": 0.05, "recall_b": float("nan"), "recall_c": 0.99}
    first, fine, swallowed = observed(renamed, 0, {"recall_a": 0.7, "recall_b": 0.8, "recall_c": 0.9}, starved)
    assert first is fine is None
    assert swallowed.level == "warning"
    assert "class c (label 3)" in swallowed.message


def test_without_statistics_nothing_is_said() -> None:
    project: Any = SimpleNamespace(statistics={})
    assert UnannotatedLearned(project, None).observe(HealthEvent("first_step", 1, 0, {})) is None


@pytest.mark.parametrize(("off", "level"), [(0, None), (5, "note"), (50, "warning")])
def test_annotation_off_the_tissue_is_told_with_its_number(off: int, level: str | None) -> None:
    project: Any = SimpleNamespace(statistics={"off_tissue": off, "class_counts": np.array([90, 100 - off + 10])})
    finding = OffTissue(project).observe(HealthEvent("first_step", 1, 0, {}))
    assert (finding and finding.level) == level
    if finding:
        assert finding.message.startswith(f"{off} annotated pixels ({off / 200:.1%}) of the training cores")


def train(folder: Path, *words: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """A run of the demo in a process of its own, and its summary."""
    run = folder / "-".join(["run", *words]).replace(".", "_")
    command = [str(Path(sys.executable).with_name("runner")), "ssmunet", "train", "--run-dir", str(run), "--cache.dir"]
    done = subprocess.run([*command, str(folder), *words], capture_output=True, text=True, check=False)
    return done, json.loads((run / "summary.json").read_text(encoding="utf-8"))


def test_the_phantom_with_nothing_ignored_stops_with_exit_code_3(tmp_path: Path) -> None:
    done, summary = train(tmp_path, "--data.ignore", "None", "--train.kernels", "off", "--log.every", "1")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "label 0 (unannotated) is trained as a class" in done.stdout + done.stderr
    assert "Set data.ignore to 0" in done.stdout + done.stderr
    assert summary["status"] == "unhealthy"


@pytest.mark.weekly
def test_only_warned_of_the_same_run_ends_far_below_what_the_demo_reaches(tmp_path: Path) -> None:
    """The demo as it is reaches 0.75 and more (tests/test_ssmunet.py)."""
    done, summary = train(tmp_path, "--data.ignore", "None", "--health.mode", "warn")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "unannotated pixels" in {finding["rule"] for finding in summary["health"]}
    assert summary["scores"]["miou"] < 0.4


def test_a_run_on_frozen_features_says_why_there_is_no_baseline() -> None:
    config, project = default(), SimpleNamespace(statistics={})
    first = HealthEvent("first_step", 1, 0, {})

    def found() -> list[Any]:
        rules = runner_health(project=project, config=config)  # type: ignore[arg-type]
        return [finding for rule in rules if (finding := rule.observe(first))]

    assert found() == []
    config.model.features = Path("network")
    (finding,) = found()
    assert finding.level == "note"
    assert "model.features" in finding.message
