"""Text that `train` prints: its banner, its result, what an interruption leaves, and files that were not written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

from runner_core.base.location import shell_word
from runner_core.base.text import counted, decimal
from runner_core.contract.setup import Setup
from runner_core.output.display import Display, duration, speed
from runner_core.output.runfolder import RunFolder
from runner_core.plugins.settings import differences, from_preset

_SHOWN = 12


def banner(setup: Setup, folder: RunFolder, resume: bool) -> Iterator[str]:
    """Yield lines that name the project, its data, and the demo's differences from the default."""
    verb = "continuing" if resume else "run"
    yield f"{setup.name}: preset {setup.preset}, {verb} {folder.path}"
    if setup.source is None:
        yield f"data: the generated phantom (no --data given): a demonstration of {setup.name}, not a usable model"
    else:
        yield f"data: {setup.source}"
    extensions = [name for name in setup.plugins.names if name.startswith("extension ")]
    if extensions:
        yield f"with {', '.join(extensions)}"
    if setup.preset == "demo":
        changed = unlike_default(setup)
        if changed:
            yield "differs from the preset default in: " + "; ".join(changed)


def unlike_default(setup: Setup) -> list[str]:
    """Return the settings that differ from the preset default, model and training first.

    Settings about how the run is kept are left out.
    """
    usual = from_preset(type(setup.project), "default")
    changed = [
        f"{name} {_text(now)} (default {_text(was)})"
        for name, (was, now) in sorted(differences(usual, setup.config).items(), key=_importance)
        if not name.startswith(("cache.", "log.", "health.", "checkpoint."))
    ]
    return changed[:_SHOWN] + ([f"… {len(changed) - _SHOWN} more in config.yaml"] if len(changed) > _SHOWN else [])


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
    yield f"next: runner {name} predict {shell_word(folder.path)} INPUT… --out DIR"


def _importance(item: tuple[str, Any]) -> int:
    """Return the rank of a setting: model, then training, then the rest."""
    section = item[0].partition(".")[0]
    return {"model": 0, "train": 1}.get(section, 2)


def _number(value: Any) -> str:
    return f"{decimal(value) if isinstance(value, (int, float)) and value - value == 0 else '–':>9}"


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
            return f"the training is saved, its scores are not: `runner {self._project} evaluate {folder}` makes them"
        if self.now is Phase.REPORT:
            return f"training and scores are saved: `runner {self._project} report {folder}` writes its report"
        steps = self._folder.saved_steps()
        if not steps:
            return "no checkpoint was saved yet: nothing of this training is kept"
        kept = f"the training is kept up to the checkpoint of step {steps[-1]}"
        return f"{kept}: `runner {self._project} train --resume {folder}` goes on from there"


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
