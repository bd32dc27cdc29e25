"""What a person sees while a run trains: a rich progress bar on a terminal, plain lines elsewhere.

Everything said is kept in train.log too. A terminal that goes away (SIGHUP, a closed pipe) never ends a run: the
display falls silent.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_PLAIN_SECONDS = 5.0
"""Least time between two plain progress lines."""


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
        self._first = 0
        self._began = 0.0

    def keep(self, log: Path) -> None:
        """From now on everything said is appended to `log` as well."""
        self._log = log

    def say(self, text: str) -> None:
        """Print a line (above the bar, if there is one) and keep it in train.log."""
        if self._log is not None:
            try:
                with self._log.open("a", encoding="utf-8") as file:
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
        self._total, self._first, self._began = total_steps, first_step, time.monotonic()
        if not self._stream.isatty():
            self.print(f"{title}: steps {first_step} to {total_steps}")
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(file=self._stream)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=self._console,
            refresh_per_second=4,
            transient=True,
        )
        self._bar.add_task(title, total=total_steps, completed=first_step, numbers="")
        self._bar.start()

    def update(self, step: int, epoch: int, values: Mapping[str, Any]) -> None:
        """`step` steps are done. Shown of `values`: loss, samples_per_second, data_wait_share (0 to 1)."""
        numbers = _numbers(values)
        if self._bar is not None:
            try:
                self._bar.update(
                    self._bar.task_ids[0], completed=step, numbers=f"epoch {epoch + (step < self._total)}  {numbers}"
                )
            except OSError:
                self._gone = True
            return
        now = time.monotonic()
        pause = max(_PLAIN_SECONDS, (now - self._began) / 20)  # a run of days fills no logs
        if now - self._plain_at >= pause or step >= self._total:
            self._plain_at = now
            remaining = (now - self._began) / max(1, step - self._first) * (self._total - step)
            self.print(
                f"step {step}/{self._total}  epoch {epoch + (step < self._total)}  {numbers}  ETA {duration(remaining)}"
            )

    def stop(self) -> None:
        """Training has ended, one way or another; safe to call twice."""
        if self._bar is not None:
            try:
                self._bar.stop()
            except OSError:
                self._gone = True
        self._bar = self._console = None


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
        shown.append(f"{values['samples_per_second']:,.0f} samples/s")
    if values.get("data_wait_share") is not None:
        shown.append(f"data wait {values['data_wait_share']:.0%}")
    return "  ".join(shown)
