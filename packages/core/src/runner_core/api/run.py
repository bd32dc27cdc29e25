"""A run as a Python value: its curves and scores, and what its network makes of other data."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner_core.api.keywords import keywords
from runner_core.api.results import Choices, Pictures, Rows, Scores
from runner_core.base.errors import BadInput, did_you_mean
from runner_core.base.files import is_own_file
from runner_core.config.values import flat_items
from runner_core.contract.records import Table
from runner_core.engines.process import undisturbed
from runner_core.output.progress import RUNNING, progress
from runner_core.output.report.page import Note, fragment
from runner_core.output.runfolder import RunFolder
from runner_core.plugins.settings import read_settings
from runner_core.training.seen import SPLIT_FILE, History, read_split

if TYPE_CHECKING:
    from runner_core.api.network import Network
    from runner_core.api.prediction import Prediction, Predictor
    from runner_core.contract.data import Cropped
    from runner_core.contract.project import Project
    from runner_core.contract.records import AnyRecord, Record

AnyPath = str | os.PathLike[str]
_NOT_SHOWN = ("event", "timing")


class Run:
    """A run folder. Every property reads its files anew, so it also follows a run that still trains."""

    def __init__(self, path: Path) -> None:
        self._named = path
        self._folder = RunFolder.open(path)
        self._saved = read_settings(self._folder.config_file)
        if self._saved.project is None:
            raise BadInput(f"{self._folder.config_file}: it names no project; it was changed: restore it")
        self._predictor: tuple[Any, Predictor] | None = None

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._folder.path

    @property
    def project(self) -> str:
        """The name of its project."""
        return str(self._saved.project)

    @property
    def status(self) -> str:
        """The run's status in the report: running, scoring, interrupted (its process is gone), or how it ended.

        It ended as done, stopped, unhealthy or failed.
        """
        return progress(self._folder, self._folder.checked_events()).status

    @property
    def settings(self) -> dict[str, Any]:
        """The run's settings by dotted name."""
        return dict(flat_items(self._saved.sections))

    @property
    def split(self) -> dict[str, list[str]]:
        """Groups and record keys of its splits (train, validation, test) by name."""
        found = read_split(self.path)
        if found is None:
            raise BadInput(f"{self.path} has no {SPLIT_FILE}: what it was trained on is not known")
        return {name: list(names) for name, names in found.items()}

    @property
    def trained_on(self) -> frozenset[str]:
        """Groups and record keys that it, and the runs whose weights it began with, were trained on."""
        before = (name for run in History.before(self.path).runs for name in run.names)
        return frozenset((*self.split.get("train", ()), *before))

    @property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json; empty until the training ends."""
        return self._folder.read_summary()

    @property
    def history(self) -> Rows:
        """Table of the validations: step, epoch, metrics, and the mean training loss since the one before."""
        rows, losses = Rows(), list[float]()
        for event in self._folder.checked_events():
            if event["event"] == "train" and isinstance(event.get("loss"), (int, float)):
                losses.append(event["loss"])
            elif event["event"] == "validation":
                own = {name: value for name, value in event.items() if name not in _NOT_SHOWN}
                seconds = event.get("timing", {}).get("seconds")
                rows.append({**own, "train_loss": sum(losses) / len(losses) if losses else None, "seconds": seconds})
                losses = []
        return rows

    @property
    def steps(self) -> Rows:
        """Table of the logged training steps: loss and its terms, learning rate, samples per second."""
        events = [event for event in self._folder.checked_events() if event["event"] == "train"]
        rate = "samples_per_second"
        return Rows({**_shown(event), rate: event.get("timing", {}).get(rate)} for event in events)

    @property
    def scores(self) -> Scores:
        """Scores of the validation records with the best checkpoint; empty until the training is done."""
        return Scores.read(self.path)

    @property
    def figures(self) -> Pictures:
        """Pictures that the training drew, the worst scored record first; a notebook shows the first ones."""
        folder = self._folder.figures
        return Pictures(sorted(path for path in folder.glob("*.png") if is_own_file(path, folder)))

    @property
    def report(self) -> Path:
        """The page with all of it."""
        return self._folder.report_file

    def evaluate(
        self, data: AnyPath | None = None, *, split: str | None = None, out: AnyPath | None = None,
        checkpoint: str | None = None, part: tuple[int, int] | None = None, **settings: Any,
    ) -> Scores:  # fmt: skip
        """Score whole records as `runner PROJECT evaluate` does. A record that cannot be scored is in `errors`.

        Args:
            data: A folder or a URL. Default: the run's own data.
            split: validation, train, test or all. Default: validation; all if `data` is given.
            out: A new or empty folder. Default: a new one in the run folder, which the report shows.
            checkpoint: The name of a checkpoint, such as "step-00000120". Default: the best.
            part: (2, 5) scores the second of five shares. The scores are empty until the last of them has joined all.
            settings: Settings that leave the model alone, by dotted or short name.

        Raises:
            BadInput: The data or the settings cannot be used.
        """
        from runner_core.cli.ensembles import start_from_runs
        from runner_core.cli.evaluate import evaluate_with
        from runner_core.cli.evaluate_parts import evaluate_part
        from runner_core.cli.options import EvaluateOptions

        given = {
            "run": self._checkpoint(checkpoint),
            "data": data,
            "split": split,
            "out": out,
            "part": None if part is None else f"{part[0]}/{part[1]}",
            **settings,
        }
        with undisturbed() as framework:
            members = start_from_runs(self.project, "evaluate", EvaluateOptions, keywords(EvaluateOptions, given))
            framework(members[0].setup.project.framework)
            evaluate = evaluate_with if part is None else evaluate_part
            return Scores.read(evaluate(members)[1])

    def select(
        self, data: AnyPath | None = None, *, with_: AnyPath | list[AnyPath] | None = None,
        out: AnyPath | None = None, checkpoint: str | None = None, **settings: Any,
    ) -> Choices:  # fmt: skip
        """Choose settings of the decision, views and networks without training, as `runner PROJECT select` does.

        Args:
            data: A folder or a URL. Default: the run's own validation records.
            with_: Further runs that predict together with this one.
            out: A new or empty folder. Default: a new one in the folder of the run.
            checkpoint: The name of a checkpoint. Default: the best.
            settings: Settings that leave the model alone, by dotted or short name.

        Raises:
            BadInput: There is nothing to choose, or the data or the settings cannot be used.
        """
        from runner_core.cli.ensembles import start_from_runs
        from runner_core.cli.options import SelectOptions
        from runner_core.cli.select import select_with

        given = {"run": self._checkpoint(checkpoint), "data": data, "with_": with_, "out": out, **settings}
        with undisturbed() as framework:
            members = start_from_runs(self.project, "select", SelectOptions, keywords(SelectOptions, given))
            framework(members[0].setup.project.framework)
            return Choices(select_with(members))

    def predict(
        self, item: Any, spacing: Any = None, *, checkpoint: str | None = None, **options: Any
    ) -> Prediction:  # fmt: skip
        """Predict one record in its own grid: an array, a dict of arrays, or a file or folder that holds one record.

        The network stays loaded for the next call. `predictions` goes through a folder of many records.

        Args:
            item: What to predict. The project's README says which arrays it takes.
            spacing: The size of a voxel (mm) for each axis of an array; one number stands for all axes.
            checkpoint: The name of a checkpoint. Default: the best.
            options: Settings that leave the model alone, and the flags of the project's `predict` (`brain=True`).

        Raises:
            BadInput: The input cannot be predicted.
        """
        return self._ready(checkpoint, options).one(item, spacing)

    def predictions(self, path: AnyPath, *, checkpoint: str | None = None, **options: Any) -> Iterator[Prediction]:
        """Predict each record of a folder in turn. Options: as for `predict`.

        A record that cannot be predicted is named on stderr and left out.
        """
        return self._ready(checkpoint, options).each(path)

    def load(self, *, checkpoint: str | None = None, **options: Any) -> str:
        """Load the network for the calls of `predict` that follow with these options; return its checkpoint's name."""
        return self._ready(checkpoint, options).checkpoint

    def inputs(self, path: AnyPath, *, checkpoint: str | None = None, **options: Any) -> list[AnyRecord]:
        """Return the records that `predictions` would find, with the places of their files; none is read yet.

        For a program that must know which files a path from elsewhere leads to: a table can name any.
        """
        return list(self._ready(checkpoint, options).records(path))

    def records(self, split: str = "validation") -> Iterator[tuple[Project, Record, Cropped]]:
        """Yield the project as this run trained it, each record of a split, and what its network gets of it.

        For other methods on the same data: the project has the statistics of the run's training records. A record is
        read when `decoded` or `prepared` is first asked for.
        """
        from runner_core.api.network import load

        with undisturbed() as framework:
            network = load(self.project, self._checkpoint(None), None, split, {}, framework)
        for record, cropped in network.each():
            yield network.project, record, cropped

    def export(self, out: AnyPath, *, checkpoint: str | None = None, **settings: Any) -> list[Path]:
        """Write the network for use without runner into a new or empty folder, and return the files."""
        from runner_core.cli.ensembles import start_from_runs
        from runner_core.cli.export import export_with
        from runner_core.cli.options import ExportOptions

        given = {"run": self._checkpoint(checkpoint), "out": out, **settings}
        with undisturbed() as framework:
            members = start_from_runs(self.project, "export", ExportOptions, keywords(ExportOptions, given))
            framework(members[0].setup.project.framework)
            return list(export_with(members))

    def network(
        self, data: AnyPath | None = None, *, split: str | None = None, checkpoint: str | None = None, **settings: Any
    ) -> Network:
        """Return the network with the records of a split, for a project's own commands. Arguments as for `evaluate`."""
        from runner_core.api.network import load

        with undisturbed():
            return load(self.project, self._checkpoint(checkpoint), data, split, settings)

    def _ready(self, checkpoint: str | None, options: Mapping[str, Any]) -> Predictor:
        """Return the predictor, which is kept as long as the same checkpoint and options are asked for."""
        from runner_core.api.prediction import Predictor

        named = self._checkpoint(checkpoint)
        saved = self._folder.saved_steps(), self.summary.get("best_step")  # a run that still trains has others later
        asked = named, saved, repr(sorted(options.items()))
        if self._predictor is None or self._predictor[0] != asked:
            self._predictor = None  # its memory is free before the next network is loaded
            self._predictor = asked, Predictor(self.project, named, options)
        return self._predictor[1]

    def _checkpoint(self, name: str | None) -> Path:
        if name is None:
            return self._named
        path = self._folder.checkpoints / name
        if not path.is_dir():
            there = [f"step-{step:08d}" for step in self._folder.saved_steps()]
            raise BadInput(f"{self.path} has no checkpoint {name!r}{did_you_mean(name, there)} ({', '.join(there)})")
        return path

    def __repr__(self) -> str:
        return f"<run of {self.project}, {self.status}: {self.path}>"

    def _repr_html_(self) -> str:
        summary, scores, history = self.summary, self.scores, self.history
        status = self.status
        marks = {"done": "good"} | dict.fromkeys(RUNNING, "note")
        about = f"{self.project}, preset {self._saved.preset}, data: {self._saved.source}; {self.path}"
        blocks: list[Note | Table] = [Note(about, label=status), *_ended(summary, marks.get(status, "error"))]
        blocks += [scores.table()] if scores else []
        blocks += [Rows(history[-_LAST:]).table(f"The last of {len(history)} validations")] if history else []
        found = [f for f in summary.get("health") or () if f["level"] != "note"]
        blocks += [Note(f["message"], f["level"], f"{f['level']}: {f['rule']}") for f in found]
        return fragment(blocks)


_LAST = 5


def _shown(event: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name not in _NOT_SHOWN}


def _ended(summary: Mapping[str, Any], kind: str) -> Iterator[Note]:
    if summary.get("reason"):
        yield Note(str(summary["reason"]), kind)
