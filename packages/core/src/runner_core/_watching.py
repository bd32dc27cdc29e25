"""How busy the GPU is while steps are taken: for health rules, in every training."""

from __future__ import annotations

from runner_core.measure.devices import Gpu, GpuSampler
from runner_core.protocols import Device

_EVERY = 1.0
"""Seconds between two looks at it."""


class Watching:
    """Looks now and then, from its making to `close`; at nothing on a CPU, and where the driver does not tell."""

    def __init__(self, device: Device) -> None:
        gpu = Gpu.find(device)
        self._sampler = None if gpu is None else GpuSampler(gpu, _EVERY)
        self._busy, self._samples = 0.0, 0

    def pause(self) -> None:
        """No steps are taken from here on: a validation, a checkpoint."""
        use = None if self._sampler is None else self._sampler.take()
        if use is not None:
            self._busy += use.busy * use.samples
            self._samples += use.samples

    def go_on(self) -> None:
        """Steps are taken again; what was seen since `pause` does not count."""
        if self._sampler is not None:
            self._sampler.take()

    def facts(self) -> dict[str, float]:
        """Since the last call: `gpu_busy`, the share of the time (0…1) in which anything ran."""
        self.pause()
        busy, samples, self._busy, self._samples = self._busy, self._samples, 0.0, 0
        return {"gpu_busy": busy / samples} if samples else {}

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.close()
