"""Measure the load of the devices: the GPU through NVIDIA's management library, the processor through the system.

`Gpu` reads once. `GpuSampler` reads now and then in a thread of its own. `Cores` measures the processor time of this
process and its workers between two calls. None of them needs a framework, or stops what it watches.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

from runner_core.base import resources
from runner_core.contract import Device


@dataclass(frozen=True)
class GpuUse:
    """Means over samples, for everything that runs on the GPU, including other processes."""

    busy: float
    """Share of the time in which at least one kernel ran (0…1)."""
    memory_busy: float
    """Share of the time in which its memory was read or written (0…1)."""
    memory_bytes: int
    """Most memory in use."""
    samples: int
    watts: float | None = None
    """Electric power; None if the GPU does not tell."""
    celsius: float | None = None
    """Highest temperature of the chip; None if the GPU does not tell."""


class Reading(NamedTuple):
    """The values that a GPU reported once."""

    busy: float
    """Share (0…1) of the last moment in which kernels ran."""
    memory_busy: float
    """Share (0…1) of the last moment in which memory was read or written."""
    memory_bytes: int
    watts: float | None
    celsius: float | None


@dataclass(frozen=True)
class CpuUse:
    seconds: float
    cores: float
    """Cores that this process and its children kept busy, on average."""
    usable: int
    """Cores that this process may use."""
    others: float
    """Cores that other processes of this machine kept busy, on average."""

    @property
    def share(self) -> float:
        """Share of the usable cores (0…1; more if threads outnumber them for a moment)."""
        return self.cores / self.usable


# ---------------------------------------------------------------- GPU


class Gpu:
    """A GPU as its driver sees it; `Gpu.find` returns None if the driver cannot be queried."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library, self._handle = library, handle

    @staticmethod
    def find(device: Device) -> Gpu | None:
        """Return None on a CPU, without nvidia-ml-py or NVIDIA's driver, or if the driver does not know the GPU."""
        if device.kind != "cuda":
            return None
        try:
            library = import_module("pynvml")
            library.nvmlInit()
            gpu = Gpu(library, library.nvmlDeviceGetHandleByPciBusId(_bus_id(device.index).encode()))
            gpu.read()
            return gpu
        except Exception:  # each library has its own errors, and none of them should stop training
            return None

    def read(self) -> Reading:
        """Return the load now, and power and temperature if the GPU tells them.

        Raises the library's own error; a part of a GPU (MIG), for example, does not report its load.
        """
        library, handle = self._library, self._handle
        rates, memory = library.nvmlDeviceGetUtilizationRates(handle), library.nvmlDeviceGetMemoryInfo(handle)
        watts = celsius = None
        with suppress(Exception):  # many GPUs of laptops and virtual machines do not say it
            watts = library.nvmlDeviceGetPowerUsage(handle) / 1000
        with suppress(Exception):
            celsius = float(library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU))
        return Reading(rates.gpu / 100, rates.memory / 100, int(memory.used), watts, celsius)

    def millijoules(self) -> int | None:
        """Return the energy that the GPU has used since its driver was loaded, or None if it does not count it."""
        try:
            return int(self._library.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        except Exception:  # each library has its own errors; older GPUs and parts of a GPU have no counter
            return None


def cuda_devices() -> int:
    """Return how many GPUs this process may use, as NVIDIA's driver says: 0 without one."""
    count = ctypes.c_int()
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    return 0 if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) else count.value


def _bus_id(index: int) -> str:
    """Return the PCI bus id of the GPU that CUDA numbers `index` in this process; raise OSError.

    NVIDIA's management library numbers GPUs differently if CUDA_VISIBLE_DEVICES is set or GPUs differ.
    """
    cuda = ctypes.CDLL("libcuda.so.1")
    device, text = ctypes.c_int(), ctypes.create_string_buffer(32)
    failed = (
        cuda.cuInit(0)
        or cuda.cuDeviceGet(ctypes.byref(device), index)
        or cuda.cuDeviceGetPCIBusId(text, len(text), device)
    )
    if failed:
        raise OSError(f"CUDA does not know GPU {index}")
    return text.value.decode()


class GpuSampler:
    """Reads a GPU every `every` seconds in a thread; use it as a context manager, or `close` it."""

    def __init__(self, gpu: Gpu, every: float = 0.25) -> None:
        self._gpu, self._every = gpu, every
        self._lock, self._over = threading.Lock(), threading.Event()
        self._samples: list[Reading] = []
        self._thread = threading.Thread(target=self._sample, name="sample the GPU", daemon=True)
        self._thread.start()

    def take(self) -> GpuUse | None:
        """Return what was read since the last call, or None for nothing."""
        with self._lock:
            samples, self._samples = self._samples, []
        if not samples:
            return None
        count = len(samples)
        watts = [one.watts for one in samples if one.watts is not None]
        return GpuUse(
            busy=sum(one.busy for one in samples) / count,
            memory_busy=sum(one.memory_busy for one in samples) / count,
            memory_bytes=max(one.memory_bytes for one in samples),
            samples=count,
            watts=sum(watts) / len(watts) if watts else None,
            celsius=max((one.celsius for one in samples if one.celsius is not None), default=None),
        )

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def __enter__(self) -> GpuSampler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sample(self) -> None:
        while not self._over.wait(self._every):
            try:
                sample = self._gpu.read()
            except Exception:  # the driver is gone, for example: nothing more to measure
                return
            with self._lock:
                self._samples.append(sample)


# ---------------------------------------------------------------- CPU


class Cores:
    """Processor time from one `take` (at first: from construction) to the next."""

    def __init__(self) -> None:
        self._last = self._read()

    def take(self) -> CpuUse:
        """Return the usage since the last call; this takes a few milliseconds, because it looks for children."""
        now, own, machine = self._read()
        before, own_before, machine_before = self._last
        self._last = now, own, machine
        seconds = max(now - before, 1e-9)
        mine = sum(max(0.0, used - own_before.get(key, 0.0)) for key, used in own.items())
        others = max(0.0, machine - machine_before - mine)
        return CpuUse(seconds, mine / seconds, usable_cores(), others / seconds)

    @staticmethod
    def _read() -> tuple[float, dict[tuple[int, float], float], float]:
        """Return seconds by the clock, by process (this one and its children), and of the whole machine."""
        import psutil

        own: dict[tuple[int, float], float] = {}
        process = psutil.Process()
        for one in [process, *process.children(recursive=True)]:
            with suppress(psutil.Error):  # it has ended meanwhile
                used = one.cpu_times()
                own[one.pid, one.create_time()] = used.user + used.system
        times = psutil.cpu_times()
        machine = sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)
        machine -= getattr(times, "guest_nice", 0.0)  # both are in user and nice already
        return time.monotonic(), own, machine


def usable_cores() -> int:
    """Return how many cores this process may use, from its affinity and the quotas of its control groups."""
    own, quota = len(os.sched_getaffinity(0)), resources.cores()
    return own if quota is None else min(own, max(1, round(quota)))
