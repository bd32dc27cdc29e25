"""Where records are fetched while they are used: does the link keep up with the training?"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from runner_core._timing import Timing
from runner_core.protocols import Json

BLOCK_FILE = "streaming.json"
"""In the run folder: `kept_block`."""
WORTH_SAYING = 0.05
"""Share of the time spent waiting for data above which it is said."""
SAY_EVERY = 10
"""Train lines between two times that it is said, at least."""


class Fetching:
    """Counts what is fetched for the training. `counters()`: since its last call (`Loader.counters`); `advice` ends the
    line that tells of a link that is too slow."""

    def __init__(self, counters: Callable[[], Mapping[str, float]], say: Callable[[str], None], advice: str) -> None:
        self._counters, self._say, self._advice = counters, say, advice
        self._window: Counter[str] = Counter()
        self._total: Counter[str] = Counter()
        self._quiet = 1  # train lines to come before which nothing is said: at the first all is waiting

    def collect(self) -> int:
        """Count what was fetched until now; samples since the last call that were taken of another record."""
        found = dict(self._counters())
        self._window.update(found)
        return int(found.get("replaced", 0))

    def forget(self) -> None:
        """What was fetched since `collect` was for something else."""
        self._counters()

    def event(self, bad: int, window: Timing) -> dict[str, Json]:
        """The log's values after a train line, whose time is `window`. `bad`: samples of the run that were replaced."""
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
        """The same of all since this start."""
        return {"bad": bad, **rates(self._total)}

    def _line(self, share: float, values: Mapping[str, Any]) -> str:
        needs, gives = values["images_per_second_needed"], values["images_per_second_link"]
        numbers = f"needs {needs:.3g} images/s, the link gives {gives:.3g}"
        if needs > gives:
            return f"data wait {share:.0%}: training {numbers}. {self._advice}"
        return f"data wait {share:.0%}, though training {numbers}: raise train.prefetch, to fetch further ahead"


def of_all(counted: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Counters of processes that train together as one's: sums, and of seconds, which pass in all at once, means."""
    names = dict.fromkeys(name for one in counted for name in one)
    sums = {name: sum(one.get(name, 0) for one in counted) for name in names}
    return {name: sums[name] / len(counted) if name.endswith("_seconds") else sums[name] for name in names}


def rates(counted: Mapping[str, float]) -> dict[str, float]:
    """Of counters (`Streamed.counters`, with `busy_seconds` of training without its waits) what a reader wants.

    Images are files. Needed: so many a second that training would never wait. The link gives: so many in each second
    in which at least one was under way.
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
    """The run's `Streamed.block`: what its first start wrote into `file`, `block` where this is it.

    The order of samples depends on it, and what fits on the disk is another number at another time. Several processes
    may ask at once, and get the same.
    """
    with suppress(FileExistsError), NamedTemporaryFile("w", dir=file.parent, prefix=f".{file.name}.") as own:
        own.write(json.dumps({"block": block}))
        own.flush()
        os.link(own.name, file)
    return int(json.loads(file.read_text(encoding="utf-8"))["block"])
