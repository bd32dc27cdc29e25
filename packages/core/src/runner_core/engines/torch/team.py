"""The processes that train one network together: how they meet, what they tell each other, how long they wait."""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import psutil
import torch
from torch import distributed

from runner_core.base.errors import BadInput, PeerLost
from runner_core.contract import Array, Arrays, Json
from runner_core.contract.team import Place
from runner_core.engines.heartbeat import Heartbeat, Member
from runner_core.engines.process import unheard

_WITHOUT_LIMIT = timedelta(days=30)
"""Timeout of exchanges between hosts: `Heartbeat` ends those that wait in vain."""
_DEVICES = timedelta(hours=2)
"""Timeout of exchanges between GPUs, longer than a checkpoint takes."""
_LONGEST_PAUSE = 0.02
_LAST_WORDS = 10.0
"""Seconds for the last message and summary.json."""


class TorchTeam:
    """A team of processes; its construction waits for all, and torch's default process group exists until `leave`.

    Args:
        place: This process's number, and where all meet.
        device: The device on which gradients are exchanged.
        patience: Seconds to wait for the others to come, and for a process that has fallen silent.
    """

    devices = 1

    def __init__(self, place: Place, device: torch.device, patience: float) -> None:
        self.number, self.count, self.first = place.number, place.count, place.number == 0
        self._place, self._patience = place, patience
        self._last_words: Callable[[PeerLost], None] = lambda error: None
        met = self._met()
        self._store = distributed.PrefixStore(f"attempt-{place.attempt}", met)
        self.members = self._introduced()
        with unheard(1):
            self._connect(device)
        self._heartbeat = Heartbeat(self._store.clone(), place, self.members, patience, self._end)
        distributed.barrier(self._hosts)
        self._heartbeat.start()
        self._exchange: tuple[Any, torch.Tensor] | None = None

    # ------------------------------------------------------------ meeting

    def _met(self) -> Any:
        """Return the store in which all processes read and write."""
        place = self._place
        try:
            found = distributed.rendezvous(
                place.rendezvous, place.number, place.count, timeout=timedelta(seconds=self._patience)
            )
            store, _, _ = next(found)
        except (RuntimeError, ValueError) as error:
            where = place.rendezvous
            if where == "env://":
                where = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
            raise PeerLost(
                f"process {place.number} of {place.count} on {socket.gethostname()} ({_addresses()}) could not meet "
                f"the others at {where} within {self._patience:g} s (train.patience_seconds): {_first_line(error)}. "
                "The first process must run on that machine, and this one must reach that address"
            ) from error
        return store

    def _introduced(self) -> list[Member]:
        """Tell the others about this process; return all, once they have come."""
        store, patience = self._store, timedelta(seconds=self._patience)
        store.set(f"member-{self.number}", Member.here(_addresses()).dumps())
        if self.first:
            keys = [f"member-{number}" for number in range(self.count)]
            until = time.monotonic() + self._patience
            while not store.check(keys) and time.monotonic() < until:
                time.sleep(0.05)
            store.set("members", json.dumps([store.get(key).decode() if store.check([key]) else "" for key in keys]))
        try:
            store.wait(["members"], patience + timedelta(seconds=10))  # the first one waits for `patience` itself
        except RuntimeError as error:
            raise PeerLost(f"the first of {self.count} processes did not answer: {_first_line(error)}") from error
        texts = json.loads(store.get("members"))
        if missing := [number for number, text in enumerate(texts) if not text]:
            raise PeerLost(self._missing(missing))
        return [Member.loads(text) for text in texts]

    def _missing(self, numbers: list[int]) -> str:
        some = ", ".join(map(str, numbers[:8])) + (" …" if len(numbers) > 8 else "")
        return (
            f"{len(numbers)} of {self.count} processes did not come within {self._patience:g} s "
            f"(train.patience_seconds): process {some}"
        )

    def _connect(self, device: torch.device) -> None:
        fast = distributed.get_default_backend_for_device(device)  # gloo, nccl, xccl
        backend = "gloo" if device.type == "cpu" else f"cpu:gloo,{device.type}:{fast}"
        patience = timedelta(seconds=self._patience)
        try:
            distributed.init_process_group(
                backend,
                store=distributed.PrefixStore("training", self._store),
                rank=self.number,
                world_size=self.count,
                timeout=patience,
                device_id=None if device.type == "cpu" else device,
            )
            # Separate groups, so that messages between hosts do not wait behind gradients.
            self._hosts = distributed.new_group(backend="gloo", timeout=patience)
            distributed.barrier(self._hosts)
        except RuntimeError as error:
            raise BadInput(self._unconnected(error)) from error
        from torch.distributed.distributed_c10d import _set_pg_timeout

        _set_pg_timeout(_WITHOUT_LIMIT if device.type == "cpu" else _DEVICES)
        _set_pg_timeout(_WITHOUT_LIMIT, self._hosts)

    def _unconnected(self, error: RuntimeError) -> str:
        chosen = [
            f"{name}={os.environ[name]}" for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if name in os.environ
        ]
        known = "; ".join(f"process {n} on {m.host}: {m.addresses}" for n, m in enumerate(self.members[:8]))
        return (
            f"the {self.count} processes met, but process {self.number} could not connect to the others within "
            f"{self._patience:g} s: {_first_line(error)}. They have these addresses: {known}. If a machine has several "
            "network interfaces, name the one that reaches the others on each machine, as in GLOO_SOCKET_IFNAME=eth0 "
            f"NCCL_SOCKET_IFNAME=eth0 (now: {', '.join(chosen) or 'neither is set'})"
        )

    # ------------------------------------------------------------ telling each other

    def share(self, value: Json) -> Json:
        return self.every(value if self.first else None)[0]

    def every(self, value: Json) -> list[Json]:
        return _every(value, self.count, self._gather)

    def aside(self) -> Aside:
        from torch.distributed.distributed_c10d import _set_pg_timeout

        with unheard(1):
            group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=self._patience))
        _set_pg_timeout(_WITHOUT_LIMIT, group)  # the others may write for longer than gloo's half an hour
        return Aside(self.number, self.count, group, self._heartbeat)

    def every_arrays(self, arrays: Arrays) -> list[Arrays]:
        """Return the arrays of all processes, in their order, in every process."""
        own = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        heads = self.every([[name, array.dtype.str, list(np.shape(arrays[name]))] for name, array in own.items()])
        bytes_of = [sum(np.dtype(dtype).itemsize * math.prod(shape) for _, dtype, shape in head) for head in heads]
        padded = np.zeros(max(bytes_of), np.uint8)
        whole = b"".join(array.tobytes() for array in own.values())
        padded[: len(whole)] = np.frombuffer(whole, np.uint8)
        parts = [torch.zeros(len(padded), dtype=torch.uint8) for _ in heads]
        self._gather(parts, torch.from_numpy(padded))
        return [_unpacked(head, part.numpy()) for head, part in zip(heads, parts, strict=True)]

    def _gather(self, parts: list[torch.Tensor], own: torch.Tensor) -> None:
        self._finish(distributed.all_gather(parts, own, group=self._hosts, async_op=True))

    def _finish(self, work: Any) -> None:
        """Wait for the others, as long as all are alive; raise PeerLost if one is not."""
        _finish(work, self._heartbeat.check)

    def noticed(self, number: int) -> int:
        before = self._settled()
        tensor = torch.tensor([number])
        work = distributed.all_reduce(tensor, distributed.ReduceOp.MAX, group=self._hosts, async_op=True)
        self._exchange = work, tensor
        self._heartbeat.step += 1
        return before

    def _settled(self) -> int:
        if self._exchange is None:
            return 0
        work, tensor = self._exchange
        self._finish(work)
        self._exchange = None
        return int(tensor)

    def stepping(self, now: bool) -> None:
        self._heartbeat.stepping = now

    # ------------------------------------------------------------ the end

    def speaks(self) -> bool:
        try:
            return self._store.add("spoken", 1) == 1
        except RuntimeError:  # the process with the store is gone, and its end is what matters
            return False

    def lost(self, error: BaseException) -> PeerLost | None:
        if not isinstance(error, RuntimeError):
            return None
        known = isinstance(error, distributed.DistError) or any(name in str(error) for name in ("gloo", "NCCL"))
        return self._heartbeat.after_failure() if known else None

    def answers_for(self, lost: Sequence[int]) -> bool:
        """Return True for the first process of each machine that is not lost itself: it tells the user."""
        host = self.members[self.number].host
        left = [n for n, member in enumerate(self.members) if member.host == host and n not in lost]
        return self.number == min(left, default=self.number)

    def last_words(self, say: Callable[[PeerLost], None]) -> None:
        self._last_words = say

    def _end(self, error: PeerLost) -> None:
        """End the process, whose main thread waits for a lost one, and cannot be reached.

        What it still writes may wait for ever too, if the run folder was on the machine that is gone.
        """
        words = threading.Thread(target=self._last_words, args=(error,), daemon=True)
        words.start()
        words.join(_LAST_WORDS)
        os._exit(PeerLost.exit_code)

    def leave(self) -> None:
        self._settled()
        # No process may still be waiting when the first connection closes.
        self._finish(distributed.barrier(self._hosts, async_op=True))
        self._heartbeat.close()
        distributed.destroy_process_group()


class Aside:
    """`Exchange` for a thread beside the training, with connections of its own; training waits for none of it."""

    def __init__(self, number: int, count: int, group: Any, heartbeat: Heartbeat) -> None:
        self.number, self.count, self.first = number, count, number == 0
        self._group, self._heartbeat = group, heartbeat

    def every(self, value: Json) -> list[Json]:
        return _every(value, self.count, self._gather)

    def _gather(self, parts: list[torch.Tensor], own: torch.Tensor) -> None:
        _finish(distributed.all_gather(parts, own, group=self._group, async_op=True), self._check)

    def _check(self) -> None:
        """Raise PeerLost if a process is lost; unlike `Heartbeat.check`, that ends only this thread."""
        if self._heartbeat.found is not None:
            raise self._heartbeat.found.error()


def _every(value: Json, count: int, gather: Callable[[list[torch.Tensor], torch.Tensor], None]) -> list[Json]:
    """Return the values of all processes, as JSON; `gather` fills a list with the tensors of all."""
    text = torch.frombuffer(bytearray(json.dumps(value, default=float).encode()), dtype=torch.uint8)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(count)]
    gather(lengths, torch.tensor([len(text)]))
    longest = max(int(length) for length in lengths)
    texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(count)]
    gather(texts, torch.cat([text, torch.zeros(longest - len(text), dtype=torch.uint8)]))
    return [json.loads(bytes(t[: int(n)].tolist())) for t, n in zip(texts, lengths, strict=True)]


def _finish(work: Any, check: Callable[[], None]) -> None:
    """Wait until the work is done; `check` raises PeerLost if a process is lost."""
    pause = 0.0
    while not work.is_completed():
        check()
        time.sleep(pause)
        pause = min(pause + 1e-4, _LONGEST_PAUSE)
    work.wait()


def _unpacked(head: list[Any], content: Array) -> Arrays:
    """Return the arrays that lie one after the other in `content` (uint8)."""
    found, begin = {}, 0
    for name, dtype, shape in head:
        end = begin + np.dtype(dtype).itemsize * math.prod(shape)
        found[name] = content[begin:end].copy().view(dtype).reshape(shape)
        begin = end
    return found


def _addresses() -> str:
    """Return the network interfaces of this machine with their addresses."""
    found = {
        name: [address.address for address in all_of if address.family == socket.AF_INET]
        for name, all_of in psutil.net_if_addrs().items()
    }
    return ", ".join(f"{name} {' '.join(of)}" for name, of in found.items() if of) or "no network interface"


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:200].rstrip(". ")
