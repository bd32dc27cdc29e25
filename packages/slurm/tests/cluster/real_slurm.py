"""A real SLURM of two nodes on this machine, and what tests of jobs look at."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Runner = Callable[..., subprocess.CompletedProcess[str]]

QUICK = ("--epochs", "1", "--train.steps-per-epoch", "2", "--train.threads", "1")
LONG = ("--epochs", "100000", "--train.schedule", "constant", "--train.threads", "1", "--checkpoint.every-steps", "2")


def events(folder: Path, member: str = "run") -> list[str]:
    """What a member's lines say, in order."""
    file = folder / "members" / f"{member}.jsonl"
    return [json.loads(line)["event"] for line in file.read_text().splitlines()] if file.exists() else []


def steps(run: Path) -> int:
    """Step of the newest checkpoint, 0 if there is none."""
    return max((int(path.name.removeprefix("step-")) for path in run.glob("checkpoints/step-*")), default=0)


def wait(reached: Callable[[], Any], what: str, tell: Callable[[], str], seconds: float = 240) -> None:
    """Wait until something is so; a test fails that waits in vain."""
    until = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < until, f"{what}: not within {seconds:g} s\n{tell()}"
        time.sleep(0.2)


# ---------------------------------------------------------------- the daemons

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MpiDefault=none
ReturnToService=2
KillWait=30
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 State=UNKNOWN
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF State=UP
"""
"""CPUs are counted, not bound: both nodes are this machine."""


class Cluster:
    """slurmctld, a slurmd for each of two nodes, and munged, which go with the fixture."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._processes = folder, list[subprocess.Popen[bytes]]()
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        ports = [one.getsockname()[1] for one in sockets]
        for one in sockets:
            one.close()
        folder.chmod(0o755)
        (folder / "state").mkdir()
        (folder / "key").write_bytes(secrets.token_bytes(128))
        (folder / "key").chmod(0o400)
        names = {"host": socket.gethostname().partition(".")[0], "user": pwd.getpwuid(os.getuid()).pw_name}
        self.file = folder / "slurm.conf"
        self.file.write_text(CONFIGURATION.format(folder=folder, ports=ports, **names))
        self.variables = {
            "SLURM_CONF": str(self.file),
            "MASTER_ADDR": "127.0.0.1",
        }  # the nodes' names are known to nobody

    def start(self) -> None:
        own = [f"--{name}={self.folder / file}" for name, file in (
            ("key-file", "key"), ("socket", "munge.sock"), ("pid-file", "munge.pid"), ("log-file", "munge.log"),
            ("seed-file", "seed"))]  # fmt: skip
        self._start("munged", "--force", "--foreground", *own)
        self._start("slurmctld", "-D", "-f", str(self.file))
        for node in ("one", "two"):
            self._start("slurmd", "-D", "-N", node, "-f", str(self.file))
        wait(
            lambda: self("sinfo", "-h", "-N", "-p", "low", "-o", "%t").split() == ["idle"] * 2,
            "idle nodes",
            self.told,
            60,
        )

    def _start(self, *words: str) -> None:
        program = shutil.which(words[0], path=f"{os.environ.get('PATH', '')}:/usr/sbin") or words[0]
        with (self.folder / "daemons").open("ab") as log:
            self._processes.append(
                subprocess.Popen([program, *words[1:]], stdout=log, stderr=log, env=os.environ | self.variables)
            )

    def stop(self) -> None:
        self("scancel", "--full", f"--user={pwd.getpwuid(os.getuid()).pw_name}")
        until = time.monotonic() + 60
        while self("squeue", "-h") and time.monotonic() < until:
            time.sleep(0.5)
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def __call__(self, *words: str) -> str:
        done = subprocess.run(words, env=os.environ | self.variables, text=True, capture_output=True, check=False)
        return done.stdout

    def hurry(self, job: str) -> None:
        """Let a requeued job start soon: SLURM waits two minutes.

        Not at once: slurmd kills a job whose credential is as old, in seconds, as the end of its former run.
        """
        time.sleep(2)
        self("scontrol", "update", f"JobId={job}", "StartTime=now")

    def told(self) -> str:
        return "\n".join([self("squeue"), (self.folder / "daemons").read_text(errors="replace")[-3000:]])
