"""`runner toy train --devices 2`: one run folder, one voice, one exit code, whatever happens to the processes."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

Runner = Callable[..., "subprocess.CompletedProcess[str]"]
Launch = Callable[..., "subprocess.Popen[str]"]

PROJECT = Path(__file__).parent / "toy" / "project"

TWO = ["--devices", "2", "--train.device", "cpu", "--train.batch-size", "4"]
LONG = [*TWO, "--train.epochs", "4000", "--train.steps-per-epoch", "10", "--train.schedule", "constant"]

pytestmark = pytest.mark.torch


def processes(launcher: subprocess.Popen[str]) -> list[int]:
    """The process ids of its children, in the order of their numbers."""
    found = {}
    for pid in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split():
        environment = Path(f"/proc/{pid}/environ").read_text().split("\0")
        found[next(int(e.removeprefix("RANK=")) for e in environment if e.startswith("RANK="))] = int(pid)
    return [found[number] for number in sorted(found)]


def wait_for_checkpoint(run: Path, process: subprocess.Popen[str]) -> None:
    limit = time.monotonic() + 240
    while not list(run.glob("checkpoints/step-*")) and time.monotonic() < limit:
        assert process.poll() is None
        time.sleep(0.05)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.fixture
def failing(tmp_path: Path) -> Path:
    """A folder with the toy project, whose `on_device` raises in the second process at its 5th training batch."""
    folder = tmp_path / "failing"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import os, sys\n"
        f"sys.path.insert(0, {str(PROJECT)!r})\n"
        "if os.environ.get('RANK') == '1':\n"
        "    from runner_core.base.errors import BadInput\n"
        "    from toy_project import Toy\n"
        "    plain, seen = Toy.on_device, []\n"
        "    def on_device(self, batch, statistics, rng):\n"
        "        seen.append(rng)\n"
        "        if len(seen) == 5:\n"
        "            raise (BadInput if os.environ['FAIL'] == 'input' else ZeroDivisionError)('the fifth batch')\n"
        "        return plain(self, batch, statistics, rng)\n"
        "    Toy.on_device = on_device\n",
        encoding="utf-8",
    )
    return folder


def test_settings_that_processes_cannot_share_are_refused_before_torch_and_the_data(tmp_path: Path) -> None:
    """In the process that would start the others, and in one of those that torchrun started."""
    words = ["toy", "train", "--run-dir", "run", "--train.device", "cpu", "--cache.dir", "cache", "--train.strategy"]
    gather, groups = ["fsdp", "--exchange.gather", "bfloat16"], ["hsdp", "--exchange.shard-devices", "3"]
    code = (
        "import os, sys; from runner_core.cli import main\n"
        f"code = [main([*{words}, *more]) for more in ([*{gather}, '--devices', '2'], [*{groups}, '--devices', '3'],\n"
        f"    [*{groups}, '--devices', '4'], ['ddp', '--devices', '2', '--train.deterministic', '--exchange.unused',\n"
        "     'none'])]\n"
        "os.environ.update(WORLD_SIZE='2', RANK='0', LOCAL_RANK='0', LOCAL_WORLD_SIZE='1', MASTER_ADDR='a')\n"
        f"code += [main([*{words}, *{gather}]), main([*{words}, *{groups}])]\n"
        "print(code, 'torch' in sys.modules)\n"
    )
    env = os.environ | {"PYTHONPATH": str(PROJECT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["[2, 2, 2, 2, 2, 2] False"], done
    assert done.stderr.count("exchange.gather bfloat16 rounds the weights of layers that compute in float32") == 2
    for count in (3, 4, 2):
        assert f"divides {count} processes into groups of 3 (exchange.shard_devices)" in done.stderr
    assert "train.deterministic needs exchange.unused find" in done.stderr
    assert not [*tmp_path.iterdir()]


def test_two_processes_are_one_run(runner: Runner, tmp_path: Path) -> None:
    tracked = find_spec("tensorboard") is not None
    words = ["--log.tensorboard"] if tracked else []
    done = runner("toy", "train", "--run-dir", "run", *TWO, "--train.epochs", "1", *words)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for line in ("toy: preset demo", "device: 2 × ", "together: ddp", "train: 8 records", "scored 2/2", "run folder:"):
        assert done.stdout.count(line) == 1, done.stdout
    assert "Gloo" not in done.stdout
    run = tmp_path / "run"
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["status"], summary["devices"], summary["steps"]) == ("done", 2, 40)
    events = [json.loads(line)["event"] for line in (run / "log.jsonl").read_text().splitlines()]
    assert (events.count("start"), events.count("validation"), events.count("end")) == (1, 1, 1)
    assert len(list(run.glob("tensorboard/events*"))) == int(tracked)
    assert "devices: 2" in (run / "config.yaml").read_text()
    assert "scored 2/2 in 2 processes" in done.stdout
    again = runner("toy", "evaluate", "run", "--out", "again")  # in one process, on the settings of two
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "again" / "scores.json").read_bytes() == (run / "scores.json").read_bytes()


@pytest.mark.slow
def test_a_killed_process_ends_all_and_the_run_goes_on_until_a_signal(launch: Launch, tmp_path: Path) -> None:
    training = launch("toy", "train", "--run-dir", "run", *LONG)
    wait_for_checkpoint(tmp_path / "run", training)
    first, second = processes(training)
    os.kill(second, signal.SIGKILL)
    assert training.wait(60) == 128 + signal.SIGKILL
    assert gone(first)
    said = (tmp_path / "out").read_text(encoding="utf-8")
    assert said.count("runner: ") == 1
    assert "runner: process 1 of 2 was ended by SIGKILL" in said
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed"

    before = len(list((tmp_path / "run" / "checkpoints").glob("step-*")))
    (tmp_path / "out").unlink()
    training = launch("toy", "train", "--resume", "run")
    limit = time.monotonic() + 240
    while "step " not in (tmp_path / "out").read_text(encoding="utf-8").partition("going on from")[2]:
        assert training.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.05)
    training.send_signal(signal.SIGTERM)
    assert training.wait(60) == 128 + signal.SIGTERM
    said = (tmp_path / "out").read_text(encoding="utf-8")
    assert said.count("stopped by SIGTERM after step") == 1
    assert "runner toy train --resume run" in said
    assert before
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "stopped"


PATIENT = ["--train.patience-seconds", "5"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "number", "code"),
    [
        pytest.param(signal.SIGSTOP, 1, 75, id="stopped", marks=pytest.mark.weekly),
        pytest.param(signal.SIGSTOP, 0, 75, id="the first stopped"),
        pytest.param(signal.SIGKILL, 0, 137, id="the first killed"),
    ],
)
def test_a_process_that_is_silent_ends_all_and_is_named(
    sent: signal.Signals, number: int, code: int, launch: Launch, runner: Runner, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    training = launch("toy", "train", "--run-dir", "run", *LONG, *PATIENT)
    wait_for_checkpoint(run, training)
    members = processes(training)
    os.kill(members[number], sent)
    assert training.wait(90) == code
    assert all(map(gone, members))
    said = (tmp_path / "out").read_text(encoding="utf-8")
    named = f"process {number} ({platform.node()}) of 2"
    if sent == signal.SIGSTOP:
        assert said.count(f"runner: nothing was heard from {named} for 5 s (train.patience_seconds)") == 1, said
    else:
        assert "runner: process 0 of 2 was ended by SIGKILL" in said
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert named in summary["reason"]
    again = runner("toy", "train", "--resume", "run", "--epochs", "1")  # shorter than it is already: refused, unharmed
    assert again.returncode == 2, again.stdout
    assert runner("toy", "evaluate", "run").returncode == 0


@pytest.mark.slow
def test_processes_that_do_not_end_after_a_signal_are_killed(launch: Launch, tmp_path: Path) -> None:
    training = launch("toy", "train", "--run-dir", "run", *LONG, *PATIENT)
    wait_for_checkpoint(tmp_path / "run", training)
    members = processes(training)
    for member in members:
        os.kill(member, signal.SIGSTOP)
    training.send_signal(signal.SIGTERM)
    assert training.wait(90) == 128 + signal.SIGKILL
    assert all(map(gone, members))
    said = (tmp_path / "out").read_text(encoding="utf-8")
    assert "was ended by SIGKILL because it did not end within 15 s of the signal" in said


KILLED = """
import os, sys
if os.environ.get("RANK") == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] in "01":
    from toy_project import Toy
    plain, seen = Toy.on_device, []
    def on_device(self, batch, statistics, rng):
        seen.append(rng)
        if len(seen) == 12:
            os.kill(os.getpid(), 9)
        return plain(self, batch, statistics, rng)
    Toy.on_device = on_device
from runner_core.cli import main
sys.exit(main())
"""


@pytest.mark.slow
def test_torchrun_starts_killed_processes_again_and_they_go_on(tmp_path: Path, cache_home: Path) -> None:
    """The store of torchrun outlives the processes, with what the killed ones wrote (pytorch#135712)."""
    (tmp_path / "killed.py").write_text(KILLED, encoding="utf-8")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["toy", "train", "--resume", "auto", "--run-dir", "run", "--train.device", "cpu", "--train.batch-size", "4"]
    words += ["--epochs", "3", "--train.steps-per-epoch", "10", "--checkpoint.every-steps", "4"]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "XDG_CACHE_HOME": str(cache_home), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, "--max-restarts", "2", "--monitor-interval", "0.2", "killed.py", *words],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("going on from the checkpoint of step") == 2
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "done"


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, code, said",
    [
        ("input", 2, "runner: the fifth batch"),
        ("error", 1, "runner: unexpected ZeroDivisionError: the fifth batch"),
    ],
)
def test_one_process_that_fails_says_so_for_all(
    kind: str, code: int, said: str, runner: Runner, failing: Path, tmp_path: Path
) -> None:
    done = runner("toy", "train", "--run-dir", "run", *LONG, installed=(failing, PROJECT), FAIL=kind)
    assert done.returncode == code, done.stderr
    assert done.stderr.count("runner: ") == 1
    assert said in done.stderr
    assert ("Traceback" in (tmp_path / "run" / "train.log").read_text()) == (kind == "error")
    assert not list((tmp_path / "run").glob("checkpoints/.*"))


def test_what_all_refuse_is_said_once(runner: Runner, tmp_path: Path) -> None:
    done = runner("toy", "train", "--run-dir", "run", "--devices", "2", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert done.stderr.count("train.devices 2: PyTorch sees no GPU here") == 1
    assert not (tmp_path / "run").exists()
