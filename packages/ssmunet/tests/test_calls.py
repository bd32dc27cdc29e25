"""Calls of cores and patients, and confusion with intervals, against scikit-learn and direct counts."""

from __future__ import annotations

import numpy as np
import pytest
from runner_core import BadInput
from runner_ssmunet import scores
from runner_ssmunet.calls import ANNOTATED, POSITIVE, VALUE, CallsConfig, confusion_table, core_scores, sides, tables
from runner_ssmunet.config import SSMConfig
from sklearn.metrics import roc_auc_score

NAMES = ("tumour", "necrosis", "stroma", "blood")


def test_the_value_of_a_core_by_both_rules() -> None:
    """Two tissue pixels of four: 0.6 + 0.2 positive of 0.6 + 0.2 + 0.9 when blood does not count."""
    probabilities = np.zeros((4, 2, 2), np.float16)
    probabilities[:, 0, 0], probabilities[:, 0, 1] = (0.5, 0.1, 0.3, 0.1), (0.2, 0.0, 0.6, 0.2)
    probabilities[:, 1, 0] = (1, 0, 0, 0)  # off the tissue
    tissue = np.array([[True, True], [False, False]])
    truth = np.array([[0, 2], [3, -1]])
    config = CallsConfig(positive=("tumour", "necrosis"), negative=("stroma",))
    found = core_scores(config, NAMES, probabilities, tissue, truth)
    assert found[VALUE] == pytest.approx(0.8 / 1.7, abs=1e-3)
    assert (found[POSITIVE], found[ANNOTATED]) == (1, 2)
    config.rule = "majority"
    assert core_scores(config, NAMES, probabilities, tissue, truth)[VALUE] == 0.5
    assert np.isnan(core_scores(config, NAMES, probabilities, ~tissue & False, truth)[VALUE])
    assert core_scores(CallsConfig(), NAMES, probabilities, tissue, truth) == {}


def rows_of(values: np.ndarray, truth: np.ndarray) -> list[dict[str, float]]:
    return [{VALUE: float(v), POSITIVE: 10.0 * t, ANNOTATED: 10.0} for v, t in zip(values, truth, strict=True)]


@pytest.mark.parametrize("rule", ["mean", "any"])
def test_cores_and_patients_have_their_auc_sensitivity_and_specificity(rule: str) -> None:
    rng = np.random.default_rng(1)
    groups = [f"P{n // 3:02d}" for n in range(60)]
    truth = np.repeat(rng.random(20) < 0.5, 3)
    values = np.clip(0.25 + 0.3 * truth + 0.5 * rng.normal(size=60), 0, 1).round(2)  # with ties
    config = CallsConfig(positive=("tumour",), patient=rule)  # type: ignore[arg-type]
    calls, called = tables(config, [*groups, "P99"], [*rows_of(values, truth), {VALUE: 0.5, ANNOTATED: 0.0}], "patient")
    cores, patients = calls.rows
    assert cores[:3] == ["cores", 60, int(truth.sum())]
    text = [str(cell).split(" ")[0] for cell in cores[3:]]
    wanted = [roc_auc_score(truth, values), (values >= 0.5)[truth].mean(), (values < 0.5)[~truth].mean()]
    wanted.append(((values >= 0.5) == truth).mean())
    assert text == [f"{value:.3f}" for value in wanted]
    joined = values.reshape(20, 3).max(1) if rule == "any" else values.reshape(20, 3).mean(1)
    assert patients[:3] == ["patients", 20, int(truth[::3].sum())]
    assert str(patients[3]).startswith(f"{roc_auc_score(truth[::3], joined):.3f} (")
    low, high = (float(end) for end in str(cores[3]).split("(")[1].rstrip(")").split(" to "))
    assert 0 <= low < wanted[0] < high <= 1
    assert len(called.rows) == 20
    assert called.rows[0][:3] == ["P00", 3, pytest.approx(joined[0])]
    assert next(iter(tables(config, groups, rows_of(values, truth), "core"))).rows[0][1] == 60


def test_the_interval_is_over_patients_not_over_cores() -> None:
    """Ten copies of each patient's core tell no more than one."""
    rng = np.random.default_rng(2)
    truth = np.arange(30) % 2 == 0
    values = np.clip(0.35 + 0.25 * truth + 0.3 * rng.normal(size=30), 0, 1)
    config = CallsConfig(positive=("tumour",))
    once = next(tables(config, [f"P{n:02d}" for n in range(30)], rows_of(values, truth), "patient"))
    groups = [f"P{n:02d}" for n in range(30) for _ in range(10)]
    often = next(tables(config, groups, rows_of(values.repeat(10), truth.repeat(10)), "patient"))
    assert often.rows[0][3] == once.rows[0][3]
    assert often.rows[0][1] == 300


def test_confusion_shares_are_those_of_the_pooled_counts() -> None:
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 40, (12, 4, 5))
    counts[:, 3] = 0  # nobody annotated blood
    rows = [scores.core_scores(one, NAMES) for one in counts]
    table = confusion_table([f"P{n // 2}" for n in range(12)], rows, NAMES, "patient")
    whole = counts.sum(0)
    for row, line in enumerate(table.rows[:3]):
        assert line[0] == NAMES[row]
        for column, cell in enumerate(line[1:]):
            share, low, high = (
                float(part) for part in str(cell).replace("(", "").replace(")", "").replace("to ", "").split()
            )
            assert share == pytest.approx(whole[row, column] / whole[row].sum(), abs=5e-4)
            assert low < share < high
    assert table.rows[3][1:] == ["–"] * 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"positive": ("tumor",)}, "calls.positive names tumor, which is no class; did you mean 'tumour'?"),
        ({"positive": NAMES}, "calls.positive names every class"),
    ],
)
def test_calls_that_cannot_be(settings: dict[str, tuple[str, ...]], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        sides(CallsConfig(**settings), NAMES)  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert "calls.negative stands against" in " ".join(SSMConfig(calls=CallsConfig(negative=("a",))).faults())
    both = SSMConfig(calls=CallsConfig(positive=("tumour",), negative=("tumour",)))
    assert "calls.positive and calls.negative both name tumour" in " ".join(both.faults())
