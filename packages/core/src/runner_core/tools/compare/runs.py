"""Read a run from its folder; a running, killed or older run has less information."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from runner_core.base.errors import BadInput
from runner_core.base.text import counted
from runner_core.config.values import flat_items
from runner_core.contract import Json
from runner_core.output.report.page import is_number
from runner_core.output.runfolder import RunFolder
from runner_core.plugins.settings import read_settings
from runner_core.training.saved_split import SavedSplit, read_split

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
        """Curves by name: numbers of training and validation, and samples per second."""
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
    """Return the run of a folder or of anything inside it; raise BadInput if there is no run."""
    folder = RunFolder.open(path)
    saved = read_settings(folder.config_file)
    summary = folder.read_summary()
    project = saved.project or str(summary.get("project") or "")
    if not project:
        raise BadInput(f"{folder.config_file} does not say of which project the run is")
    plugins = {f"plugin {name}": version for name, version in saved.plugins.items()}
    about = {"preset": saved.preset, "data": saved.source, **plugins, **_versions(summary)}
    return Run(
        folder,
        project,
        about,
        dict(flat_items(saved.sections)),
        summary,
        folder.checked_events(),
        read_split(folder.path),
    )


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
