"""What a person sees while a run trains: a rich progress bar on a terminal, plain lines elsewhere.

Everything said is kept in train.log too. A terminal that goes away (SIGHUP, a closed pipe) never ends a run: the
display falls silent.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_PLAIN_SECONDS = 5.0
"""Least time between two plain progress lines."""
_RECENT_SECONDS = 15.0
"""Least time over which the pace of a run is measured."""


class Display:
    """`say` prints a line; between `start` and `stop`, `update` shows how training goes."""

    def __init__(self, log: Path | None = None, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._log = log
        self._gone = False
        self._bar: Progress | None = None
        self._console: Console | None = None
        self._plain_at = 0.0
        self._total = 0
        self._pace = _Pace(0)

    def keep(self, log: Path) -> None:
        """From now on everything said is appended to `log` as well."""
        self._log = log

    def say(self, text: str) -> None:
        """Print a line (above the bar, if there is one) and keep it in train.log."""
        if self._log is not None:
            try:
                with self._log.open("a", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")
            except OSError:  # a full disk: the run goes on, and its summary says how it ended
                pass
        self.print(text)

    def print(self, text: str) -> None:
        """Print a line without keeping it."""
        if self._gone:
            return
        try:
            if self._console is not None:
                self._console.print(text, markup=False, highlight=False, soft_wrap=True)
            else:
                self._stream.write(text + "\n")
                self._stream.flush()
        except (OSError, ValueError):
            self._gone = True

    def start(self, total_steps: int, first_step: int, title: str) -> None:
        """Training begins at `first_step` of `total_steps`."""
        self._total, self._pace = total_steps, _Pace(first_step)
        if not self._stream.isatty():
            self.print(f"{title}: steps {first_step} to {total_steps}")
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._console = Console(file=self._stream)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=self._console,
            refresh_per_second=4,
            transient=True,
        )
        self._bar.add_task(title, total=total_steps, completed=first_step, numbers="")
        self._bar.start()

    def update(self, step: int, epoch: int, values: Mapping[str, Any]) -> None:
        """`step` steps are done. Shown of `values`: loss, samples_per_second, data_wait_share (0 to 1)."""
        now = time.monotonic()
        remaining = duration(self._pace.seconds_a_step(step, now) * (self._total - step))
        shown = f"epoch {epoch + (step < self._total)}  {_numbers(values)}  ETA {remaining}"
        if self._bar is not None:
            try:
                self._bar.update(self._bar.task_ids[0], completed=step, numbers=shown)
            except OSError:
                self._gone = True
            return
        pause = max(_PLAIN_SECONDS, (now - self._pace.began) / 20)  # a run of days fills no logs
        if now - self._plain_at >= pause or step >= self._total:
            self._plain_at = now
            self.print(f"step {step}/{self._total}  {shown}")

    def stop(self) -> None:
        """Training has ended, one way or another; safe to call twice."""
        if self._bar is not None:
            try:
                self._bar.stop()
            except OSError:
                self._gone = True
        self._bar = self._console = None


class _Pace:
    """How fast a run is lately: over its last twentieth, `_RECENT_SECONDS` at least, so that a standstill (a suspended
    computer, a stopped process) is soon forgotten, and validation, which comes again and again, is not."""

    def __init__(self, step: int) -> None:
        self.began = time.monotonic()
        self._seen = deque([(self.began, step)])

    def seconds_a_step(self, step: int, now: float) -> float:
        """`step` steps are done `now`, on the monotonic clock."""
        recent = max(_RECENT_SECONDS, (now - self.began) / 20)
        while len(self._seen) > 1 and self._seen[1][0] <= now - recent:
            self._seen.popleft()
        since, first = self._seen[0]
        if now - self._seen[-1][0] >= recent / 30:  # a few are enough, however long the run is
            self._seen.append((now, step))
        return (now - since) / max(1, step - first)


def speed(samples_per_second: float) -> str:
    """Two digits at least: a 3D network on a CPU takes seconds for a sample.

    >>> speed(1234.5), speed(9.96), speed(1.0), speed(0.0642)
    ('1,234', '10', '1.0', '0.064')
    """
    below = 0 < samples_per_second < 9.95
    return f"{samples_per_second:#.2g}" if below else f"{samples_per_second:,.0f}"


def duration(seconds: float) -> str:
    """
    >>> duration(75), duration(3700)
    ('1:15', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _numbers(values: Mapping[str, Any]) -> str:
    shown = []
    if values.get("loss") is not None:
        shown.append(f"loss {values['loss']:.4f}")
    if values.get("samples_per_second") is not None:
        shown.append(f"{speed(values['samples_per_second'])} samples/s")
    if values.get("data_wait_share") is not None:
        shown.append(f"data wait {values['data_wait_share']:.0%}")
    return "  ".join(shown)
