"""Measure how busy the GPU is while steps run, for health rules, in every training."""

from __future__ import annotations

from runner_core.contract import Device
from runner_core.engines.usage import Gpu, GpuSampler

_EVERY = 1.0
"""Seconds between two measurements."""


class DeviceUsage:
    """Samples the GPU's load from construction until `close`; measures nothing on a CPU or without driver support."""

    def __init__(self, device: Device) -> None:
        gpu = Gpu.find(device)
        self._sampler = None if gpu is None else GpuSampler(gpu, _EVERY)
        self._busy, self._samples = 0.0, 0

    def pause(self) -> None:
        """Stop counting, because no steps run now (validation, checkpoint)."""
        use = None if self._sampler is None else self._sampler.take()
        if use is not None:
            self._busy += use.busy * use.samples
            self._samples += use.samples

    def go_on(self) -> None:
        """Count again; ignore what was measured since `pause`."""
        if self._sampler is not None:
            self._sampler.take()

    def facts(self) -> dict[str, float]:
        """Return `gpu_busy` since the last call: the share of time (0…1) in which the GPU computed."""
        self.pause()
        busy, samples, self._busy, self._samples = self._busy, self._samples, 0.0, 0
        return {"gpu_busy": busy / samples} if samples else {}

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.close()
