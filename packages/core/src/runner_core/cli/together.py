"""Joins the processes that train together, and decides which of them reports an error."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from signal import SIGINT, SIGTERM
from typing import NoReturn

from runner_core.base.errors import BadInput, RunnerError, Stopped, Unhealthy
from runner_core.contract.setup import Setup
from runner_core.contract.team import Place, Team
from runner_core.training.team import RENDEZVOUS, PeerLost, find_place

_LOOK = 1.0


def place_of(setup: Setup) -> Place | None:
    """Return the place that torchrun, srun or `cli.launch` has given this process; None if none has.

    Sets `train.devices` to the number of processes. Raises BadInput for settings that several processes cannot have.
    """
    train, place = setup.config.train, find_place(os.environ)
    if place is not None and train.devices not in (1, place.count):
        raise BadInput(f"train.devices is {train.devices}, but {place.count} processes were started: leave it out")
    if place is not None:
        train.devices = place.count
    if train.devices > 1 and setup.config.cache.mode == "device":
        raise BadInput(f"cache.mode device keeps the data on one GPU, and train.devices is {train.devices}: use memmap")
    return place


@contextmanager
def together(setup: Setup, place: Place | None) -> Iterator[None]:
    """Make `setup.team` the processes of this training, after all have met, for the time inside this context.

    If several processes meet an error, one tells the user; the others leave silently, with its exit code.
    """
    if place is None:
        yield
        return
    if place.number:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until this process ends
    if RENDEZVOUS in os.environ:
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    first = place.number == 0
    try:
        setup.team = setup.engine.join(place)
    except BadInput as error:  # wrong settings or devices are wrong for all processes
        _raise_or_leave(error, first)
    try:
        with noticing(setup.team):
            yield
        if not first:
            atexit.register(_end, 0)  # now and then one of torch's threads aborts a process that Python takes down
    except (Stopped, Unhealthy, KeyboardInterrupt, SystemExit) as error:  # reaches all processes
        _raise_or_leave(error, first)
    except PeerLost as error:
        _raise_or_leave(error, RENDEZVOUS not in os.environ and setup.team.speaks())
    except Exception as error:
        _raise_or_leave(error, setup.team.speaks())


@contextmanager
def noticing(team: Team) -> Iterator[None]:
    """Raise PeerLost for an error that happens because another process is gone."""
    try:
        yield
    except RuntimeError as error:
        if not team.lost(error):
            raise
        raise PeerLost("another process of this training has ended: it, or what has started it, says why") from error


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


def _end_with(parent: int) -> None:
    """Save and end the training when the launcher is killed: no process passes signals on then."""
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os.kill(os.getpid(), SIGTERM)
