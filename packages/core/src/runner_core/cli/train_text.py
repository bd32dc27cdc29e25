"""Text that `train` prints: its banner, its result, what an interruption leaves, and files that were not written."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

from runner_core.base.calling import runner
from runner_core.base.location import shell_word
from runner_core.base.text import counted, duration
from runner_core.contract.setup import Setup
from runner_core.output.display import Display, speed
from runner_core.output.report.page import decimal_or_dash
from runner_core.output.runfolder import RunFolder
from runner_core.plugins.settings import differences, from_preset

_LINE = 110
"""Characters of the line with the settings that differ, before the number of those left out."""
_LONG = 2 * 3600.0
"""Seconds from which on a training on a CPU is long."""


def banner(setup: Setup, folder: RunFolder, resume: bool) -> Iterator[str]:
    """Yield lines that name the project, its data, and the settings that differ from the preset."""
    verb = "continuing" if resume else "run"
    yield f"{setup.name}: preset {setup.preset}, {verb} {folder.path}"
    if setup.source is None:
        yield f"data: the generated phantom (no --data given): a demonstration of {setup.name}, not a usable model"
    else:
        yield f"data: {setup.source}"
    extensions = [name for name in setup.plugins.names if name.startswith("extension ")]
    if extensions:
        yield f"with {', '.join(extensions)}"
    base, changed = unlike_preset(setup)
    if changed:
        yield _in_one_line(
            f"differs from the preset {base} in: ", [f"{name} {now} ({base} {was})" for name, now, was in changed]
        )
    for text in setup.config.without_effect():
        yield f"note: {text}"


def settings_lines(setup: Setup) -> Iterator[str]:
    """Yield a line for each setting that differs from the preset, with the preset's value, for train.log."""
    base, changed = unlike_preset(setup)
    for name, now, was in changed:
        yield f"setting {name} {now} ({base} {was})"


def unlike_preset(setup: Setup) -> tuple[str, list[tuple[str, str, str]]]:
    """Return a preset, and the settings that differ from it: name, value and the preset's value, model first.

    A demo is compared with the preset default. Settings about how the run is kept are left out.
    """
    base = "default" if setup.preset == "demo" else setup.preset
    changed = differences(from_preset(type(setup.project), base, setup.config.extensions), setup.config)
    return base, [
        (name, _text(now), _text(was))
        for name, (was, now) in sorted(changed.items(), key=_importance)
        if not name.startswith(("cache.", "log.", "health.", "checkpoint."))
    ]


def _in_one_line(head: str, items: Sequence[str]) -> str:
    """Return the items that fit into a line, and the number of the others."""
    shown = next((n for n in range(1, len(items)) if len(head + ", ".join(items[: n + 1])) > _LINE), len(items))
    more = f" and {len(items) - shown} more (train.log lists all)" if shown < len(items) else ""
    return head + ", ".join(items[:shown]) + more


def advice_if_slow(setup: Setup, seconds: float) -> Iterator[str]:
    """Yield what the presets are made for, in their authors' words, if a training on a CPU has hours to go.

    `seconds` is the time to the end at the measured pace.
    """
    if setup.device.kind != "cpu" or seconds < _LONG:
        return
    hours = seconds / 3600
    time = f"{hours / 24:.0f} days" if hours >= 72 else f"{hours:.0f} h"
    yield f"NOTE: at this pace the training takes another {time} on the CPU; what the presets are for:"
    for name, preset in setup.project.presets.items():
        about = (inspect.getdoc(preset) or "").partition("\n")[0] if inspect.isfunction(preset) else ""
        if about and name in (setup.preset, *(other for other in setup.project.presets if other != "demo")):
            yield f"  preset {name}{' (this run)' if name == setup.preset else ''}: {about}"


def result_table(summary: Mapping[str, Any], folder: RunFolder) -> Iterator[str]:
    """Yield the result: validation metrics, whole-record scores beside the trivial baseline's, speed."""
    yield ""
    scores = summary.get("scores") or {}
    others = {"baseline": summary.get("baseline") or {}, **(summary.get("further") or {})}
    others = {method: values for method, values in others.items() if values}
    if summary.get("metrics"):
        yield f"validation (best checkpoint, step {summary.get('best_step')})"
        yield from (f"  {name:<24} {_number(value)}" for name, value in summary["metrics"].items())
    if scores:
        yield " ".join([f"{'whole records':<26} {'trained':>9}", *(f"{method:>9}" for method in others)])
        for name, value in scores.items():
            beside = [f"{_number(values.get(name)):>{len(method)}}" for method, values in others.items()]
            yield " ".join([f"  {name:<24} {_number(value)}", *beside])
    done = f"{counted(summary['epochs'], 'epoch')}, {counted(summary['steps'], 'step')}"
    yield (
        f"{done} in {duration(summary['wall_seconds'])}: "
        f"{speed(summary['samples_per_second'])} samples/s, {summary['data_wait_share']:.1%} of it waiting for data"
    )
    for finding in summary.get("health") or ():
        yield f"{finding['level']}: {finding['rule']}: {finding['message']}"
    yield f"run folder: {folder.path}   report: {folder.report_file}"
    name = summary["project"]
    yield f"next: {runner()} {name} predict {shell_word(folder.path)} INPUT… --out DIR"


def _importance(item: tuple[str, Any]) -> int:
    """Return the rank of a setting: model, then training, then the rest."""
    section = item[0].partition(".")[0]
    return {"model": 0, "train": 1}.get(section, 2)


def _number(value: Any) -> str:
    return f"{decimal_or_dash(value):>9}"


def _text(value: Any) -> str:
    return str(value).replace(" ", "") if isinstance(value, list) else str(value)


class Phase(Enum):
    """A part of a training, in words for messages."""

    SETUP = "the set-up"
    DATA = "the preparation of the data"
    TRAINING = "the training"
    SCORING = "the scoring"
    REPORT = "the report"


class Phases:
    """Keeps the phase that a training is in, so that the message of an interruption can name what is left."""

    def __init__(self, folder: RunFolder, project: str, *, fresh: bool) -> None:
        self.now = Phase.SETUP
        self._folder, self._project, self._fresh = folder, project, fresh

    def left(self, trained: bool) -> str:
        """Return what is left of the run at an interruption.

        `trained` says whether this start has done any step.
        """
        if not trained:
            phase = Phase.SETUP if self.now is Phase.TRAINING else self.now
            return f"{phase.value} was not finished: nothing was trained" + (
                ", no run folder is left" if self._fresh else ", the run is as it was"
            )
        folder = shell_word(self._folder.path)
        if self.now is Phase.SCORING:
            return (
                f"the training is saved, its scores are not: `{runner()} {self._project} evaluate {folder}` makes them"
            )
        if self.now is Phase.REPORT:
            return f"training and scores are saved: `{runner()} {self._project} report {folder}` writes its report"
        steps = self._folder.saved_steps()
        if not steps:
            return "no checkpoint was saved yet: nothing of this training is kept"
        kept = f"the training is kept up to the checkpoint of step {steps[-1]}"
        return f"{kept}: `{runner()} {self._project} train --resume {folder}` goes on from there"


class Unwritten:
    """Files that could not be written at the run's end. Each is reported at once, and the rest goes on."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self.paths: list[Path] = []
        self._reported: set[Path] = set()

    @contextmanager
    def __call__(self, path: Path) -> Iterator[None]:
        """Note `path` if writing it, inside this context, fails."""
        self.paths = [p for p in self.paths if p != path]
        try:
            yield
        except OSError as error:
            if path not in self._reported:
                self._display.say(f"warning: {path} cannot be written: {error.strerror or error}")
            self._reported.add(path)
            self.paths.append(path)

    def add(self, paths: Sequence[Path]) -> None:
        """Note files that were already reported missing."""
        self.paths += [path for path in paths if path not in self.paths]

    def into(self, summary: dict[str, Any]) -> dict[str, Any]:
        """Return the summary with the missing files. A run that would be done without them has failed."""
        failed = self.paths and summary["status"] == "done"
        verdict = {"status": "failed", "reason": self.reason()} if failed else {}
        return summary | {"unwritten": [str(path) for path in self.paths]} | verdict

    def left(self, folder: Path) -> str:
        """Return a line with the files that the run folder lacks and has; "" if none is missing."""
        if not self.paths:
            return ""
        there = sorted(
            path.name for path in folder.iterdir() if path.is_file() and path not in self.paths and path.name[0] != "."
        )
        missing = ", ".join(sorted(path.name for path in self.paths))
        return f"\n{folder} lacks {missing}; it has {', '.join(there) or 'no other file'}"

    def reason(self) -> str:
        """Return a sentence that names the missing files."""
        shown = ", ".join(map(str, self.paths[:5])) + (", …" if len(self.paths) > 5 else "")
        return f"{counted(len(self.paths), 'file')} of the run could not be written whole: {shown}"
