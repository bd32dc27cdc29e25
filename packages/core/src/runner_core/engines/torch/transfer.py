"""Bring host batches to the device as tensors, and decide when their buffers may be refilled."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch

from runner_core.contract import Array, Arrays, HostBatch, Tensors

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


class CudaFeed:
    """Copies from page-locked buffers on a stream of its own.

    The host runs ahead of the device: while a step still computes, the next batch is copied. The copy depends on no
    computation. So waiting for it at the end of `train_step`, when all of the step's kernels are queued, does not delay
    the device. Then the buffer may be refilled.
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
    """Allocate host memory for a ring, page-locked if batches go to a GPU."""
    if device.type != "cuda":
        return np.empty(shape, dtype)
    size = max(1, int(np.prod(shape)) * dtype.itemsize)
    flat = torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
    return flat[: int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape)


def pin(memory: Array, device: torch.device, owner: object) -> None:
    """Page-lock `memory` if batches go to a GPU, and keep it as long as `owner` lives.

    If it were unmapped while locked, its addresses could be mapped anew, and copies would read the old memory. If CUDA
    refuses, copies are only slower.
    """
    if device.type != "cuda" or not memory.nbytes:
        return
    address, cudart = memory.ctypes.data, torch.cuda.cudart()
    if int(cudart.cudaHostRegister(address, memory.nbytes, 0)) == 0:
        weakref.finalize(owner, _unpin, cudart, memory).atexit = False


def _unpin(cudart: Any, memory: Array) -> None:
    cudart.cudaHostUnregister(memory.ctypes.data)
