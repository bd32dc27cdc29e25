"""A training's place among the processes that train together: who joins, who speaks, what an error means to whom."""

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

from runner_core._errors import BadInput, RunnerError, Stopped, Unhealthy
from runner_core.setup import Setup
from runner_core.team import RENDEZVOUS, PeerLost, Place, Team, find_place

_LOOK = 1.0


def place_of(setup: Setup) -> Place | None:
    """Where torchrun, srun or `cli.launch` has put this process, `train.devices` set to their number; None: nobody has.

    Raises BadInput for settings that several processes cannot have.
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
    """Inside, `setup.team` are the processes of this training, all of which wait for each other first.

    Of an error that several of them meet one tells the user; the others leave silently, with its exit code.
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
    except BadInput as error:  # settings or devices that are wrong are so for all
        _tell(error, first)
    try:
        with noticing(setup.team):
            yield
    except (Stopped, Unhealthy, KeyboardInterrupt, SystemExit) as error:  # comes to all of them
        _tell(error, first)
    except PeerLost as error:
        _tell(error, RENDEZVOUS not in os.environ and setup.team.speaks())
    except Exception as error:
        _tell(error, setup.team.speaks())


@contextmanager
def noticing(team: Team) -> Iterator[None]:
    """What goes wrong because another process is gone is PeerLost."""
    try:
        yield
    except RuntimeError as error:
        if not team.lost(error):
            raise
        raise PeerLost("another process of this training has ended: it, or what has started it, says why") from error


def _tell(error: BaseException, speaks: bool) -> NoReturn:
    """Raises the error, or leaves silently with its exit code."""
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
    """At once: threads that wait for what other processes do not send any more would keep this one from ending."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


def _end_with(parent: int) -> None:
    """When the launcher is killed nobody passes signals on: the training is saved and ended."""
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os.kill(os.getpid(), SIGTERM)
