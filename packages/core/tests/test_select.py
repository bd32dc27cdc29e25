"""`select`: the search against brute force, honest nested figures, stored outputs that are used again, refusals."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import runner_core
import yaml
from runner_core import BadInput, Combining, Judging, Record, View
from runner_core.cli import main
from runner_core.cli.select import _refuse_nothing_to_choose, _without_test
from runner_core.contract.project import views_of
from runner_core.experiments.choosing import Choice, Chooser, Gain, Space
from runner_core.experiments.chosen import settings_file
from runner_core.experiments.folds import column_of
from runner_core.experiments.soft import SoftOutputs, _read
from runner_core.training.data import read_records

THRESHOLDS, SIZES = (0.5, 0.3, 0.7), (0, 10)


def chooser(table: Any, groups: Mapping[str, str], views: Sequence[tuple[str, ...]] = ((),)) -> Chooser:
    """Records' Dice by a function of threshold, size, views and record."""

    def score(choices: Sequence[Choice]) -> dict[Choice, dict[str, dict[str, float]]]:
        return {c: {key: {"dice": table(*dict(c.settings).values(), c.views, key)} for key in groups} for c in choices}

    current = Choice((("t", THRESHOLDS[0]), ("s", SIZES[0])), views[0], ("all",))
    space = Space(
        current, {"t": THRESHOLDS, "s": SIZES}, views, [("all",)], lambda c: dict(c.settings) != {"t": 0.7, "s": 0}
    )
    return Chooser(space, score, groups, Judging(), larger=True)


def random_table(seed: int, gain: float = 0.0) -> tuple[Any, dict[str, str]]:
    rng = np.random.default_rng(seed)
    groups = {f"r{n}": f"g{n // 2}" for n in range(24)}
    own = {key: rng.normal(0.8, 0.05) for key in groups}
    noise = {(t, s, key): rng.normal(0, 0.02) for t, s, key in product(THRESHOLDS, SIZES, groups)}
    return lambda t, s, views, key: own[key] + noise[t, s, key] + gain * (t == 0.3) + 0.05 * len(views), groups


def test_the_search_is_exhaustive_and_the_nested_figure_knows_nothing_of_its_record() -> None:
    table, groups = random_table(0, 0.01)
    found = chooser(table, groups)
    allowed = [pair for pair in product(THRESHOLDS, SIZES) if pair != (0.7, 0)]

    def best(keys: Sequence[str]) -> tuple[float, int]:
        return max(allowed, key=lambda pair: np.mean([table(*pair, (), key) for key in keys]))

    assert tuple(dict(found.best([*groups]).settings).values()) == best([*groups])
    nested, _ = found.nested()
    folds = [*found.folds()]
    assert sorted(key for fold in folds for key in fold) == sorted(groups)
    for fold in folds:
        assert not {groups[key] for key in fold} & {groups[key] for key in groups if key not in fold}
        pair = best([key for key in groups if key not in fold])
        assert {key: nested[key]["dice"] for key in fold} == {key: table(*pair, (), key) for key in fold}


def test_noise_is_no_gain_and_a_gain_is_one() -> None:
    """The figure of the choice on the same records is too good; the nested one is not, and seldom beyond the noise."""
    optimism, bias, shown = [], [], []
    for seed in range(40):
        table, groups = random_table(seed)
        found = chooser(table, groups)
        (own,) = found.scores(found.space.current)
        (best,) = found.scores(found.best([*groups]))
        nested, _ = found.nested()
        optimism.append(found.value(best, [*groups]) - found.value(own, [*groups]))
        bias.append(found.value(nested, [*groups]) - found.value(own, [*groups]))
        gain = found.gain(own, nested, [*groups])
        assert gain is not None
        shown.append(gain.shown)
    assert np.mean(optimism) > 0.003
    assert abs(np.mean(bias)) < 0.0015
    assert sum(shown) <= 3
    table, groups = random_table(1, 0.05)
    found = chooser(table, groups)
    gain = found.gain(*found.scores(found.space.current), found.nested()[0], [*groups])
    assert gain is not None
    assert gain.shown


def test_views_are_taken_only_if_they_are_better() -> None:
    table, groups = random_table(0)
    found = chooser(table, groups, [(), ("x",)])
    assert found.best([*groups]).views == ("x",)
    worse = chooser(lambda t, s, views, key: table(t, s, (), key) - 0.1 * len(views), groups, [(), ("x",)])
    assert worse.best([*groups]).views == ()
    assert chooser(lambda t, s, views, key: table(t, s, (), key), groups, [("x",), ()]).best([*groups]).views == ("x",)


def test_the_gain_of_a_pooled_score_is_that_of_the_pooled_score() -> None:
    """A choice that is better in the mean of the records, and worse where the voxels are."""
    groups = {f"r{n}": f"g{n // 2}" for n in range(12)}
    voxels = {key: 1.0 if n % 2 else 1000.0 for n, key in enumerate(groups)}

    def scored(small: float, large: float) -> dict[str, dict[str, float]]:
        own = {key: (small if voxels[key] == 1 else large) + 0.001 * n for n, key in enumerate(groups)}
        return {key: {"dice": dice, "voxels": voxels[key]} for key, dice in own.items()}

    def pooled(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
        return {"dice": float(np.average([r["dice"] for r in rows], weights=[r["voxels"] for r in rows]))}

    found = Chooser(chooser(None, groups).space, lambda choices: {c: scored(0, 0) for c in choices}, groups,
                    Judging(pooled=pooled), larger=True)  # fmt: skip
    first, second = scored(0.2, 0.8), scored(0.9, 0.7)
    gain = found.gain(first, second, [*groups])
    assert gain is not None
    assert gain.found.value == pytest.approx(found.value(second, [*groups]) - found.value(first, [*groups]))
    assert gain.found.value < 0
    assert not gain.shown
    assert found.gain(first, second, ["r0", "r1"]) is not None  # one group: no interval
    same = found.gain(first, dict(first), [*groups])
    assert same is not None
    assert (same.found.value, same.interval, same.shown) == (0, (0, 0), False)


@pytest.fixture
def cv(crossvalidated: Path, here: Path) -> Path:
    return Path(shutil.copytree(crossvalidated, "cv"))


@pytest.mark.torch
def test_the_command_line_selects_what_evaluate_confirms(
    cv: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["toy", "select", "cv", "--out", "chosen", "--json"]) == 0
    result = json.loads(capfd.readouterr().out)
    documented = (Path(__file__).parents[3] / "docs/reference/json.md").read_text("utf-8").partition("\n## select\n")[2]
    rows = re.findall(r"^\| (`.*?`) \|", documented.partition("\n## ")[0], re.MULTILINE)
    assert {key for row in rows for key in re.findall(r"\w+", row)} == {*result}
    assert result["headline"] == "error"
    assert (result["records"], result["groups"]) == (10, 5)
    assert {tuple(entry["views"]) for entry in result["views"]} >= {(), ("mirror-y", "mirror-x", *_TURNS)}
    for which in ("current", "chosen"):
        settings = result[which]["settings"]
        words = ["--predict.views", *(settings["predict.views"] or ["none"])]
        words += ["--predict.threshold", str(settings["predict.threshold"])]
        assert main(["toy", "evaluate", "cv", *words, "--out", f"scored-{which}"]) == 0
        means = json.loads(Path(f"scored-{which}", "scores.json").read_text("utf-8"))["means"]
        wanted = result[which].get("score", result[which].get("optimistic"))
        assert means["error"] == pytest.approx(wanted, abs=2e-3)
    assert result["chosen"]["optimistic"] <= result["current"]["score"]
    nested = result["nested"]
    assert nested["difference"] == pytest.approx(nested["score"] - result["current"]["score"])
    assert result["changed"] == (nested["better"] or result["recommended"] != _recommended(result["current"]))
    written = yaml.safe_load(Path("chosen/settings.yaml").read_text("utf-8"))
    assert written["predict"]["threshold"] == result["recommended"]["settings"]["predict.threshold"]
    assert "(too good)" in Path("chosen/report.html").read_text("utf-8")
    with Path("chosen/trials.csv").open(newline="") as file:
        trials = [*csv.DictReader(file)]
    tried = {trial["predict.threshold"]: float(trial["error"]) for trial in reversed(trials)}
    assert [*tried.values()] == sorted(tried.values(), reverse=True)  # the last is the best: the smallest error
    assert min(tried.values()) == result["chosen"]["optimistic"] == result["trials"][0]["score"]
    own = result["current"]["settings"]["predict.threshold"]
    assert result["current"]["score"] in [
        t["score"] for t in result["trials"] if t["settings"]["predict.threshold"] == own
    ]
    # a second start computes nothing anew, except what is damaged or gone; a line that a kill cut is left out
    capfd.readouterr()
    stored = sorted(Path("cv/soft").glob("*.npz"))
    computed: list[Path] = []
    old = SoftOutputs._compute
    monkeypatch.setattr(
        SoftOutputs, "_compute", lambda self, path, *rest: (computed.append(path), old(self, path, *rest))
    )
    stored[0].unlink()
    stored[1].write_bytes(stored[1].read_bytes()[:50])
    scores = Path("cv/soft/scores.jsonl")
    scores.write_bytes(b"\xff\n5\n" + scores.read_bytes()[:-20])
    assert main(["toy", "select", "cv", "--out", "again", "--json"]) == 0
    again = json.loads(capfd.readouterr().out)
    assert sorted(path.name for path in computed) == [path.name for path in stored[:2]]
    assert {**again, "views": 0, "folder": 0, "command": 0} == {**result, "views": 0, "folder": 0, "command": 0} | {
        "notes": again["notes"]
    }
    # Python gives the same, from what is stored
    capfd.readouterr()
    choices = runner_core.open("cv").select(out="python")
    assert len(computed) == 2
    assert "use: runner toy predict cv" in capfd.readouterr().out
    assert {**choices.summary, "views": 0, "folder": 0, "command": 0, "stored": 0, "runs": 0, "notes": 0} == {
        **again, "views": 0, "folder": 0, "command": 0, "stored": 0, "runs": 0, "notes": 0
    }  # fmt: skip
    assert choices.changed == result["changed"]
    assert choices.file.read_text("utf-8").splitlines()[2:] == Path("again/settings.yaml").read_text().splitlines()[2:]
    assert choices.report.is_file()
    assert result["text"] in repr(choices)
    with pytest.raises(BadInput, match="python exists and is not an empty folder"):
        runner_core.open("cv").select(out="python")
    assert main(["toy", "phantom", "data"]) == 0
    found = runner_core.open("cv").predict("data/p0_a.npy", **choices.settings)
    assert main(["toy", "predict", "cv", "data", "--out", "masks", "--config", "chosen/settings.yaml"]) == 0
    np.testing.assert_array_equal(np.load("masks/p0_a_mask.npy"), found.array > choices.settings["predict.threshold"])


@pytest.mark.torch
def test_predict_uses_what_select_chose(
    cv: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without --config, and it says so; flags and a settings file go before, and a later choice replaces it."""
    monkeypatch.setattr(Gain, "shown", True)  # whatever was found: the search itself is tested elsewhere
    assert main(["toy", "select", "cv", "--predict.threshold", "0.9"]) == 0
    assert "`predict cv` uses these settings by itself from now on: cv/selected.yaml" in capfd.readouterr().out
    chosen = yaml.safe_load(Path("cv/selected.yaml").read_text("utf-8"))["predict"]["threshold"]
    assert chosen != 0.9
    Path("cv/selected.yaml").write_text("predict: {threshold: 0.35}\n", encoding="utf-8")
    assert main(["toy", "phantom", "data"]) == 0

    def predicted(*words: str) -> tuple[Any, str]:
        assert main(["toy", "predict", "cv", "data/p0_a.npy", "--out", "masks", *words]) == 0
        return np.load("masks/p0_a_mask.npy"), capfd.readouterr().out

    found = runner_core.open("cv").predict("data/p0_a.npy").array
    mask, said = predicted()
    assert "settings that `select` chose: predict.threshold 0.35 (cv/selected.yaml; delete it" in said
    np.testing.assert_array_equal(mask, found > 0.35)
    Path("own.yaml").write_text("predict: {threshold: 0.2}\n", encoding="utf-8")
    mask, said = predicted("--config", "own.yaml")
    assert "settings that `select` chose" not in said
    np.testing.assert_array_equal(mask, found > 0.2)
    shutil.copytree("cv/fold-1", "other")
    assert "settings that `select` chose" not in predicted("--with", "other")[1]
    np.testing.assert_array_equal(predicted("--predict.threshold", "0.6")[0], found > 0.6)
    Path("cv/selected.yaml").write_text("predict: {threshold: high}\n", encoding="utf-8")
    assert main(["toy", "predict", "cv", "data/p0_a.npy", "--out", "masks"]) == 2
    assert "cv/selected.yaml" in capfd.readouterr().err
    monkeypatch.setattr(Gain, "shown", False)
    assert main(["toy", "select", "cv", "--predict.views", "none"]) == 0
    assert not Path("cv/selected.yaml").exists() or "other views only" in capfd.readouterr().out


_TURNS = ("turn-90", "turn-180", "turn-270", "transpose", "antitranspose")


def _recommended(current: dict[str, Any]) -> dict[str, Any]:
    return {"settings": current["settings"], "runs": current["runs"]}


@pytest.mark.torch
def test_one_run_and_several_named_runs(cv: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["toy", "select", "cv/fold-1", "--out", "one"]) == 0
    assert "the run's best checkpoint was chosen on these validation records" in capfd.readouterr().out
    shutil.copytree("cv/fold-1", "same")
    assert main(["toy", "select", "cv/fold-1", "--with", "same", "--out", "two", "--json"]) == 0
    result = json.loads(capfd.readouterr().out)
    assert result["current"]["runs"] == ["cv/fold-1", "same"]
    assert "predict" in result["command"]
    assert main(["toy", "select", "cv/fold-1", "--out", "two"]) == 2
    assert "two exists and is not an empty folder" in capfd.readouterr().err
    assert main(["toy", "select", "cv/fold-1", "--predict.views", "sideways"]) == 2
    assert "there is no view 'sideways'" in capfd.readouterr().err


@pytest.mark.torch
def test_groups_are_those_of_the_cross_validation(
    cv: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `crossval --group-by plate`, no choice is judged by records of the plate that it was made on."""
    file = cv / "experiment.json"
    experiment = json.loads(file.read_text())
    for about in ({"group_by": "plate", "folds": "3"}, {"folds": "column:plate", "group_by": ""}):
        file.write_text(json.dumps({**experiment, "about": {**experiment["about"], **about}}))
        assert column_of(json.loads(file.read_text())["about"]) == "plate"
    plates: dict[str, set[str]] = {}

    def with_plates(*arguments: Any) -> list[Any]:
        found = [replace(r, values={"plate": int(r.group[1:]) % 2}) for r in read_records(*arguments)]
        plates.update({plate: {r.key for r in found if r.values["plate"] == int(plate)} for plate in "01"})
        return found

    judged: list[frozenset[str]] = []
    folds = Chooser.folds
    monkeypatch.setattr("runner_core.cli.evaluate.read_records", with_plates)
    monkeypatch.setattr(Chooser, "folds", lambda self: iter(judged.extend(folds(self)) or judged))
    assert main(["toy", "select", "cv", "--out", "chosen", "--json"]) == 0
    output = capfd.readouterr()
    assert "groups: records with the same plate, as in the cross-validation" in output.out + output.err
    assert json.loads(output.out)["groups"] == 2
    assert sorted(map(sorted, judged)) == sorted(map(sorted, plates.values()))


@pytest.mark.torch
def test_a_corrected_label_is_scored_anew(cv: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Stored scores belong to the labels that they were computed with, not to the images alone."""
    assert main(["toy", "phantom", "data"]) == 0
    capfd.readouterr()
    found = []
    for name in ("before", "after"):
        assert main(["toy", "select", "cv/fold-1", "--data", "data", "--out", name, "--json"]) == 0
        found.append(json.loads(capfd.readouterr().out)["current"]["score"])
        for mask in Path("data").glob("*_mask.npy"):
            np.save(mask, 1 - np.load(mask))
    assert found[1] == pytest.approx(1 - found[0])


def test_a_damaged_stored_output_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, seconds=np.array(1.0), a=np.random.default_rng(0).random(1000))
    content = bytearray(path.read_bytes())
    for place in (60, len(content) // 2):  # in the time, and in the array; the archive's end stays whole
        content[place : place + 40] = bytes(40)
    path.write_bytes(content)
    for timing in (True, False):
        with pytest.raises(BadInput, match=r"a\.npz is damaged: remove it and start `select` again"):
            _read(path, timing)


def test_nothing_is_chosen_on_test_records(capsys: pytest.CaptureFixture[str]) -> None:
    records = [Record("a", "g", {}), Record("b", "h", {}, split="test"), Record("c", "i", {})]
    assert [record.key for record in _without_test(records, None)] == ["a", "c"]
    assert [record.key for record in _without_test(records, {"test": ["c", "i"]})] == ["a"]
    assert "2 test records left out" in capsys.readouterr().out
    with pytest.raises(BadInput, match="test records only"):
        _without_test(records[1:2], None)


def test_projects_that_cannot_select_are_told_so_at_once() -> None:
    view = View("mirror", lambda cropped: cropped.prepared, lambda soft: soft)
    plain = SimpleNamespace(name="mine", config=_Plain())
    for combining, why in (
        (Combining("probabilities", _unused, _unused), "declares neither views nor choices"),
        (Combining("embeddings", _unused, _unused, views=(view,)), "embeds records"),
        (Combining("probabilities", _unused, _unused, views=(view,)), "must subclass PredictConfig"),
        (Combining("probabilities", _unused, _unused, choices={"predict.size": (1,)}), "which is no setting"),
    ):
        with pytest.raises(BadInput, match=why):
            _refuse_nothing_to_choose(plain, combining)  # type: ignore[arg-type]
    _refuse_nothing_to_choose(plain, Combining("probabilities", _unused, _unused, choices={"predict.threshold": (1,)}))  # type: ignore[arg-type]
    assert views_of(plain) == ()  # type: ignore[arg-type]
    result = {"recommended": {"settings": {"predict.threshold": 0.4, "predict.views": []}}, "views": [{}]}
    assert settings_file(result) == {"predict": {"threshold": 0.4}}  # this project has no setting of views


@dataclass
class _Predict:
    threshold: float = 0.5
    views: tuple[str, ...] = ("axial",)
    """A setting of the project's own, of the same name as the views of test-time augmentation."""


@dataclass
class _Plain:
    predict: _Predict = field(default_factory=_Predict)


def _unused(*_: Any) -> Any:
    raise AssertionError
