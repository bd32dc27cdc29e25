"""The processes that train one network together without PyTorch, which has its own: how they meet, tell, and wait."""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np

from runner_core.base.errors import PeerLost
from runner_core.contract import Arrays, Json
from runner_core.contract.team import Place
from runner_core.engines.heartbeat import Heartbeat, Member
from runner_core.engines.meeting import Channel, Client, Server, Unreachable, wait_for

_LAST_WORDS = 10.0
"""Seconds for the last message and summary.json."""
_LOOK = 0.05


class GrpcTeam:
    """A team of processes that meet at a gRPC server of the first one; its construction waits for all of them.

    Args:
        place: This process's number, and where all meet.
        patience: Seconds to wait for the others to come, and for a process that has fallen silent.
        broken: Tells whether an error of the framework means that it cannot reach another process.
    """

    devices = 1

    def __init__(self, place: Place, patience: float, broken: Callable[[BaseException], bool]) -> None:
        self.number, self.count, self.first = place.number, place.count, place.number == 0
        self._place, self._patience, self._broken = place, patience, broken
        self._last_words: Callable[[PeerLost], None] = lambda error: None
        self._server: Server | None = None
        self._client = self._met()
        self.members, self.addresses = self._introduced()
        """HOST:PORT of each process, by number, at which it may serve its framework's messages."""
        self._heartbeat = Heartbeat(self._client, place, self.members, patience, self._end)
        self._main = self._channel("main", self._heartbeat.check)
        self._main.every(b"")
        self._heartbeat.start()
        self._beside = self._channel("noticed", self._check)
        self._exchange: Future[list[bytes]] | None = None
        self._asides = 0

    # ------------------------------------------------------------ meeting

    def _met(self) -> Client:
        """Return a connection to the first process, whose server this is."""
        place = self._place
        address = place.rendezvous.removeprefix("tcp://")
        try:
            if self.first:
                self._server = Server(int(address.rpartition(":")[2]), place.count)
                address = f"127.0.0.1:{self._server.port}"
            client = Client(address, place.number)
            client.reach(self._patience)
        except Unreachable as error:
            raise PeerLost(
                f"process {place.number} of {place.count} on {socket.gethostname()} could not meet the others at "
                f"{place.rendezvous} within {self._patience:g} s (train.patience_seconds): {error}. The first process "
                "must run on that machine, and this one must reach that address"
            ) from error
        return client

    def _introduced(self) -> tuple[list[Member], list[str]]:
        """Tell the others about this process; return all, once they have come."""
        prefix = f"attempt-{self._place.attempt}"
        own = f"{self._own_host()}:{_free_port()}"
        self._client.set(f"{prefix}-member-{self.number}", json.dumps([Member.here().dumps(), own]))
        if self.first:
            keys = [f"{prefix}-member-{number}" for number in range(self.count)]
            until = time.monotonic() + self._patience
            while not all(texts := self._client.multi_get(keys)) and time.monotonic() < until:
                time.sleep(_LOOK)
            self._client.set(f"{prefix}-members", json.dumps([text.decode() for text in texts]))
        try:
            known = json.loads(wait_for(self._client, f"{prefix}-members", self._patience + 10))
        except Unreachable as error:
            raise PeerLost(f"the first of {self.count} processes did not answer: {error}") from error
        if missing := [number for number, text in enumerate(known) if not text]:
            some = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
            raise PeerLost(
                f"{len(missing)} of {self.count} processes did not come within {self._patience:g} s "
                f"(train.patience_seconds): process {some}"
            )
        pairs = [json.loads(text) for text in known]
        return [Member.loads(member) for member, _ in pairs], [address for _, address in pairs]

    def named(self) -> list[tuple[Member, str]]:
        """Return some of the processes with their addresses, for a message."""
        return list(zip(self.members, self.addresses, strict=True))[:8]

    def _own_host(self) -> str:
        """Return the address by which this machine reaches the first one, so that the first one reaches it too."""
        host, _, port = self._place.rendezvous.removeprefix("tcp://").rpartition(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host.strip("[]"), int(port)))
            return str(probe.getsockname()[0])

    # ------------------------------------------------------------ telling each other

    def share(self, value: Json) -> Json:
        return self.every(value if self.first else None)[0]

    def every(self, value: Json) -> list[Json]:
        return _every(self._main, value)

    def every_arrays(self, arrays: Arrays) -> list[Arrays]:
        own = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        head = json.dumps([[name, array.dtype.str, list(np.shape(arrays[name]))] for name, array in own.items()])
        content = head.encode() + b"\n" + b"".join(array.tobytes() for array in own.values())
        return [_unpacked(part) for part in self._main.every(content)]

    def aside(self) -> Aside:
        self._asides += 1
        return Aside(self.number, self.count, self._channel(f"aside-{self._asides}", self._check))

    def _channel(self, name: str, check: Callable[[], None]) -> Channel:
        return Channel(self._client, f"attempt-{self._place.attempt}-{name}", self.number, check)

    def _check(self) -> None:
        """Raise PeerLost if a process is lost; unlike `Heartbeat.check`, that ends only this thread."""
        if self._heartbeat.found is not None:
            raise self._heartbeat.found.error()

    def noticed(self, number: int) -> int:
        before = self._settled()
        self._exchange = _later(partial(self._beside.every, str(number).encode()))
        self._heartbeat.step += 1
        return before

    def _settled(self) -> int:
        if self._exchange is None:
            return 0
        while not self._exchange.done():
            self._heartbeat.check()
            time.sleep(1e-3)
        found, self._exchange = self._exchange.result(), None
        return max(map(int, found))

    def stepping(self, now: bool) -> None:
        self._heartbeat.stepping = now

    # ------------------------------------------------------------ the end

    def speaks(self) -> bool:
        try:
            return self._client.add("spoken") == 1
        except Unreachable:  # the process with the server is gone, and its end is what matters
            return False

    def lost(self, error: BaseException) -> PeerLost | None:
        known = isinstance(error, Unreachable) or self._broken(error)
        return self._heartbeat.after_failure() if known else None

    def answers_for(self, lost: Sequence[int]) -> bool:
        host = self.members[self.number].host
        left = [n for n, member in enumerate(self.members) if member.host == host and n not in lost]
        return self.number == min(left, default=self.number)

    def last_words(self, say: Callable[[PeerLost], None]) -> None:
        self._last_words = say

    def _end(self, error: PeerLost) -> None:
        """End the process, whose main thread waits for a lost one, and cannot be reached."""
        words = threading.Thread(target=self._last_words, args=(error,), daemon=True)
        words.start()
        words.join(_LAST_WORDS)
        os._exit(PeerLost.exit_code)

    def leave(self) -> None:
        self._settled()
        self._main.every(b"")
        self._heartbeat.close()
        if self._server is None:
            self._client.close()
            return
        time.sleep(2 * _LOOK)  # the others have their answer
        self._client.close()
        self._server.close()


class Aside:
    """`Exchange` for a thread beside the training."""

    def __init__(self, number: int, count: int, channel: Channel) -> None:
        self.number, self.count, self.first = number, count, number == 0
        self._channel = channel

    def every(self, value: Json) -> list[Json]:
        return _every(self._channel, value)


def _later(work: Callable[[], list[bytes]]) -> Future[list[bytes]]:
    """Return what `work` will return, in a thread that keeps no process from ending."""
    found: Future[list[bytes]] = Future()

    def run() -> None:
        try:
            found.set_result(work())
        except Exception as error:
            found.set_exception(error)

    threading.Thread(target=run, name="noticed", daemon=True).start()
    return found


def _every(channel: Channel, value: Json) -> list[Json]:
    return [json.loads(part) for part in channel.every(json.dumps(value, default=float).encode())]


def _unpacked(content: bytes) -> Arrays:
    head, _, whole = content.partition(b"\n")
    found: dict[str, Any] = {}
    begin = 0
    for name, dtype, shape in json.loads(head):
        end = begin + np.dtype(dtype).itemsize * math.prod(shape)
        found[name] = np.frombuffer(whole[begin:end], dtype).reshape(shape).copy()
        begin = end
    return found


def _free_port() -> int:
    """Return a port that is free now, for a server that takes no port 0."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
