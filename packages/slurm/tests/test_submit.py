"""`submit`: what it refuses, what it keeps, what a job would run; without a scheduler."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import runner_core
import runner_slurm.submit
import yaml
from hypothesis import given
from hypothesis import strategies as st
from runner_slurm import Config, minutes, scheduler
from runner_slurm.submission import Member, Submission
from runner_slurm.submit import _name, _variants
from runner_slurm.task import newest

Submit = Callable[..., Submission]


@pytest.fixture
def here(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder; the toy is installed in this process."""
    monkeypatch.syspath_prepend(str(toy))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def submit(here: Path, monkeypatch: pytest.MonkeyPatch) -> Submit:
    """Submit to a SLURM that takes everything and starts nothing."""
    given: dict[str, Any] = {}

    def take(submission: Submission, config: Config, tasks: int) -> list[str]:
        assert Submission.open(submission.path).members, "it is saved before a job can start"
        given["parameters"] = scheduler.slurm_parameters(submission, config, tasks)
        return [f"7_{n}" for n in range(len(submission.members))]

    def run(*words: str) -> Submission:
        assert runner_core.main(["toy", "submit", *words]) == 0
        (folder,) = {file.parent for file in here.rglob("submission.json")}
        return Submission.open(folder)

    monkeypatch.setattr(scheduler, "executor_for", lambda config: scheduler.SLURM)
    monkeypatch.setattr(scheduler, "submit", take)
    run.given = given  # type: ignore[attr-defined]
    return run


def runs(member: Member, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The settings that a member would train with."""
    words = [word for word in member.words[2:] if word not in ("--resume", "auto")]
    place = words.index("--run-dir")
    del words[place : place + 2]
    capsys.readouterr()
    assert runner_core.main(["toy", "config", *words]) == 0
    found: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
    return found


def test_a_job_trains_with_the_settings_of_the_moment_of_the_submission(
    submit: Submit, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "mine.yaml").write_text("train: {epochs: 7}\nslurm: {partition: gpu, gpus: 4, time: '2-00'}\n")
    words = ("--config", "mine.yaml", "--slurm.nodes", "2", "--train.batch-size", "6")
    submission = submit(*words, "--slurm.sbatch", "qos=long", "exclusive", "--slurm.cpus", "3")
    (here / "mine.yaml").unlink()
    (member,) = submission.members
    assert member.words[-4:] == ["--run-dir", str(submission.path / "run"), "--resume", "auto"]
    found = runs(member, capsys)
    assert (found["train"]["epochs"], found["train"]["batch_size"]) == (7, 6)
    assert "slurm" not in found, "a run is the same however it was started"
    assert "slurm" not in yaml.safe_load((submission.path / "settings" / "run.yaml").read_text())
    parameters = submit.given["parameters"]  # type: ignore[attr-defined]
    assert parameters == {
        "name": "runner-toy",
        "timeout_min": 2880,
        "nodes": 2,
        "tasks_per_node": 4,
        "gpus_per_node": 4,
        "cpus_per_task": 3,
        "stderr_to_stdout": True,
        "slurm_partition": "gpu",
        "slurm_signal_delay_s": 120,
        "slurm_srun_args": ["--kill-on-bad-exit=1", "--cpus-per-task=3"],
        "slurm_additional_parameters": {"qos": "long", "exclusive": True, "requeue": True},
    }


def test_submitit_knows_every_parameter_and_writes_them_for_sbatch(submit: Submit, tmp_path: Path) -> None:
    import submitit

    submit("--slurm.gpus", "2", "--slurm.account", "us", "--slurm.memory-gb", "64", "--slurm.setup", "module load cuda")
    parameters = submit.given["parameters"]  # type: ignore[attr-defined]
    executor = submitit.SlurmExecutor.__new__(submitit.SlurmExecutor)
    own = {name.removeprefix("slurm_"): value for name, value in parameters.items()}
    converted = submitit.SlurmExecutor._convert_parameters(executor, own)
    from submitit.slurm.slurm import _make_sbatch_string

    script = _make_sbatch_string("python", tmp_path, **converted)
    for line in (
        "#SBATCH --account=us", "#SBATCH --gpus-per-node=2", "#SBATCH --ntasks-per-node=2", "#SBATCH --mem=64GB",
        "#SBATCH --requeue", "#SBATCH --signal=USR2@120", "#SBATCH --time=1440", "module load cuda",
    ):  # fmt: skip
        assert line in script.splitlines()


def test_an_array_has_a_job_and_a_folder_for_each_combination(
    submit: Submit, capsys: pytest.CaptureFixture[str]
) -> None:
    submission = submit("--array", "train.learning_rate=1e-3,3e-4", "train.batch-size=2,4", "--epochs", "3")
    names = [member.name for member in submission.members]
    assert names[:2] == ["learning_rate=1e-3,batch_size=2", "learning_rate=1e-3,batch_size=4"]
    assert len({member.folder for member in submission.members}) == 4
    found = [runs(member, capsys)["train"] for member in submission.members]
    assert [(one["learning_rate"], one["batch_size"], one["epochs"]) for one in found] == [
        (1e-3, 2, 3), (1e-3, 4, 3), (3e-4, 2, 3), (3e-4, 4, 3),
    ]  # fmt: skip


def test_parts_and_experiments(submit: Submit) -> None:
    submission = submit("crossval", "--folds", "3", "--seeds", "2", "--parts", "3", "--slurm.gpus", "1")
    assert [member.name for member in submission.members] == [f"crossval-{n}-of-3" for n in (1, 2, 3)]
    first, *_, last = submission.members
    assert first.words[:2] == ["toy", "crossval"]
    joined = " ".join(last.words)
    for part in ("--folds 3", "--seeds 2", "--part 3/3", f"--out {submission.path / 'crossval'}", "--resume auto"):
        assert part in joined
    assert submit.given["parameters"]["tasks_per_node"] == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "devices"), [([], "4"), (["--devices", "2"], None), (["--array", "train.seed=1"], "4")]
)
def test_the_only_process_of_a_keras_training_takes_all_gpus(
    words: list[str], devices: str | None, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings that name another number keep it."""
    monkeypatch.setattr("runner_core.testing.toy.Toy.framework", "keras")
    (member,) = submit("--slurm.gpus", "4", *words).members
    assert member.words.count("--devices") == (devices is not None)
    if devices is not None:
        assert member.words[member.words.index("--devices") + 1] == devices
    parameters = submit.given["parameters"]  # type: ignore[attr-defined]
    assert (parameters["tasks_per_node"], parameters["gpus_per_node"]) == (1, 4)


@pytest.mark.parametrize(("words", "tasks"), [(["--slurm.nodes", "2"], 4), (["--slurm.tasks", "2"], 2)])
def test_several_processes_of_a_keras_training_take_one_gpu_each(
    words: list[str], tasks: int, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner_core.testing.toy.Toy.framework", "keras")
    (member,) = submit("--slurm.gpus", "4", *words).members
    assert "--devices" not in member.words
    assert submit.given["parameters"]["tasks_per_node"] == tasks  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "words, text",
    [
        ("--epochs 0", "train.epochs must be at least 1"),
        ("--slurm.time soon", "slurm.time is 'soon': write MINUTES"),
        ("--slurm.time 1 --slurm.signal-seconds 60", "told to save at its start"),
        ("--slurm.sbatch --array=3", ""),
        ("--slurm.sbatch time=3", "runner sets this option itself"),
        ("--array train.learning_rate", "write NAME=A,B,C"),
        ("--array epochs=1,2", "write NAME=A,B,C"),
        ("--array train.seed=1,2 train.seed=3", "names train.seed twice"),
        ("--array train.seed=1,2 --run-dir x", "leave --run-dir out"),
        ("--array train.epochs=1,0", "train.epochs must be at least 1"),
        ("--array train.epoch=1,2", ""),
        ("--array train.seed=1,1", "would share one folder (seed=1)"),
        ("--array train.seed=1,2 --resume", "--resume: what is submitted always goes on"),
        ("--parts 4", "`train` cannot be divided"),
        ("crossval --parts 0", "it must be at least 1"),
        ("crossval --parts 2 --part 1/2", "exclude each other"),
        ("crossval --slurm.nodes 2", "`crossval` runs in one process"),
        ("--slurm.gpus 2 --devices 3", "train.devices is 3, and SLURM starts 2 processes"),
        ("evaluate nowhere", "nowhere"),
        ("evaluate --array train.seed=1,2", "name the run first"),
        ("trian", "did you mean 'train'"),
        ("config", "`config` cannot be run later"),
        ("--data nowhere", "nowhere"),
    ],
)
def test_what_is_wrong_is_said_at_once_and_nothing_is_written(
    words: str, text: str, submit: Submit, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = runner_core.main(["toy", "submit", *words.split()])
    except SystemExit as refusal:  # tyro's, of an unknown flag
        code = refusal.code
    assert code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert text in said
    assert "Traceback" not in said
    assert not list(here.rglob("submission.json"))


def test_this_machine_alone_is_one_machine(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert scheduler.executor_for(Config()) == scheduler.LOCAL
    with pytest.raises(runner_core.BadInput, match="has no SLURM"):
        scheduler.executor_for(Config(nodes=2))
    with pytest.raises(runner_core.BadInput, match="no sbatch"):
        scheduler.executor_for(Config(executor="slurm"))


def test_jobs_refuses_what_is_no_submission(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "damaged").mkdir()
    (here / "damaged" / "submission.json").write_text('{"members": 3}')
    for words, text in (
        ([], "nothing of toy was submitted"), (["nowhere"], "not the folder of a submission"),
        (["damaged"], "is damaged"),
    ):  # fmt: skip
        assert runner_core.main(["toy", "jobs", *words]) == 2
        assert text in capsys.readouterr().err


def test_a_member_tells_its_story_line_by_line_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    member = Member("run", ["toy", "train"])
    submission = Submission(tmp_path, "toy", "train", scheduler.SLURM, 3, [member])
    submission.save()
    assert Submission.open(tmp_path) == submission
    for event, code in (("start", None), ("requeued", 140), ("start", None)):
        submission.say(member, event, code)
    with (tmp_path / "members" / "run.jsonl").open("a") as lines:
        lines.write('{"event": "en')
    state = submission.state(member)
    assert (state.starts, state.last, state.ended) == (2, "start", False)


def test_later_checkpoints_have_greater_names(tmp_path: Path) -> None:
    member = Member("run", [], str(tmp_path))
    assert newest(member) == ""
    for step in (9, 10, 100):
        (tmp_path / "checkpoints" / f"step-{step:08d}").mkdir(parents=True)
    assert newest(member) == "step-00000100"


@given(st.integers(0, 9), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_time_limits_are_read_as_slurm_reads_them(days: int, hours: int, minute: int, second: int) -> None:
    seconds = ((days * 24 + hours) * 60 + minute) * 60 + second
    expected = -(-seconds // 60)
    for text in (f"{days}-{hours}:{minute}:{second}", f"{days * 24 + hours}:{minute:02d}:{second:02d}"):
        if seconds:
            assert minutes(text) == expected
        else:
            with pytest.raises(ValueError, match="above 0"):
                minutes(text)
    if minute:
        assert minutes(f"{minute}:{second}") == minute + bool(second)
        assert minutes(str(minute)) == minute


def test_names_of_combinations_are_folders() -> None:
    assert _name({"data.split": "a/../b", "train.seed": 1}) == "split=a_.._b,seed=1"
    assert _name({"a.x": 1, "b.x": 2}) == "a.x=1,b.x=2"
    combined = list(_variants(["train.seed=1,2", "model.norm=true,false"]))
    assert [list(one.values()) for one in combined] == [[1, True], [1, False], [2, True], [2, False]]


def test_it_costs_other_commands_nothing() -> None:
    """runner imports this package at every start."""
    import subprocess

    code = "import sys, runner_slurm; print(*(m for m in ('submitit', 'tyro', 'yaml', 'numpy') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    assert not done.stdout.split()


def test_commands_are_listed_for_every_project(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words: Sequence[str]
    for words in (["toy"], ["completion", "words", "toy", ""], ["list"]):
        assert runner_core.main([*words]) == 0
        said = capsys.readouterr().out
        assert "submit" in said
        assert "jobs" in said
    assert json.dumps(runner_slurm.submit.submit.__doc__ or "").startswith('"Submit')
