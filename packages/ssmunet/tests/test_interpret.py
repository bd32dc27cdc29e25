"""`interpret` and `select-bands`: what they find where the answer is known, and what they refuse."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runner_core
from runner_core.testing.forked import Forked
from runner_ssmunet import selection
from runner_ssmunet.interpret import Audit, Window, drops, windows

AXIS = np.linspace(900.0, 1800.0, 61)
TELLING = 1215.0
"""The band in which alone the two classes differ, in the middle of a window of 90 cm⁻¹."""
SMALL = [
    "--data.patch", "16", "--model.filters", "4", "--model.layers", "0", "--model.embed", "8", "--model.base", "4",
    "--validate.every", "10", "--checkpoint.every", "40", "--train.batch-size", "4",
    "--train.learning-rate", "0.03", "--model.width", "60", "--train.device", "cpu", "--train.workers", "0",
    "--data.validation-fraction", "0.34",
]  # fmt: skip


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """runner(WORD…, code=0) → the finished command line, in a process of its own."""
    place = tmp_path_factory.mktemp("commands")
    environment = {**os.environ, "XDG_CACHE_HOME": str(place / "cache"), "COLUMNS": "200"}
    with Forked(environment, ["torch", "runner_core.cli", "runner_ssmunet.network"]) as forked:

        def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
            done = forked.run(words, place, environment, 300)
            assert done.returncode == code, done.stdout + done.stderr
            return done

        yield run


def write_cores(folder: Path) -> None:
    """Cores of six patients: halves of two classes, alike but for the height of one band."""
    folder.mkdir()
    bands = [np.exp(-(((AXIS - at) / 20) ** 2)) for at in (1655, 1545, TELLING)]
    for patient in range(6):
        rng = np.random.default_rng(patient)
        labels = np.repeat(np.where(np.arange(16) < 8, 1, 2)[None], 16, axis=0)
        heights = [1.0 + 0 * labels, 0.6 + 0 * labels, np.where(labels == 1, 0.1, 0.4)]
        spectra = sum(h[..., None] * b for h, b in zip(heights, bands, strict=True)) + 0.05
        spectra = spectra * rng.uniform(0.8, 1.2, (16, 16, 1)) + rng.normal(0, 0.01, (16, 16, len(AXIS)))
        meta = json.dumps({"core_id": f"c{patient}", "patient_id": f"P{patient}", "slide_id": "S"})
        np.savez(
            folder / f"core_{patient}.npz", X=spectra.astype(np.float32), y=labels.astype(np.uint8), wn=AXIS,
            tissue_mask=np.ones((16, 16), bool), delta_cm1=15.0, meta=meta,
        )  # fmt: skip


@pytest.fixture(scope="module")
def cores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interpret")
    write_cores(folder / "cores")
    return folder / "cores"


@pytest.fixture(scope="module")
def begun(cores: Path, runner: Run) -> Path:
    """A run of one epoch, for what does not depend on how much a network has learned."""
    run = cores.parent / "begun"
    runner("ssmunet", "train", "--data", str(cores), "--run-dir", str(run), *SMALL, "--train.epochs", "1")
    return run


@pytest.fixture(scope="module")
def bands(begun: Path, runner: Run) -> Path:
    """Four wavenumbers that select-bands chose for a run."""
    out = begun.parent / "bands"
    runner("ssmunet", "select-bands", str(begun), "--k", "4", "--width", "30", "--by", "greedy", "--out", str(out))
    return out


def test_undisturbed_a_network_has_the_scores_of_its_training(begun: Path, runner: Run, tmp_path: Path) -> None:
    runner("ssmunet", "interpret", str(begun), "--width", "450", "--out", str(tmp_path / "found"))
    found = json.loads((tmp_path / "found" / "interpretation.json").read_text())
    assert found["miou"] == pytest.approx(runner_core.open(begun).scores["miou"], abs=1e-6)
    page = (tmp_path / "found" / "report.html").read_text()
    assert page.count("data:image/png;base64") == 2
    assert page.count("<svg") >= 2


@pytest.mark.slow
def test_the_audits_name_the_band_that_tells_the_classes_apart(cores: Path, runner: Run, tmp_path: Path) -> None:
    trained = tmp_path / "run"
    runner("ssmunet", "train", "--data", str(cores), "--run-dir", str(trained), *SMALL, "--train.epochs", "40")
    done = runner("ssmunet", "interpret", str(trained), "--width", "90", "--out", str(tmp_path / "found"))
    found = json.loads((tmp_path / "found" / "interpretation.json").read_text())
    scores = runner_core.open(trained).scores
    assert found["miou"] == pytest.approx(scores["miou"], abs=1e-6)  # undisturbed, it is what the training scored
    assert found["miou"] > 0.9
    for audit in ("occlusion", "permutation"):
        by_drop = sorted(found["windows"], key=lambda window: -window[audit]["miou"]["drop"])
        assert by_drop[0]["low"] <= TELLING < by_drop[0]["high"]
        assert by_drop[0][audit]["miou"]["drop"] > 0.1 > by_drop[1][audit]["miou"]["drop"]
    assert "amide III" in done.stdout
    rows = list(csv.DictReader((tmp_path / "found" / "spectra.csv").open()))
    differences = [abs(float(row["class 1 difference"])) for row in rows]
    assert float(rows[int(np.argmax(differences))]["wavenumber"]) == pytest.approx(TELLING, abs=15)


@pytest.mark.parametrize("by", [selection.lasso, selection.greedy])
def test_both_ways_find_the_wavenumbers_that_tell_and_keep_their_distance(by: Any) -> None:
    """Classes differ at three wavenumbers, most at the first; all else is noise that patients share."""
    rng, axis = np.random.default_rng(0), np.arange(1000.0, 1400, 10)
    telling = {20: 1.0, 5: 0.7, 33: 0.5}
    classes = np.tile(np.arange(4), 300)
    spectra = 2 + rng.normal(0, 0.1, (1200, len(axis)))
    for place, size in telling.items():
        spectra[:, place] += size * rng.permutation(4)[classes] / 3
    pixels = selection.Pixels(spectra, classes, np.repeat(["a", "b", "c", "d"], 300))
    found = [place for place, _ in by(pixels, axis, 5, 20.0)]
    assert {*telling} <= {*found}
    assert min(abs(axis[a] - axis[b]) for n, a in enumerate(found) for b in found[:n]) >= 20
    with pytest.raises(runner_core.BadInput, match="lower --k or --width"):
        list(by(pixels, axis, 30, 20.0))


def test_the_penalised_fit_is_at_its_minimum() -> None:
    """The conditions of the group lasso: where coefficients are 0 the slope is below the penalty, else equal to it."""
    rng = np.random.default_rng(1)
    classes = rng.integers(0, 3, 200)
    design = np.concatenate([rng.normal(size=(200, 6)) + classes[:, None] * [1, 0, 0, 0.5, 0, 0], np.ones((200, 1))], 1)
    truth, weights, penalty = np.eye(3)[classes], np.full(200, 1 / 200), 0.05
    steepest = np.linalg.norm(design, 2) ** 2 / 400
    found = np.zeros((7, 3))
    for _ in range(20):
        found = selection._penalised(design, truth, weights, penalty, steepest, found)
    logits = design @ found
    guess = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    slope = design.T @ (weights[:, None] * (guess - truth))
    sizes = np.linalg.norm(found[:-1], axis=1)
    assert 0 < np.count_nonzero(sizes) < 6
    np.testing.assert_allclose(slope[-1], 0, atol=1e-6)
    for own, size, row in zip(slope[:-1], sizes, found[:-1], strict=True):
        if size:
            np.testing.assert_allclose(own, -penalty * row / size, atol=1e-5)
        else:
            assert np.linalg.norm(own) <= penalty + 1e-6


def test_chosen_wavenumbers_are_those_that_tell(bands: Path) -> None:
    rows = list(csv.DictReader((bands / "bands.csv").open()))
    assert [row["rank"] for row in rows] == ["1", "2", "3", "4"]
    places = [float(row["wavenumber"]) for row in rows]
    assert places[0] == pytest.approx(1655, abs=15)
    assert places[1] == pytest.approx(TELLING, abs=30)
    assert min(abs(a - b) for n, a in enumerate(places) for b in places[:n]) >= 30
    curve = list(csv.DictReader((bands / "curve.csv").open()))
    assert float(curve[0]["miou"]) > 0.8 > float(curve[0]["miou_evenly_spaced"])


@pytest.mark.slow
def test_chosen_wavenumbers_train_a_network_of_their_own(cores: Path, bands: Path, runner: Run, tmp_path: Path) -> None:
    run = tmp_path / "few"
    words = ["--data", str(cores), "--config", str(bands / "settings.yaml"), "--run-dir", str(run)]
    runner("ssmunet", "train", *words, *SMALL, "--train.epochs", "40")
    assert runner_core.open(run).scores["miou"] > 0.8
    network = runner_core.open(run).network()
    rows = list(csv.DictReader((bands / "bands.csv").open()))
    assert network.project.statistics["wavenumbers"].tolist() == sorted(float(row["wavenumber"]) for row in rows)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["interpret", "RUN", "--width", "0"], "--width 0"),
        (["interpret", "RUN", "--split", "tets"], "there is no such split; did you mean 'test'"),
        (["select-bands", "RUN", "--k", "1"], "--k 1: choose two"),
        (["select-bands", "RUN", "--k", "40", "--width", "60"], "of width 60 could be chosen: lower --k or --width"),
        (["interpret", "nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_done_is_refused(
    begun: Path, runner: Run, tmp_path: Path, words: list[str], message: str
) -> None:
    out = tmp_path / "out"
    line = [str(begun) if word == "RUN" else word for word in words]
    done = runner("ssmunet", *line, "--out", str(out), code=2)
    assert message in done.stderr
    assert not out.exists()


def test_only_so_many_wavenumbers_are_a_width_apart() -> None:
    assert selection.fitting(np.array([900.0, 905, 910, 912, 930]), 10) == 3


def test_windows_lie_side_by_side_and_hold_every_wavenumber() -> None:
    axis = np.concatenate([np.arange(900.0, 1350, 7), np.arange(1490.0, 1800, 7)])
    found = windows(axis, 30)
    assert np.concatenate([np.arange(len(axis))[own.points] for own in found]).tolist() == list(range(len(axis)))
    for own in found:
        assert (own.low <= axis[own.points]).all()
        assert (axis[own.points] < own.high).all()


def test_intervals_are_of_groups() -> None:
    """Two cores of each patient, equal: the interval is that of the patients' sums, whose resamples are few."""
    before = [np.array([[8, 2, 0], [0, 10, 0]])] * 4
    after = [np.array([[8, 2, 0], [0, 10, 0]])] * 2 + [np.array([[2, 8, 0], [0, 10, 0]])] * 2
    audit = Audit(["a", "b"], [Window(0, 1, slice(0, 1))], np.arange(2.0), ["P1", "P1", "P2", "P2"])
    audit.cells = {("", 0): before, ("occlusion", 0): after}
    (value, low, high), *_ = drops(audit, "occlusion", 0, seed=0)
    # of two patients drawn with replacement: both the first (no drop), one of each, or both the second
    assert low == pytest.approx(0)
    assert 0 < value < high
    audit.groups = ["P1"] * 4
    assert np.isnan(drops(audit, "occlusion", 0, seed=0)[:, 1:]).all()


def test_the_posterior_is_that_of_a_gaussian_discriminant() -> None:
    """Two classes one deviation apart on each side of 0, equal variances: p = 1 / (1 + exp(−2x)) in closed form."""
    rng = np.random.default_rng(0)
    classes = np.repeat([0, 1], 20_000)
    values = rng.normal(0, 1, (40_000, 1)) + np.where(classes == 1, 1.0, -1.0)[:, None]
    folds = np.tile([0, 1], 20_000)
    signed = values[:, 0] * np.where(classes == 1, 1, -1)
    assert selection.posterior(values, classes, folds) == pytest.approx(
        float(np.mean(-np.log1p(np.exp(-2 * signed)))), abs=0.005
    )


def test_a_band_is_the_mean_of_its_width_and_ends_at_the_gap() -> None:
    axis = np.array([1000.0, 1005, 1010, 1015, 1020, 1025, 1200, 1205])
    average = selection.averaging(axis, 12)
    values: Any = np.arange(8.0) @ average
    assert values.tolist() == [0.5, 1, 2, 3, 4, 4.5, 6.5, 6.5]
