"""Measure where the time of a training goes: steps and waits for data, the GPU's load, the network link."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runner_core.base.writing import write_once
from runner_core.contract import Device, Json
from runner_core.engines.usage import Gpu, GpuSampler, GpuUse
from runner_core.training.assembly import Parts


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


_EVERY = 1.0
"""Seconds between two measurements."""


class DeviceUsage:
    """Samples the GPU's load from construction until `close`; measures nothing on a CPU or without driver support."""

    def __init__(self, device: Device) -> None:
        gpu = Gpu.find(device)
        self._sampler = None if gpu is None else GpuSampler(gpu, _EVERY)
        self._taken: list[GpuUse] = []

    def pause(self) -> None:
        """Stop counting, because no steps run now (validation, checkpoint)."""
        use = None if self._sampler is None else self._sampler.take()
        if use is not None:
            self._taken.append(use)

    def go_on(self) -> None:
        """Count again; ignore what was measured since `pause`."""
        if self._sampler is not None:
            self._sampler.take()

    def facts(self) -> dict[str, float]:
        """Return the GPU's load since the last call; nothing without samples, and nothing that the GPU does not tell.

        gpu_busy: share of the time (0…1) in which it computed. gpu_memory_busy: in which its memory was read or
        written. gpu_memory_gb: most memory in use (10⁹ bytes), by all processes. gpu_watts: mean power. gpu_celsius:
        highest temperature.
        """
        self.pause()
        taken, self._taken = self._taken, []
        means = {
            "gpu_busy": [(use.busy, use.samples) for use in taken],
            "gpu_memory_busy": [(use.memory_busy, use.samples) for use in taken],
            "gpu_watts": [(use.watts, use.samples) for use in taken if use.watts is not None],
        }
        largest = {
            "gpu_memory_gb": [use.memory_bytes / 1e9 for use in taken],
            "gpu_celsius": [use.celsius for use in taken if use.celsius is not None],
        }
        found = {name: sum(v * n for v, n in own) / sum(n for _, n in own) for name, own in means.items() if own}
        return found | {name: max(own) for name, own in largest.items() if own}

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.close()


BLOCK_FILE = "streaming.json"
"""File in the run folder that `kept_block` reads and writes."""
WORTH_SAYING = 0.05
"""Share of the time spent waiting for data above which a warning is shown."""
SAY_EVERY = 10
"""Least number of train lines between two such warnings."""


class Fetching:
    """Counts what is fetched for the training.

    `counters()` returns counts since its last call (`Loader.counters`). `advice` ends the line that reports a link that
    is too slow.
    """

    def __init__(self, counters: Callable[[], Mapping[str, float]], say: Callable[[str], None], advice: str) -> None:
        self._counters, self._say, self._advice = counters, say, advice
        self._window: Counter[str] = Counter()
        self._total: Counter[str] = Counter()
        self._quiet = 1  # train lines without a warning: the first one is all waiting

    @classmethod
    def of(cls, parts: Parts, say: Callable[[str], None]) -> Fetching:
        """Return the counters of a training, summed over its processes."""
        setting = parts.setup.project.dataset.samples_setting
        more = f"more samples of each record ({setting})" if setting else "more samples of each record"
        advice = (
            f"What helps: {more}, room for more records (cache.max_gb), more requests at once (remote.connections), a "
            "faster link; smaller batches do not"
        )
        counters, every = parts.loaders.training.counters, parts.setup.team.every
        return cls(lambda: combined(every(dict(counters()))), say, advice)

    def collect(self) -> int:
        """Count what was fetched until now; return the number of samples replaced since the last call.

        A sample is replaced by one from another record if its own cannot be fetched.
        """
        found = dict(self._counters())
        self._window.update(found)
        return int(found.get("replaced", 0))

    def forget(self) -> None:
        """Ignore what was fetched since `collect`, because it was not for training."""
        self._counters()

    def event(self, bad: int, window: Timing) -> dict[str, Json]:
        """Return the log's values for a train line whose time is `window`; `bad` counts the run's replaced samples."""
        found, self._window = self._window, Counter()
        busy = (window.total - window.wait) / 1e9
        found.update({"busy_seconds": busy})
        self._total.update(found)
        values = rates(found)
        share = window.data_wait_share
        if self._quiet:
            self._quiet -= 1
        elif share > WORTH_SAYING and found["files"] and found["fetched_seconds"]:
            self._quiet = SAY_EVERY - 1
            self._say(self._line(share, values))
        return {"bad": bad, "timing": values}

    def summary(self, bad: int) -> dict[str, Json]:
        """Return the values of `event` for all steps since this start."""
        return {"bad": bad, **rates(self._total)}

    def _line(self, share: float, values: Mapping[str, Any]) -> str:
        needs, gives = values["images_per_second_needed"], values["images_per_second_link"]
        numbers = f"needs {needs:.3g} images/s, the link gives {gives:.3g}"
        if needs > gives:
            return f"data wait {share:.0%}: training {numbers}. {self._advice}"
        return f"data wait {share:.0%}, though training {numbers}: raise train.prefetch, to fetch further ahead"


def combined(counted: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Combine counters of processes that train together: sums, but means of seconds.

    Seconds pass in all processes at once, so they are not summed.
    """
    names = dict.fromkeys(name for one in counted for name in one)
    sums = {name: sum(one.get(name, 0) for one in counted) for name in names}
    return {name: sums[name] / len(counted) if name.endswith("_seconds") else sums[name] for name in names}


def rates(counted: Mapping[str, float]) -> dict[str, float]:
    """Convert counters into rates that a reader can use.

    `counted` holds `Streamed.counters` and `busy_seconds`: training without its waits. Images are files. The needed
    rate is the number of images per second with which training would never wait. The link's rate counts only seconds in
    which at least one image was being fetched.
    """
    files, seconds = counted.get("files", 0), counted.get("fetched_seconds", 0)
    return {
        "images_per_second_needed": _ratio(files, counted.get("busy_seconds", 0)),
        "images_per_second_link": _ratio(files, seconds),
        "megabytes_per_second": _ratio(counted.get("bytes", 0) / 1e6, seconds),
        "images": int(files),
        "records_there": int(counted.get("hits", 0)),
        "records_waited_for": int(counted.get("misses", 0)),
        "retries": int(counted.get("retries", 0)),
    }


def _ratio(amount: float, seconds: float) -> float:
    return round(amount / seconds, 3) if seconds else 0.0


def kept_block(file: Path, block: int) -> int:
    """Return the run's `Streamed.block`: the value in `file`, which the run's first start writes from `block`.

    The order of samples depends on this number, and the number of records that fit on the disk can change later.
    Several processes may call this at once and get the same number.
    """
    write_once(file, json.dumps({"block": block}))
    return int(json.loads(file.read_text(encoding="utf-8"))["block"])
