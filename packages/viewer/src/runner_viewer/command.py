"""`runner PROJECT view`: the flags, and what they name: a run, or data."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import runner_core
from runner_core import BadInput, ParsedCommand, Record, Rows, Run, counted, parse_command
from tyro.conf import Suppress

from runner_viewer import cases, window
from runner_viewer.cases import Case


@dataclass(kw_only=True)
class _Shown:
    records: int = 3
    """Number of records to open: the worst ones of a run, the first ones of files."""
    screenshot: Path | None = None
    """Write what the window shows first as a PNG file, and open nothing."""


@dataclass(kw_only=True)
class RunFlags(_Shown):
    """Open a run's predictions in napari, over images and annotations; the worst scores first.

    `view FILE|FOLDER` opens records of the project without a run.
    """

    inputs: tuple[str, ...] = ()
    """Files or folders to predict and open in place of the records of the split."""
    out: Suppress[Path | None] = None
    part: Suppress[str] = ""
    merge: Suppress[bool] = False
    json: Suppress[bool] = False
    with_: Suppress[tuple[Path, ...]] = ()
    """Flags of evaluate that have no meaning here."""


@dataclass(kw_only=True)
class FileFlags(_Shown):
    """Open records in napari: images and annotations."""

    out: Suppress[Path | None] = None
    fit: Suppress[bool] = False
    json: Suppress[bool] = False
    different: Suppress[tuple[str, ...]] = ()
    with_: Suppress[tuple[Path, ...]] = ()
    """Flags of check that have no meaning here."""


def view(project: str, parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    """Open predictions (view RUN) or records (view FILE) in napari, worst cases first."""
    named = Path(words[0]).expanduser() if words and not words[0].startswith("-") else None
    if named is not None and not named.exists() and str(named) != "builtin":
        raise BadInput(f"{named}: there is no such run, file or folder")
    alone = named is not None and named.exists() and not _is_run(named)
    if alone:
        words = ["--data", *words]
    command, flags = ("check", FileFlags) if alone else ("evaluate", RunFlags)
    parsed = parse_command(project, command, words, flags=flags, extension="viewer", prog=parser.prog)
    options = parsed.options
    if options.records < 1:
        raise BadInput(f"--records {options.records}: at least one")
    window.refuse_no_viewer(options.screenshot)
    found = _from_files(parsed, named) if alone and named is not None else _from_run(parsed)
    if not found:
        raise BadInput(f"{named or options.run}: there is no record to open")
    window.show(found, f"{project}: {named or options.run}", options.screenshot)
    if options.screenshot is not None:
        print(f"{options.screenshot}: {found[0].key}, {counted(len(found[0].layers), 'layer')}")
    return 0


def _is_run(place: Path) -> bool:
    """Return whether a folder is a run, an experiment or a checkpoint, and not data."""
    return place.is_dir() and any(
        (place / name).is_file() for name in ("config.yaml", "manifest.json", "experiment.json")
    )


def _from_files(parsed: ParsedCommand, place: Path) -> list[Case]:
    project = parsed.made_project
    records = project.records(place) if place.is_dir() else project.inputs(place)
    return cases.from_files(project, [one for one in records if isinstance(one, Record)], parsed.options.records)


def _from_run(parsed: ParsedCommand) -> list[Case]:
    options = parsed.options
    run = runner_core.open(options.run, parsed.project)
    if not isinstance(run, Run):
        raise BadInput(f"{options.run}: an experiment of several runs; name one of them")
    given: dict[str, Any] = {"data": options.data, "split": options.split, **parsed.keywords()}
    network = run.network(**given)
    if network.project.pictures().layers is None:
        cases.layers_of(network.project, network.records[0], None)  # refuses before anything is predicted
    if options.inputs:
        chosen = [record for place in options.inputs for record in network.project.inputs(_existing(place))]
        return cases.predicted(replace(network, records=chosen), options.records)
    own = options.data is None and options.split is None and not parsed.keywords()
    return cases.worst(network, run.scores.records if own else Rows(), options.records)


def _existing(place: str) -> Path:
    found = Path(place).expanduser()
    if not found.exists():
        raise BadInput(f"{place}: there is no such file or folder")
    return found
