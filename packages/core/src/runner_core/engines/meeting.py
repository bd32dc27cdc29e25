"""The meeting point of processes without PyTorch: a gRPC server in the first of them, at which all exchange values.

grpcio comes with TensorFlow. The server keeps two things: named values (`Store` of the heartbeat), and rounds, in which
each process brings one value and receives those of all.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc

_SERVICE = "runner.Meeting"
_SLICE = 0.5
"""Seconds that the server lets a caller wait for others before it answers that they have not all come."""
_ANSWER = 5.0
"""Seconds until the server must answer, which waits for nobody longer than `_SLICE`."""
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.so_reuseport", 0),  # a second training at the same port is refused, not mixed in
]


class Unreachable(RuntimeError):
    """The server does not answer."""


class _Pool(ThreadPoolExecutor):
    """Threads of the server; calls that come when Python ends are not answered."""

    def submit(self, *work: Any, **options: Any) -> Future[Any]:
        try:
            return super().submit(*work, **options)
        except RuntimeError:
            return Future()


class Server:
    """The server of a meeting; exists until `close`.

    Args:
        port: Port on all interfaces of this machine.
        count: Number of processes.

    Raises:
        Unreachable: The port is taken.
    """

    def __init__(self, port: int, count: int) -> None:
        self._count = count
        self._values: dict[str, str] = {}
        self._rounds: dict[tuple[str, int], dict[int, bytes]] = {}
        self._changed = threading.Condition()
        calls = {"set": self._set, "get": self._get, "add": self._add, "round": self._round}
        handlers = {name: grpc.unary_unary_rpc_method_handler(call) for name, call in calls.items()}
        # each process waits in at most one round of each channel; its heartbeat must find a thread too
        self._server = grpc.server(_Pool(4 * count + 4), options=_OPTIONS)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
        try:
            bound = self._server.add_insecure_port(f"[::]:{port}")
        except RuntimeError as error:
            raise Unreachable(f"port {port} of this machine is taken") from error
        self.port = int(bound)
        self._server.start()

    def close(self) -> None:
        self._server.stop(1.0).wait()

    # ------------------------------------------------------------ called in the server's threads

    def _set(self, message: bytes, context: Any) -> bytes:
        with self._changed:
            self._values.update(json.loads(message))
        return b""

    def _get(self, message: bytes, context: Any) -> bytes:
        with self._changed:
            return json.dumps([self._values.get(name) for name in json.loads(message)]).encode()

    def _add(self, message: bytes, context: Any) -> bytes:
        with self._changed:
            found = int(self._values.get(message.decode(), "0")) + 1
            self._values[message.decode()] = str(found)
        return str(found).encode()

    def _round(self, message: bytes, context: Any) -> bytes:
        """Return b"" if not all have come yet; the call may be repeated."""
        head, _, value = message.partition(b"\n")
        channel, turn, number = json.loads(head)
        with self._changed:
            known = self._rounds.setdefault((channel, turn), {})
            known[number] = value
            self._rounds.pop((channel, turn - 2), None)  # who has come to a round has left the one before
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: len(known) == self._count, _SLICE):
                return b""
        parts = [known[n] for n in range(self._count)]
        return json.dumps([len(part) for part in parts]).encode() + b"\n" + b"".join(parts)


class Client:
    """A connection to the server; `Store` of the heartbeat.

    Args:
        address: HOST:PORT.
        number: Number of this process.
    """

    def __init__(self, address: str, number: int) -> None:
        self._address, self._number = address, number
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)

    def reach(self, seconds: float) -> None:
        """Wait for the server. Raises Unreachable after `seconds`."""
        try:
            grpc.channel_ready_future(self._channel).result(seconds)
        except grpc.FutureTimeoutError as error:
            raise Unreachable(f"nobody answered at {self._address}") from error

    def set(self, key: str, value: str) -> None:
        self._call("set", json.dumps({key: value}).encode())

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [(value or "").encode() for value in json.loads(self._call("get", json.dumps(list(keys)).encode()))]

    def add(self, key: str) -> int:
        """Count a call by this name; return how many there were."""
        return int(self._call("add", key.encode()))

    def close(self) -> None:
        self._channel.close()

    def round(self, message: bytes) -> bytes:
        """Take part in a round; return b"" if not all have come, or if the server is silent (the heartbeat judges)."""
        return self._call("round", message, patient=True)

    def _call(self, name: str, message: bytes, *, patient: bool = False) -> bytes:
        try:
            answer: bytes = self._channel.unary_unary(f"/{_SERVICE}/{name}")(message, timeout=_ANSWER)
        except grpc.RpcError as error:
            if patient and error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                return b""
            raise Unreachable(f"the first process at {self._address} does not answer: {error.code().name}") from error
        return answer


class Channel:
    """Rounds of one thread of each process, in the same order in all.

    Args:
        client: Connection to the server.
        name: Name of the channel.
        number: Number of this process.
        check: Called again and again while this process waits; raises an error to give up.
    """

    def __init__(self, client: Client, name: str, number: int, check: Callable[[], None]) -> None:
        self._client, self._name, self._number, self._check = client, name, number, check
        self._turn = 0

    def every(self, value: bytes) -> list[bytes]:
        """Return the values of all processes, in their order."""
        head = json.dumps([self._name, self._turn, self._number]).encode()
        self._turn += 1
        while not (answer := self._client.round(head + b"\n" + value)):
            self._check()
        lengths, _, whole = answer.partition(b"\n")
        found, begin = [], 0
        for length in json.loads(lengths):
            found.append(whole[begin : begin + length])
            begin += length
        return found


def wait_for(client: Client, key: str, seconds: float) -> str:
    """Return the value that another process sets. Raises Unreachable after `seconds`."""
    until = time.monotonic() + seconds
    while True:
        (found,) = client.multi_get([key])
        if found:
            return found.decode()
        if time.monotonic() > until:
            raise Unreachable(f"{key} did not come")
        time.sleep(0.05)
