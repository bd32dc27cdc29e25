"""Runs and experiments as `runner compare` reads them.

An experiment (cross-validation, repetition) is read as one run: its numbers are the means over its runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from runner_core.base.errors import BadInput
from runner_core.base.files import hash_file, is_own_file
from runner_core.base.text import counted
from runner_core.config.values import flat_items
from runner_core.contract import Json
from runner_core.output.experiments import ExperimentFolder
from runner_core.output.progress import progress
from runner_core.output.report.page import is_number
from runner_core.output.runfolder import RunFolder
from runner_core.plugins.settings import read_settings
from runner_core.tools.verdict import Network
from runner_core.training.checkpoints import MANIFEST, Manifest, OtherFormat
from runner_core.training.evaluation import means, read_scores
from runner_core.training.seen import SavedSplit, read_split

_NO_CURVES = ("event", "step", "epoch", "timing", "best", "precision_seen")

Points = list[tuple[float, float]]
"""(optimizer step, value)."""


@dataclass(frozen=True)
class Run:
    """A run to compare.

    `settings` are by dotted name, from config.yaml. `about` holds preset, data and plugins, also from config.yaml.
    """

    folder: RunFolder
    project: str
    about: Mapping[str, Json]
    settings: Mapping[str, Json]
    summary: Mapping[str, Any]
    events: Sequence[Mapping[str, Any]]
    sides: SavedSplit | None
    networks: Sequence[Network] = ()
    """Scores of the trained network, or of those of an experiment."""
    direction: str = ""
    """Direction of better values of the headline score, max or min; "" if it is not known."""
    parts: Sequence[Run] = ()
    """The runs of an experiment."""

    @property
    def ended(self) -> bool:
        return "status" in self.summary

    @property
    def steps(self) -> int:
        """Number of optimizer steps done, as far as known."""
        return int(self.summary.get("steps") or max((e.get("step", 0) for e in self.events), default=0))

    @property
    def state(self) -> str:
        """Progress of the run, as text."""
        if self.parts:
            return str(self.summary["reason"])
        if not self.ended:
            return f"{counted(self.steps, 'step')} so far: it is running, or was killed"
        warnings = sum(f.get("level") != "note" for f in self.summary.get("health") or ())
        note = f", {counted(warnings, 'warning')}" if warnings else ""
        return f"{self.summary['status']}, {counted(self.steps, 'step')}{note}"

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of the best validation."""
        if self.summary.get("metrics"):
            return dict(self.summary["metrics"])
        best = self._best_validation or {}
        return {name: value for name, value in best.items() if name not in _NO_CURVES and is_number(value)}

    @property
    def best_step(self) -> int | None:
        found = self.summary.get("best_step", (self._best_validation or {}).get("step"))
        return None if found is None else int(found)

    @property
    def _best_validation(self) -> Mapping[str, Any] | None:
        """The last line of the log that is marked as the best."""
        lines = (e for e in reversed(self.events) if e.get("event") == "validation" and e.get("best"))
        return next(lines, None)

    @property
    def seconds(self) -> Mapping[str, float]:
        """Seconds of all training steps in the log: in total, and the part waiting for data."""
        timings = [e["timing"] for e in self.events if e.get("event") == "train" and e.get("timing")]
        return {name: sum(t.get(name) or 0.0 for t in timings) for name in ("seconds", "data_wait")}

    @cached_property
    def curves(self) -> Mapping[str, Points]:
        """Curves by name: numbers of training and validation, and samples per second; of an experiment, the means."""
        if self.parts:
            return _mean_curves([part.curves for part in self.parts])
        found: dict[str, Points] = {}
        for event in self.events:
            kind = event.get("event")
            if kind not in ("train", "validation"):
                continue
            numbers = {f"{name}, {kind}": v for name, v in event.items() if name not in _NO_CURVES}
            if kind == "train":
                numbers["samples/s"] = (event.get("timing") or {}).get("samples_per_second")
            for name, value in numbers.items():
                if is_number(value):
                    found.setdefault(name, []).append((float(event["step"]), float(value)))
        return found


def read_run(path: Path) -> Run:
    """Return the run of a folder or of anything inside it, or an experiment; raise BadInput if there is none."""
    return _read_experiment(path) if ExperimentFolder.at(path) else _read(RunFolder.open(path))


def _read(folder: RunFolder, fold: str = "") -> Run:
    saved = read_settings(folder.config_file)
    summary = folder.read_summary()
    project = saved.project or str(summary.get("project") or "")
    if not project:
        raise BadInput(f"{folder.config_file} does not say of which project the run is")
    plugins = {f"plugin {name}": version for name, version in saved.plugins.items()}
    about = {"preset": saved.preset, "data": saved.source, **plugins, **_versions(summary)}
    events = folder.checked_events()
    monitor = progress(folder, map(dict, events)).monitor
    scores = read_scores(folder.path)
    return Run(
        folder,
        project,
        about,
        dict(flat_items(saved.sections)),
        summary,
        events,
        read_split(folder.path),
        [Network(scores, fold, _weights(folder, summary))] if scores else [],
        monitor[1] if monitor else "",
    )


def _weights(folder: RunFolder, summary: Mapping[str, Any]) -> str:
    """Return a digest of the weights of the best checkpoint, "" if it cannot be read."""
    file = folder.checkpoints / f"step-{summary.get('best_step') or 0:08d}" / MANIFEST
    try:
        files = Manifest.loads(file.read_text(encoding="utf-8")).files
    except (OSError, ValueError, KeyError, TypeError, OtherFormat):
        return ""
    return " ".join(files[name]["xxh3_128"] for name in ("model.safetensors", "ema.safetensors") if name in files)


def _read_experiment(path: Path) -> Run:
    """Return an experiment as one run: settings that its runs share, means of their numbers, the first one's log."""
    experiment = ExperimentFolder.open(path)
    if experiment.kind == "sweep":
        raise BadInput(f"{path} is a sweep, whose runs have different settings: name the folders of its runs")
    runs = [_read(experiment.run(m), m.fold) for m in experiment.members if experiment.done(m)]
    if not runs:
        raise BadInput(f"{path}: none of its runs is done")
    groups = experiment.groups()
    done = sum(map(experiment.done, experiment.members))
    whole = done == len(experiment.members)
    first = runs[0]
    return replace(
        first,
        folder=RunFolder(path),
        about=_joined([run.about for run in runs]),
        settings=_joined([_by_content(run.settings, path) for run in runs]),
        summary={
            "device": first.summary.get("device"),
            "status": "done" if whole else "unfinished",
            "reason": f"{experiment.kind}, {done} of {counted(len(experiment.members), 'run')} done",
            "metrics": numbers(means([run.metrics for run in runs])),
            "best_step": None,
            "scores": numbers(means([run.summary.get("scores") or {} for run in runs])),
            "baseline": numbers(means([run.summary.get("baseline") or {} for run in runs])),
        },
        sides=None,
        networks=[replace(network, groups=groups) for run in runs for network in run.networks],
        parts=runs,
    )


def _by_content(settings: Mapping[str, Json], experiment: Path) -> Mapping[str, Json]:
    """Return the settings, with the experiment's own split file named by its content."""
    file = Path(str(settings.get("data.split") or ""))
    if not is_own_file(file, experiment):
        return settings
    return {**settings, "data.split": f"{file.name} of the experiment, {hash_file(file)[:8]}"}


def _joined(values: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    """Return the values that all have in common, and for others a text with all that there are."""
    names = dict.fromkeys(name for each in values for name in each)
    every = {name: [each.get(name) for each in values] for name in names}
    return {
        name: found[0] if all(value == found[0] for value in found) else ", ".join(dict.fromkeys(map(str, found)))
        for name, found in every.items()
    }


def _mean_curves(curves: Sequence[Mapping[str, Points]]) -> dict[str, Points]:
    """Return the mean of each curve over the runs that have it, at the steps that all of these have."""
    found: dict[str, Points] = {}
    for name in dict.fromkeys(name for each in curves for name in each):
        known = [dict(each[name]) for each in curves if name in each]
        steps = [step for step in known[0] if all(step in each for each in known)]
        if steps:
            found[name] = [(step, fmean(each[step] for each in known)) for step in steps]
    return found


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Return runs that can be compared.

    Raises BadInput for fewer than two runs, a run that is named twice, and several projects.
    """
    if len(paths) < 2:
        raise BadInput("name two runs at least: runner compare RUN RUN …  (folders below runs/PROJECT)")
    runs = [read_run(path) for path in paths]
    first, seen = runs[0], set()
    for run in runs:
        if run.project != first.project:
            raise BadInput(
                f"{first.folder.path} is a run of {first.project}, {run.folder.path} one of {run.project}: only runs "
                "of one project can be compared"
            )
        if (place := run.folder.path.resolve()) in seen:
            raise BadInput(f"{run.folder.path} is named twice")
        seen.add(place)
    return runs


def _versions(summary: Mapping[str, Any]) -> dict[str, Json]:
    found = dict(summary.get("versions") or {})
    found.pop("plugins", None)
    return {f"version of {name}": version for name, version in found.items()}


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in values.items() if is_number(value)}
