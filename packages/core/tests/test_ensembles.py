"""Ensembles: the mean against NumPy, honest scores of training data, maps of disagreement, exports, and refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import runner_core as api
from hypothesis import given
from hypothesis import strategies as st
from runner_core import BadInput, Combining, Record, RunConfig, View
from runner_core.base.errors import Stopped
from runner_core.cli import main
from runner_core.experiments.members import Runner
from runner_core.output.experiments import ExperimentFolder, Member
from runner_core.tools.runs import read_run
from runner_core.training import ensembles
from runner_core.training.ensembles import Ensemble


def member(name: str, output: Any, kind: Any = "values", **more: Any) -> ensembles.Member:
    """A run whose network gives this array, whatever it sees."""
    combining = Combining(
        kind,
        lambda cropped, infer: {"a": output.copy()},
        lambda cropped, soft: ("decided", soft["a"]),
        write_map=lambda cropped, values, stem: [],
        **more,
    )
    project = SimpleNamespace(name="fake", combining=lambda: combining, config=RunConfig())
    pipeline: Any = SimpleNamespace(project=project, settings={"prepare": {"size": 1}, "crop": {"name": "none"}})
    return ensembles.Member(name, pipeline, lambda arrays: arrays)


SEEN: Any = SimpleNamespace(record=Record("k", "g", {}))


@given(st.integers(1, 7), st.integers(0, 2**32 - 1))
def test_the_mean_and_its_spread_are_numpys(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    outputs = rng.normal(50, 3, (count, 4, 5)).astype(np.float32)
    ensemble = Ensemble([member(str(n), output) for n, output in enumerate(outputs)])
    word, found = ensemble.predict(SEEN)
    assert (word, found.dtype) == ("decided", np.float32)
    np.testing.assert_allclose(found, outputs.astype(np.float64).mean(0), rtol=1e-6)
    (_, same), _ = ensemble.predict_with_spread(SEEN)
    np.testing.assert_array_equal(same, found)
    _, spread = ensemble.soft_and_spread(SEEN)
    wanted = outputs.astype(np.float64).std(0, ddof=1) if count > 1 else np.zeros((4, 5))
    np.testing.assert_allclose(spread, wanted, rtol=1e-3, atol=1e-3)


def test_a_project_may_write_what_each_network_says() -> None:
    outputs = [np.full((2, 2), value, np.float32) for value in (1, 2, 6)]
    written: list[Any] = []

    def write_members(cropped: Any, found: Any, stem: Path) -> list[Path]:
        written.extend(output["a"] for output in found)
        return [stem.with_suffix(".txt")]

    ensemble = Ensemble([member(str(n), output, write_members=write_members) for n, output in enumerate(outputs)])
    (_, mean), write = ensemble.predict_with_spread(SEEN)
    np.testing.assert_array_equal(mean, np.full((2, 2), 3, np.float32))
    assert write(Path("k_disagreement")) == [Path("k_disagreement.txt")]
    np.testing.assert_array_equal(written, outputs)  # the mean is summed in the first output, and they are copies


@given(st.integers(1, 256), st.integers(0, 2**32 - 1))
def test_bytes_are_summed_without_overflow_and_rounded(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    outputs = rng.choice(np.array([0, 1, 127, 254, 255], np.uint8), (count, 2, 30))
    ensemble = Ensemble(
        [member(str(n), output, "probabilities", classes=("a", "b")) for n, output in enumerate(outputs)]
    )
    soft, spread = ensemble.soft_and_spread(SEEN)
    assert soft["a"].dtype == np.uint8
    np.testing.assert_array_equal(soft["a"], np.floor(outputs.astype(float).mean(0) + 0.5))
    winner = soft["a"].argmax(0)
    deviations = (outputs / 255).std(0, ddof=1) if count > 1 else np.zeros((2, 30))
    np.testing.assert_allclose(spread, np.where(winner, deviations[1], deviations[0]), atol=1e-3)


@pytest.mark.parametrize("kind", ["probabilities", "values", "embeddings"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_one_network_alone_predicts_the_same_bits(kind: str, dtype: Any) -> None:
    output = (np.random.default_rng(0).random((3, 40)) * 255).astype(dtype)
    classes = ("a", "b", "c") if kind == "probabilities" else ()
    found = Ensemble([member("one", output, kind, classes=classes)]).soft(SEEN)["a"]
    assert (found.dtype, found.tobytes()) == (output.dtype, output.tobytes())


def test_the_cosine_of_joined_embeddings_is_the_mean_of_the_cosines() -> None:
    def cosines(vectors: Any) -> Any:
        unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
        return unit @ unit.T

    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(6, 8)).astype(np.float32), 100 * rng.normal(size=(6, 5)).astype(np.float32)
    other = np.pad(other, [(0, 0), (0, 3)])
    joined = Ensemble([member("1", one, "embeddings"), member("2", other, "embeddings")]).soft(SEEN)["a"]
    assert joined.shape == (6, 16)
    np.testing.assert_allclose(cosines(joined), (cosines(one) + cosines(other)) / 2, atol=1e-6)


def test_a_record_is_predicted_by_those_that_did_not_train_on_it() -> None:
    outputs = np.arange(3, dtype=np.float32)[:, None]
    ensemble = Ensemble([member(str(n), output) for n, output in enumerate(outputs)])
    told = ensemble.knowing([lambda record, own=own: record.key in own for own in ("ab", "ac", "a")])  # type: ignore[misc]
    for key, wanted, trained in (("a", 1.0, True), ("b", 1.5, False), ("c", 1.0, False), ("d", 1.0, False)):
        record = Record(key, "g", {})
        assert told.soft(SimpleNamespace(record=record))["a"].tolist() == [wanted]  # type: ignore[arg-type]
        assert told.trained_on(record) == trained
        assert told.left_out(record) == (key in "bc")


def test_runs_that_do_not_fit_are_refused_with_the_reason() -> None:
    one = member("A", np.zeros(3, np.float32), unit="Gy")
    other_size = member("B", np.zeros(3, np.float32), unit="Gy")
    other_size.pipeline.settings["prepare"]["size"] = 2  # type: ignore[index]
    alone = member("B", np.zeros(3, np.float32))
    alone.project.combining = lambda: None  # type: ignore[method-assign]
    elsewhere = member("B", np.zeros(3, np.float32))
    elsewhere.project.name = "other"  # type: ignore[misc]
    without = member("B", np.zeros(3, np.float32), unit="Gy")
    without.project.config.predict.views = ("none",)
    assert len(Ensemble([one, without]).members) == 2  # two words for no views
    for other, said in (
        (other_size, r"A and B cannot predict together: prepare.size is 1 and 2 \(they prepare records differently"),
        (member("B", np.zeros(3, np.float32), unit="cGy"), "unit is Gy and cGy"),
        (member("B", np.zeros(3, np.float32), unit="Gy", must_match={"channels": ["a"]}), "channels is None and a"),
        (alone, "fake predicts with one network only"),
        (elsewhere, "A is a run of project 'fake', B of 'other'"),
    ):
        with pytest.raises(BadInput, match=said):
            Ensemble([one, other])
    with pytest.raises(BadInput, match=r"different outputs, a \(3,\) and a \(4,\) \(B\)"):
        Ensemble([one, member("B", np.zeros(4, np.float32), unit="Gy")]).predict(SEEN)
    pair = [member(name, np.zeros((1, 3), np.float32), "embeddings") for name in "AB"]
    apart = Ensemble(pair).knowing([lambda record: record.key == "a", lambda record: record.key == "b"])
    with pytest.raises(BadInput, match="vectors cannot be compared"):
        apart.refuse_mixed([Record("a", "g", {}), Record("b", "g", {})])
    with pytest.raises(BadInput, match="no map of values"):
        apart.refuse_without_map()


@pytest.fixture
def cv(crossvalidated: Path, here: Path) -> Path:
    """The cross-validation in the working folder, and the toy's phantom as `data`."""
    assert main(["toy", "phantom", "data"]) == 0
    return Path(shutil.copytree(crossvalidated, "cv"))


def predictions(folder: str) -> dict[str, Any]:
    return {path.stem: np.load(path) for path in sorted(Path(folder).glob("*.npy"))}


@pytest.mark.torch
def test_predictions_of_a_crossval_are_the_mean_of_its_runs(cv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = str(sorted(Path("data").glob("*_a.npy"))[0])
    for n in (1, 2, 3):
        assert main(["toy", "predict", f"cv/fold-{n}", image, "--out", f"alone{n}", "--scaled"]) == 0
    assert main(["toy", "predict", "cv", image, "--out", "together", "--scaled", "--disagreement"]) == 0
    assert "3 runs together: " in capsys.readouterr().out
    words = ["cv/fold-1", image, "--with", "cv/fold-2", "--with", "cv/fold-3", "--out", "named", "--scaled"]
    assert main(["toy", "predict", *words]) == 0
    stem = Path(image).stem
    alone = np.stack([predictions(f"alone{n}")[f"{stem}_probability"] for n in (1, 2, 3)]).astype(np.float64)
    assert np.ptp(alone, axis=0).max() > 1e-3, "the runs differ"
    found = predictions("together")
    np.testing.assert_allclose(found[f"{stem}_probability"], alone.mean(0), rtol=1e-6)
    np.testing.assert_array_equal(found[f"{stem}_mask"], found[f"{stem}_probability"] > 0.5)
    np.testing.assert_allclose(found[f"{stem}_disagreement"], alone.std(0, ddof=1), atol=1e-5)
    assert {name: array.tobytes() for name, array in predictions("named").items()} == {
        name: array.tobytes() for name, array in found.items() if "disagreement" not in name
    }
    from_python = api.open("cv/fold-1").predict(image, with_=["cv/fold-2", "cv/fold-3"])
    np.testing.assert_array_equal(from_python.array, found[f"{stem}_probability"])
    np.testing.assert_array_equal(api.open("cv").predict(image).array, found[f"{stem}_probability"])


@pytest.mark.torch
def test_an_experiment_is_opened_from_python_as_a_run_is(cv: Path) -> None:
    found = api.open("cv")
    assert isinstance(found, api.Experiment)
    assert (found.project, found.status, [run.path.name for run in found.runs]) == (
        *("toy", "done"),
        ["fold-1", "fold-2", "fold-3"],
    )
    pooled = json.loads((cv / "scores.json").read_text("utf-8"))
    assert found.scores["dice"] == pytest.approx(pooled["means"]["dice"])
    assert found.evaluate()["dice"] == pytest.approx(pooled["means"]["dice"])
    assert found.summary["scores"]["dice"]["low"] is not None
    assert found.settings["train.steps_per_epoch"] == 2
    assert (
        {row["run"] for row in found.history} == {row["run"] for row in found.steps} == {"fold-1", "fold-2", "fold-3"}
    )
    assert found.figures
    assert found.report.is_file()
    assert "crossval of toy, done" in repr(found)
    assert "dice" in found._repr_html_()
    with pytest.raises(BadInput, match="several runs, each with its own checkpoints"):
        found.predict("data", checkpoint="step-00000001")
    replace(ExperimentFolder.open(cv), kind="sweep").save()
    with pytest.raises(BadInput, match="is a sweep"):
        api.open("cv")


@pytest.mark.torch
def test_cross_validating_and_comparing_from_python(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick: dict[str, Any] = {"epochs": 1, "train.steps_per_epoch": 2, "train.threads": 1}
    found = api.crossval("toy", folds=2, out="cv", resume="auto", **quick)
    assert (found.status, [run.path.name for run in found.runs]) == ("done", ["fold-1", "fold-2"])
    again = api.crossval("toy", resume=found.path)
    assert "2 of 2 runs done already" in capsys.readouterr().out
    assert again.scores == found.scores
    with pytest.raises(BadInput, match=r"--folds \(it has 2\)"):
        api.crossval("toy", resume="cv", folds=3)
    with pytest.raises(BadInput, match="no keyword 'fold'; did you mean 'folds'"):
        api.crossval("toy", fold=3)
    compared = api.compare(found.runs[0], "cv/fold-2")
    assert compared.verdicts == []
    assert "were not validated on the same records" in compared._repr_html_()
    with pytest.raises(BadInput, match="two runs or more"):
        api.compare(found)


@pytest.mark.torch
def test_an_interrupted_repetition_goes_on_from_python(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick: dict[str, Any] = {"epochs": 1, "train.steps_per_epoch": 2, "train.threads": 1}
    train_all = Runner.train_all

    def interrupted(self: Runner, members: Sequence[Member], *rest: Any) -> list[str]:
        train_all(self, members[:1], *rest)
        raise Stopped(2, "interrupted")

    with monkeypatch.context() as changed:
        changed.setattr(Runner, "train_all", interrupted)
        found = api.repeat("toy", seeds=2, out="seeds", **quick)
    assert (found.status, len(found.runs)) == ("unfinished", 1)
    found = api.repeat("toy", resume=found.path)
    assert found.status == "done"
    compared = api.compare(*found.runs, out="compared")
    assert (compared.folder, {row["run"] for row in compared.verdicts}) == (Path("compared"), {"run 2"})
    assert compared.report.is_file()
    assert compared.verdicts[0]["text"] in repr(compared)


@pytest.mark.torch
def test_networks_that_are_the_same_get_no_verdict(cv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree("cv/fold-1", "copy")
    for other in ("cv/fold-1", "copy"):
        assert main(["compare", "cv", other, "--out", f"compared-{Path(other).name}"]) == 0
        out = capsys.readouterr().out
        assert "no verdict: run 1 and run 2 contain the same network" in out
        assert "speed (of an experiment: the mean over its runs)" in out
    speeds = [json.loads((folder / "compare.json").read_text())["speed"] for folder in cv.parent.glob("compared-*")]
    folds = [read_run(cv / f"fold-{n}") for n in (1, 2, 3)]
    for speed in speeds:
        assert speed["samples/s"][0] == pytest.approx(np.mean([run.summary["samples_per_second"] for run in folds]))
        steps = [run.seconds["seconds"] / run.steps for run in folds]
        assert speed["seconds a step"][0] == pytest.approx(np.mean(steps))
        assert speed["wall time"][0] == pytest.approx(np.mean([run.summary["wall_seconds"] for run in folds]))
        assert speed["samples/s"][1] == folds[0].summary["samples_per_second"]
    assert main(["compare", "cv/fold-2", "copy", "--out", "others"]) == 0
    assert "same network" not in capsys.readouterr().out


@pytest.mark.torch
def test_training_data_are_scored_by_the_runs_that_never_saw_them(cv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toy", "evaluate", "cv"]) == 0
    out = capsys.readouterr().out
    assert "each record is predicted by the runs that were not trained on it" in out
    assert "trained on" not in out.replace("were not trained on it", "")
    (folder,) = cv.glob("evaluation-*")
    own, pooled = (json.loads((place / "scores.json").read_text("utf-8")) for place in (folder, cv))
    scores = {r["record"]: r["scores"] for r in own["records"]}
    assert scores == {r["record"]: r["scores"] for r in pooled["records"]}
    assert len(scores) == 10
    assert not any(record["trained_on"] for record in own["records"])
    assert "3 runs together" in json.loads((folder / "evaluation.json").read_text("utf-8"))["checkpoint"]
    assert f"report: {Path('cv/report.html')}" in out
    page = (cv / "report.html").read_text("utf-8")
    assert page.count("Evaluation: ") == 1, "the runs' own scores.json are no evaluations"
    assert folder.name in page
    assert page.count("A calibrated network lies on the dashed line") == 1, "the curves of the networks together"
    (cv / "report.html").unlink()
    assert main(["toy", "report", "cv"]) == 0
    assert (cv / "report.html").read_text("utf-8") == page
    # two of the runs: records that both were trained on are marked
    words = ["cv/fold-1", "--with", "cv/fold-2", "--split", "all", "--out", "two"]
    assert main(["toy", "evaluate", *words]) == 0
    third = (cv / "fold-3" / "split.yaml").read_text("utf-8").partition("validation:")[2]
    for row in json.loads(Path("two/scores.json").read_text("utf-8"))["records"]:
        assert row["trained_on"] == (f"- {row['record']}\n" in third)


@pytest.mark.torch
def test_an_export_holds_each_network_and_says_how_they_predict(cv: Path) -> None:
    assert main(["toy", "export", "cv", "--out", "exported"]) == 0
    about = json.loads(Path("exported/ensemble.json").read_text("utf-8"))
    assert [m["folder"] for m in about["members"]] == ["1-fold-1", "2-fold-2", "3-fold-3"]
    assert about["how"].startswith("Average the networks' probabilities of whole records")
    assert main(["toy", "export", "cv/fold-2", "--out", "alone"]) == 0
    for file in (path for path in Path("alone").rglob("*") if path.is_file()):
        assert (Path("exported/2-fold-2") / file.relative_to("alone")).read_bytes() == file.read_bytes()


@pytest.mark.torch
def test_an_export_with_an_unknown_view_writes_nothing(
    cv: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a project that knows its views only once it has the statistics of a checkpoint."""
    for early in (True, False):
        if not early:
            monkeypatch.setattr("runner_core.cli.start.refuse_unknown_views", lambda project: None)
        for run in ("cv", "cv/fold-2"):
            assert main(["toy", "export", run, "--out", "exported", "--predict.views", "sideways"]) == 2
            said = capsys.readouterr().err
            assert "there is no view 'sideways'" in said
            assert said.count("\n") == 1
            assert not Path("exported").exists()


@pytest.mark.torch
def test_what_cannot_predict_together_is_refused(cv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = ExperimentFolder.open(cv)
    unfinished = Path(shutil.copytree(cv, "unfinished"))
    replace(experiment, path=unfinished, members=[*experiment.members, Member("fold-4")]).save()
    sweep = Path(shutil.copytree(cv, "sweep"))
    replace(experiment, path=sweep, kind="sweep").save()
    cases: list[tuple[list[str], str]] = [
        (["cv/fold-1", "data", "--with", "cv"], "is named twice"),
        (["unfinished", "data"], "1 run of 4 not trained to the end (fold-4)"),
        (["sweep", "data"], "is a sweep, whose runs differ on purpose"),
        (["cv/fold-1", "data", "--disagreement"], "--disagreement needs several runs"),
        (["cv/fold-1", "data", "--with", "nowhere"], "nowhere: there is no such run folder"),
    ]
    for words, said in cases:
        assert main(["toy", "predict", *words, "--out", "out"]) == 2, words
        assert said in capsys.readouterr().err
        assert not Path("out").exists()


@pytest.mark.torch
def test_the_command_line_predicts_together(crossvalidated: Path, runner: Callable[..., Any], tmp_path: Path) -> None:
    assert runner("toy", "phantom", "data").returncode == 0
    ended = runner("toy", "predict", crossvalidated, "data", "--out", "out", "--disagreement")
    assert ended.returncode == 0, ended.stderr
    assert len(list((tmp_path / "out").glob("*_disagreement.npy"))) == 10
    (note,) = [line for line in ended.stdout.splitlines() if line.startswith("NOTE")]
    assert "files that they were trained on (" in note
    assert " by 2 of 3 runs" in note
    assert "--with" in runner("toy", "predict", "--help").stdout


@pytest.mark.torch
def test_views_are_averaged_and_undone(cv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Against the same network's predictions of files that were turned by hand."""
    image = np.load(sorted(Path("data").glob("*_a.npy"))[0])
    ways = {"none": lambda a: a, "mirror-x": lambda a: a[..., ::-1], "turn-90": lambda a: np.rot90(a, 1, (1, 2))}
    back = {**ways, "turn-90": lambda a: np.rot90(a, -1, (1, 2))}
    for name, way in ways.items():
        np.save(f"{name}_a.npy", way(image))
        assert main(["toy", "predict", "cv/fold-1", f"{name}_a.npy", "--out", "alone", "--scaled"]) == 0
    alone = predictions("alone")
    wanted = np.mean([back[name](alone[f"{name}_a_probability"]) for name in ways], axis=0)
    assert np.abs(wanted - alone["none_a_probability"]).max() > 1e-4, "the network is equivariant"
    words = ["none_a.npy", "--scaled", "--predict.views", "turn-90", "mirror-x"]
    assert main(["toy", "predict", "cv/fold-1", *words, "--out", "seen"]) == 0
    assert "averaged over 3 views (turn-90, mirror-x and none)" in capsys.readouterr().out
    np.testing.assert_allclose(predictions("seen")["none_a_probability"], wanted, atol=1e-6)
    # of several networks: how much they disagree is not how much the views do
    for n in (1, 2, 3):
        assert main(["toy", "predict", f"cv/fold-{n}", *words, "--out", f"seen{n}"]) == 0
    assert main(["toy", "predict", "cv", *words, "--out", "together", "--disagreement"]) == 0
    each = np.stack([predictions(f"seen{n}")["none_a_probability"] for n in (1, 2, 3)])
    np.testing.assert_allclose(predictions("together")["none_a_probability"], each.mean(0), rtol=1e-5)
    np.testing.assert_allclose(predictions("together")["none_a_disagreement"], each.std(0, ddof=1), atol=1e-5)
    settings = Path("views.yaml")
    settings.write_text("predict:\n  views: [mirror-x, turn-90]\n", encoding="utf-8")
    assert main(["toy", "evaluate", "cv", "--config", str(settings), "--out", "scored"]) == 0
    assert "averaged over 3 views" in capsys.readouterr().out
    assert main(["toy", "predict", "cv/fold-1", "data", "--out", "no", "--predict.views", "miror-x"]) == 2
    assert "there is no view 'miror-x'; did you mean 'mirror-x'? (all, none, or: mirror-y," in capsys.readouterr().err
    assert main(["toy", "evaluate", "cv", "--data", "data", "--predict.views", "miror-x"]) == 2
    said = capsys.readouterr()
    assert "there is no view 'miror-x'" in said.err
    assert said.out == "", "before the data are read"
    assert main(["toy", "export", "cv/fold-1", "--out", "exported", "--predict.views", "all"]) == 0
    assert "averaged over 8 views" in capsys.readouterr().out


def test_views_that_do_not_lead_back_and_projects_without_any_are_refused() -> None:
    turned = View("turn", lambda cropped: cropped.prepared, lambda soft: {"a": soft["a"].T})
    one = member("A", np.zeros((2, 3), np.float32), views=(turned,))
    one.project.config.predict.views = ("turn",)
    seen = SimpleNamespace(record=Record("k", "g", {}), decoded=None, box=None, prepared={})
    with pytest.raises(BadInput, match=r"k: the view 'turn' does not lead back .* a \(3, 2\) in place of a \(2, 3\)"):
        Ensemble([one]).predict(seen)  # type: ignore[arg-type]
    bare = member("A", np.zeros((2, 3), np.float32))
    bare.project.config.predict.views = ("all",)
    with pytest.raises(BadInput, match="fake declares no views of a record"):
        Ensemble([bare]).predict(seen)  # type: ignore[arg-type]
