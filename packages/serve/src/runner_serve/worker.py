"""The process with the network, as the server sees it: started, asked, and killed when it hangs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from runner_core import BadInput, RunnerError

_LOADING_SECONDS = 600
"""Time that a process has to import its framework and load the network."""
_LONGEST_LINE = 1 << 24


class Hung(RunnerError):
    """A prediction took longer than it may; its process was killed."""


class Died(RunnerError):
    """The process ended within a prediction, or cannot be started again."""


class Gone(RunnerError):
    """The client left while it waited."""


class Worker:
    """A process that predicts one file at a time; one that hung or died is replaced at once.

    Args:
        about: What `child.Served` is made of, and the server's `folder`.
    """

    def __init__(self, about: Mapping[str, Any]) -> None:
        self._about = dict(about)
        self._process: Process | None = None
        self._alone = asyncio.Lock()
        self._reviving: asyncio.Task[None] | None = None
        self.facts: Mapping[str, Any] = {}
        """What the process says about its network."""

    @property
    def is_ready(self) -> bool:
        """True if the process has its network and lives."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start a process, and return once the network is loaded. Raises BadInput if it cannot be, Died if it ends."""
        words = (sys.executable, "-m", "runner_serve.child")
        process = await asyncio.create_subprocess_exec(
            *words, stdin=PIPE, stdout=PIPE, start_new_session=True, limit=_LONGEST_LINE
        )
        try:
            self.facts = await asyncio.wait_for(_ask(process, self._about), _LOADING_SECONDS)
        except BaseException as error:
            await _kill(process)
            if isinstance(error, TimeoutError):
                raise Died(f"the network was not loaded in {_LOADING_SECONDS} s") from None
            raise
        self._process = process

    async def predict(
        self, place: Path, only: str, seconds: float, is_gone: Callable[[], Awaitable[bool]]
    ) -> Mapping[str, Any]:
        """Return what `child.Served.predict` returns, after those who came before.

        Raises BadInput if the file cannot be predicted, Hung after `seconds`, Died if the process ends, Gone if
        `is_gone()` once it is this file's turn.
        """
        async with self._alone:
            if await is_gone():
                raise Gone("the client left")
            await self._make_ready()
            assert self._process is not None
            try:
                task = {"place": str(place), "only": only}
                return await asyncio.wait_for(_ask(self._process, task), seconds)
            except TimeoutError:
                await self._replace()
                raise Hung(f"the prediction took longer than {seconds:g} s, and was stopped") from None
            except (Died, asyncio.CancelledError):
                await self._replace()
                raise

    async def _make_ready(self) -> None:
        if self.is_ready:
            return
        try:
            await self.start()
        except BadInput as error:  # not the client's fault
            raise Died(f"the network cannot be loaded any more: {error}") from error

    async def _replace(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await _kill(process)
        self.revive()

    def revive(self) -> None:
        """Start another process in the background, if there is none; whoever asks in between waits for it."""
        if not self.is_ready and (self._reviving is None or self._reviving.done()):
            self._reviving = asyncio.create_task(self._revive())

    async def _revive(self) -> None:
        async with self._alone:
            try:
                await self._make_ready()
            except RunnerError as error:
                print(f"runner: {error}", file=sys.stderr)

    async def stop(self) -> None:
        """Kill the process and what it has started, for good."""
        if self._reviving is not None:
            self._reviving.cancel()
            await asyncio.gather(self._reviving, return_exceptions=True)
        process, self._process = self._process, None
        if process is not None:
            await _kill(process)


async def _ask(process: Process, task: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give the process a task, and return its answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(ConnectionError):
        process.stdin.write((json.dumps(task) + "\n").encode())
        await process.stdin.drain()
    line = await process.stdout.readline()
    if not line.endswith(b"\n"):
        raise Died("the process of the prediction ended: memory may have been short; another takes its place")
    answer: Mapping[str, Any] = json.loads(line)
    if "refused" in answer:
        raise BadInput(answer["refused"])
    if "failed" in answer:
        raise RunnerError(answer["failed"])
    return answer


async def _kill(process: Process) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
