"""Bring host batches to the device as tensors, or take their rows from a store on the device."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch

from runner_core.base.errors import BadInput, OutOfSpace
from runner_core.contract import Array, Arrays, HostBatch, StoredArray, Tensors
from runner_core.data.samples import RowSamples
from runner_core.engines.torch.accelerator import has_streams

MOST_BUFFERS = 64


class HostFeed:
    """The host is the device: tensors are views of the ring's buffers, released when the step is over."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Arrays, Tensors]] = {}  # the ring has few buffers: views of each are made once

    def take(self, batch: HostBatch) -> Tensors:
        """Return views of the buffer in a new dictionary."""
        arrays = batch.arrays
        known = self._known.get(id(arrays))
        if known is None or known[0] is not arrays:
            if len(self._known) >= MOST_BUFFERS:
                self._known.clear()
            known = arrays, {name: torch.from_numpy(array) for name, array in arrays.items()}
            self._known[id(arrays)] = known
        return known[1].copy()

    def keep(self, batch: HostBatch) -> Tensors:
        """Return tensors with memory of their own, which metrics may hold after the buffer was refilled."""
        return {name: torch.from_numpy(array).clone() for name, array in batch.arrays.items()}

    def done(self, batch: HostBatch) -> None:
        batch.release()


class DeviceFeed:
    """Copies from page-locked buffers on a stream of its own.

    The host runs ahead of the device: while a step still computes, the next batch is copied. The copy depends on no
    computation. So waiting for it at the end of `train_step`, when all of the step's kernels are queued, does not delay
    the device. Then the buffer may be refilled.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.Stream(device)
        self._copied = torch.Event(device)

    def take(self, batch: HostBatch) -> Tensors:
        main = torch.accelerator.current_stream(self._device)
        torch.accelerator.set_stream(self._side)
        try:
            moved = {
                name: torch.from_numpy(array).to(self._device, non_blocking=True)
                for name, array in batch.arrays.items()
            }
            self._copied.record(self._side)
        finally:
            torch.accelerator.set_stream(main)
        main.wait_event(self._copied)
        for tensor in moved.values():
            tensor.record_stream(main)  # its memory is not reused before the step is over
        return moved

    keep = take

    def done(self, batch: HostBatch) -> None:
        self._copied.synchronize()
        batch.release()


class PlainFeed:
    """Copies while the host waits, to a device without streams."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def take(self, batch: HostBatch) -> Tensors:
        return {name: torch.from_numpy(array).to(self._device) for name, array in batch.arrays.items()}

    keep = take

    def done(self, batch: HostBatch) -> None:
        batch.release()


Feed = HostFeed | DeviceFeed | PlainFeed


def feed(device: torch.device) -> Feed:
    if device.type == "cpu":
        return HostFeed()
    return DeviceFeed(device) if has_streams(device) else PlainFeed(device)


def allocate(shape: tuple[int, ...], dtype: np.dtype[np.generic], device: torch.device) -> Array:
    """Allocate host memory for a ring, page-locked if batches go to a device with streams."""
    if not has_streams(device):
        return np.empty(shape, dtype)
    size = max(1, int(np.prod(shape)) * dtype.itemsize)
    flat = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
    return flat[: int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape)


def pin(memory: Array, device: torch.device, owner: object) -> None:
    """Page-lock `memory` if batches go to a GPU of CUDA or ROCm, and keep it as long as `owner` lives.

    If it were unmapped while locked, its addresses could be mapped anew, and copies would read the old memory. If CUDA
    refuses, or another accelerator has no call for it, copies are only slower.
    """
    if device.type != "cuda" or not memory.nbytes:
        return
    address, cudart = memory.ctypes.data, torch.cuda.cudart()
    if int(cudart.cudaHostRegister(address, memory.nbytes, 0)) == 0:
        weakref.finalize(owner, _unpin, cudart, memory).atexit = False


def _unpin(cudart: Any, memory: Array) -> None:
    cudart.cudaHostUnregister(memory.ctypes.data)


class DeviceRows:
    """Stored arrays on the device; maps `{"row", "record"}` to the fields of the samples (`RowSamples`)."""

    def __init__(self, samples: Any, device: torch.device) -> None:
        """Copy the arrays to the device.

        Raises BadInput for samples that are not rows, and OutOfSpace if the set is larger than the memory.
        """
        if not isinstance(samples, RowSamples):
            raise BadInput("cache.mode device needs samples that are rows (RowSamples); use cache.mode memmap")
        self._bounds = torch.from_numpy(samples.record_rows).to(device)
        try:
            self._arrays = {name: _load(array, device) for name, array in samples.arrays.items()}
        except torch.OutOfMemoryError:
            raise OutOfSpace("the data set does not fit into the device's memory; use cache.mode memmap") from None
        self._offsets = {name: torch.tensor(o, device=device) for name, o in samples.fields.items()}

    def __call__(self, batch: Tensors) -> Tensors:
        """Return fields (samples, offsets, …) and `record`; a neighbour beyond a record's end is its last row."""
        rows, records = batch["row"], batch["record"]
        first, last = self._bounds[records, None], self._bounds[records + 1, None] - 1
        fields: Tensors = {"record": records}
        for name, array in self._arrays.items():
            wanted = torch.clamp(rows[:, None] + self._offsets[name], first, last)
            fields[name] = array.index_select(0, wanted.flatten()).view(*wanted.shape, *array.shape[1:])
        return fields


def _load(array: StoredArray, device: torch.device) -> torch.Tensor:
    """Return the concatenation of all records, copied record by record."""
    rows = sum(shape[0] for shape in array.shapes)
    empty = torch.from_numpy(np.empty(0, array.dtype))
    whole = torch.empty((rows, *array.shapes[0][1:]), dtype=empty.dtype, device=device)
    begin = 0
    for record, shape in enumerate(array.shapes):
        # a copy, because stored arrays are read-only and torch has no such tensors
        whole[begin : begin + shape[0]].copy_(torch.from_numpy(np.array(array.read(record))))
        begin += shape[0]
    return whole
