"""Host buffers that batches are filled into."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from runner_core.base.workers import SharedMemory
from runner_core.contract import Array, Arrays, HostBatch, SampleSpec

Allocate = Callable[[tuple[int, ...], "np.dtype[Any]"], Array]

_ALIGNMENT = 64


class Ring:
    """Buffers for `slots` batches, and the list of free ones; picklable if in shared memory."""

    def __init__(
        self,
        spec: Mapping[str, SampleSpec],
        batch_size: int,
        slots: int,
        shared: type[SharedMemory] | None,
        allocate: Allocate,
    ) -> None:
        layout = {name: ((batch_size, *s.shape), np.dtype(s.dtype)) for name, s in spec.items()}
        sizes = {name: int(np.prod(shape)) * dtype.itemsize for name, (shape, dtype) in layout.items()}
        self.bytes = slots * sum(sizes.values())
        self._batch_size = batch_size
        self.buffers: list[Arrays] = []
        self.free = list(range(slots))
        self._lease = [0] * slots
        self._leases = 0
        self._shared: SharedMemory | None = None
        if shared is None:
            self.buffers = [{n: allocate(shape, dtype) for n, (shape, dtype) in layout.items()} for _ in range(slots)]
        else:
            padded = sum(size + -size % _ALIGNMENT for size in sizes.values())
            self._shared = shared(slots * padded)
            self._layout = layout
            self._attach(slots)

    def _attach(self, slots: int) -> None:
        assert self._shared is not None
        offset = 0
        for _ in range(slots):
            buffer: Arrays = {}
            for name, (shape, dtype) in self._layout.items():
                buffer[name] = np.ndarray(shape, dtype, self._shared.memory, offset)
                offset += buffer[name].nbytes + -buffer[name].nbytes % _ALIGNMENT
            self.buffers.append(buffer)

    def __getstate__(self) -> dict[str, Any]:
        return {"slots": len(self.buffers), "shared": self._shared, "layout": self._layout}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._shared, self._layout, self.buffers = state["shared"], state["layout"], []
        self._attach(state["slots"])

    @property
    def memory(self) -> Array:
        """All the shared memory, as bytes."""
        assert self._shared is not None
        return np.frombuffer(self._shared.memory, np.uint8)

    def acquire(self) -> int:
        """Return the buffer released last, whose memory is most likely in the processor's cache."""
        if not self.free:
            raise RuntimeError(
                f"all {len(self.buffers)} buffers are in use: release() each batch (or raise train.prefetch)"
            )
        return self.free.pop()

    def batch(self, slot: int, count: int) -> HostBatch:
        buffer = self.buffers[slot]
        self._leases = self._lease[slot] = self._leases + 1
        # A full batch is the buffer itself, so that an engine recognises it and need not wrap its arrays again.
        arrays = buffer if count == self._batch_size else {name: a[:count] for name, a in buffer.items()}
        return HostBatch(arrays, count, partial(self._release, slot, self._leases))

    def _release(self, slot: int, lease: int) -> None:
        if self._lease[slot] == lease:  # a second release must not free the buffer's next batch
            self._lease[slot] = 0
            self.free.append(slot)
