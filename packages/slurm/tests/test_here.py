"""Jobs on this machine, without SLURM: one after another, interrupted, cancelled."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "cluster"))

from real_slurm import LONG, QUICK, Runner, events, steps, wait
from runner_slurm import jobs, scheduler
from runner_slurm.submission import Member, Submission

HERE = ("--slurm.executor", "local")


def _tasks(folder: Path) -> list[int]:
    """The processes that train for a submission."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdecimal() else []
        except OSError:
            continue
        if b"submitit.core._submit" in words and os.fsencode(folder / "jobs") in words:
            found.append(int(entry.name))
    return found


def test_an_array_runs_one_after_another_and_is_compared(runner: Runner, tmp_path: Path) -> None:
    words = ("--array", "train.seed=1,2", "--submission", "sub", "--wait", *HERE, *QUICK)
    said = runner("toy", "submit", *words).stdout
    assert said.count(" done ") == 2
    stories = [(tmp_path / "sub" / "members" / f"seed={n}.jsonl").read_text().splitlines() for n in (1, 2)]
    first, second = ([json.loads(line) for line in lines] for lines in stories)
    assert [line["event"] for line in first + second] == ["start", "ended"] * 2
    assert first[1]["time"] <= second[0]["time"], "at most one at a time"
    assert (tmp_path / "sub" / "comparison" / "report.html").is_file()
    assert "comparison: " in runner("toy", "jobs", "sub").stdout
    configured = (tmp_path / "sub" / "seed=1" / "config.yaml").read_text()
    assert "slurm" not in configured


def test_waiting_lasts_until_the_runs_of_an_array_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    member = Member("seed=1", [], settings={"train.seed": "1"}, job="5")
    submission = Submission(tmp_path, "toy", "train", scheduler.LOCAL, 0, [member])
    submission.say(member, "ended", 0)
    submission.comparison.mkdir()
    looks = []

    def lives(submission: Submission, job: str) -> bool:
        looks.append(job)
        if len(looks) == 3:
            submission.compared.touch()
        return True

    monkeypatch.setattr(scheduler, "_lives_here", lives)
    monkeypatch.setitem(jobs._LOOK, scheduler.LOCAL, 0)
    jobs.wait_for(submission)
    assert looks == ["5"] * 3
    submission.compared.unlink()
    monkeypatch.setattr(scheduler, "_lives_here", lambda submission, job: False)
    jobs.wait_for(submission)  # the job was killed while it compared


@pytest.mark.slow
def test_a_local_job_is_saved_goes_on_and_is_cancelled(runner: Runner, tmp_path: Path) -> None:
    folder = tmp_path / "sub"

    def told() -> str:
        return "\n".join(file.read_text()[-3000:] for file in folder.glob("jobs/*.out")) + str(events(folder))

    runner("toy", "submit", "--submission", "sub", *HERE, *LONG)
    wait(lambda: steps(folder / "run") >= 2, "a checkpoint", told)
    assert " running " in runner("toy", "jobs", "sub").stdout
    (process,) = _tasks(folder)
    os.kill(process, signal.SIGUSR2)
    wait(lambda: events(folder)[:3] == ["start", "requeued", "start"], "started again", told)
    saved = steps(folder / "run")
    wait(lambda: steps(folder / "run") > saved, "it goes on", told)
    runner("toy", "jobs", "sub", "--cancel", code=None)
    wait(lambda: not _tasks(folder), "ended", told)
    assert events(folder)[-1] == "ended"
    assert "stopped by SIGTERM" in told()
    assert " stopped " in runner("toy", "jobs", "sub", code=3).stdout


@pytest.mark.weekly
def test_parts_of_a_prediction(runner: Runner, tmp_path: Path) -> None:
    runner("toy", "train", "--run-dir", "run", *QUICK)
    runner("toy", "phantom", "data")
    words = ("predict", "run", "data", "--out", "masks", "--parts", "2", "--submission", "sub", "--wait", *HERE)
    said = runner("toy", "submit", *words).stdout
    assert said.count(" done ") == 2
    wanted = {f"{group}{image}.npy" for group in "abcdef" for image in "12"}
    assert wanted <= {path.name for path in (tmp_path / "masks").iterdir()}
