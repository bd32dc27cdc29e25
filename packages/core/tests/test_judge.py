"""Scores of a whole set at once: which records, what `judge` is given and gives, the network before its training."""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent / "engine_toy"))
import engine_toy as toy
import keras_toy
from runner_core import BadInput, Cropped, Judging, Project, Record, RunConfig, Table
from runner_core.cli import main
from runner_core.cli.evaluate import score_table
from runner_core.cli.train_text import result_table
from runner_core.contract.records import Judgement, Predicted
from runner_core.data.crop import NoCrop
from runner_core.data.pipeline import RecordPipeline
from runner_core.training.evaluation import draw_figures, evaluate, no_better, write_scores

PICTURE = np.full((2, 3, 3), 9, np.uint8)
TABLE = Table("neighbours", "By neighbours", ("k", "accuracy"), [("5", 0.75)])


class Embeds(Project):
    """Each record's prediction is what `infer` says of it; no record has a score of its own."""

    name = "embeds"
    framework = "torch"
    Config = RunConfig
    presets: ClassVar = {}
    monitor = ("rank", "max")

    def __init__(self, judgement: Judgement | None = None) -> None:
        super().__init__(RunConfig())
        self.judgement = judgement
        self.given: list[Sequence[Predicted]] = []

    def predict(self, cropped: Cropped, infer: Any) -> Any:
        if cropped.record.key == "broken":
            raise BadInput("broken.tif: cut short")
        return infer(cropped.record.key)

    def baseline(self, cropped: Cropped) -> Any:
        return f"pixels of {cropped.record.key}"

    def judging(self) -> Judging:
        return Judging(judge=self._judge)

    def _judge(self, predicted: Sequence[Predicted]) -> Judgement | None:
        self.given.append(predicted)
        return self.judgement


def records(*keys: str) -> list[Record]:
    return [Record(key, key[0], {}) for key in keys]


def run(project: Project, *keys: str, **more: Any) -> Any:
    return evaluate(RecordPipeline(project, NoCrop()), lambda key: f"trained of {key}", records(*keys), **more)


WHOLE = Judgement(
    {"accuracy": 0.8, "probe": 0.7},
    {"accuracy": 0.5, "probe": 0.9},
    {"untrained network": {"accuracy": 0.6, "probe": math.nan}},
    [TABLE],
    {"map of plates": PICTURE},
)


def test_judge_is_given_all_predictions_in_their_order() -> None:
    project = Embeds()
    keys = [f"{i}" for i in range(9)]
    trained_on = {"3", "5"}
    found = run(
        *(project, *keys, "broken"),
        untrained=lambda key: f"untrained of {key}",
        trained_on=lambda record: record.key in trained_on,
    )
    ((*given,),) = project.given
    assert [p.record.key for p in given] == keys
    assert [p.prediction for p in given] == [f"trained of {key}" for key in keys]
    assert [p.baseline for p in given] == [f"pixels of {key}" for key in keys]
    assert [p.untrained for p in given] == [f"untrained of {key}" for key in keys]
    assert [p.unseen for p in given] == [key not in trained_on for key in keys]
    assert [row.record.key for row in found.rows if row.trained_on] == ["3", "5"]
    assert found.errors == ["broken.tif: cut short"]
    assert (found.means, found.baseline, found.further, found.pictures) == ({}, {}, {}, {})
    assert no_better(project, found) is None


def test_without_judge_no_prediction_is_kept() -> None:
    class Plain(Embeds):
        def judging(self) -> Judging:
            return Judging()

    assert {row.prediction for row in run(Plain(), *"0123456789").rows} == {None}
    assert all(row.prediction for row in run(Embeds(), *"0123456789").rows)


def test_nothing_to_judge() -> None:
    project = Embeds(WHOLE)
    assert not run(project, "broken").means
    assert not project.given


def test_scores_tables_and_pictures_of_the_set(tmp_path: Path) -> None:
    project = Embeds(WHOLE)
    found = run(project, "a", "b")
    assert found.names == []
    assert found.shown_names == ["accuracy", "probe"]
    written = write_scores(found, tmp_path) + draw_figures(RecordPipeline(project, NoCrop()), str, found, tmp_path)
    assert [path.name for path in written] == [
        "scores.csv",
        "scores-neighbours.csv",
        "scores.json",
        "map_of_plates.png",
    ]
    content = json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))
    assert content["means"] == {"accuracy": 0.8, "probe": 0.7}
    assert content["baseline"] == {"accuracy": 0.5, "probe": 0.9}
    assert content["further"] == {"untrained network": {"accuracy": 0.6, "probe": None}}
    assert content["shown"] == ["accuracy", "probe"]
    assert [table["name"] for table in content["tables"]] == ["neighbours"]
    assert np.array_equal(np.asarray(Image.open(tmp_path / "map_of_plates.png")), PICTURE)
    assert [line.split() for line in score_table(found)] == [
        ["accuracy", "probe"],
        ["whole", "set", "0.8000", "0.7000"],
        ["baseline", "0.5000", "0.9000"],
        ["untrained", "network", "0.6000", "–"],
    ]


def test_they_join_the_scores_of_records() -> None:
    """Then the first of them is the headline."""

    class Both(Embeds):
        def judging(self) -> Judging:
            return replace(super().judging(), shown=("dice", "accuracy"))

        def score(self, record: Any, prediction: Any) -> Mapping[str, float]:
            return {"dice": 0.25 if prediction.startswith("pixels") else 0.75, "more": 1.0}

    project = Both(WHOLE)
    found = run(project, "a", "b")
    assert found.means == {"dice": 0.75, "more": 1.0, "accuracy": 0.8, "probe": 0.7}
    assert found.baseline == {"dice": 0.25, "more": 1.0, "accuracy": 0.5, "probe": 0.9}
    assert found.shown_names == ["dice", "accuracy"]
    assert no_better(project, found) is None
    assert [line.split()[:2] for line in score_table(found)][:3] == [
        ["worst", "first"],
        ["a", "0.7500"],
        ["b", "0.7500"],
    ]


@pytest.mark.parametrize(
    ("own", "baseline", "further", "direction", "as_good"),
    [
        (0.8, 0.5, 0.6, "max", None),
        (0.8, 0.8, 0.6, "max", "the trivial baseline's 0.8"),
        (0.8, 0.5, 0.9, "max", "the untrained network's 0.9"),
        (0.1, 0.5, 0.9, "max", "the trivial baseline's 0.5 and the untrained network's 0.9"),
        (math.nan, 0.5, math.nan, "max", "the trivial baseline's 0.5"),
        (0.8, math.nan, math.nan, "max", None),
        (0.1, 0.5, 0.9, "min", None),
        (0.5, 0.5, 0.1, "min", "the trivial baseline's 0.5 and the untrained network's 0.1"),
    ],
)
def test_no_better_than_any_other_method(
    own: float, baseline: float, further: float, direction: Any, as_good: str | None
) -> None:
    project = Embeds(Judgement({"a": own, "b": 9}, {"a": baseline, "b": 9}, {"untrained network": {"a": further}}))
    project.monitor = ("rank", direction)  # type: ignore[misc]
    finding = no_better(project, run(project, "r"))
    if as_good is None:
        assert finding is None
    else:
        assert finding is not None
        assert finding.level == "warning"
        assert finding.message == f"the trained network scores a {own:.4g}, no better than {as_good}"


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"accuracy": 0.5}, "it returned dict"),
        (Judgement([0.5]), "it returned list"),  # type: ignore[arg-type]
        (Judgement({"a": "good"}), "'a' is 'good'"),  # type: ignore[dict-item]
        (Judgement({"a": 1.0}, further={"other": {"a": None}}), "'a' is None"),  # type: ignore[dict-item]
    ],
)
def test_what_is_no_judgement_is_refused(found: Any, message: str) -> None:
    with pytest.raises(BadInput, match=f"project embeds: `judge` must return a Judgement or None.*; {message}"):
        run(Embeds(found), "a")


def test_methods_side_by_side_at_the_end_of_training(tmp_path: Path) -> None:
    summary: dict[str, Any] = {
        **{
            "scores": {"accuracy": 0.8},
            "baseline": {"accuracy": 0.5},
            "further": {"untrained network": {"accuracy": 1}},
        },
        **{"epochs": 1, "steps": 2, "wall_seconds": 1.0, "samples_per_second": 1.0, "data_wait_share": 0.0},
        "project": "embeds",
    }
    folder: Any = SimpleNamespace(path=tmp_path, report_file=tmp_path / "report.html")
    head, row = [line for line in result_table(summary, folder) if "trained" in line or "accuracy" in line]
    assert head.split("  ")[0] == "whole records"
    for name, value in {"trained ": "0.8000", "baseline": "0.5000", "untrained network": "1.0000"}.items():
        end = head.index(name) + len(name.rstrip())
        assert row[:end].endswith(value)


# ---------------------------------------------------------------- the network before its first step


@pytest.mark.parametrize("kind", [toy.Toy, keras_toy.KerasToy], ids=["torch", "keras"])
def test_the_untrained_network_is_that_of_step_0(kind: Any) -> None:
    """To the bit, whatever was drawn before; the trained one still predicts as before, and no stream is moved."""
    pytest.importorskip(kind.framework, reason=f"{kind.framework} is not installed")
    setup = toy.ToySetup(kind(toy.small(train__ema=0.9, train__seed=5)))
    data = toy.make_data(setup.project)
    data.samples = {"train": setup.project.samples(data.store, data.splits["train"], "train")}
    trainer = setup.engine.trainer(setup, data, 3)
    before = {n: np.array(t) for n, t in trainer.state().tensors.items() if n.startswith("model.")}
    from runner_core.data.loader import Loader

    for step, batch in enumerate(Loader(data.samples["train"], batch_size=8, seed=0, shuffle=True).batches(0)):
        trainer.train_step(batch, step)
    state = trainer.state()
    batch = {"image": np.random.default_rng(0).integers(0, 255, (4, 2, toy.SIDE, toy.SIDE), np.uint8)}
    np.random.rand(7)  # noqa: NPY002
    again = toy.ToySetup(kind(toy.small(train__ema=0.9, train__seed=5)))
    trained = again.engine.load(again, state)
    first = trained.infer(batch)["prediction"]
    random.seed(3)
    untrained = again.engine.untrained(again, state)
    if kind.framework == "torch":
        assert random.random() == random.Random(3).random()
        found = {f"model.{n}": t.numpy() for n, t in untrained.network.state_dict().items()}
    else:
        from runner_core.engines.keras.network import arrays, named

        found = {f"model.{n}": a for n, a in arrays(named(untrained.network.variables)).items()}
    assert found.keys() == before.keys()
    for name, array in before.items():
        if "seed_generator" not in name:
            assert np.array_equal(found[name], array), name
    assert untrained.statistics["mean"] == 127.5
    fresh = toy.ToySetup(kind(toy.small(train__seed=5)))
    data.samples = {"train": fresh.project.samples(data.store, data.splits["train"], "train")}
    start = fresh.engine.trainer(fresh, data, 3).state()
    expected = fresh.engine.load(fresh, start).infer(batch)["prediction"]
    assert np.array_equal(untrained.infer(batch)["prediction"], expected)
    assert np.array_equal(trained.infer(batch)["prediction"], first)
    assert not np.array_equal(first, expected)


# ---------------------------------------------------------------- on the command line


@pytest.mark.torch
def test_train_and_evaluate_judge_what_the_project_names(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """All sides, by the trained and the untrained network: in the summary, scores.json, the report and on screen."""
    from toy_project import Toy, declare

    given: list[Sequence[Predicted]] = []

    def judge(self: Any, predicted: Sequence[Predicted]) -> Judgement:
        given.append(predicted)
        spread = {name: float(np.mean([getattr(p, name).std() for p in predicted])) for name in METHODS}
        own, baseline, untrained = ({"spread": value} for value in spread.values())
        return Judgement(own, baseline, {"untrained network": untrained}, [TABLE], {"spread": PICTURE})

    METHODS = ("prediction", "baseline", "untrained")
    declared = declare(
        *(Toy, "judging"),
        judge=judge,
        untrained=True,
        scored=lambda self, splits: [*splits["train"], *splits["validation"]],
    )
    monkeypatch.setattr(Toy, "judging", declared)
    monkeypatch.setattr(Toy, "monitor", ("loss", "max"))
    monkeypatch.delattr(Toy, "score")
    words = ["--train.steps-per-epoch", "20", "--train.epochs", "2"]
    assert main(["toy", "train", "--run-dir", "run", *words]) == 0
    (first,) = given
    assert {p.record.group for p in first if p.unseen}.isdisjoint({p.record.group for p in first if not p.unseen})
    assert 0 < sum(p.unseen for p in first) < len(first)
    summary = json.loads(Path("run/summary.json").read_text(encoding="utf-8"))
    assert summary["further"]["untrained network"]["spread"] < summary["scores"]["spread"]
    warned = [f["message"] for f in summary["health"] if f["rule"] == "trivial baseline"]
    assert warned == [] or "untrained" not in warned[0]
    said = capsys.readouterr().out
    assert f"scoring {len(first)} records with checkpoint" in said
    assert "untrained network" in said
    assert Path("run/figures/spread.png").exists()
    report = Path("run/report.html").read_text(encoding="utf-8")
    assert report.count("untrained network") >= 2
    assert "Worst first" not in report
    assert main(["toy", "evaluate", "run"]) == 0
    assert len(given[1]) == len(first)
    (scored,) = Path("run").glob("evaluation-scored-phantom-*/scores.json")
    content = json.loads(scored.read_text(encoding="utf-8"))
    assert content["further"] == summary["further"]
    assert {row["record"] for row in content["records"] if row["trained_on"]} == {
        p.record.key for p in first if not p.unseen
    }
    assert main(["toy", "evaluate", "run", "--split", "validation"]) == 0
    assert all(p.unseen for p in given[2])
    assert len(given[2]) == sum(p.unseen for p in first)


@pytest.mark.torch
def test_a_project_without_any_of_it_has_none_of_it(trained: Path) -> None:
    """The toy's own run: the summary, scores.json and figures are what they were."""
    summary = json.loads((trained / "summary.json").read_text(encoding="utf-8"))
    assert "further" not in summary
    content = json.loads((trained / "scores.json").read_text(encoding="utf-8"))
    assert list(content) == ["means", "baseline", "records", "errors", "shown", "tables", "calibration"]
    assert not any(row["trained_on"] for row in content["records"])
    assert all(path.stem[:3].isdigit() for path in (trained / "figures").iterdir())
    assert "Pictures during training" not in (trained / "report.html").read_text(encoding="utf-8")
