"""Make batches from samples, in an order that does not depend on workers, from any step, in a ring of buffers.

The sequence of samples is `sampling.order`, or the samples' own: a pure function. A batch is a run of this sequence,
and each rank takes a contiguous share of each global batch. So nothing here has state that a checkpoint would need.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np

from runner_core.base.background import Background
from runner_core.base.errors import BadInput, OutOfSpace, RunnerError
from runner_core.base.files import size_text
from runner_core.base.resources import available_ram
from runner_core.base.workers import SharedMemory, Workers
from runner_core.contract import Array, Arrays, HostBatch, Samples, SampleSpec, StreamedSamples
from runner_core.data.sampling import order, sample_rng

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


Augment = Callable[[Arrays, np.random.Generator], None]
Pin = Callable[[Array], None]
Counters = Mapping[str, float]


class Loader:
    """Batches of `batch_size` samples (per rank), epoch by epoch.

    With `workers` 0 the calling process fills each batch when it is asked for (fastest for a gather from memory). With
    more, spawned processes fill ahead into shared memory. Either way the ring has `block` + `prefetch` + 1 buffers, and
    a buffer is refilled only after its batch was released.

    Args:
        samples: The samples. Fetched ones (`StreamedSamples`) receive the coming batches in advance: as many as they
            want, at least `prefetch`, and near the end of an epoch those of the next.
        batch_size: Samples per batch and rank.
        seed: The run's seed.
        shuffle: Permute the samples of each epoch.
        steps_per_epoch: None for one pass over the samples; more steps continue with further permutations.
        workers: Number of worker processes.
        prefetch: Batches filled in advance.
        block: Batches that go to the device at once.
        allocate: Makes the buffers if `workers` is 0.
        pin: Otherwise gets their whole memory (uint8) once, to page-lock it.
        augment: Changes training samples.
        drop_last: Leave out an incomplete last batch.
        epochs: Number of epochs.
        rank: Number of this process.
        ranks: Number of processes.
        setting: Name of the batch size in messages.

    Raises:
        OutOfSpace: The ring is larger than the free memory.
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
        epochs: int = 1,
        rank: int = 0,
        ranks: int = 1,
        setting: str = "train.batch_size",
    ) -> None:
        if workers < 0 or prefetch < 0:
            raise BadInput("train.workers and train.prefetch must be at least 0")
        self.samples = samples
        self._streamed = _streamed(samples)
        self._epochs = epochs
        self._ahead = max(1, prefetch, 0 if self._streamed is None else self._streamed.ahead // batch_size)
        self._counted: dict[int, Counters] = {}
        self.seed = seed
        self.shuffle = shuffle
        self._rank, self._batch_size, self._global_batch = rank, batch_size, batch_size * ranks
        self.steps_per_epoch, self._count = epoch_length(len(samples), batch_size, ranks, steps_per_epoch, drop_last)
        slots = block + prefetch + 1
        _refuse_more_than_memory(samples.spec, batch_size, slots, setting)
        self._ring = Ring(samples.spec, batch_size, slots, SharedMemory if workers else None, allocate)
        if pin is not None and workers:
            pin(self._ring.memory)
        self._active: Iterator[HostBatch] | None = None
        self._sequences = Sequences(self._sequence, epochs if shuffle else 0)
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
        """Yield batches of `epoch` from `first_step` on; call `release()` on each, and use one iterator at a time.

        The ranks' batches are those of one process in turn. Where they do not suffice for all ranks, the last one has a
        sample of zeros and the count 0, so that all ranks get equally many.
        """
        if self._active is not None:
            self._active.close()  # type: ignore[attr-defined]
        tasks = self._tasks(epoch, first_step)
        if self._streamed is not None:
            tasks = self._announced(epoch, first_step, self._streamed)
        filled = self._filled_ahead(tasks) if self._workers else self._filled_here(tasks)
        self._active = self._completed(filled) if self._is_last_empty() else filled
        return self._active

    def counters(self) -> dict[str, float]:
        """Return `StreamedSamples.counters` of all processes, for the batches given out since the last call.

        The values are sums, except `fetched_seconds`: it is the mean over processes that fetched anything, so that
        files per second are those of all processes.
        """
        if self._streamed is None:
            return {}
        parts = [self._streamed.counters(), *self._counted.values()]
        self._counted = {}
        total = _sum(parts)
        if "fetched_seconds" in total:
            total["fetched_seconds"] /= max(1, sum(part.get("files", 0) > 0 for part in parts))
        return total

    def close(self) -> None:
        """Stop the workers."""
        if self._workers:
            self._workers.close()

    def _tasks(self, epoch: int, first_step: int) -> Iterator[tuple[int, int, Array]]:
        """Yield (epoch, position in the epoch's sequence, sample numbers) of each batch of this rank."""
        own = self._sequences.of(epoch)
        for step in range(first_step, self.steps_per_epoch):
            start = step * self._global_batch + self._rank * self._batch_size
            stop = min(start + self._batch_size, self._count)
            if stop > start:
                yield epoch, start, own[step * self._batch_size : step * self._batch_size + stop - start]

    def _sequence(self, epoch: int) -> Array:
        """Return this rank's share of the epoch's sequence: its parts of all batches, one after the other."""
        if self._streamed is not None:
            found = self._streamed.sequence(self.seed, epoch, self._count, self.shuffle)
        else:
            found = order(self.seed, epoch, len(self.samples), self._count, self.shuffle)
        if self._batch_size == self._global_batch:
            return found
        whole, begin = self._count // self._global_batch, self._rank * self._batch_size
        last = found[whole * self._global_batch :][begin : begin + self._batch_size]
        steps = found[: whole * self._global_batch].reshape(whole, self._global_batch)
        return np.concatenate([steps[:, begin : begin + self._batch_size].ravel(), last])

    def _is_last_empty(self) -> bool:
        """Return True if this rank has no part of an epoch's last batch."""
        return self._count <= (self.steps_per_epoch - 1) * self._global_batch + self._rank * self._batch_size

    def _completed(self, batches: Iterator[HostBatch]) -> Iterator[HostBatch]:
        """Yield the batches, and an empty one in place of the last."""
        try:
            yield from batches
            zeros = {name: np.zeros((1, *s.shape), s.dtype) for name, s in self.samples.spec.items()}
            yield HostBatch(zeros, 0, lambda: None)
        finally:
            batches.close()  # type: ignore[attr-defined]

    def _filled_here(self, tasks: Iterator[tuple[int, int, Array]]) -> Iterator[HostBatch]:
        ring, fill = self._ring, self._fill
        for epoch, position, indices in tasks:
            slot = ring.acquire()
            batch = ring.batch(slot, len(indices))
            fill.into(batch.arrays, epoch, position, indices)
            yield batch

    def _announced(self, epoch: int, first_step: int, streamed: StreamedSamples) -> Iterator[tuple[int, int, Array]]:
        """Yield the tasks of `epoch`, each after the coming ones were announced.

        Each worker receives some of them; what one worker fetches is available to all.
        """
        later = chain.from_iterable(self._tasks(e, 0) for e in range(epoch + 1, self._epochs))
        own = list(self._tasks(epoch, first_step))
        following = chain(own, later)
        announced = 0
        for number, task in enumerate(own):
            for _, _, indices in islice(following, number + 1 + self._ahead - announced):
                if self._workers is None:
                    streamed.expect(indices)
                else:
                    self._workers.tell(announced, indices)
                announced += 1
            yield task

    def _filled_ahead(self, tasks: Iterator[tuple[int, int, Array]]) -> Iterator[HostBatch]:
        workers, ring = self._workers, self._ring
        assert workers is not None
        pending: deque[tuple[int, int, int]] = deque()  # ticket, slot, samples: in the order of the sequence
        done: dict[int, tuple[int, Counters]] = {}  # ticket: process, what it counted
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
                    done.update([workers.receive()])
                ticket, slot, count = pending.popleft()
                self._count_in(*done.pop(ticket))
                yield ring.batch(slot, count)
        finally:
            self._drain(pending, done)

    def _count_in(self, process: int, counters: Counters) -> None:
        if counters:
            self._counted[process] = _sum([self._counted.get(process, {}), counters])

    def _drain(self, pending: deque[tuple[int, int, int]], done: dict[int, tuple[int, Counters]]) -> None:
        """Wait for batches that are still being written, so that their buffers may be used again."""
        assert self._workers is not None
        try:
            while {ticket for ticket, _, _ in pending} - done.keys():
                done.update([self._workers.receive()])
        except (RunnerError, RuntimeError):
            return  # the workers are gone, so nothing writes any more
        for _, slot, _ in pending:
            self._ring.free.append(slot)


class Sequences:
    """The sample numbers of epochs; those of the next epoch are computed in a thread while an epoch is trained.

    A permutation of 10⁷ samples takes about half a second, and an order for streaming a few. `compute` is a pure
    function of the epoch, of which there are `epochs`; NumPy lets other threads go on meanwhile.
    """

    def __init__(self, compute: Callable[[int], Array], epochs: int) -> None:
        self._compute, self._epochs = compute, epochs
        self._current: tuple[int, Array] | None = None
        self._coming: tuple[int, Background, list[Array]] | None = None

    def of(self, epoch: int) -> Array:
        """Return the sequence of an epoch, and begin with the next one's."""
        if self._current is None or self._current[0] != epoch:
            self._current = epoch, self._taken(epoch)
        if epoch + 1 < self._epochs and self._coming is None:
            found: list[Array] = []
            thread = Background("order of samples")
            thread.begin(lambda: found.append(self._compute(epoch + 1)))
            self._coming = epoch + 1, thread, found
        return self._current[1]

    def _taken(self, epoch: int) -> Array:
        if self._coming is None:
            return self._compute(epoch)
        (coming, thread, found), self._coming = self._coming, None
        thread.wait()
        return found[0] if coming == epoch else self._compute(epoch)


def epoch_length(length: int, batch_size: int, ranks: int, steps: int | None, drop_last: bool) -> tuple[int, int]:
    """Return (steps, samples) of an epoch over `length` samples and all ranks.

    Raises BadInput if the samples do not fill a batch.
    """
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


def _streamed(samples: Samples) -> StreamedSamples | None:
    return samples if isinstance(samples, StreamedSamples) and samples.streaming else None


def _sum(parts: Sequence[Counters]) -> dict[str, float]:
    return {name: sum(part.get(name, 0) for part in parts) for part in parts for name in part}


def _refuse_more_than_memory(spec: Mapping[str, SampleSpec], batch_size: int, slots: int, setting: str) -> None:
    """Raise OutOfSpace with a batch size that fits.

    Without this the allocation would succeed, and the machine would end the process later.
    """
    sample = sum(int(np.prod(s.shape)) * np.dtype(s.dtype).itemsize for s in spec.values())
    available = available_ram()
    if slots * batch_size * sample > available:
        fits = int(0.8 * available) // (slots * sample)
        remedy = f"set {setting} to {fits} or less" if fits else "set train.prefetch to 0, or take smaller samples"
        raise OutOfSpace(
            f"{setting} {batch_size}: {slots} batches kept ready take {size_text(slots * batch_size * sample)} of "
            f"memory, {size_text(available)} are free: {remedy}"
        )


class _Fill:
    """Writes one batch; in a worker, the work that `Workers` sends."""

    def __init__(self, samples: Samples, augment: Augment | None, seed: int, ring: Ring | None) -> None:
        self._samples, self._augment, self._seed, self._ring = samples, augment, seed, ring

    def expect(self, indices: Array) -> None:
        """Announce coming samples to streamed samples, in a worker."""
        if (streamed := _streamed(self._samples)) is not None:
            streamed.expect(indices)

    def __call__(self, task: tuple[int, int, int, Array]) -> tuple[int, Counters]:
        assert self._ring is not None
        slot, epoch, position, indices = task
        arrays = {name: a[: len(indices)] for name, a in self._ring.buffers[slot].items()}
        self.into(arrays, epoch, position, indices)
        streamed = _streamed(self._samples)
        return os.getpid(), {} if streamed is None else streamed.counters()

    def into(self, arrays: Arrays, epoch: int, position: int, indices: Array) -> None:
        positions = np.arange(position, position + len(indices))
        self._samples.fill(indices, positions, self._seed, epoch, arrays)
        if self._augment is not None:
            for i in range(len(indices)):
                # By position, not by sample number: a sample that comes twice in an epoch is augmented in two ways.
                sample = {name: a[i, ...] for name, a in arrays.items()}
                self._augment(sample, sample_rng(self._seed, epoch, position + i))
