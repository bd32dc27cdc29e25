"""The display of a training run: a rich progress bar on a terminal, plain lines elsewhere.

train.log keeps every line of `say` too. A terminal that disappears (SIGHUP, a closed pipe) never ends a run: the
display falls silent.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from runner_core.base.progress import RecordBar, progress, record_bar
from runner_core.base.secrets import without_secrets
from runner_core.base.text import duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_PLAIN_SECONDS = 5.0
"""Shortest time between two plain progress lines."""
_RECENT_SECONDS = 15.0
"""Shortest time over which the pace of a run is measured."""


class Display:
    """Prints lines with `say`; between `start` and `stop`, `update` shows the progress of training.

    A `silent` display shows nothing: that of every process but the first.
    """

    def __init__(self, log: Path | None = None, stream: TextIO | None = None, *, silent: bool = False) -> None:
        self._stream = stream or sys.stdout
        self._log = log
        self._late: list[str] = []
        self._gone = silent
        self._bar: Progress | None = None
        self._console: Console | None = None
        self._plain_at = 0.0
        self._total = 0
        self._pace = _Pace(0)
        self._advice: Callable[[float], Iterable[str]] | None = None

    def keep(self, log: Path) -> None:
        """Append every printed line to `log` too, from now on."""
        self._log = log

    def say(self, text: str) -> None:
        """Print a line (above the bar, if there is one) and keep it in train.log."""
        self.log(text)
        self.print(without_secrets(text))

    def log(self, text: str) -> None:
        """Keep a line in train.log without printing it."""
        text = without_secrets(text)
        if self._log is not None:
            self._late.append(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")
            with suppress(OSError):  # a full disk: the run goes on, and checks `unkept` at its end
                with self._log.open("a", encoding="utf-8", errors="backslashreplace") as file:
                    file.write("".join(self._late))
                self._late = []

    @property
    def unkept(self) -> Path | None:
        """Return train.log if the disk did not take all lines, else None."""
        return self._log if self._late else None

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

    def once_measured(self, advice: Callable[[float], Iterable[str]]) -> None:
        """Say the lines that `advice` returns for the seconds to the end, as soon as the pace is known."""
        self._advice = advice

    def start(self, total_steps: int, first_step: int, title: str) -> None:
        """Show that training begins at `first_step` of `total_steps`."""
        self._total, self._pace = total_steps, _Pace(first_step)
        if not self._stream.isatty():
            self.print(f"{title}: steps {first_step} to {total_steps}")
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.table import Column

        self._console = Console(file=self._stream)
        steps = Column(no_wrap=True, min_width=len(f"{total_steps}/{total_steps}"))  # a narrow terminal cuts the rest
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=max(4, min(40, self._console.width - 80))),
            MofNCompleteColumn(table_column=steps),
            TextColumn("{task.fields[numbers]}"),
            console=self._console,
            refresh_per_second=4,
            transient=True,
        )
        self._bar.add_task(title, total=total_steps, completed=first_step, numbers="")
        self._bar.start()

    def due(self, step: int) -> bool:
        """Return True if the next `update` is to be seen; what it shows may cost time to find out."""
        if self._gone or self._bar is not None:
            return not self._gone
        now = time.monotonic()
        pause = max(_PLAIN_SECONDS, (now - self._pace.began) / 20)  # a run of days must not fill logs
        return now - self._plain_at >= pause or step >= self._total

    def update(self, step: int, epoch: int, values: Mapping[str, Any], validations: float = 0.0) -> None:
        """Show that `step` steps are done; `validations` is the time in seconds that those to come will take.

        Shows these of `values`: loss, samples_per_second, data_wait_share (0 to 1).
        """
        if not self.due(step):
            return
        now = time.monotonic()
        seconds = self._pace.seconds_a_step(step, now) * (self._total - step) + validations
        if self._advice is not None and self._pace.is_known(step, now):
            advice, self._advice = self._advice, None
            for line in advice(seconds):
                self.say(line)
        current, numbers, remaining = (
            f"epoch {epoch + (step < self._total)}",
            _numbers(values),
            f"ETA {duration(seconds)}",
        )
        bar = self._bar
        if bar is not None:
            shown = f"{current}  {remaining}  {numbers}"  # what a narrow terminal cuts off comes last
            self._draw(lambda: bar.update(bar.task_ids[0], completed=step, numbers=shown))
            return
        self._plain_at = now
        self.print(f"step {step}/{self._total}  {current}  {numbers}  {remaining}")

    @contextmanager
    def aside(self, title: str, total: int) -> Iterator[Callable[[], None]]:
        """Show other work than steps, `total` pieces of it; the function that is yielded is called after each.

        The pace of the steps does not count the time that it takes.
        """
        began, bar = time.monotonic(), self._bar
        try:
            if self._gone:
                yield lambda: None
            elif bar is None:
                with progress(title, total, self.print) as advance:
                    yield advance
            else:
                self._draw(lambda: bar.add_task(title, total=total, numbers=""))
                yield lambda: self._draw(lambda: bar.advance(bar.task_ids[-1]))
        finally:
            if bar is not None and len(bar.tasks) > 1:
                self._draw(lambda: bar.remove_task(bar.task_ids[-1]))
            self._pace.leave_out(time.monotonic() - began)

    @contextmanager
    def records(self, title: str, total: int) -> Iterator[RecordBar]:
        """Show work on `total` records, before or after the steps; lines of `say` stand above the bar."""
        with ExitStack() as stack:
            shown = RecordBar()
            if not self._gone and self._bar is None:
                shown = stack.enter_context(record_bar(title, total, self._stream))
            self._console = self._console if shown.bar is None else shown.bar.console
            try:
                yield shown
            finally:
                self._console = None if self._bar is None else self._console

    def _draw(self, change: Callable[[], object]) -> None:
        """Change the bar, unless the terminal is gone."""
        try:
            change()
        except OSError:
            self._gone = True

    def stop(self) -> None:
        """End the display after training; safe to call twice."""
        if self._bar is not None:
            self._draw(self._bar.stop)
        self._bar = self._console = None


class _Pace:
    """The recent speed of a run, over its last twentieth and at least `_RECENT_SECONDS`.

    A standstill (a suspended computer, a stopped process) is soon forgotten; what recurs, such as saving, is not.
    """

    def __init__(self, step: int) -> None:
        self.began, self._first = time.monotonic(), step
        self._seen = deque([(self.began, step)])

    def is_known(self, step: int, now: float) -> bool:
        """Return True if the pace is that of more than the first steps, which may be slow."""
        return now - self.began > 2 * _RECENT_SECONDS and step >= self._first + 3

    def leave_out(self, seconds: float) -> None:
        """Do not count the last `seconds`: no steps were taken."""
        self._seen = deque((seen + seconds, step) for seen, step in self._seen)

    def seconds_a_step(self, step: int, now: float) -> float:
        """Return the seconds per step, given that `step` steps are done `now`, on the monotonic clock."""
        recent = max(_RECENT_SECONDS, (now - self.began) / 20)
        while len(self._seen) > 1 and self._seen[1][0] <= now - recent:
            self._seen.popleft()
        since, first = self._seen[0]
        if now - self._seen[-1][0] >= recent / 30:  # a few points are enough, however long the run
            self._seen.append((now, step))
        return (now - since) / max(1, step - first)


def speed(samples_per_second: float) -> str:
    """Return a rate with at least two digits: a 3D network on a CPU takes seconds for a sample.

    >>> speed(1234.5), speed(9.96), speed(1.0), speed(0.0642)
    ('1,234', '10', '1.0', '0.064')
    """
    below = 0 < samples_per_second < 9.95
    return f"{samples_per_second:#.2g}" if below else f"{samples_per_second:,.0f}"


def _numbers(values: Mapping[str, Any]) -> str:
    shown = []
    if values.get("loss") is not None:
        shown.append(f"loss {values['loss']:.4f}")
    if values.get("samples_per_second") is not None:
        shown.append(f"{speed(values['samples_per_second'])} samples/s")
    if values.get("data_wait_share") is not None:
        shown.append(f"data wait {values['data_wait_share']:.0%}")
    return "  ".join(shown)
