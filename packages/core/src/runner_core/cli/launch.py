"""Training with several processes: start one for each device, join them, and decide which of them reports an error.

`launch` passes signals on and ends with the exit code of the first process that failed. `cli.train` decides what the
processes do; torchrun and srun may start them as well.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGINT
from types import FrameType
from typing import NoReturn

from runner_core.base.calling import CALLED, runner
from runner_core.base.errors import BadInput, PeerLost, RunnerError, Stopped, Unhealthy
from runner_core.contract import Device, Precision
from runner_core.contract.setup import Setup
from runner_core.contract.team import Place, Team
from runner_core.engines.device import cpu
from runner_core.engines.for_keras import place_for_keras
from runner_core.engines.for_torch import refuse_sharing
from runner_core.training.launchers import RENDEZVOUS, beside_each_other, find_place, in_place
from runner_core.training.signals import HANDLED, end_with_parent, handling

_CODE = "from runner_core.cli import script; script()"
_PATIENCE = 10.0
"""Seconds that the other processes have to notice a failure, and again to end at SIGTERM, before they are killed: a
process that waits for a GPU's answer notices nothing."""
_LOOK = 0.05


def launch(arguments: Sequence[str], count: int, patience: float) -> int:
    """Run `runner ARGUMENTS` in `count` local processes; return the exit code of the first that fails, else 0.

    Processes that a signal should end are killed if they do not within `patience` seconds and a little more.
    """
    with tempfile.TemporaryDirectory(prefix="runner-") as folder:
        environment = {**os.environ, CALLED: runner(), **beside_each_other(count, Path(folder) / "meeting")}
        processes: list[subprocess.Popen[bytes]] = []
        with _passed_on(processes) as passed_on:
            for number in range(count):
                # In its own process group: this process receives a terminal's Ctrl-C and passes it on once.
                command = [sys.executable, "-c", _CODE, *arguments]
                processes.append(subprocess.Popen(command, env=environment | in_place(number, count), process_group=0))
            return _first_failure(processes, passed_on, patience)


@contextmanager
def _passed_on(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[list[float]]:
    """Pass this process's signals on to all of these, and do nothing else; none outlives the context.

    The list that it gives holds the times of signals after which the processes should end. Outside the main thread,
    where Python delivers no signals, there is none to pass on.
    """
    times: list[float] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGHUP:
            times.append(time.monotonic())
        for process in processes:
            process.send_signal(number)

    with handling(pass_on, HANDLED):
        try:
            yield times
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _first_failure(processes: Sequence[subprocess.Popen[bytes]], passed_on: Sequence[float], patience: float) -> int:
    """Wait for all processes, and return the exit code of the first that failed.

    Once one has failed, the others get SIGTERM if they do not end by themselves, and then SIGKILL; so they do some time
    after the first of the signals that were `passed_on`.
    """
    ended: dict[int, int] = {}
    killed: set[int] = set()  # by this process
    failed_at: float | None = None
    remedies = [signal.SIGTERM, signal.SIGKILL]
    while len(ended) < len(processes):
        if failed_at is None and passed_on and time.monotonic() - passed_on[0] > patience + _PATIENCE:
            failed_at = time.monotonic()
        for number, process in enumerate(processes):
            if number not in ended and (code := process.poll()) is not None:
                ended[number] = code
                if code and failed_at is None:
                    failed_at = time.monotonic()
        waited = 0.0 if failed_at is None else time.monotonic() - failed_at
        if remedies and waited > _PATIENCE * (3 - len(remedies)):
            remedy = remedies.pop(0)
            for number, process in enumerate(processes):
                if number not in ended:
                    process.send_signal(remedy)
                    killed.add(number)
        time.sleep(_LOOK)
    failures = [(number, code) for number, code in ended.items() if code]
    own = [(number, code) for number, code in failures if code != PeerLost.exit_code and number not in killed]
    number, code = next(iter(own or failures), (0, 0))
    if code >= 0:
        return code
    name = signal.Signals(-code).name
    hint = " (the system often does this when memory runs out: see `dmesg`)" if name == "SIGKILL" else ""
    if number in killed:
        hint = f" because it did not end within {patience + _PATIENCE:g} s of the signal"
    whole = "each saved checkpoint is complete: --resume continues from the newest, if there is one"
    print(f"runner: process {number} of {len(processes)} was ended by {name}{hint}; {whole}", file=sys.stderr)
    return 128 - code


_PEERS_LOOK = 1.0


def place_of(setup: Setup) -> Place | None:
    """Return the place that torchrun, srun or `cli.launch` has given this process; None if none has.

    A Keras training on several devices without a launcher has its place in a single process. Sets `train.devices` to
    the number of processes. Raises BadInput for settings that several devices cannot have.
    """
    train = setup.config.train
    place = find_place(os.environ, tensorflow=setup.project.framework == "keras")
    if setup.project.framework == "keras":
        place = place_for_keras(setup.config, place)
        if place is not None and place.count > 1:
            train.devices = place.count
        _refuse_on_device(setup)
        return place
    if place is not None and train.devices not in (1, place.count):
        raise BadInput(
            f"train.devices is {train.devices}, but {place.count} processes were started: leave train.devices out"
        )
    if place is not None:
        train.devices = place.count
    _refuse_on_device(setup)
    if place is None and train.devices > 1:
        refuse_sharing(setup.config, _precision(setup), train.devices, ["here"] * train.devices)
    return place


def _refuse_on_device(setup: Setup) -> None:
    devices = setup.config.train.devices
    if devices > 1 and setup.config.cache.mode == "device":
        raise BadInput(f"cache.mode device keeps the data on one GPU, and train.devices is {devices}: use memmap")


def _precision(setup: Setup) -> Precision:
    """Return the precision of a PyTorch training on several devices, on GPUs as if they could compute in all types.

    No framework is asked what there is.
    """
    device = cpu() if setup.config.train.device == "cpu" else Device("cuda", bfloat16=True, tf32=True)
    found: Precision = setup.plugins.first(
        "runner_precision", project=setup.project, config=setup.config, device=device
    )
    return found


@contextmanager
def together(setup: Setup, place: Place | None) -> Iterator[None]:
    """Make `setup.team` the processes of this training, after all have met, for the time inside this context.

    If several processes meet an error, one tells the user; the others leave silently, with its exit code.
    """
    if place is None:
        yield
        return
    if place.count == 1:
        setup.team = setup.engine.join(place)
        yield
        return
    if place.number:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until this process ends
    if RENDEZVOUS in os.environ:
        end_with_parent()
    first = place.number == 0
    try:
        if setup.project.framework == "torch":
            hosts = ["here"] * place.count if place.local_count == place.count else None
            refuse_sharing(setup.config, _precision(setup), place.count, hosts)
        setup.team = setup.engine.join(place)
    except (BadInput, PeerLost) as error:  # one process of each machine says so, if it is known to be there
        unsure = isinstance(error, PeerLost) and RENDEZVOUS not in os.environ
        _raise_or_leave(error, place.local == 0 or unsure)
    try:
        with noticing(setup.team):
            yield
        if not first:
            atexit.register(_end, 0)  # now and then one of torch's threads aborts a process that Python takes down
    except (Stopped, Unhealthy, KeyboardInterrupt, SystemExit) as error:  # reaches all processes
        _raise_or_leave(error, first)
    except PeerLost as error:
        launcher_knows = RENDEZVOUS in os.environ and error.ended
        _raise_or_leave(error, not launcher_knows and setup.team.answers_for(error.numbers))
    except Exception as error:
        _raise_or_leave(error, setup.team.speaks())


@contextmanager
def noticing(team: Team) -> Iterator[None]:
    """Raise PeerLost for an error that happens because another process is gone."""
    try:
        yield
    except Exception as error:
        lost = team.lost(error)
        if lost is None:
            raise
        raise lost from error


def _raise_or_leave(error: BaseException, speaks: bool) -> NoReturn:
    """Raise the error, or leave silently with its exit code."""
    if isinstance(error, KeyboardInterrupt):
        code = 128 + SIGINT
    else:
        found = getattr(error, "code" if isinstance(error, SystemExit) else "exit_code", None)
        code = found if isinstance(found, int) else RunnerError.exit_code
    atexit.register(_end, code)
    if speaks:
        raise error
    sys.exit(code)


def _end(code: int) -> None:
    """End at once: threads that wait for lost processes would keep this one from ending."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)
