"""The verdict of `compare`: better, worse, or that it cannot tell, from records in groups and several seeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from runner_core.cli import main
from runner_core.output.experiments import ExperimentFolder, Member
from runner_core.output.runfolder import RunFolder
from runner_core.tools.verdict import Arm, Network, judge


def scores(seed: int, gain: float = 0.0, *, patients: int = 20, noise: float = 0.01, **more: Any) -> dict[str, Any]:
    """A scores.json of two scans for each patient: patients differ much, networks by `noise`, arms by `gain`."""
    of_patient = np.random.default_rng(0).normal(0.8, 0.05, patients)
    rng = np.random.default_rng(seed + 1)
    network = rng.normal(0, noise)
    values = [(p, s, of_patient[p] + network + gain + rng.normal(0, 0.005)) for p in range(patients) for s in range(2)]
    entries = [
        {"record": f"p{p}_{s}", "group": f"p{p}", "scores": {"dice": v, "iou": v / 2}, "baseline": {}, **more}
        for p, s, v in values
    ]
    means = {"dice": float(np.mean([v for _, _, v in values])), "iou": 0.0}
    return {"means": means, "baseline": {}, "records": entries, "errors": [], "shown": ["dice", "iou"], "tables": []}


def arm(name: str, seeds: range, gain: float = 0.0, **more: Any) -> Arm:
    return Arm(name, [Network(scores(seed, gain, **more)) for seed in seeds])


def test_a_gain_far_above_the_noise_is_better_and_its_opposite_is_worse() -> None:
    found, _ = judge([arm("A", range(5)), arm("B", range(10, 15), 0.1)], "max")
    headline, other = found
    assert (headline.score, headline.answer) == ("dice", "better")
    assert headline.found.value == pytest.approx(0.1, abs=0.03)
    assert headline.interval[0] > 0
    assert "B is better than A: dice +0.1" in headline.text
    assert (other.score, other.answer) == ("iou", "")  # the direction is that of the headline only
    back, _ = judge([arm("B", range(10, 15), 0.1), arm("A", range(5))], "max")
    assert back[0].answer == "worse"
    assert back[0].interval == pytest.approx(tuple(-end for end in reversed(headline.interval)))
    losses, _ = judge([arm("A", range(5)), arm("B", range(10, 15), 0.1)], "min")
    assert losses[0].answer == "worse"


def test_a_gain_below_the_noise_says_what_would_decide() -> None:
    found, _ = judge([arm("A", range(2), noise=0.05), arm("B", range(10, 12), 0.02, noise=0.05)], "max")
    assert found[0].answer == "cannot tell"
    assert "cannot tell whether B is better than A" in found[0].text
    assert "more seed" in found[0].text
    seeds, _ = found[0].needed
    assert seeds
    assert seeds > 2


def test_equal_settings_rarely_get_a_verdict() -> None:
    """Of 60 pairs of equal settings at most 6 get one: 3 are expected."""
    wrong = 0
    for n in range(60):
        found, _ = judge(
            [arm("A", range(1000 * n, 1000 * n + 3)), arm("B", range(1000 * n + 500, 1000 * n + 503))], "max"
        )
        wrong += found[0].answer != "cannot tell"
    assert wrong <= 6


def test_one_seed_each_compares_two_networks_and_says_so() -> None:
    found, remarks = judge([arm("A", range(1)), arm("B", range(5, 6), 0.1)], "max")
    assert "the network of B is better than that of A" in found[0].text
    assert any("this compares two trained networks, not their settings" in remark for remark in remarks)


def test_several_comparisons_are_corrected_and_said_to_be() -> None:
    base, others = arm("A", range(5)), [arm(name, range(n, n + 5), 0.02) for name, n in (("B", 10), ("C", 20))]
    found, remarks = judge([base, *others], "max")
    alone, _ = judge([base, others[0]], "max")
    both = [verdict for verdict in found if verdict.score == "dice"]
    assert max(verdict.level for verdict in both) == pytest.approx(0.975)
    assert alone[0].level == 0.95
    assert any("Holm's correction" in remark for remark in remarks)


def test_records_that_either_trained_on_are_left_out() -> None:
    found, remarks = judge([arm("A", range(2)), arm("B", range(5, 7), trained_on=True)], "max")
    assert not found
    assert "every record that it scored was trained on" in remarks[0]
    other = Arm("C", [Network({"records": [{"record": "x", "group": "x", "scores": {"dice": 1.0}}]})])
    found, remarks = judge([arm("A", range(2)), other], "max")
    assert not found
    assert "no scores of a common record" in remarks[0]


def test_groups_of_the_folds_count_rather_than_the_records_own() -> None:
    """With `--group-by hospital`, 20 patients of four hospitals are four groups."""
    hospitals = {f"p{p}_{s}": f"hospital {p % 4}" for p in range(20) for s in range(2)}
    first, second = arm("A", range(5)), arm("B", range(10, 15), 0.004)
    grouped = Arm("B", [Network(network.content, groups=hospitals) for network in second.networks])
    (plain, *_), _ = judge([first, second], "max")
    assert len(set(plain.paired.groups)) == 20
    for arms in ([first, grouped], [Arm("A", [Network(n.content, groups=hospitals) for n in first.networks]), second]):
        (found, *_), _ = judge(arms, "max")
        assert set(found.paired.groups) == set(hospitals.values())
        assert found.found.value == pytest.approx(plain.found.value)


@pytest.fixture
def experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two repetitions of three seeds, a and b; b is better by 0.1."""
    monkeypatch.chdir(tmp_path)
    for name, first, gain in (("a", 0, 0.0), ("b", 10, 0.1)):
        members = [Member(f"seed-{n}", seed=n) for n in range(first, first + 3)]
        (tmp_path / name).mkdir()
        folder = ExperimentFolder(tmp_path / name, "repeat", "toy", members)
        folder.save()
        for member in members:
            run = RunFolder.create(None, "toy", folder.run(member).path)
            head = {"project": "toy", "preset": "demo", "source": "phantom", "plugins": {}}
            run.config_file.write_text(yaml.safe_dump({**head, "train": {"epochs": 3 + round(10 * gain)}}))
            run.write_summary({"project": "toy", "status": "done", "steps": 10, "scores": {}})
            (run.path / "scores.json").write_text(json.dumps(scores(member.seed, gain)))
            run.starts_file.write_text(json.dumps({"monitor": ["dice", "max"]}) + "\n")
    return tmp_path


def test_the_command_line_compares_two_repetitions(experiments: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "a", "b", "--out", "out", "--json"]) == 0
    found = json.loads((experiments / "out" / "compare.json").read_text())
    (headline,) = [verdict for verdict in found["verdicts"] if verdict["score"] == "dice"]
    assert headline["records"] == 40
    assert headline["groups"] == 20
    assert headline["seeds"] == [3, 3]
    assert headline["difference"] == pytest.approx(0.1, abs=0.04)
    assert headline["low"] < headline["difference"] < headline["high"]
    page = (experiments / "out" / "report.html").read_text()
    assert "less that of" in page
    said = capsys.readouterr()
    assert "verdict" in said.err
    hospitals = {f"p{p}_{s}": str(p % 4) for p in range(20) for s in range(2)}
    ExperimentFolder.open(experiments / "b").save_groups(hospitals)
    assert main(["compare", "a", "b", "--out", "grouped"]) == 0
    assert "over 40 records of 4 groups, 3 seeds each" in capsys.readouterr().out


def test_runs_on_different_data_get_no_verdict(experiments: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run in (experiments / "b").glob("seed-*"):
        config = yaml.safe_load((run / "config.yaml").read_text())
        (run / "config.yaml").write_text(yaml.safe_dump(config | {"source": "/other"}))
    assert main(["compare", "a", "b", "--out", "out"]) == 0
    assert "no verdict: the runs are on different data" in capsys.readouterr().out
