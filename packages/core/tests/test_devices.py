"""How busy processor and GPU are: counted, sampled beside what runs, and never a reason to fail."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from runner_core.contract import Device
from runner_core.engines import usage
from runner_core.engines.usage import Cores, Gpu, GpuSampler
from runner_core.training import timing

GPU = Device("cuda", 1)


class Library:
    """NVIDIA's, of one GPU."""

    NVML_TEMPERATURE_GPU = 0

    def __init__(self, busy=(40, 60), fails=False, silent=False):
        self.busy, self.fails, self.silent, self.reads = list(busy), fails, silent, 0

    def nvmlInit(self):
        pass

    def nvmlDeviceGetHandleByPciBusId(self, bus):
        assert bus == b"0000:17:00.0"
        return "handle"

    def nvmlDeviceGetUtilizationRates(self, handle):
        if self.fails:
            raise RuntimeError("Not Supported")
        self.reads += 1
        return SimpleNamespace(gpu=self.busy[self.reads % len(self.busy)], memory=10)

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(used=1000 + self.reads)

    def nvmlDeviceGetPowerUsage(self, handle):
        if self.silent:
            raise RuntimeError("Not Supported")
        return 250_500  # milliwatts

    def nvmlDeviceGetTemperature(self, handle, sensor):
        assert sensor == self.NVML_TEMPERATURE_GPU
        if self.silent:
            raise RuntimeError("Not Supported")
        return 60 + self.reads % 2


def install(monkeypatch, library):
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(usage, "_bus_id", lambda index: "0000:17:00.0" if index == 1 else "")


def test_a_gpu_is_sampled_beside_what_runs(monkeypatch):
    library = Library()
    install(monkeypatch, library)
    with GpuSampler(Gpu.find(GPU), every=0.001) as sampler:
        until = time.monotonic() + 20
        while library.reads < 40 and time.monotonic() < until:
            time.sleep(0.01)
        use = sampler.take()
    assert use.samples >= 30
    assert use.busy == pytest.approx(0.5, abs=0.05)
    assert use.memory_busy == pytest.approx(0.1)
    assert use.memory_bytes > 1000
    assert (use.watts, use.celsius) == (250.5, 61)
    assert sampler.take() is None or sampler.take() is None, "what was taken is not told twice"
    assert not any(thread.name == "sample the GPU" for thread in threading.enumerate())


def test_the_library_of_these_tests_has_the_signatures_of_the_real_one():
    real = pytest.importorskip("pynvml")
    calls = [name for name in vars(Library) if name.startswith("nvml")]
    assert len(calls) >= 6
    for name in calls:
        ours = [*inspect.signature(getattr(Library, name)).parameters][1:]
        theirs = inspect.signature(getattr(real, name)).parameters.values()
        needed = [one.name for one in theirs if one.default is one.empty]
        assert len(ours) == len(needed), name
    assert real.NVML_TEMPERATURE_GPU == Library.NVML_TEMPERATURE_GPU
    assert {"gpu", "memory"} <= {name for name, _ in real.c_nvmlUtilization_t._fields_}
    assert "used" in {name for name, _ in real.c_nvmlMemory_t._fields_}


def test_a_gpu_that_tells_neither_power_nor_temperature(monkeypatch):
    install(monkeypatch, Library(silent=True))
    reading = Gpu.find(GPU).read()
    assert (reading.watts, reading.celsius) == (None, None)
    assert reading.busy in (0.4, 0.6)


@pytest.mark.parametrize("silent", [False, True])
def test_the_load_since_the_last_line_of_the_log(monkeypatch, silent):
    install(monkeypatch, Library(silent=silent))
    monkeypatch.setattr(timing, "_EVERY", 0.001)
    usage = timing.DeviceUsage(GPU)
    try:
        until, found = time.monotonic() + 20, {}
        while not found and time.monotonic() < until:
            time.sleep(0.02)
            usage.pause()
            found = usage.facts()
    finally:
        usage.close()
    assert 0.4 <= found["gpu_busy"] <= 0.6
    assert found["gpu_memory_busy"] == pytest.approx(0.1)
    assert found["gpu_memory_gb"] >= 1e-6
    assert [found.get("gpu_watts"), found.get("gpu_celsius") in (60, 61)] == (
        [None, False] if silent else [250.5, True]
    )


def test_a_driver_that_is_gone_ends_sampling_and_nothing_else(monkeypatch):
    library = Library()
    install(monkeypatch, library)
    gpu = Gpu.find(GPU)
    library.fails = True
    sampler = GpuSampler(gpu, every=0.001)
    sampler._thread.join(20)
    assert not sampler._thread.is_alive()
    assert sampler.take() is None
    sampler.close()


@pytest.mark.parametrize("why", ["a CPU", "no library", "no driver", "a part of a GPU"])
def test_where_nothing_can_be_said_there_is_no_gpu(monkeypatch, why):
    if why == "no library":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    elif why == "a part of a GPU":
        install(monkeypatch, Library(fails=True))
    elif why == "no driver":
        monkeypatch.setitem(sys.modules, "pynvml", Library())
        monkeypatch.setattr(usage.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    assert Gpu.find(Device("cpu") if why == "a CPU" else GPU) is None


def test_what_this_process_and_its_children_take_of_the_processor():
    cores = Cores()
    burn = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\ninput()"
    child = subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE)
    try:
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass
        until, taken = time.monotonic() + 30, 0.0
        while taken < 0.5 and time.monotonic() < until:
            use = cores.take()
            taken += use.cores * use.seconds
    finally:
        child.communicate(b"\n")
    assert taken >= 0.5, "0.3 s each"
    assert 1 <= use.usable <= len(os.sched_getaffinity(0))
    assert use.share == use.cores / use.usable
    assert use.others >= 0
