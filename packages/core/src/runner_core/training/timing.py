"""Measure where the time of a training run goes."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Timing:
    """Nanoseconds of training (waiting for data, in `train_step` and reading its numbers, in total), and samples.

    `total` leaves out validation and saving, which are not training. `wait` holds every wait at whose end the device
    had nothing to do. On a CPU that is exactly the time for data. A GPU may have been busy when the wait began, so
    there it is an upper bound of the time that it stood still for data.
    """

    wait: int = 0
    compute: int = 0
    total: int = 0
    samples: int = 0

    @property
    def samples_per_second(self) -> float:
        return self.samples * 1e9 / self.total if self.total else 0.0

    @property
    def data_wait_share(self) -> float:
        return self.wait / self.total if self.total else 0.0

    def since(self, before: Timing) -> Timing:
        return Timing(*(getattr(self, name) - getattr(before, name) for name in asdict(self)))

    def shown(self) -> dict[str, float]:
        """Return seconds and shares, as logged."""
        other = max(0, self.total - self.wait - self.compute)
        return {
            "seconds": round(self.total / 1e9, 6),
            "data_wait": round(self.wait / 1e9, 6),
            "compute": round(self.compute / 1e9, 6),
            "other": round(other / 1e9, 6),
            "samples_per_second": round(self.samples_per_second, 3),
        }
