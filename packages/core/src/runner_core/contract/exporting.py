"""The objects that an export format is given: `ExportJob` and the types around it.

A format is an entry point of the group `runner.exports`, a function `write(job: ExportJob) -> Sequence[Path]`, which
`runner PROJECT export --to NAME` calls. The package runner-export has those for ONNX and others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner_core.contract.data import Cropped
from runner_core.contract.project import Project
from runner_core.contract.records import Record
from runner_core.contract.setup import Trained


@dataclass(frozen=True)
class ExportJob:
    """A network to write: the argument of an export format."""

    project: Project
    """The project, with the run's settings, and the statistics of its training records."""
    trained: Trained
    """The network as `predict` uses it, in evaluation mode on the device of the command."""
    checkpoint: str
    """Name of the checkpoint."""
    records: Callable[[], Iterator[tuple[Record, Cropped]]] = field(repr=False)
    """`records()` yields the records that the network is tried on, and what it gets of each: at least one."""
    keys: Sequence[str]
    """The keys of these records, in their order."""
    source: str
    """Where these records are from, in words."""
    folder: Path
    """The folder to write into. It is removed if the function raises, and its files are moved together if not."""
    own: Callable[[], Sequence[Path]] = field(repr=False)
    """`own()` writes the framework's own format into the folder, and returns the files."""


Write = Callable[[ExportJob], Sequence[Path]]
"""Writes files into the job's folder and returns them. Raises BadInput if the network cannot be written so, Unhealthy
if what was written computes something else."""


@dataclass(frozen=True)
class FrameworkFormat:
    """An export format for the networks of one framework, and the function that writes it.

    `export --to` refuses the projects of other frameworks before it reads a run or imports a framework.
    """

    framework: str
    """torch or keras."""
    write: Write

    def __call__(self, job: ExportJob) -> Sequence[Path]:
        """Write the format."""
        return self.write(job)
