"""Batches from samples: in one order whatever the workers, from any step, into a ring of buffers.

The sequence of samples is `sampling.order`, a pure function; a batch is a run of it, and each rank takes its
contiguous share of each global batch. So nothing here has state that a checkpoint would need.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from runner_core._errors import BadInput, OutOfSpace, RunnerError
from runner_core._files import size_text
from runner_core._memory import available_ram
from runner_core._workers import SharedMemory, Workers
from runner_core.protocols import Array, Arrays, HostBatch, Samples, SampleSpec
from runner_core.sampling import order, sample_rng

Allocate = Callable[[tuple[int, ...], "np.dtype[Any]"], Array]
Augment = Callable[[Arrays, np.random.Generator], None]
Pin = Callable[[Array], None]

_ALIGNMENT = 64


class Loader:
    """Batches of `batch_size` samples (per rank), epoch by epoch.

    `workers` 0: the calling process fills each batch when it is asked for (fastest for a gather from memory); more:
    spawned processes fill ahead into shared memory. Either way the ring has `block` + `prefetch` + 1 buffers (`block`:
    batches that go to the device at once), and one is refilled only after its batch was released. `steps_per_epoch`
    None: one pass over the samples; more steps go on with further permutations. `allocate` makes the buffers when
    workers is 0; otherwise `pin`, where given, gets their memory (uint8, all of it) once, to page-lock it. `setting`
    names the batch size in messages. Raises OutOfSpace when the ring is larger than the free memory.
    """

    def __init__(
        self,
        samples: Samples,
        *,
        batch_size: int,
        seed: int,
        shuffle: bool,
        steps_per_epoch: int | None = None,
        workers: int = 0,
        prefetch: int = 2,
        block: int = 1,
        allocate: Allocate = np.empty,
        pin: Pin | None = None,
        augment: Augment | None = None,
        drop_last: bool = False,
        rank: int = 0,
        ranks: int = 1,
        setting: str = "train.batch_size",
    ) -> None:
        if workers < 0 or prefetch < 0:
            raise BadInput("train.workers and train.prefetch must be at least 0")
        self.samples = samples
        self.seed = seed
        self.shuffle = shuffle
        self._share = (rank, ranks)
        self._global_batch = batch_size * ranks
        self.steps_per_epoch, self._count = epoch_length(len(samples), batch_size, ranks, steps_per_epoch, drop_last)
        slots = block + prefetch + 1
        _refuse_more_than_memory(samples.spec, batch_size, slots, setting)
        self._ring = _Ring(samples.spec, batch_size, slots, SharedMemory if workers else None, allocate)
        if pin is not None and workers:
            pin(self._ring.memory)
        self._active: Iterator[HostBatch] | None = None
        fill = _Fill(samples, augment, seed, self._ring if workers else None)
        self._fill = fill
        self._workers = Workers(fill, workers, "fill batches (train.workers)") if workers else None

    @property
    def ring_bytes(self) -> int:
        """Host memory that the ring of buffers takes."""
        return self._ring.bytes

    @property
    def worker_pids(self) -> list[int]:
        return self._workers.pids if self._workers else []

    def batches(self, epoch: int, first_step: int = 0) -> Iterator[HostBatch]:
        """Batches of `epoch` from `first_step` on. Call `release()` on each; one iterator at a time.

        A rank's share of an incomplete last batch may be smaller, or nothing: then the batch is left out.
        """
        if self._active is not None:
            self._active.close()  # type: ignore[attr-defined]
        tasks = self._tasks(epoch, first_step)
        self._active = self._filled_ahead(tasks) if self._workers else self._filled_here(tasks)
        return self._active

    def close(self) -> None:
        """End the workers."""
        if self._workers:
            self._workers.close()

    def _tasks(self, epoch: int, first_step: int) -> Iterator[tuple[int, int, Array]]:
        """(epoch, position in the epoch's sequence, sample numbers) of each batch of this rank."""
        sequence = order(self.seed, epoch, len(self.samples), self._count, self.shuffle)
        rank, ranks = self._share
        for step in range(first_step, self.steps_per_epoch):
            begin = step * self._global_batch
            size = min(self._global_batch, self._count - begin)
            start, stop = begin + size * rank // ranks, begin + size * (rank + 1) // ranks
            if stop > start:
                yield epoch, start, sequence[start:stop]

    def _filled_here(self, tasks: Iterator[tuple[int, int, Array]]) -> Iterator[HostBatch]:
        ring, fill = self._ring, self._fill
        for epoch, position, indices in tasks:
            slot = ring.acquire()
            batch = ring.batch(slot, len(indices))
            fill.into(batch.arrays, epoch, position, indices)
            yield batch

    def _filled_ahead(self, tasks: Iterator[tuple[int, int, Array]]) -> Iterator[HostBatch]:
        workers, ring = self._workers, self._ring
        assert workers is not None
        pending: deque[tuple[int, int, int]] = deque()  # ticket, slot, samples: in the order of the sequence
        done: set[int] = set()
        try:
            while True:
                while ring.free and (task := next(tasks, None)) is not None:
                    slot = ring.acquire()
                    pending.append((workers.submit((slot, *task)), slot, len(task[2])))
                if not pending:
                    if next(tasks, None) is not None:
                        ring.acquire()  # raises: every buffer is held
                    return
                while pending[0][0] not in done:
                    done.add(workers.receive()[0])
                ticket, slot, count = pending.popleft()
                done.discard(ticket)
                yield ring.batch(slot, count)
        finally:
            self._drain(pending, done)

    def _drain(self, pending: deque[tuple[int, int, int]], done: set[int]) -> None:
        """Wait for what is still being written, so that its buffers may be used again."""
        assert self._workers is not None
        try:
            while {ticket for ticket, _, _ in pending} - done:
                done.add(self._workers.receive()[0])
        except (RunnerError, RuntimeError):
            return  # the workers are gone, and nothing writes any more
        for _, slot, _ in pending:
            self._ring.free.append(slot)


def epoch_length(length: int, batch_size: int, ranks: int, steps: int | None, drop_last: bool) -> tuple[int, int]:
    """(steps, samples) of an epoch over `length` samples, over all ranks. BadInput when they do not fill a batch."""
    if batch_size < 1:
        raise BadInput("train.batch_size must be at least 1")
    whole = batch_size * ranks
    if not length:
        raise BadInput("there are no samples: no record of this split has any")
    if steps is not None:
        return steps, steps * whole
    if not drop_last:
        return -(-length // whole), length
    if length < whole:
        raise BadInput(
            f"{length} samples do not fill one batch of {whole}: set train.batch_size to {length // ranks} or less"
        )
    return length // whole, length // whole * whole


def _refuse_more_than_memory(spec: Mapping[str, SampleSpec], batch_size: int, slots: int, setting: str) -> None:
    """OutOfSpace with the batch size that fits: the memory would be given, and the machine end the process later."""
    sample = sum(int(np.prod(s.shape)) * np.dtype(s.dtype).itemsize for s in spec.values())
    available = available_ram()
    if slots * batch_size * sample > available:
        fits = int(0.8 * available) // (slots * sample)
        remedy = f"set {setting} to {fits} or less" if fits else "set train.prefetch to 0, or take smaller samples"
        raise OutOfSpace(
            f"{setting} {batch_size}: {slots} batches kept ready take {size_text(slots * batch_size * sample)} of "
            f"memory, {size_text(available)} are free: {remedy}"
        )


class _Ring:
    """Buffers for `slots` batches, and which of them are free. Picklable when in shared memory."""

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
        """All the shared memory, bytes."""
        assert self._shared is not None
        return np.frombuffer(self._shared.memory, np.uint8)

    def acquire(self) -> int:
        """The buffer released last: its memory is the likeliest to be in the processor's cache."""
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


class _Fill:
    """Writes one batch; in a worker, the work that `Workers` sends."""

    def __init__(self, samples: Samples, augment: Augment | None, seed: int, ring: _Ring | None) -> None:
        self._samples, self._augment, self._seed, self._ring = samples, augment, seed, ring

    def __call__(self, task: tuple[int, int, int, Array]) -> None:
        assert self._ring is not None
        slot, epoch, position, indices = task
        arrays = {name: a[: len(indices)] for name, a in self._ring.buffers[slot].items()}
        self.into(arrays, epoch, position, indices)

    def into(self, arrays: Arrays, epoch: int, position: int, indices: Array) -> None:
        positions = np.arange(position, position + len(indices))
        self._samples.fill(indices, positions, self._seed, epoch, arrays)
        if self._augment is not None:
            for i in range(len(indices)):
                # By position, not by sample number: a sample that comes twice in an epoch is augmented in two ways.
                sample = {name: a[i, ...] for name, a in arrays.items()}
                self._augment(sample, sample_rng(self._seed, epoch, position + i))
