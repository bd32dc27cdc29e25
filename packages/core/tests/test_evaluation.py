"""Whole-record scores: order, means, tables, pictures."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image
from runner_core import BadInput, Checks, Cropped, Finding, Judging, Pictures, Project, Record, RunConfig, Table
from runner_core.cli.evaluate import further_tables, score_table
from runner_core.data.crop import NoCrop
from runner_core.data.pipeline import RecordPipeline
from runner_core.output.pictures import write_png
from runner_core.training.evaluation import draw_figures, evaluate, no_better, write_scores


class Scored(Project):
    """Its scores are given; its prediction is the record's key."""

    name = "scored"
    framework = "torch"
    Config = RunConfig
    presets: ClassVar = {}
    monitor = ("dice", "max")

    def __init__(self, scores: Mapping[str, Mapping[str, float]]) -> None:
        super().__init__(RunConfig())
        self.scores, self.statistics = scores, {"trivial": "trivial"}

    def predict(self, cropped: Cropped, infer: Any) -> Any:
        if cropped.record.key == "broken":
            raise BadInput("broken.nii: cut short")
        return cropped.record.key

    def score(self, record: Record, prediction: Any) -> Mapping[str, float]:
        return {"dice": 0.5, "hd95": 9.0} if prediction == "trivial" else self.scores[prediction]

    def baseline(self, cropped: Cropped) -> Any:
        return self.statistics["trivial"]

    def pictures(self) -> Pictures:
        return Pictures(figure=lambda record, prediction: np.full((2, 3, 3), 7, np.uint8))


def records(*keys: str) -> list[Record]:
    return [Record(key, key[0], {}) for key in keys]


SCORES = {
    "good": {"dice": 0.9, "hd95": 1.0},
    "bad": {"dice": 0.2, "hd95": 30.0},
    "lost": {"dice": math.nan, "hd95": math.inf},
}


def uncropped(project: Project) -> RecordPipeline:
    return RecordPipeline(project, NoCrop())


def run(*keys: str, project: Scored | None = None) -> Any:
    return evaluate(uncropped(project or Scored(SCORES)), lambda batch: batch, records(*keys))


def test_the_worst_come_first_and_what_is_no_number_is_worst() -> None:
    assert [r.record.key for r in run("good", "lost", "bad").rows] == ["lost", "bad", "good"]


def test_a_smaller_headline_may_be_better() -> None:
    project = Scored({"a": {"error": 0.1}, "b": {"error": 0.3}})
    project.monitor = ("loss", "min")  # type: ignore[misc]
    assert [r.record.key for r in run("a", "b", project=project).rows] == ["b", "a"]


def test_a_network_that_is_no_better_than_the_trivial_method_is_told_of() -> None:
    project = Scored(SCORES)
    assert no_better(project, run("good", project=project)) is None
    finding = no_better(project, run("bad", project=project))
    assert finding is not None
    assert finding.level == "warning"
    assert "scores dice 0.2, no better than the trivial baseline's 0.5" in finding.message
    assert no_better(project, run("lost", project=project)) is not None
    project.monitor = ("loss", "min")  # type: ignore[misc]
    assert no_better(project, run("bad", project=project)) is None


@pytest.mark.parametrize("given, said", [({"dice": "0.9"}, "'dice' is '0.9'"), (0.9, "it returned float")])
def test_scores_are_numbers_by_name(given: Any, said: str) -> None:
    (error,) = run("a", project=Scored({"a": given})).errors
    assert error.startswith("project scored: `score` must return numbers by name")
    assert said in error


def test_means_leave_out_what_is_no_number() -> None:
    scores = run("good", "bad", "lost")
    assert scores.means == pytest.approx({"dice": 0.55, "hd95": 15.5})
    assert scores.baseline == {"dice": 0.5, "hd95": 9.0}
    assert math.isnan(run("lost").means["dice"])


class Pooled(Scored):
    """A score over all cells of all records, a table of them, and a remark on what has none."""

    def judging(self) -> Judging:
        return Judging(shown=("dice",), pooled=self._pooled, tables=self._tables)

    def checks(self) -> Checks:
        return Checks(prediction=self._remarks)

    def _pooled(self, scores: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
        return {"hd95": max(s["hd95"] for s in scores)}

    def _tables(self, scores: Any, baseline: Any) -> Sequence[Table]:
        rows = [("left", scores[0]["dice"], len(baseline)), ("<i>right", math.nan, 0)]
        return [Table("sides", "By side", ("side", "dice", "trivial"), rows)]

    def _remarks(self, record: Record, prediction: Any) -> Sequence[Finding]:
        return [Finding("empty", "warning", "nothing found")] if prediction == "bad" else []


def test_scores_over_the_set_may_be_pooled_instead_of_averaged() -> None:
    scores = run("good", "bad", project=Pooled(SCORES))
    assert scores.means == {"dice": pytest.approx(0.55), "hd95": 30.0}
    assert scores.baseline == {"dice": 0.5, "hd95": 9.0}
    shown = [line.split() for line in score_table(scores)]
    assert ["whole", "set", "0.5500"] in shown  # and not "mean", which some of it is not
    nothing = run("broken", project=Pooled(SCORES))
    assert (nothing.rows, nothing.means, nothing.tables) == ([], {}, ())


def test_a_project_s_tables_and_remarks_are_shown_and_written(tmp_path: Path) -> None:
    scores = run("good", "bad", project=Pooled(SCORES))
    assert write_scores(scores, tmp_path)[1] == tmp_path / "scores-sides.csv"
    lines = (tmp_path / "scores-sides.csv").read_text(encoding="utf-8").splitlines()
    assert lines == ["side,dice,trivial", "left,0.2,2", "<i>right,nan,0"]
    content = json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))
    assert content["tables"][0]["rows"] == [["left", 0.2, 2], ["<i>right", None, 0]]
    assert [r["remarks"] for r in content["records"]] == [
        [{"rule": "empty", "level": "warning", "message": "nothing found"}],
        [],
    ]
    assert list(further_tables(scores)) == [
        *("", "By side"),
        *("side        dice  trivial", "left      0.2000        2", "<i>right       –        0"),
    ]


def test_only_what_a_project_shows_is_in_the_table_and_everything_in_the_files(tmp_path: Path) -> None:
    scores = run("good", "bad", project=Pooled(SCORES))
    assert not any("hd95" in line for line in score_table(scores))
    assert scores.shown_of(scores.means) == {"dice": pytest.approx(0.55)}
    write_scores(scores, tmp_path)
    assert "hd95" in (tmp_path / "scores.csv").read_text(encoding="utf-8").splitlines()[0]
    assert json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))["means"]["hd95"] == 30.0


def test_progress_is_said_with_the_remarks() -> None:
    said: list[str] = []
    evaluate(uncropped(Pooled(SCORES)), lambda batch: batch, records("good", "bad"), said.append)
    assert said == ["scored 1/2  good  dice 0.9", "scored 2/2  bad  dice 0.2", "warning: bad: nothing found"]


def test_a_record_that_cannot_be_read_is_reported_and_the_others_scored() -> None:
    scores = run("good", "broken", "bad")
    assert scores.errors == ["broken.nii: cut short"]
    assert len(scores.rows) == 2


def test_the_table_is_written_as_csv_and_json(tmp_path: Path) -> None:
    write_scores(run("good", "lost"), tmp_path)
    with (tmp_path / "scores.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [r["record"] for r in rows] == ["lost", "good"]
    assert (rows[1]["dice"], rows[1]["baseline_hd95"]) == ("0.9", "9.0")
    content = json.loads((tmp_path / "scores.json").read_text(encoding="utf-8"))
    assert content["means"]["dice"] == 0.9
    assert content["records"][0]["scores"] == {"dice": None, "hd95": None}


def test_pictures_show_the_worst_the_middle_and_the_best(tmp_path: Path) -> None:
    project = Scored({f"r{i:02d}": {"dice": i / 100} for i in range(20)})
    scores = run(*project.scores, project=project)
    written = draw_figures(uncropped(project), lambda batch: batch, scores, tmp_path)
    assert [p.stem for p in written] == ["001-r00", "002-r01", "003-r02", "004-r03", "011-r10", "020-r19"]


def test_names_of_pictures_stay_in_their_folder(tmp_path: Path) -> None:
    project = Scored({"../../x/y": {"dice": 1.0}})
    scores = run("../../x/y", project=project)
    written = draw_figures(uncropped(project), lambda batch: batch, scores, tmp_path)
    assert [p.parent for p in written] == [tmp_path]


@pytest.mark.parametrize("shape", [(5, 7, 3), (1, 1, 3), (6, 4)])
def test_a_png_reads_back_as_it_was(tmp_path: Path, shape: tuple[int, ...]) -> None:
    picture = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    write_png(tmp_path / "p.png", picture)
    back = np.asarray(Image.open(tmp_path / "p.png"))
    assert np.array_equal(back, picture)


def test_what_is_no_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="uint8"):
        write_png(tmp_path / "p.png", np.zeros((3, 3, 3)))
