"""Jobs on a real SLURM: they save and go on after the time limit, a preemption, a killed process; arrays and parts."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "cluster"))

from real_slurm import LONG, QUICK, Cluster, Runner, events, steps, wait

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def submitted(cluster: Cluster, runner: Runner, tmp_path: Path) -> Callable[..., str]:
    """Submit to SLURM into the folder `sub`; return the first member's job."""

    def submit(*words: str, port: int = 29617) -> str:
        more = cluster.variables | {"MASTER_PORT": str(port)}
        said = runner("toy", "submit", *words, "--submission", "sub", "--slurm.cpus", "1", **more).stdout
        assert "on SLURM" in said
        found: str = json.loads((tmp_path / "sub" / "submission.json").read_text())["members"][0]["job"]
        return found

    return submit


def logs(folder: Path) -> str:
    return "\n".join(file.read_text(errors="replace")[-2500:] for file in folder.glob("jobs/*.out"))


def processes(folder: Path) -> dict[str, int]:
    """The job's processes that train, by their numbers in the job."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdecimal() else []
            if (
                b"submitit.core._submit" not in words
                or os.fsencode(folder / "jobs") not in words
                or b"srun" in words[0]
            ):
                continue
            variables = dict(one.split(b"=", 1) for one in (entry / "environ").read_bytes().split(b"\0") if b"=" in one)
        except OSError:
            continue
        found[variables[b"SLURM_PROCID"].decode()] = int(entry.name)
    return found


@pytest.mark.slow
def test_two_nodes_save_at_the_signal_and_survive_a_kill(
    submitted: Callable[..., str], cluster: Cluster, runner: Runner, tmp_path: Path
) -> None:
    folder = tmp_path / "sub"

    def told() -> str:
        return cluster.told() + logs(folder) + str(events(folder))

    job = submitted("--slurm.nodes", "2", "--slurm.time", "30", *LONG)
    wait(lambda: steps(folder / "run") >= 2, "a checkpoint", told)
    assert "running" in runner("toy", "jobs", "sub", **cluster.variables).stdout

    cluster("scancel", "--signal=USR2", job)  # as SLURM does before the time limit
    wait(lambda: events(folder) == ["start", "requeued"], "requeued after USR2", told)
    saved = steps(folder / "run")
    assert f"stopped by SIGUSR2 after step {saved}" in logs(folder)
    wait(lambda: "BeginTime" in cluster("squeue", "-h", "-o", "%r"), "back in the queue", told)
    assert "pending (BeginTime)" in runner("toy", "jobs", "sub", **cluster.variables).stdout

    cluster.hurry(job)
    wait(lambda: steps(folder / "run") > saved, "it goes on", told)
    assert f"going on from the checkpoint of step {saved}" in logs(folder)
    os.kill(processes(folder)["1"], signal.SIGKILL)  # the second process, on the other node
    wait(lambda: events(folder)[2:] == ["start", "requeued"], "requeued after a kill", told)
    runner("toy", "jobs", "sub", "--cancel", code=None, **cluster.variables)
    wait(lambda: not cluster("squeue", "-h"), "cancelled", told)
    assert "cancelled" in runner("toy", "jobs", "sub", code=3, **cluster.variables).stdout
    assert steps(folder / "run") > saved


@pytest.mark.weekly
def test_a_preempted_job_is_saved_and_goes_on(
    submitted: Callable[..., str], cluster: Cluster, runner: Runner, tmp_path: Path
) -> None:
    folder = tmp_path / "sub"

    def told() -> str:
        return cluster.told() + logs(folder) + str(events(folder))

    job = submitted("--slurm.sbatch", "exclusive", "nodelist=one", "--slurm.time", "30", *LONG)
    wait(lambda: steps(folder / "run") >= 2, "a checkpoint", told)
    cluster("sbatch", "-p", "high", "-w", "one", "--exclusive", "-o", "/dev/null", "--wrap", "true")
    wait(lambda: events(folder)[:2] == ["start", "requeued"], "saved", told)
    saved = steps(folder / "run")
    assert f"stopped by SIGTERM after step {saved}" in logs(folder)

    def again() -> bool:
        cluster.hurry(job)
        return events(folder).count("start") == 2

    wait(again, "started again by SLURM", told)
    wait(lambda: steps(folder / "run") > saved, "it goes on", told)
    runner("toy", "jobs", "sub", "--cancel", code=None, **cluster.variables)
    wait(lambda: not cluster("squeue", "-h"), "cancelled", told)
    assert (
        "cancelled" in runner("toy", "jobs", "sub", code=3, **cluster.variables).stdout or events(folder)[-1] == "ended"
    )


@pytest.mark.slow
def test_an_array_is_compared_and_parts_divide_the_work(
    submitted: Callable[..., str], cluster: Cluster, runner: Runner, tmp_path: Path
) -> None:
    folder = tmp_path / "sub"
    submitted("--array", "train.learning_rate=1e-3,3e-2", *QUICK)
    said = runner("toy", "jobs", "sub", "--wait", **cluster.variables).stdout
    for name in ("learning_rate=1e-3", "learning_rate=3e-2"):
        (row,) = [line.split() for line in said.splitlines() if line.split()[:1] == [name]]
        assert row[2:4] == ["done", "1"]
        assert json.loads((folder / name / "summary.json").read_text())["status"] == "done"
    wait((folder / "comparison" / "report.html").exists, "the comparison", lambda: logs(folder))
    assert len(json.loads((folder / "comparison" / "compare.json").read_text())["runs"]) == 2
    assert "$ runner compare" in runner("toy", "jobs", "sub", "--log", "all", **cluster.variables).stdout

    experiment = ("submit", "repeat", "--seeds", "2", "--parts", "2", "--submission", "parts", *QUICK)
    runner("toy", *experiment, **cluster.variables)
    said = runner("toy", "jobs", "parts", "--wait", **cluster.variables).stdout
    assert said.count(" done ") == 2
    pooled = json.loads((tmp_path / "parts" / "repeat" / "summary.json").read_text())
    assert pooled["status"] == "done", pooled


@pytest.mark.slow
def test_what_slurm_refuses_is_one_message(cluster: Cluster, runner: Runner, tmp_path: Path) -> None:
    refused = runner("toy", "submit", "--slurm.partition", "nowhere", code=2, **cluster.variables)
    assert "SLURM refused the job" in refused.stderr
    assert "invalid partition" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not list(tmp_path.glob("runs/toy/*/submission.json"))


@pytest.mark.weekly
def test_the_time_limit_itself(submitted: Callable[..., str], cluster: Cluster, runner: Runner, tmp_path: Path) -> None:
    """SLURM looks at limits twice a minute, and signals up to a minute early."""
    folder = tmp_path / "sub"
    submitted("--slurm.time", "3", "--slurm.signal-seconds", "60", *LONG)
    wait(lambda: "requeued" in events(folder), "requeued before the limit", lambda: logs(folder), 400)
    assert "stopped by SIGUSR2" in logs(folder)
    runner("toy", "jobs", "sub", "--cancel", code=None, **cluster.variables)
