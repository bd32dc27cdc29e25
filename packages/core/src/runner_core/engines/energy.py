"""Energy that a training takes: read from the hardware's counters where they can be read, otherwise estimated.

GPUs count millijoules since their driver was loaded (NVIDIA's management library, Volta and newer). Processors count
microjoules (RAPL, below /sys/class/powercap), which most systems show to root only. A counter belongs to a whole GPU or
processor package: it includes what other programs did meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runner_core.contract import Device
from runner_core.engines.usage import Gpu

POWERCAP = Path("/sys/class/powercap")
WATTS_PER_CORE = 10.0
"""Estimate for a busy core with its share of memory and fans: servers take 5 to 15 W per core."""
_JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Energy:
    """Kilowatt-hours by part, and how each of them is known."""

    kwh: Mapping[str, float]
    how: Mapping[str, str]

    @property
    def total(self) -> float:
        return sum(self.kwh.values())


class EnergyMeter:
    """Measures from construction on; `taken` adds what `before` counted, which a run keeps over a resume."""

    def __init__(self, device: Device, powercap: Path = POWERCAP) -> None:
        self.before: Mapping[str, float] = {}
        self._device, self._packages, self._gpu = device, _packages(powercap), Gpu.find(device)
        self._begin = {package: _microjoules(package) for package in self._packages}
        self._processor_time = _processor_seconds()
        self._millijoules = self._gpu.millijoules() if self._gpu else None

    def taken(self) -> Energy:
        """Return the energy until now. A GPU without a counter is left out, and `how` says so."""
        kwh, how = {}, {}
        if self._begin and all(value is not None for value in self._begin.values()):
            joules = sum(_since(package, begin or 0) for package, begin in self._begin.items()) / 1e6
            kwh["processor"], how["processor"] = joules / _JOULES_PER_KWH, "measured (RAPL, the whole processor)"
        else:
            seconds = _processor_seconds() - self._processor_time
            kwh["processor"] = seconds * WATTS_PER_CORE / _JOULES_PER_KWH
            how["processor"] = f"estimated (processor time × {WATTS_PER_CORE:g} W)"
        now = self._gpu.millijoules() if self._gpu and self._millijoules is not None else None
        if now is not None and self._millijoules is not None:
            kwh["gpu"], how["gpu"] = (now - self._millijoules) / 1e3 / _JOULES_PER_KWH, "measured (NVML, the whole GPU)"
        elif self._device.kind != "cpu":
            how["gpu"] = "unknown: it has no counter that can be read, so it is not in the sum"
        return Energy({part: value + self.before.get(part, 0.0) for part, value in kwh.items()}, how)


def _packages(powercap: Path) -> list[Path]:
    """Return the folders of the processor packages; their parts (cores, memory controller) are counted in them."""
    return sorted(path for path in powercap.glob("intel-rapl:*") if path.name.count(":") == 1)


def _microjoules(package: Path, name: str = "energy_uj") -> int | None:
    try:
        return int((package / name).read_text())
    except (OSError, ValueError):
        return None


def _since(package: Path, begin: int) -> int:
    """Return microjoules since the counter stood at `begin`; it starts again at 0 after its largest value."""
    now = _microjoules(package)
    if now is None:
        return 0
    return now - begin if now >= begin else now - begin + (_microjoules(package, "max_energy_range_uj") or 0)


def _processor_seconds() -> float:
    """Return the processor time of this process and of its children that have ended or can be seen."""
    import psutil

    times = os.times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in psutil.Process().children(recursive=True):
        try:
            used = child.cpu_times()
        except psutil.Error:
            continue
        total += used.user + used.system
    return total
