"""The place of this process among those that a launcher started, from the variables of the environment that it set."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner_core.base.errors import BadInput
from runner_core.contract.team import Place

Environment = Mapping[str, str]

RENDEZVOUS = "RUNNER_RENDEZVOUS"
"""Variable in which `cli.launch` passes the meeting file to the processes that it starts."""
_ATTEMPT = "TORCHELASTIC_RESTART_COUNT"
"""torchrun keeps its store when it starts the processes again (https://github.com/pytorch/pytorch/issues/135712)."""
_PORTS = range(20_000, 40_000)


def beside_each_other(count: int, meeting: Path) -> dict[str, str]:
    """Return variables for each of `count` processes on this machine, which meet at that file and share its cores."""
    cores = len(os.sched_getaffinity(0))
    usual = {"OMP_NUM_THREADS": str(max(1, cores // count)), "GLOO_SOCKET_IFNAME": "lo"}
    ours = {RENDEZVOUS: str(meeting), "WORLD_SIZE": str(count)}
    return {name: os.environ.get(name, value) for name, value in usual.items()} | ours


def in_place(number: int, count: int) -> dict[str, str]:
    """Return further variables for the process of that number among them."""
    return {"RANK": str(number), "LOCAL_RANK": str(number), "LOCAL_WORLD_SIZE": str(count)}


def find_place(environment: Environment, *, tensorflow: bool = False) -> Place | None:
    """Return this process's place among those of a launcher, or None if it is alone.

    TF_CONFIG is a launcher's where `tensorflow` is true, and refused otherwise.

    Raises BadInput if the environment has only a part of what is needed, or is that of a launcher which would start
    several trainings that know nothing of each other.
    """
    for launcher in _LAUNCHERS:
        if _number(environment, launcher.count, 1) != 1:
            return _place(launcher, environment)
    if workers := _tensorflow_cluster(environment):
        if tensorflow:
            return _from_tensorflow(environment)
        raise BadInput(
            f"TF_CONFIG in the environment names {workers} processes, which is for Keras projects: each would train by "
            "itself. Start one process, without TF_CONFIG"
        )
    if not any(launcher.count in environment for launcher in _LAUNCHERS):
        later = [own.number for own in _LAUNCHERS if environment.get(own.number, "").strip("0").isdecimal()]
        for number in ["PMIX_RANK"] * ("PMIX_RANK" in environment) + later:
            raise BadInput(
                f"{number} is set in the environment, but not the number of processes, so each would train by itself: "
                "start them with torchrun, srun or mpirun"
            )
    return None


@dataclass(frozen=True)
class _Launcher:
    """The names of a launcher's variables."""

    count: str
    number: str
    local: str
    local_count: str
    meeting: Callable[[Environment, Place], str]
    """Returns the meeting point of a place that is complete otherwise."""


def _place(launcher: _Launcher, environment: Environment) -> Place:
    count = _number(environment, launcher.count)
    if launcher.number not in environment:
        raise BadInput(
            f"{launcher.count} is {environment[launcher.count]} in the environment, but {launcher.number} is not set"
        )
    number = _number(environment, launcher.number)
    if not 0 <= number < count:
        raise BadInput(f"{launcher.number} is {number} in the environment, and {launcher.count} is {count}")
    place = Place(number, count, _number(environment, launcher.local, 0), _beside(launcher, environment, count), "")
    place = replace(place, attempt=_number(environment, _ATTEMPT, 0))
    return replace(place, rendezvous=launcher.meeting(environment, place), **_bound(launcher, environment))


def _beside(launcher: _Launcher, environment: Environment, count: int) -> int:
    """Return the number of processes on this machine.

    A launcher that says neither this nor a place on the machine, such as Kubeflow's, starts one on each. SLURM lists
    the machines' numbers, as in 4(x2),3.
    """
    text = environment.get(launcher.local_count, "")
    if not launcher.number.startswith("SLURM"):
        return _number(environment, launcher.local_count, count if launcher.local in environment else 1)
    tasks: list[int] = []
    for found in re.finditer(r"(\d+)(?:\(x(\d+)\))?(?:,|$)", text):
        tasks += [int(found[1])] * int(found[2] or 1)
    machine = _number(environment, "SLURM_NODEID", 0)
    return tasks[machine] if machine < len(tasks) else count


def _bound(launcher: _Launcher, environment: Environment) -> dict[str, int]:
    """Return the place on the machine of a process to which srun has given a GPU of its own."""
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    own = launcher.number.startswith("SLURM") and visible and "," not in visible
    return {"local": 0, "local_count": 1} if own else {}


def _number(environment: Environment, name: str, default: int | None = None) -> int:
    try:
        return int(environment[name]) if default is None else int(environment.get(name, default))
    except ValueError as error:
        raise BadInput(f"{name} is {environment[name]!r} in the environment, and must be a whole number") from error


# ---------------------------------------------------------------- where the processes meet


def _from_environment(environment: Environment, place: Place) -> str:
    return f"file://{environment[RENDEZVOUS]}" if RENDEZVOUS in environment else "env://"


def _from_slurm(environment: Environment, place: Place) -> str:
    """Return the address of the step's first machine, at a port derived from the job's number."""
    nodes = environment.get("SLURM_STEP_NODELIST", "localhost")
    first = re.match(r"([^\[,]*)(?:\[(\d+))?([^,]*\](.*))?", nodes)  # node[01-04,07]-ib
    assert first is not None
    host = f"{first[1]}{first[2] or ''}{first[4] or ''}" if first[2] else first[1]
    return _address(environment, host, _PORTS[_number(environment, "SLURM_JOB_ID", 0) % len(_PORTS)])


def _from_mpi(environment: Environment, place: Place) -> str:
    """Return the address that the user names, or on a single machine a port derived from the job's name."""
    if "MASTER_ADDR" in environment and "MASTER_PORT" in environment:
        return _address(environment, "", 0)
    job = next((environment[name] for name in _JOBS if environment.get(name)), None)
    if place.local_count < place.count or job is None:
        raise BadInput(
            f"MPI started {place.count} processes, and the environment does not say where they meet: name the first "
            "machine and a free port, as in `mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500 …` (Open MPI) or "
            "`mpiexec -genv MASTER_ADDR HOST -genv MASTER_PORT 29500 …` (MPICH)"
        )
    return _address(environment, "127.0.0.1", _PORTS[zlib.crc32(job.encode()) % len(_PORTS)])


_JOBS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
"""Variables of Open MPI that are equal in a job's processes, and differ between jobs."""


def _address(environment: Environment, host: str, port: int) -> str:
    return f"tcp://{environment.get('MASTER_ADDR', host)}:{environment.get('MASTER_PORT', port)}"


_LAUNCHERS = (
    _Launcher("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", _from_environment),
    _Launcher("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", _from_slurm),
    _Launcher(
        *("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        meeting=_from_mpi,
    ),
    _Launcher("PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", _from_mpi),
)
"""torchrun, `cli.launch` and Kubeflow; srun; Open MPI; MPICH and Intel MPI."""


def _tensorflow_cluster(environment: Environment) -> int:
    """Return the number of processes that TF_CONFIG names, 0 if there is one or none."""
    count = 0
    with suppress(ValueError, AttributeError, TypeError, KeyError):
        count = sum(map(len, json.loads(environment.get("TF_CONFIG", "{}"))["cluster"].values()))
    return count if count > 1 else 0


def _from_tensorflow(environment: Environment) -> Place:
    """Return the place that TF_CONFIG gives this process: the chief is the first one, workers follow.

    All meet at the first one's address. Raises BadInput for a cluster that has other tasks.
    """
    content = json.loads(environment["TF_CONFIG"])
    cluster, task = content["cluster"], content.get("task", {})
    if others := sorted(set(cluster) - {"chief", "worker"}):
        raise BadInput(
            f"TF_CONFIG in the environment has tasks of the kind {', '.join(others)}: runner trains with a chief and "
            "workers, or workers alone, all of which compute"
        )
    known = [(kind, index) for kind in ("chief", "worker") for index in range(len(cluster.get(kind, [])))]
    own = (task.get("type"), _whole(task.get("index")))
    if own not in known:
        raise BadInput(f"TF_CONFIG in the environment names no task of this process among its {len(known)}: {task}")
    kind, index = known[0]
    address = cluster[kind][index]
    if not str(address).rpartition(":")[2].isdecimal():
        raise BadInput(f"TF_CONFIG in the environment: {address!r} is not HOST:PORT")
    hosts = [str(cluster[kind][index]).rpartition(":")[0] for kind, index in known]
    number = known.index(own)
    beside = [other for other, host in enumerate(hosts) if host == hosts[number]]
    return Place(number, len(known), beside.index(number), len(beside), f"tcp://{address}")


def _whole(value: Any) -> int:
    with suppress(TypeError, ValueError):
        return int(value)
    return -1
