"""Notice processes of a training that fall silent or stop moving, so that the others do not wait for them for ever.

Every process writes a heartbeat into the store where all met. The first one listens to all; the others listen to the
first one, and read what it found. Two threads do this: the store may block while the clock goes on.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Protocol

from runner_core.base.errors import PeerLost
from runner_core.contract.team import Place

_FOUND = "found"
_GRACE = 10.0
"""Seconds that the main thread has to end by itself once a process is lost, before this process is ended."""


class Store(Protocol):
    """A store that all processes read and write."""

    def set(self, key: str, value: str) -> None: ...

    def multi_get(self, keys: list[str]) -> list[bytes]: ...


@dataclass(frozen=True)
class Member:
    """A process of a training, as it introduced itself."""

    host: str
    pid: int
    space: str
    """The machine's start and its process numbers' namespace: where equal, `pid` means the same process."""
    addresses: str = ""
    """Network interfaces with their addresses, as text."""

    @classmethod
    def here(cls, addresses: str = "") -> Member:
        boot, space = "", ""
        with suppress(OSError):
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            space = os.readlink("/proc/self/ns/pid")
        return cls(platform.node(), os.getpid(), boot + space, addresses)

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str | bytes) -> Member:
        return cls(**json.loads(text))

    def has_ended(self) -> bool | None:
        """Return whether the process has ended, None if this process cannot know."""
        here = Member.here()
        if not self.space or self.space != here.space:
            return None
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        return state in "ZX"


@dataclass(frozen=True)
class Lost:
    """The processes that were found to be lost: their numbers, and a sentence about them."""

    numbers: tuple[int, ...]
    text: str
    ended: bool = False

    @classmethod
    def loads(cls, text: str | bytes) -> Lost | None:
        found = json.loads(text or "null")
        return None if found is None else cls(**{**found, "numbers": tuple(found["numbers"])})

    def error(self) -> PeerLost:
        whole = "each saved checkpoint is complete: --resume continues from the newest, if there is one"
        return PeerLost(f"{self.text}, so this training ends; {whole}", self.numbers, self.ended)


class _Heard:
    """The last heartbeat of one process."""

    def __init__(self) -> None:
        self.beats, self.step, self.stepping = -1, -1, False
        self.at = self.moved = time.monotonic()

    def take(self, text: bytes) -> None:
        beats, step, stepping = map(int, text.split())
        now = time.monotonic()
        if beats != self.beats:
            self.at = now
        if (step, bool(stepping)) != (self.step, self.stepping):
            self.moved = now
        self.beats, self.step, self.stepping = beats, step, bool(stepping)


class Heartbeat:
    """The heartbeat of this process, and what it knows of the others'.

    A process is lost if no heartbeat of it came for `patience` seconds. While all are `stepping`, those are lost that
    have come no further than others for this long.

    Args:
        store: A connection to the store; only this object uses it.
        place: Number of this process, and of how many.
        members: All processes, by number.
        patience: Seconds.
        end: Called in a thread, if the main thread has not ended by itself; does not return.
    """

    def __init__(
        self,
        store: Store,
        place: Place,
        members: Sequence[Member],
        patience: float,
        end: Callable[[PeerLost], None],
    ) -> None:
        self.found: Lost | None = None
        """Which processes are lost; the main thread reads it while it waits."""
        self.step = 0
        """Batches that the main thread came to."""
        self.stepping = False
        """True while the main thread is between two steps, or in one."""
        self._store, self._number, self._members, self._patience, self._end = (
            store,
            place.number,
            members,
            patience,
            end,
        )
        self._interval = min(5.0, max(0.2, patience / 60))
        self._heard = {number: _Heard() for number in range(1 if place.number else len(members))}
        self._looked, self._slept = time.monotonic(), 0.0
        self._ending = False  # the main thread knows
        self._closed = threading.Event()
        store.set(self._key(self._number), "0 0 0")
        if self._number == 0:
            store.set(_FOUND, "")

    def start(self) -> None:
        """Begin; every process has made its heartbeat before."""
        for work in (self._exchange, self._look):
            threading.Thread(target=work, name=f"heartbeat {work.__name__}", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def check(self) -> None:
        """Raise PeerLost if a process is lost."""
        if self.found is not None:
            self._ending = True
            raise self.found.error()

    def after_failure(self) -> PeerLost:
        """Return the error for a connection to another process that broke, once it is known which process is gone."""
        self._ending = True
        until = time.monotonic() + 3 * self._interval
        begun = {number: heard.beats for number, heard in self._heard.items()}
        while self.found is None and time.monotonic() < until:
            gone = [number for number, member in enumerate(self._members) if member.has_ended()]
            if gone:
                self._tell(Lost(tuple(gone), f"{self._names(gone)} ended", ended=True))
            time.sleep(min(0.1, self._interval))
        silent = [number for number, heard in self._others() if heard.beats == begun[number]]
        if self.found is None and silent:
            self._tell(Lost(tuple(silent), f"{self._names(silent)} ended, or cannot be reached"))
        if self.found is None:
            return PeerLost(
                "another process of this training has ended: its message, or that of its launcher, says why", ended=True
            )
        return self.found.error()

    # ------------------------------------------------------------ the threads

    def _exchange(self) -> None:
        """Write this process's heartbeat and read the others'."""
        beats = 0
        while not self._closed.wait(self._interval):
            beats += 1
            with suppress(RuntimeError):  # without the store nobody is heard
                self._store.set(self._key(self._number), f"{beats} {self.step} {int(self.stepping)}")
                *texts, found = self._store.multi_get([*map(self._key, self._heard), _FOUND])
                for heard, text in zip(self._heard.values(), texts, strict=True):
                    heard.take(text)
                self.found = self.found or Lost.loads(found)

    def _look(self) -> None:
        """Decide who is lost, and end this process if it does not end by itself."""
        while self.found is None:
            if self._closed.wait(self._interval / 2):
                return
            self._notice_sleep()
            if (lost := self._judged()) is not None and self.found is None:
                self._tell(lost)
        if not self._closed.wait(_GRACE) and not (self._ending and self._closed.wait(_GRACE)):
            self._end(self.found.error())

    def _notice_sleep(self) -> None:
        """Blame nobody for time in which this process itself did not run (SIGSTOP, a paused machine).

        If it was longer than the others wait, they have ended, and named this process.
        """
        before, self._looked = self._looked, time.monotonic()
        slept = self._looked - before - self._interval
        if slept > self._patience / 2:
            for heard in self._heard.values():
                heard.at = heard.moved = self._looked
        if slept > self._patience + 5 * self._interval:
            self._slept = slept

    def _judged(self) -> Lost | None:
        now, patience = time.monotonic(), self._patience
        limit = f"for {patience:g} s (train.patience_seconds)"
        silent = [number for number, heard in self._others() if now - heard.at > patience]
        if silent:
            return Lost(tuple(silent), f"nothing was heard from {self._names(silent)} {limit}")
        heard = self._heard.values()
        if self._number or not all(one.stepping for one in heard) or now - max(one.moved for one in heard) <= patience:
            return None
        first = min(one.step for one in heard)
        late = [number for number, one in self._heard.items() if one.step == first]
        if len(late) == len(heard):
            return Lost((), f"no process has finished its step {limit}")
        return Lost(tuple(late), f"{self._names(late)} has not come to its next batch {limit}")

    def _tell(self, lost: Lost) -> None:
        """Record what was found, for this process and, if the store can be reached, for the others."""
        if self._slept and lost.numbers:
            own = f"{self._names([self._number])} did not run for {self._slept:.0f} s, and"
            lost = replace(lost, numbers=(*lost.numbers, self._number), text=f"{own} {lost.text}")
        self.found = lost
        if self._number == 0:
            threading.Thread(target=self._publish, args=(json.dumps(asdict(lost)),), daemon=True).start()

    def _publish(self, text: str) -> None:
        with suppress(RuntimeError):
            self._store.set(_FOUND, text)

    # ------------------------------------------------------------ names

    def _others(self) -> list[tuple[int, _Heard]]:
        return [(number, heard) for number, heard in self._heard.items() if number != self._number]

    @staticmethod
    def _key(number: int) -> str:
        return f"beat-{number}"

    def _names(self, numbers: Sequence[int]) -> str:
        shown = [f"process {number} ({self._members[number].host})" for number in numbers[:4]]
        more = [f"{len(numbers) - 4} more"] if len(numbers) > 4 else []
        return f"{', '.join([*shown, *more])} of {len(self._members)}"
