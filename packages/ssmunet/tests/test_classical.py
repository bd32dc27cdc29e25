"""Classical methods on a cross-validation's folds: what they learn from, and how they are scored."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from runner_core.cli import main
from runner_ssmunet import scores
from runner_ssmunet.classical import METHODS, _Samples
from sklearn.metrics import f1_score

CLASSES = 3
TINY = [
    *(
        "--preset",
        "demo",
        "--epochs",
        "1",
        "--train.steps-per-epoch",
        "1",
        "--train.threads",
        "1",
        "--data.patch",
        "16",
    ),
    *(
        "--model.filters",
        "2",
        "--model.states",
        "2",
        "--model.embed",
        "2",
        "--model.base",
        "2",
        "--model.scan",
        "eager",
    ),
]


def bands(target: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Spectra of 40 points, each class with its own band, in noise."""
    axis = np.arange(40)
    peaks = np.exp(-(((axis - 8 - 12 * target[:, None]) / 3.0) ** 2))
    return np.asarray(peaks + 0.3 * rng.normal(size=peaks.shape), np.float32)


@pytest.mark.parametrize("method", [*METHODS])
def test_each_method_learns_and_gives_the_same_result_again(method: str) -> None:
    rng = np.random.default_rng(0)
    target, other = rng.integers(0, CLASSES, 400), rng.integers(0, CLASSES, 300)
    spectra, unseen = bands(target, rng), bands(other, rng)
    found = [METHODS[method].fit(spectra, target, CLASSES + 1, 3)(unseen) for _ in range(2)]
    assert found[0].shape == (300, CLASSES + 1)
    np.testing.assert_allclose(found[0].sum(1), 1, rtol=1e-5)
    np.testing.assert_array_equal(found[0], found[1])
    assert f1_score(other, found[0].argmax(1), average="macro") > 0.9
    assert (found[0].argmax(1) < CLASSES).all()  # the training cores lack the last class


def test_the_sample_is_bounded_stratified_and_does_not_depend_on_the_order_of_cores() -> None:
    rng = np.random.default_rng(1)
    cores = {f"c{n}": rng.choice([-1, 0, 0, 0, 0, 0, 0, 1, 2], (20, 20)) for n in range(6)}
    cores["c0"][0, :5] = 2
    spectra = {key: rng.random((20, 20, 4)) for key in cores}
    drawn = []
    for keys in ([*cores], [*cores][::-1]):
        samples = _Samples(pixels=300, seed=0)
        for key in keys:
            samples.add(key, spectra[key], cores[key], CLASSES, len(cores))
        assert all(len(target) <= 4 * 300 / 6 + CLASSES for _, target in samples.cores.values())
        drawn.append(samples.of(["c0", "c2", "c3"], CLASSES))
    np.testing.assert_array_equal(drawn[0][0], drawn[1][0])
    own = np.concatenate([spectra[key][cores[key] >= 0] for key in ("c0", "c2", "c3")]).astype(np.float32)
    assert {tuple(row) for row in drawn[0][0].tolist()} <= {tuple(row) for row in own.tolist()}
    counts = np.bincount(drawn[0][1])
    assert counts.sum() <= 300
    assert counts.max() - counts.min() <= 1 or counts.min() == min((own.shape[0], *np.bincount(drawn[0][1])))


def test_methods_beside_the_networks_of_a_cross_validation(
    write_core: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table's numbers are those of the pooled predictions, and the report keeps them."""
    monkeypatch.chdir(tmp_path)
    for n in range(4):
        path = write_core(f"core_{n}", meta={"core_id": f"c{n}", "patient_id": f"P{n // 2}"}, seed=n)
    words = ["--data", str(path.parent), "--folds", "groups", "--out", "cv", "--calls.positive", "class 1", *TINY]
    for wrong in (["--pixels", "0"], ["--seed", "-1"], []):
        assert main(["ssmunet", "baselines", str(path.parent), *wrong]) == 2
    assert main(["ssmunet", "crossval", *words]) == 0
    capsys.readouterr()
    assert main(["ssmunet", "baselines", "cv", "--methods", "svm", "forest", "--pixels", "60"]) == 0
    out = capsys.readouterr().out
    assert "read 4 cores" in out
    assert "fold 2/2: forest learned from" in out
    (file,) = Path("cv").glob("table-*.json")
    table = json.loads(file.read_text())
    assert [row[0] for row in table["rows"]] == ["network", "logistic regression", "linear SVM", "random forest"]
    records = json.loads(Path("cv/scores.json").read_text())["records"]
    names = ("class 1", "class 2", "class 3")
    pooled = scores.pooled([record["scores"] for record in records], names)
    assert table["rows"][0][1].startswith(f"{pooled['miou']:.3f}")
    assert table["rows"][0][4] == ""
    less = float(table["rows"][0][1].split(" ")[0]) - float(table["rows"][2][1].split(" ")[0])
    assert float(table["rows"][2][4].split(" ")[0]) == pytest.approx(less, abs=2e-3)
    page = Path("cv/report.html").read_text()
    used = sorted({int(n) for n in re.findall(r"forest learned from (\d+) spectra", out)})
    assert used[-1] <= 60
    counts = " to ".join(map(str, used))
    assert f"Classical methods on the same folds (trained on {counts} spectra a fold, seed 0)" in page
    assert "Call of each patient" in page
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    assert main(["ssmunet", "baselines", "cv"]) == 2
    assert "forest and svm need the package scikit-learn" in capsys.readouterr().err
