"""Shared parts of all benchmarks: contenders that take turns, medians and quartiles, and a result that is kept as
JSON."""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import platform
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
Way = Callable[[Any], Any]
"""One contender: does the work on what the turn brings (a list of rows, say). What it returns is dropped, once its
time is taken."""
Cell = str | int | float | None


@dataclass(frozen=True)
class Options:
    """`quick`: small and short, only to see that it works. `data`: a folder with brainunet/ and openkbp/, if any."""

    quick: bool = False
    data: Path | None = None

    def folder(self, project: str) -> Path | None:
        """The real data of a project, where it is at hand."""
        folder = self.data / project if self.data else None
        return folder if folder and folder.is_dir() else None


def command_line(about: str, names: Sequence[str], program: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the options that every benchmark takes; `about` is its module's docstring."""
    parser = argparse.ArgumentParser(prog=program, description=about.splitlines()[0])
    there = ", ".join(names)

    def known(name: str) -> str:
        if name not in names:
            raise argparse.ArgumentTypeError(f"there is no {name}; there are {there}")
        return name

    parser.add_argument("names", nargs="*", type=known, metavar="NAME", help=f"of {there}; default: all")
    parser.add_argument("--quick", action="store_true", help="see that they work: small, nothing is kept or written")
    parser.add_argument("--render", action="store_true", help="only write the page from the results that are kept")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get("RUNNER_TEST_DATA", ROOT.parent / "shared" / "data")),
        help="folder with the real data brainunet/ and openkbp/ (default: $RUNNER_TEST_DATA, ../shared/data); "
        "where there is none, the projects' phantoms",
    )
    return parser


@dataclass
class Table:
    """`columns`: headings; the first column names who was measured."""

    columns: list[str]
    rows: list[list[Cell]]


@dataclass
class Aim:
    text: str
    met: bool


@dataclass
class Result:
    """The result of a benchmark. `packages`: distributions whose versions matter."""

    title: str
    what: str
    tables: list[Table]
    aims: list[Aim] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()


class Times:
    """Seconds of one contender, by turn."""

    def __init__(self) -> None:
        self.by_turn: dict[int, float] = {}

    @cached_property
    def median(self) -> float:
        return statistics.median(self.by_turn.values())

    @cached_property
    def quartiles(self) -> tuple[float, float]:
        """A quarter of the turns was faster than the first, a quarter slower than the second."""
        values = list(self.by_turn.values())
        if len(values) < 2:
            return values[0], values[0]
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return low, high

    def above(self, other: Times) -> float:
        """Median of the differences, turn by turn: what else the machine does falls on both."""
        both = self.by_turn.keys() & other.by_turn.keys()
        return statistics.median(self.by_turn[turn] - other.by_turn[turn] for turn in both)


class Turns:
    """Contenders that take turns in this process, so that what else the machine does falls on all alike.

    The one that begins changes from turn to turn: nobody always follows the same one. `warmup` turns come first and
    do not count. Who cannot be imported is in `left_out`, with the reason.
    """

    def __init__(self, turns: int, warmup: int = 1) -> None:
        self._turns, self._warmup = turns, warmup
        self._ways: dict[str, tuple[Way, int, bool]] = {}
        self.left_out: dict[str, str] = {}

    def add(self, name: str, make: Callable[[], Way], every: int = 1, own_clock: bool = False) -> None:
        """`make` prepares the contender. `every`: a slow one has its turn every so many turns. `own_clock`: the way
        returns the seconds it took, because not all that it does is to be measured."""
        try:
            self._ways[name] = make(), every, own_clock
        except ImportError as error:
            self.left_out[name] = str(error)

    def run(self, item: Callable[[int], Any] = lambda turn: turn) -> dict[str, Times]:
        """`item(turn)`: what all contenders work on in this turn."""
        for turn in range(self._warmup):
            for name, (way, _, _) in list(self._ways.items()):
                try:
                    way(item(turn))
                except ImportError as error:  # MONAI looks for ignite only when it trains
                    self.left_out[name] = str(error)
                    del self._ways[name]
        names = list(self._ways)
        times = {name: Times() for name in names}
        for turn in range(self._turns):
            given = item(turn)
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                way, every, own_clock = self._ways[name]
                if turn % every == 0:
                    begun = time.perf_counter()
                    result = way(given)
                    seconds = time.perf_counter() - begun
                    times[name].by_turn[turn] = result if own_clock else seconds
                    del result  # freeing its memory is nobody's time
        return times


def compared(
    times: Mapping[str, Times], reference: str, title: str = "", rate: tuple[str, float] | None = None
) -> Table:
    """Medians with quartiles, fastest first, and each one's speed against `reference`.

    `rate`: (what is counted, how many of it a turn holds) gives a column of so many a second.
    """
    heads = ["ms (median)", "quartiles", *([f"{rate[0]} a second"] if rate else []), f"speed, {reference} = 1"]
    rows: list[list[Cell]] = []
    for name, taken in sorted(times.items(), key=lambda item: item[1].median):
        low, high = (number(seconds * 1e3) for seconds in taken.quartiles)
        row: list[Cell] = [name, taken.median * 1e3, f"{low} – {high}"]
        row += [rate[1] / taken.median] if rate else []
        rows.append([*row, times[reference].median / taken.median])
    return Table([title, *heads], rows)


def at_least(times: Mapping[str, Times], one: str, other: str, ratio: float) -> list[Aim]:
    """The aim that `one` be `ratio` times as fast as `other`; none where either did not run."""
    if one not in times or other not in times:
        return []
    found = times[other].median / times[one].median
    return [Aim(f"{one} at least {number(ratio)} times as fast as {other}: {number(found)}", found >= ratio)]


def number(value: Cell) -> str:
    """Three significant digits, without exponents for what people read.

    >>> [number(v) for v in (None, "text", 7, 0.12345, 1234.5, 99.95)]
    ['–', 'text', '7', '0.123', '1,234', '100']
    """
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, int) or abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.3g}"


class Taken(NamedTuple):
    """`peak`: bytes that it had at most above what there was before; None where the kernel does not say."""

    seconds: float
    peak: int | None
    result: Any


def taken(work: Callable[[], Any]) -> Taken:
    """Measure what one call takes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what others gave back must not count as there before
    status, forget = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    try:
        forget.write_text("5")  # the high-water mark begins at what is resident now
        told = True
    except OSError:
        told = False

    def resident(name: str) -> int:
        line = next(line for line in status.read_text().splitlines() if line.startswith(name))
        return int(line.split()[1]) * 1024

    before, begun = resident("VmRSS") if told else 0, time.perf_counter()
    result = work()
    seconds = time.perf_counter() - begun
    return Taken(seconds, resident("VmHWM") - before if told else None, result)


def peak_bytes(work: Callable[[], object]) -> int | None:
    """Most memory that `work` has above what there was before, from its second time on."""
    work()
    return taken(work).peak


class Ran(NamedTuple):
    """What a command took: bytes of all its processes at most, seconds of the processor and of the clock."""

    peak: int
    processor: float
    clock: float


def command(*words: object, variables: Mapping[str, str] | None = None) -> Ran:
    """Run a command to its end, with more `variables`, and return what it took. Raises RuntimeError if it fails.

    Memory is looked at five times a second: the peak that `wait4` tells begins with this process's own.
    """
    begun, line = time.perf_counter(), list(map(str, words))
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, env={**os.environ, **(variables or {})}) as running:
        ended, peak = threading.Event(), [0]

        def watch() -> None:
            while True:
                peak[0] = max(peak[0], memory(running.pid))
                if ended.wait(0.2):
                    return

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        _, status, usage = os.wait4(running.pid, 0)
        running.returncode = os.waitstatus_to_exitcode(status)
        ended.set()
        watching.join()
    if running.returncode:
        raise RuntimeError(f"{' '.join(line)} ended with code {running.returncode}")
    return Ran(peak[0], usage.ru_utime + usage.ru_stime, time.perf_counter() - begun)


def memory(pid: int) -> int:
    """Return the bytes that a process and its children have now, or its own peak so far if that is more."""
    import psutil
    from runner_core.base.resources import own_peak

    try:
        own = psutil.Process(pid)
        now = sum(each.memory_info().rss for each in (own, *own.children(recursive=True)))
        return max(now, own_peak(pid))
    except (psutil.Error, OSError, StopIteration):  # it has ended
        return 0


def machine() -> dict[str, Any]:
    """Describe the machine of a measurement, and how busy it is."""
    import psutil
    from runner_core.cli.doctor import find_gpus
    from runner_core.engines.device import cpu_name
    from runner_core.engines.usage import usable_cores

    return {
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "ram_gb": round(psutil.virtual_memory().total / 1e9),
        "gpu": "; ".join(gpu.name for gpu in find_gpus()) or "none",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
        "date": date.today().isoformat(),
    }


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of those that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
