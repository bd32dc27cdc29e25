"""Wrong labels: confident learning and regions against plain oracles, seeded faults found, and the command."""

from __future__ import annotations

import base64
import csv
import json
import re
import shutil
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from runner_core import BadInput, Combining, DataSet, Decoded, Pictures, Record, RunConfig
from runner_core.cli import main
from runner_core.tools.labels.confident import Classes, Values
from runner_core.tools.labels.embedded import Embedded
from runner_core.tools.labels.evidence import compared, signs, text, total
from runner_core.tools.labels.judge import Judging, Usual, measured
from runner_core.tools.labels.regions import components, regions
from runner_core.tools.labels.shown import pictures
from runner_core.training.ensembles import Ensemble, Member


@given(st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_confident_learning_is_that_of_a_plain_loop(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes = max(2, count)
    records = []
    for _ in range(3):
        weights = rng.random((classes, 4, 5)) ** 3
        records.append(((weights / weights.sum(0)).astype(np.float32), rng.integers(-1, classes, (4, 5))))
    usual = Classes(tuple("abcd"[:count]))
    for soft, labels in records:
        usual.observe(soft[1:] if count == 1 else soft, labels, None)
    limits = []
    for k in range(classes):
        own = [p for soft, labels in records for p in soft[k][labels == k].tolist()]
        limits.append(np.mean(own) if own else np.inf)
    np.testing.assert_allclose(usual.thresholds, limits, rtol=1e-5)
    for soft, labels in records:
        margins, kind = usual.wrong(soft[1:] if count == 1 else soft, labels, None)
        for place in np.ndindex(labels.shape):
            p, label = soft[(slice(None), *place)], int(labels[place])
            others = [k for k in range(classes) if p[k] >= limits[k]]
            said = max(others, key=lambda k: p[k], default=label)
            wrong = label >= 0 and said != label and p[said] > p[label] and p[label] < limits[label]
            assert margins[place] == pytest.approx(p[said] - p[label] if wrong else 0, abs=1e-5)
            if wrong:
                assert usual.kinds()[int(kind[place])] == (usual.names[label], usual.names[said])


@settings(max_examples=50)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=3), st.integers(0, 2**32 - 1))
def test_components_are_those_of_a_flood_fill(shape: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    inside, kind = rng.random(shape) < 0.6, rng.integers(0, 2, shape)
    places, numbers = components(inside, kind)
    assert places.tolist() == np.flatnonzero(inside).tolist()
    number = dict(zip(map(tuple, np.argwhere(inside).tolist()), numbers.tolist(), strict=True))
    left, filled = set(number), 0
    while left:
        todo, own = [left.pop()], set[tuple[int, ...]]()
        while todo:
            here = todo.pop()
            own.add(here)
            near = [
                tuple(np.add(here, step).tolist())
                for step in (*np.eye(len(shape), dtype=int), *-np.eye(len(shape), dtype=int))
            ]
            found = [n for n in near if n in left and kind[n] == kind[here]]
            left -= set(found)
            todo += found
        assert len({number[place] for place in own}) == 1
        filled += 1
    assert len(set(numbers.tolist())) == filled


def test_a_region_has_its_box_and_a_thick_one_counts_more_than_a_thin_one() -> None:
    margins = np.zeros((20, 20), np.float32)
    margins[2:6, 3:7] = 0.5
    margins[10, 0:16] = 0.5
    thick, thin = regions(margins, np.ones(margins.shape, int), {1: ("a", "b")})
    assert (thick.start, thick.stop, thick.size, thick.labelled, thick.said) == ((2, 3), (6, 7), 16, "a", "b")
    assert (thin.start, thin.stop, thin.size) == ((10, 0), (11, 16), 16)
    assert thick.score == pytest.approx(0.5 * (4 + 12 * 0.1))
    assert thin.score == pytest.approx(0.5 * 16 * 0.1)


def ball(rng: np.random.Generator) -> tuple[Any, Any]:
    """What a network that is not always right says of a ball, and its label."""
    size = 32
    grid = np.mgrid[:size, :size, :size] - (size / 2 + rng.uniform(-3, 3, 3)).reshape(3, 1, 1, 1)
    stretch = rng.uniform(0.8, 1.2, 3).reshape(3, 1, 1, 1)
    outside = np.sqrt(((grid * stretch) ** 2).sum(0)) - rng.uniform(6, 9)
    noise = 0.3 * np.kron(rng.normal(size=(4, 4, 4)), np.ones((8, 8, 8)))
    said = 1 / (1 + np.exp(2 * (outside + noise + rng.normal(0, 0.3))))
    return said[None].astype(np.float32), (outside < 0).astype(np.int16)


def eroded(label: Any) -> Any:
    inside = label > 0
    for _ in range(2):
        inside = np.logical_and.reduce([inside, *(np.roll(inside, s, a) for s in (1, -1) for a in range(3))])
    return inside.astype(np.int16)


def without_a_part(label: Any) -> Any:
    rows = np.flatnonzero(label.any((1, 2)))
    found = label.copy()
    found[rows[int(0.8 * len(rows))] :] = 0
    return found


FAULTS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "another patient's mask": (lambda label, other: other, "label"),
    "shifted by 3 voxels": (lambda label, other: np.roll(label, 3, 1), "shifted to higher places of axis 1"),
    "eroded": (lambda label, other: eroded(label), "smaller"),
    "missing part": (lambda label, other: without_a_part(label), "axis 0"),
    "left and right exchanged": (lambda label, other: label[::-1], "label"),
    "class ids permuted": (lambda label, other: 1 - label, "label"),
}


@pytest.fixture(scope="module")
def balls() -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    return [ball(rng) for _ in range(20)]


def ranked(usual: Usual, records: list[tuple[Any, Any]]) -> tuple[list[float], list[str]]:
    for soft, labels in records:
        usual.observe(soft, labels, None)
    of = signs(records[0][1].ndim, isinstance(usual, Values))
    rows = [measured(usual, soft, labels, None)[0] for soft, labels in records]
    far = compared(rows, of)
    why = [text(of, own, row - np.median(rows, axis=0)) for own, row in zip(far, rows, strict=True)]
    return [total(own) for own in far], why


@pytest.mark.parametrize("fault", FAULTS)
def test_a_seeded_fault_is_the_worst_record(fault: str, balls: list[tuple[Any, Any]]) -> None:
    change, wanted = FAULTS[fault]
    records = list(balls)
    records[3] = (balls[3][0], change(balls[3][1], balls[11][1]))
    scores, why = ranked(Classes(("ball",)), records)
    assert int(np.argmax(scores)) == 3
    assert wanted in why[3]
    sound, _ = ranked(Classes(("ball",)), balls)
    assert scores[3] > 1.3 * max(sound)


DOSES: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "another patient's": (lambda true, other: other, ""),
    "shifted by 3 voxels": (lambda true, other: np.roll(true, 3, 0), "shifted to higher places of axis 0"),
    "lower by a tenth": (lambda true, other: 0.9 * true, "highest values are lower"),
    "cut off": (lambda true, other: np.where(np.arange(32)[:, None, None] > 20, 0 * true, true), "label"),
}


@pytest.mark.parametrize("fault", DOSES)
def test_a_wrong_dose_is_the_worst_record(fault: str, balls: list[tuple[Any, Any]]) -> None:
    """Networks are a tenth too high or too low; the highest dose is the one that was prescribed."""
    change, wanted = DOSES[fault]
    rng = np.random.default_rng(1)
    doses = []
    for soft, _ in balls:
        dose = 60 * soft[0]
        true = dose + rng.normal(0, 1, dose.shape) + rng.normal(0, 0.5)
        dose = dose * rng.uniform(0.9, 1.1)
        true[:, :, :4] = np.nan  # nothing is known there
        doses.append((dose, true.astype(np.float32)))
    true = change(doses[3][1], doses[11][1])
    records = [*doses[:3], (doses[3][0], true), *doses[4:]]
    usual = Values("Gy")
    scores, why = ranked(usual, records)
    assert int(np.argmax(scores)) == 3
    assert wanted in why[3]
    if fault == "lower by a tenth":  # voxel by voxel that is within what networks get wrong
        return
    margins, kind = usual.wrong(doses[3][0], true, None)
    worst = regions(margins, kind, usual.kinds())[0]
    assert worst.size > 50
    assert "Gy" in worst.labelled
    assert not margins[:, :, :4].any()


def test_a_record_whose_neighbours_have_another_label_is_the_worst() -> None:
    rng = np.random.default_rng(0)
    centres, turn = rng.normal(size=(4, 16)), np.linalg.qr(rng.normal(size=(16, 16)))[0]
    labels = {f"{plate}{n}": n % 4 for plate in "abc" for n in range(12)}
    vectors = {key: centres[label] + 0.3 * rng.normal(size=16) for key, label in labels.items()}
    given = {key: f"drug {label}" for key, label in labels.items()} | {"a5": "drug 2", "b0": "alone"}
    records = [Record(key, key[0], {}) for key in labels]

    def refused(arrays: Any) -> Any:
        raise BadInput("the field is too small")

    def member(plate: str, axes: Any) -> Member:
        """A network of its own space, which was trained on two plates; that of plate b refuses one record."""
        combining = Combining(
            "embeddings",
            lambda cropped, infer: (
                refused(cropped)
                if (plate, cropped.record.key) == ("b", "b2")
                else {"windows": (vectors[cropped.record.key] @ axes)[None].astype(np.float32)}
            ),
            lambda cropped, soft: soft,
            labels=lambda record, cropped: np.array(given[record.key]) if record.key != "c1" else None,
        )
        project = SimpleNamespace(name="fake", combining=lambda: combining, config=RunConfig(), dataset=DataSet())
        pipeline: Any = SimpleNamespace(project=project, settings={})
        return Member(plate, pipeline, lambda arrays: arrays, lambda record: record.group not in (plate, "c"))

    ensemble = Ensemble([member("a", np.eye(16)), member("b", turn)])
    judging = Embedded(ensemble)
    for record in [*records, Record("d0", "d", {})]:
        given.setdefault(record.key, "drug 0")
        vectors.setdefault(record.key, centres[0])
        judging.observe(record)
    found = judging.conclude()
    worst = found.judged[0]
    assert (worst.record.key, worst.networks) == ("a5", 1)
    assert (worst.regions[0].labelled, worst.regions[0].said) == ("drug 2", "drug 1")
    assert worst.score > found.limit > found.judged[1].score
    assert {one.record.key: one.networks for one in found.judged}["c2"] == 2
    assert (found.alone, found.unlabelled, found.seen) == (["b0"], ["c1"], ["d0"])
    assert found.errors == ["the field is too small"]
    assert [len(own) for own in judging.vectors] == [len(judging.records)] * 2


def test_labels_are_judged_beyond_what_differs_anyway_and_shown_beside_the_nearest(tmp_path: Path) -> None:
    """What tells the labels apart is a hundredth of the vectors' variance, and fields of a well share a label."""
    rng = np.random.default_rng(0)
    fields = {f"{plate}{well}.{site}": well % 2 for plate in "abc" for well in range(8) for site in (1, 2)}
    vectors = {key: np.array([*(7 * rng.normal(size=6)), 3 * n + 0.5 * rng.normal()]) for key, n in fields.items()}
    given = {key: "other" if n ^ key.startswith("a5") else "control" for key, n in fields.items()}
    image = rng.integers(0, 255, (40, 60, 3)).astype(np.uint8)
    facets: dict[str, Any] = {
        "combining": lambda: Combining(
            "embeddings",
            lambda cropped, infer: {"windows": vectors[cropped.record.key].astype(np.float32)[None]},
            lambda cropped, soft: soft,
            labels=lambda record, cropped: np.array(given[record.key]),
            carrier=lambda record: record.key.partition(".")[0],
        ),
        "pictures": lambda: Pictures(image=lambda decoded: image),
        "decode": lambda record: Decoded({"field": image}, (1.0, 1.0), "field"),
    }
    pipeline: Any = SimpleNamespace(settings={})
    pipeline.project = SimpleNamespace(name="fake", config=RunConfig(), dataset=DataSet(), **facets)
    ensemble = Ensemble([Member("run", pipeline, lambda arrays: arrays)])
    judging = Embedded(ensemble)
    for key in fields:
        judging.observe(Record(key, key[0], {}))
    found = judging.conclude()
    first, second, third = found.judged[:3]
    assert {first.record.key, second.record.key} == {"a5.1", "a5.2"}
    assert first.score == second.score > found.limit > third.score
    assert [given[near.key] for near in first.nearest.values()] == ["control", "other"]
    assert "a" not in {near.group for near in first.nearest.values()}
    shown = [*pictures(found, ensemble, None, tmp_path)]
    assert len(shown) == 10
    assert [*tmp_path.iterdir()] == []
    text = str(shown[0])
    assert all(f"{near.key} (labelled {label})" in text for label, near in first.nearest.items())
    data = re.search('base64,([^"]+)', text)
    assert data is not None
    drawn = Image.open(BytesIO(base64.b64decode(data[1])))
    assert drawn.size[0] == 3 * 320 + 2 * 4


@pytest.mark.parametrize("shape", [(), (1,), (1, 6, 6)])
def test_whole_records_and_single_slices_are_judged(shape: tuple[int, ...], tmp_path: Path) -> None:
    """A class of a whole record has no axes, and a volume of one slice has no neighbours along an axis."""
    labels = {f"{n}": np.full(shape, n % 2) for n in range(12)}
    said = {key: np.stack([0.9 - 0.8 * label, 0.1 + 0.8 * label]) for key, label in labels.items()}
    labels["5"] = 1 - labels["5"]
    box = SimpleNamespace(start=(0,) * len(shape))
    combining = Combining(
        "probabilities",
        lambda cropped, infer: {"p": said[cropped.record.key].astype(np.float32)},
        lambda cropped, soft: soft,
        classes=("cat", "dog"),
        labels=lambda record, cropped: labels[record.key],
    )
    pipeline: Any = SimpleNamespace(settings={})
    pipeline.project = SimpleNamespace(name="fake", combining=lambda: combining, config=RunConfig(), dataset=DataSet())
    pipeline.decode, pipeline.cropped = lambda record: None, lambda record, decoded: (decoded, box)
    judging = Judging(Ensemble([Member("a", pipeline, lambda arrays: arrays)]), tmp_path)
    for key in labels:
        judging.observe(Record(key, key, {}))
    worst = judging.conclude().judged[0]
    assert worst.record.key == "5"
    assert (worst.regions[0].labelled, worst.regions[0].said) == ("cat", "dog")


@pytest.mark.parametrize(("kind", "dtype"), [("probabilities", np.uint8), ("probabilities", bool), ("values", float)])
def test_what_is_kept_of_a_record_is_what_was_judged(kind: Any, dtype: Any, tmp_path: Path) -> None:
    """Labels of any integer type, and values that float16 does not hold."""
    ensemble: Any = SimpleNamespace(combining=Combining(kind, print, print, classes=("a",)))
    soft = np.linspace(0, 1 if kind == "probabilities" else 1e5, 20, dtype=np.float32).reshape(1, 4, 5)
    labels = (soft[0] > soft.mean()).astype(dtype) if kind == "probabilities" else soft[0].astype(dtype) + 1
    judging = Judging(ensemble, tmp_path)
    judging._keep(Record("r", "g", {}), (0, 0), soft if kind == "probabilities" else soft[0], labels, None, 1)
    found, kept, _ = judging.stored[0].arrays()
    np.testing.assert_allclose(found, soft if kind == "probabilities" else soft[0], atol=1e-3)
    np.testing.assert_array_equal(kept, labels)
    assert judging.conclude().judged[0].record.key == "r"


@pytest.mark.torch
def test_check_ranks_labels_by_the_runs_that_never_saw_them(
    crossvalidated: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["toy", "phantom", "data"]) == 0
    shutil.copytree(crossvalidated, "cv")
    before = {file.name: file.read_bytes() for file in Path("data").iterdir()}
    capfd.readouterr()
    assert main(["toy", "check", "--data", "data", "--with", "cv", "--out", "found", "--json"]) == 0
    out, err = capfd.readouterr()
    found = json.loads(out)["wrong_labels"]
    assert [one["rank"] for one in found["records"]] == list(range(1, 11))
    assert {one["networks"] for one in found["records"]} == {1}
    scores = [one["score"] for one in found["records"]]
    assert scores == sorted(scores, reverse=True)
    assert json.loads(Path("found/check.json").read_text("utf-8"))["wrong_labels"] == found
    with Path("found/wrong-labels.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(dict.fromkeys(row["record"] for row in rows)) == [one["record"] for one in found["records"]]
    assert "no label was changed" in err
    assert "Labels that are most probably wrong" in err
    page = Path("found/report.html").read_text("utf-8")
    assert page.count("where they disagree") == 2 * 10
    assert len(list(Path("found/wrong-labels").glob("*.npy"))) == 10
    assert {file.name: file.read_bytes() for file in Path("data").iterdir()} == before
    assert not list(Path("found").glob("predictions-*"))


@pytest.mark.torch
def test_records_that_all_runs_saw_are_named_and_left_out(
    crossvalidated: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["toy", "phantom", "data"]) == 0
    shutil.copytree(crossvalidated, "cv")
    assert main(["toy", "check", "--data", "data", "--with", "cv/fold-1", "--out", "found"]) == 0
    out = capsys.readouterr().out
    found = json.loads(Path("found/check.json").read_text("utf-8"))["wrong_labels"]
    trained = (Path("cv/fold-1/split.yaml").read_text("utf-8")).partition("train:")[2].partition("\n")[2]
    assert found["seen_by_all_networks"]
    assert all(f"- {key}\n" in trained for key in found["seen_by_all_networks"])
    assert {*found["seen_by_all_networks"]} | {one["record"] for one in found["records"]} == {
        f"p{group}_{scan}" for group in range(5) for scan in "ab"
    }
    assert "all networks were trained on" in out
    assert "too few to know what is usual" in out
    assert main(["toy", "check", "--data", "data", "--with", "cv", "--preset", "demo"]) == 2
    assert "leave --preset out" in capsys.readouterr().err
