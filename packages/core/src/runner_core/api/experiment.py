"""A cross-validation or a repetition as a Python value: runs, pooled scores, and what its networks predict together."""

from __future__ import annotations

from pathlib import Path

from runner_core.api.results import Pictures, Rows
from runner_core.api.run import Run
from runner_core.base.errors import BadInput
from runner_core.contract.records import Table
from runner_core.output.experiments import ExperimentFolder
from runner_core.output.runfolder import RunFolder
from runner_core.plugins.settings import read_settings


class Experiment(Run):
    """The folder of a cross-validation or a repetition.

    `predict`, `evaluate` and `export` take all its networks as one. `scores` are the pooled ones, `summary` has their
    intervals, and `settings` are those that all runs share.
    """

    def __init__(self, path: Path) -> None:
        self._experiment = ExperimentFolder.open(path)
        if self._experiment.kind == "sweep":
            raise BadInput(f"{path} is a sweep, whose runs differ on purpose: open one of its runs")
        self._named, self._folder = path, RunFolder(path)
        self._saved = read_settings(self._experiment.settings_file)
        self._predictor = None

    @property
    def project(self) -> str:
        """The name of its project."""
        return self._experiment.project

    @property
    def runs(self) -> list[Run]:
        """The experiment's runs that have begun."""
        found = self._experiment
        return [Run(found.run(member).path) for member in found.members if found.begun(member)]

    @property
    def status(self) -> str:
        """The experiment's status: done or unfinished."""
        return "done" if all(map(self._experiment.done, self._experiment.members)) else "unfinished"

    @property
    def history(self) -> Rows:
        """Table with a row for each validation of each run; `run` has the run's name."""
        return Rows({"run": run.path.name, **row} for run in self.runs for row in run.history)

    @property
    def steps(self) -> Rows:
        """Table with a row for each logged training step of each run; `run` has the run's name."""
        return Rows({"run": run.path.name, **row} for run in self.runs for row in run.steps)

    @property
    def figures(self) -> Pictures:
        """Pictures that the trainings drew."""
        return Pictures(picture for run in self.runs for picture in run.figures)

    def add_table(self, table: Table) -> Path:
        """Put a table into the report, where it stays when scores are pooled anew; return the report."""
        from runner_core.experiments.result import add_table

        return add_table(self._experiment, table)

    def _checkpoint(self, name: str | None) -> Path:
        if name is not None:
            raise BadInput(f"{self.path} has several runs, each with its own checkpoints: leave `checkpoint` out")
        return self._named

    def __repr__(self) -> str:
        return f"<{self._experiment.kind} of {self.project}, {self.status}: {self.path}>"


def opened(path: Path) -> Run:
    """Return the run, or the experiment, of a folder."""
    return Experiment(path) if ExperimentFolder.at(path) else Run(path)
