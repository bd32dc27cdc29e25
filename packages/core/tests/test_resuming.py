"""`runner verify-resume`: it finds that killed runs are equal, and where they are not."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runner_core import BadInput
from runner_core.cli import main
from runner_core.contract import State
from runner_core.output.runfolder import RunFolder
from runner_core.tools.verify_resume import Difference, differences
from runner_core.tools.verify_resume.campaign import PHASES, Campaign, Campaigns, Kill, Moment, choose
from runner_core.training.assembly import TrainingSpec

JSON_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "json.md"
STEP, VALIDATION, CHECKPOINT = range(len(PHASES))
LINES = [
    {"event": "start", "step": 0, "steps": 4, "timing": {"device": "cpu"}},
    {"event": "train", "step": 2, "loss": 0.5, "timing": {"seconds": 1.0}},
    {"event": "speed", "step": 2, "timing": {"starved": 0.9}},
    {"event": "figure", "step": 2, "name": "slice", "file": "slice-00000002.png"},
    {"event": "health", "step": 2, "rule": "data starved", "timed": True, "message": "slow"},
    {"event": "validation", "step": 4, "accuracy": None, "best": True, "timing": {"seconds": 2.0}},
]
TENSORS = {
    "generators.torch": np.arange(4, dtype=np.uint8),
    "model.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "optimizer.state.0": np.zeros(3, np.float32),
}


class Runs:
    """Folders of runs, written by hand; checkpoints are in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.states: dict[Path, State] = {}

    def write(self, name: str, lines: Any = LINES, *, tensors: Any = TENSORS, values: Any = None, **more: Any) -> Path:
        path = self.folder / name
        run = RunFolder.create(None, "toy", path)
        run.jsonl.write_text("".join(json.dumps(line) + "\n" for line in lines))
        run.figures.joinpath("slice-00000002.png").write_bytes(more.get("picture", b"png"))
        run.write_summary({"status": "done", "steps": 4, "wall_seconds": random.random(), **more.get("summary", {})})
        for step in more.get("saved", (2, 4)):
            place = run.checkpoints / f"step-{step:08d}"
            place.mkdir()
            kept = {"loop": {"step": step}, "timing": {"wait": 1}, "torch": {"log": {"timing": random.random()}}}
            kept |= values or {}
            self.states[place] = State(kept, tensors if step == 4 else TENSORS)
        return path

    def compared(self, **other: Any) -> list[str]:
        """Return the differences from a run that is the same except for `other`."""
        found = differences(self.write("reference"), self.write("other", **other), self.states.__getitem__)
        return [difference.text() for difference in found]


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def changed(line: int, **values: Any) -> list[Any]:
    return [{**told, **values} if number == line else told for number, told in enumerate(LINES)]


def with_bit(name: str, index: Any) -> dict[str, Any]:
    """The tensors, the lowest bit of one value another."""
    tensors = {key: array.copy() for key, array in TENSORS.items()}
    bits = tensors[name].view(f"u{tensors[name].dtype.itemsize}")
    bits[index] ^= 1
    return tensors


def test_equal_runs_differ_in_nothing_but_time(runs: Runs) -> None:
    assert not runs.compared()


def test_what_follows_from_the_clock_is_not_compared(runs: Runs) -> None:
    lines = [line for line in changed(1, timing={"seconds": 9.0}) if line["event"] not in ("speed", "health")]
    summary = {"health": [{"rule": "data starved", "level": "warning", "message": "slow", "timed": True}]}
    assert not runs.compared(lines=lines, summary=summary)


def test_a_number_of_the_log_is_named_with_its_step(runs: Runs) -> None:
    (said,) = runs.compared(lines=changed(1, loss=0.5000000000000001))
    assert said == "log, step 2: line 'train', loss: 0.5 in the reference, 0.5000000000000001 here"


def test_what_is_no_number_equals_itself(runs: Runs) -> None:
    runs.write("one", changed(1, loss=float("nan")))
    runs.write("two", changed(1, loss=float("nan")))
    assert not differences(runs.folder / "one", runs.folder / "two", runs.states.__getitem__)


def test_a_line_that_only_one_run_has_is_named(runs: Runs) -> None:
    (said,) = runs.compared(lines=LINES[:-1])
    assert said == "log, step 4: line 'validation': {} in the reference, nothing here".format(
        '{"event": "validation", "step": 4, "accuracy": null, "best": true}'
    )


def test_a_tensor_is_named_with_its_index_and_the_network_comes_first(runs: Runs) -> None:
    other = with_bit("generators.torch", 3) | {"model.weight": with_bit("model.weight", (1, 2))["model.weight"]}
    (said,) = runs.compared(tensors=other)
    assert said == (
        "checkpoint, step 4: model.weight[1, 2]: 5.0 in the reference, 5.000000476837158 here "
        "(differing: 1 of 1 tensor of model, 1 of 1 tensor of generators)"
    )


def test_zeros_of_both_signs_are_two_numbers(runs: Runs) -> None:
    (said,) = runs.compared(tensors=TENSORS | {"optimizer.state.0": np.array([0.0, -0.0, 0.0], np.float32)})
    assert "optimizer.state.0[1]: 0.0 in the reference, -0.0 here" in said


def test_half_precision_is_compared_too(runs: Runs) -> None:
    torch = pytest.importorskip("torch")
    one, other = (torch.tensor([1.0, value], dtype=torch.bfloat16) for value in (2.0, 2.015625))
    runs.write("one", tensors={"model.a": one})
    runs.write("two", tensors={"model.a": other})
    (found,) = differences(runs.folder / "one", runs.folder / "two", runs.states.__getitem__)
    assert found.text().startswith("checkpoint, step 4: model.a[1]: 2.0 in the reference, 2.015625 here")


@pytest.mark.parametrize(
    "other, said",
    [
        ({"tensors": {}}, "model.weight: there in the reference, nothing here"),
        ({"tensors": TENSORS | {"more": np.zeros(1)}}, "more: nothing in the reference, there here"),
        ({"tensors": TENSORS | {"model.weight": np.zeros(6, np.float32)}}, "float32 (2, 3) in the reference, float32"),
        ({"values": {"loop": {"step": 2, "best": 1}}}, "checkpoint, step 2: loop.best: nothing in the reference, 1"),
        ({"saved": (4,)}, "checkpoint, step 2: the whole: there in the reference, nothing here"),
        ({"picture": b"other"}, "picture, step 2: slice-00000002.png: 3 bytes in the reference, 5 bytes here"),
        ({"summary": {"metrics": {"dice": 0.5}}}, "summary, step 4: metrics: nothing in the reference, "),
    ],
)  # fmt: skip
def test_everything_that_is_kept_is_compared(runs: Runs, other: Any, said: str) -> None:
    assert said in runs.compared(**other)[0]


def test_the_earliest_difference_comes_first(runs: Runs) -> None:
    found = runs.compared(lines=changed(5, best=False), tensors=with_bit("model.weight", (0, 0)), picture=b"other")
    assert [said.partition(":")[0] for said in found] == ["picture, step 2", "log, step 4", "checkpoint, step 4"]


# ---------------------------------------------------------------- which moments


DURATIONS = {Moment(step, STEP): 0.1 for step in range(1, 13)} | {
    **{Moment(12, VALIDATION): 2.0},
    **{Moment(step, CHECKPOINT): 0.0001 for step in (5, 10, 12)},
}


def test_moments_compare_as_they_come() -> None:
    in_order = [Moment(5, STEP), Moment(5, VALIDATION), Moment(5, CHECKPOINT), Moment(6, STEP)]
    assert sorted({*in_order}) == in_order
    assert str(in_order[1]) == "in the validation after step 5"


@pytest.mark.parametrize("seed", range(20))
def test_few_kills_meet_all_phases(seed: int) -> None:
    chosen = [choose(DURATIONS, 2, first, random.Random(seed)) for first in range(3)]
    assert {kill.moment.phase for kills in chosen for kill in kills} == {STEP, VALIDATION, CHECKPOINT}
    for kills in chosen:
        assert kills[0].moment < kills[1].moment
        for moment, delay in kills:
            assert 0 <= delay <= DURATIONS[moment]
            assert delay == 0 or moment.phase != CHECKPOINT, "over before another process could act"
            assert moment > Moment(5, CHECKPOINT), "before that a run begins anew"
    assert chosen[0] == choose(DURATIONS, 2, 0, random.Random(seed))


def test_there_may_be_fewer_moments_than_kills() -> None:
    one = {Moment(1, STEP): 0.0, Moment(1, CHECKPOINT): 0.0}
    found = choose(one, 3, 1, random.Random(0))
    assert found == [Kill(Moment(1, STEP), 0.0), Kill(Moment(1, CHECKPOINT), 0.0)], (
        "though nothing is saved before them"
    )


# ---------------------------------------------------------------- the command

SMALL = ["--train.steps-per-epoch", "3", "--checkpoint.every-steps", "2", "--model.width", "2", "--out", "out"]
FORGETFUL = """
import random
from toy_project import Toy, hookimpl

class Forgetful(Toy):
    name = "{name}"
    count = 0
    own = random.Random({seed})

    def step(self, model, batch, progress):
        step = super().step(model, batch, progress)
        self.count += 1
        return step._replace(loss=step.loss * (1 + {factor}))

@hookimpl
def runner_project():
    return Forgetful
"""


@pytest.fixture
def forgetful(here: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Installs a toy whose loss depends on something that is in no checkpoint; its name."""

    def install(seed: str, factor: str) -> str:
        name = "forgetful"
        plugins = here / "plugins"
        metadata = plugins / f"{name}-1.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (metadata / "entry_points.txt").write_text(f"[runner.projects]\n{name} = {name}\n")
        (plugins / f"{name}.py").write_text(FORGETFUL.format(name=name, seed=seed, factor=factor))
        monkeypatch.syspath_prepend(str(plugins))
        monkeypatch.setenv("PYTHONPATH", str(plugins), prepend=":")
        return name

    return install


@pytest.mark.torch
def test_a_run_that_was_killed_is_equal(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["verify-resume", "toy", *SMALL, "--times", "1", "--seed", "1", "--json"]) == 0
    printed, said = capfd.readouterr()
    assert "2 epochs of 3 steps, a checkpoint after every 1 epoch and every 2 steps" in said
    assert "equal: 1 run, killed 2 times and resumed" in said
    facts = json.loads((here / "out" / "verify-resume.json").read_text())
    assert json.loads(printed) == {"folder": "out", **facts}
    keys = JSON_PAGE.read_text(encoding="utf-8").partition("\n## verify-resume\n")[2].partition("\n## ")[0]
    assert {"folder", *facts} == set(re.findall(r"^\| `(\w+)` \|", keys, re.MULTILINE))
    assert facts["equal"]
    assert facts["steps"] == 6
    assert facts["kills"] == 2
    assert "killed 2 times" in (here / "out" / "report.html").read_text()
    assert not [path for path in (here / "out").iterdir() if path.is_dir()], "equal runs are not kept"


@pytest.mark.torch
def test_what_is_in_no_checkpoint_is_found(forgetful: Any, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = forgetful("0", "self.count / 10")
    assert main(["verify-resume", name, *SMALL, "--times", "1", "--kills", "1", "--checkpoint.every-steps", "1"]) == 3
    said = capsys.readouterr().out
    assert "DIFFERENT: 1 of 1 run, first in the log, step" in said
    assert ", loss: " in said
    assert "some random or stored state is in no checkpoint" in said
    facts = json.loads((here / "out" / "verify-resume.json").read_text())
    assert facts["repeatable"]
    assert {difference["where"] for difference in facts["runs"][0]["differs"]} >= {"log", "checkpoint"}
    assert (here / "out" / "killed-1" / "log.jsonl").is_file(), "what differs can be looked at"
    assert (here / "out" / "reference" / "log.jsonl").is_file()


@pytest.mark.torch
@pytest.mark.slow
def test_a_training_that_nobody_can_repeat_is_said(forgetful: Any, capsys: pytest.CaptureFixture[str]) -> None:
    name = forgetful("", "self.own.random()")  # from the system's entropy
    assert main(["verify-resume", name, *SMALL, "--times", "1", "--kills", "1"]) == 3
    said = capsys.readouterr().out
    assert "Two uninterrupted runs differ too, first in the " in said
    assert "the training itself is not repeatable" in said


@pytest.mark.torch
def test_a_training_that_fails_says_why(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = here / "data"
    data.mkdir()
    for name in ("a_1.npy", "b_1.npy"):
        (data / name).write_bytes(b"not an array")
    assert main(["verify-resume", "toy", "--data", "data", *SMALL]) == 2
    said = capsys.readouterr().err
    assert said.startswith("runner: 2 records cannot be used")
    assert "a_1.npy: not a whole .npy file" in said
    assert not (here / "out").exists(), "nothing is left of what was refused"


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(143)])
def test_of_what_is_interrupted_only_runs_that_differ_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: BaseException
) -> None:
    def write(run: Path) -> list[tuple[Moment, float]]:
        run.mkdir()
        (run / "log.jsonl").touch()
        run.with_name(f"{run.name}.out").touch()
        return [(Moment(1, STEP), 0.0), (Moment(2, STEP), 1.0)]

    def campaign(self: Campaigns, number: int, *_: object) -> Campaign:
        write(self._run(number))
        if number == 3:
            raise stop
        return Campaign(number, differs=[found] if number == differing else [])

    found = Difference("log", 1, "loss", "1", "2")
    monkeypatch.setattr(Campaigns, "_to_the_end", lambda self, run: write(run))
    monkeypatch.setattr(Campaigns, "_campaign", campaign)
    for differing, kept in ((0, set()), (1, {"reference", "reference.out", "killed-1", "killed-1.out"})):
        folder = tmp_path / str(differing)
        folder.mkdir()
        with pytest.raises(type(stop)):
            Campaigns(TrainingSpec("toy", "demo", None, {}), folder, lambda path: State({}, {}), lambda text: None).run(
                3, 1, 0
            )
        assert {path.name for path in folder.iterdir()} == kept


@pytest.mark.parametrize(
    "words, said",
    [
        (["--train.no-deterministic"], "bit for bit, which train.deterministic promises"),
        (["--train.devices", "2"], "resuming is tested on one device"),
        (["--times", "0"], "--times must be at least 1, not 0"),
        (["--kills", "0"], "--kills must be at least 1, not 0"),
    ],
)
def test_what_proves_nothing_is_refused(words: list[str], said: str, here: Path, capsys: Any) -> None:
    assert main(["verify-resume", "toy", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (here / "runs").exists()


def test_the_project_comes_first(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify-resume"]) == 0
    assert "usage: runner verify-resume PROJECT" in capsys.readouterr().out
    assert main(["verify-resume", "--times", "2"]) == 2
    assert "name the project first" in capsys.readouterr().err
    assert main(["verify-resume", "tooy"]) == 2
    assert "did you mean 'toy'" in capsys.readouterr().err


@pytest.mark.torch
def test_one_line_starts_a_run_or_continues_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["toy", "train", "--resume", "auto", "--run-dir", "run", "--epochs", "1", "--train.steps-per-epoch", "2"]
    run = RunFolder(here / "run")
    assert main([*line, "--train.device", "meta"]) == 2
    assert not run.path.exists()
    assert main(line) == 0
    assert "going on" not in capsys.readouterr().out
    best = run.read_summary()
    assert main(line) == 0, "the run is done"
    assert "going on from the checkpoint of step 2" in capsys.readouterr().out
    assert run.read_summary()["scores"] == best["scores"]
    shutil.rmtree(run.checkpoints)  # it ended before its first one
    run.checkpoints.mkdir()
    assert main(line) == 0
    assert run.read_summary()["scores"] == best["scores"]
    assert main([*line, "--train.learning-rate", "0.5"]) == 2
    assert "train.learning_rate" in capsys.readouterr().err
    assert main([word for word in line if word not in ("--run-dir", "run")]) == 2
    assert "--resume auto needs the folder: " in capsys.readouterr().err


def test_settings_of_a_command_are_over_a_files_and_under_flags(here: Path) -> None:
    from runner_core.cli.verify_resume import start

    (here / "mine.yaml").write_text("train: {epochs: 70, batch_size: 3}\nlog: {wandb: online}\n")
    config = start("toy", ["--config", "mine.yaml", "--train.epochs", "4"]).setup.config
    assert (config.train.epochs, config.train.batch_size, config.train.steps_per_epoch) == (4, 3, 12)
    assert (config.train.deterministic, config.log.wandb) == (True, "off")


def test_a_url_is_refused_as_elsewhere(here: Path) -> None:
    from runner_core.cli.verify_resume import start

    with pytest.raises(BadInput):
        start("toy", ["--data", "s3://key:secret@bucket/place"])
