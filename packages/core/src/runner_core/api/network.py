"""A run's network with records to try it on, for commands that only one project has."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner_core.api.keywords import keywords
from runner_core.base.progress import RecordBar, record_bar
from runner_core.cli.ensembles import seen_by, start_from_runs
from runner_core.cli.evaluate import side_of, split_records
from runner_core.cli.load import load_network
from runner_core.cli.options import EvaluateOptions
from runner_core.contract import Cropped, Infer
from runner_core.contract.project import Project
from runner_core.contract.records import AnyRecord, Record
from runner_core.data.pipeline import CroppedRecord, RecordPipeline, local
from runner_core.training.seen import read_split

if TYPE_CHECKING:
    from collections.abc import Set


@dataclass(frozen=True)
class Network:
    """A trained network with its project, which has the statistics of its training.

    Args:
        project: The project, with the settings of the run.
        infer: The network: arrays in, arrays out.
        records: The records of the split.
        trained_on: Keys of those that the network, or weights it began with, trained on, with all of their groups.
        checkpoint: Name of the checkpoint.
    """

    project: Project
    infer: Infer
    records: Sequence[AnyRecord]
    trained_on: Set[str]
    checkpoint: str
    _pipeline: RecordPipeline

    def each(self, title: str = "") -> Iterator[tuple[Record, Cropped]]:
        """Yield every record in turn, and what the network sees of it; with a title a terminal shows the progress."""
        with record_bar(title, len(self.records), sys.stdout) if title else nullcontext(RecordBar()) as bar:
            for record in self.records:
                bar.begin(record.key)
                with local(self.project, record) as here:
                    yield here, CroppedRecord(self._pipeline, here)
                bar.done()


def load(
    project: str,
    run: Path,
    data: Any,
    split: str | None,
    settings: Any,
    framework: Callable[[str], None] = lambda name: None,
) -> Network:
    """Return the network of a run or a checkpoint with the records of a split, as `evaluate` chooses them.

    `framework` is called with the framework's name before that is used (`undisturbed`).
    """
    given = {"run": run, "data": data, "split": split, **settings}
    started = start_from_runs(project, "evaluate", EvaluateOptions, keywords(EvaluateOptions, given))[0]
    assert started.run is not None
    framework(started.setup.project.framework)
    trained, checkpoint = load_network(started, started.named)
    side = side_of(started.options, started.setup.project)
    everything, records = split_records(started, side, read_split(started.run.path))
    _, (seen,) = seen_by([started], everything, records)
    trained_on = frozenset(record.key for record in records if seen(record))
    pipeline = RecordPipeline.of(started.setup)
    return Network(started.setup.project, trained.infer, records, trained_on, checkpoint, pipeline)
