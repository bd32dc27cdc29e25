"""`Team` with torch.distributed: gloo for messages between hosts, nccl between GPUs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from runner_core.contract import Json
from runner_core.contract.team import Place

_HOSTS = timedelta(days=30)
"""Timeout longer than the first process prepares data; an ended process is noticed at once anyway."""
_DEVICES = timedelta(hours=2)
"""Timeout longer than a checkpoint takes; only this ends nccl's wait for a lost process on another machine."""


class TorchTeam:
    """A team of processes; its construction waits for all, and torch's default process group exists until `leave`."""

    def __init__(self, place: Place, device: torch.device) -> None:
        self.number, self.count, self.first = place.number, place.count, place.number == 0
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        self._store, _, _ = next(distributed.rendezvous(place.rendezvous, place.number, place.count))
        with _unheard():
            self._meet(backend, device)
        self._exchange: tuple[Any, torch.Tensor] | None = None

    def _meet(self, backend: str, device: torch.device) -> None:
        distributed.init_process_group(
            backend,
            store=distributed.PrefixStore("training", self._store),
            rank=self.number,
            world_size=self.count,
            timeout=_HOSTS if device.type == "cpu" else _DEVICES,
            device_id=None if device.type == "cpu" else device,
        )
        # Separate groups, so that messages between hosts do not wait behind gradients.
        self._hosts = distributed.new_group(backend="gloo", timeout=_HOSTS)

    def share(self, value: Json) -> Json:
        return self.every(value if self.first else None)[0]

    def every(self, value: Json) -> list[Json]:
        text = torch.frombuffer(bytearray(json.dumps(value, default=float).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.count)]
        distributed.all_gather(lengths, torch.tensor([len(text)]), group=self._hosts)
        longest = max(int(length) for length in lengths)
        texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.count)]
        padded = torch.cat([text, torch.zeros(longest - len(text), dtype=torch.uint8)])
        distributed.all_gather(texts, padded, group=self._hosts)
        return [json.loads(bytes(t[: int(n)].tolist())) for t, n in zip(texts, lengths, strict=True)]

    def noticed(self, number: int) -> int:
        before = self._settled()
        tensor = torch.tensor([number])
        work = distributed.all_reduce(tensor, distributed.ReduceOp.MAX, group=self._hosts, async_op=True)
        self._exchange = work, tensor
        return before

    def _settled(self) -> int:
        if self._exchange is None:
            return 0
        work, tensor = self._exchange
        work.wait()
        self._exchange = None
        return int(tensor)

    def speaks(self) -> bool:
        try:
            return self._store.add("spoken", 1) == 1
        except RuntimeError:  # the process with the store is gone, and its end is what matters
            return False

    def lost(self, error: BaseException) -> bool:
        if not isinstance(error, RuntimeError):
            return False
        return isinstance(error, distributed.DistError) or any(name in str(error) for name in ("gloo", "NCCL"))

    def leave(self) -> None:
        self._settled()
        distributed.barrier(self._hosts)  # so that no process is waiting when the first connection closes
        distributed.destroy_process_group()


@contextmanager
def _unheard() -> Iterator[None]:
    """Suppress gloo's messages in standard output about connections."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
