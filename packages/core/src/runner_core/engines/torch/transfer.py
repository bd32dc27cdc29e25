"""Host batches → tensors on the device, and when their buffers may be refilled."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch

from runner_core.protocols import Array, Arrays, HostBatch, Tensors

MOST_BUFFERS = 64


class HostFeed:
    """The host is the device: tensors are views of the ring's buffers, given back when the step is over."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Arrays, Tensors]] = {}  # the ring has few buffers: views of each are made once

    def take(self, batch: HostBatch) -> Tensors:
        """Views of the buffer; a new dictionary each time."""
        arrays = batch.arrays
        known = self._known.get(id(arrays))
        if known is None or known[0] is not arrays:
            if len(self._known) >= MOST_BUFFERS:
                self._known.clear()
            known = arrays, {name: torch.from_numpy(array) for name, array in arrays.items()}
            self._known[id(arrays)] = known
        return known[1].copy()

    def keep(self, batch: HostBatch) -> Tensors:
        """Tensors with memory of their own: metrics may hold them after the buffer was refilled."""
        return {name: torch.from_numpy(array).clone() for name, array in batch.arrays.items()}

    def done(self, batch: HostBatch) -> None:
        batch.release()


class CudaFeed:
    """Copies from page-locked buffers on a stream of its own.

    The host runs ahead of the device: while a step still computes, the next batch is copied beside it. The copy
    depends on nothing that computes, so that waiting for it at the end of `train_step`, when all of the step's
    kernels are queued, takes no time that the device would notice; then the buffer may be refilled.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)
        self._copied = torch.cuda.Event()

    def take(self, batch: HostBatch) -> Tensors:
        main = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._side):
            moved = {
                name: torch.from_numpy(array).to(self._device, non_blocking=True)
                for name, array in batch.arrays.items()
            }
            self._copied.record(self._side)
        main.wait_event(self._copied)
        for tensor in moved.values():
            tensor.record_stream(main)  # its memory is not reused before the step is over
        return moved

    keep = take

    def done(self, batch: HostBatch) -> None:
        self._copied.synchronize()
        batch.release()


Feed = HostFeed | CudaFeed


def feed(device: torch.device) -> Feed:
    return CudaFeed(device) if device.type == "cuda" else HostFeed()


def allocate(shape: tuple[int, ...], dtype: np.dtype[np.generic], device: torch.device) -> Array:
    """Host memory for a ring: page-locked where batches go to a GPU."""
    if device.type != "cuda":
        return np.empty(shape, dtype)
    size = max(1, int(np.prod(shape)) * dtype.itemsize)
    flat = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
    return flat[: int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape)


def pin(memory: Array, device: torch.device, owner: object) -> None:
    """Page-lock `memory` where batches go to a GPU, and keep it, for as long as `owner` lives: unmapped while locked,
    its addresses could be mapped anew and copied from where they were. Where CUDA refuses, copies are slower only."""
    if device.type != "cuda" or not memory.nbytes:
        return
    address, cudart = memory.ctypes.data, torch.cuda.cudart()
    if int(cudart.cudaHostRegister(address, memory.nbytes, 0)) == 0:
        weakref.finalize(owner, _unpin, cudart, memory).atexit = False


def _unpin(cudart: Any, memory: Array) -> None:
    cudart.cudaHostUnregister(memory.ctypes.data)
