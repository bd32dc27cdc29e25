"""`runner PROJECT init-data DIR`: write a table of a folder's files by guessing, for the user to correct."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from runner_core.base.calling import runner
from runner_core.base.errors import BadInput
from runner_core.base.location import shell_word
from runner_core.base.text import counted, first_few
from runner_core.base.writing import write_once
from runner_core.cli.options import InitDataOptions
from runner_core.cli.start import start_new
from runner_core.contract.facets import DataSet, GuessedTable, PairFiles
from runner_core.data.pairs.guess import UNLABELLED, Guess, guess_pairs, name_endings

_SHOWN = 4


def init_data(name: str, arguments: Sequence[str]) -> int:
    started = start_new(name, "init-data", InitDataOptions, arguments)
    folder = started.options.folder
    if not folder.is_dir():
        raise BadInput(f"{folder}: there is no such folder")
    table = started.options.out or folder / "manifest.csv"
    if os.path.lexists(table):
        raise BadInput(f"{table} is there already, and is never overwritten: name another file with --out")
    guess = _guess(name, folder, started.setup.project.dataset)
    if not guess.rows:
        found = "".join(f"\n{_left_out(folder, why, paths)}" for why, paths in guess.left_out.items())
        raise BadInput(f"{folder}: no {guess.what} was found{found or ': it is empty'}{guess.help if found else ''}")
    try:
        write_once(table, table_text(guess, table.absolute().parent))
    except OSError as error:
        raise BadInput(f"{table} cannot be written: {error.strerror or error}; name another file with --out") from error
    _show(guess, folder, table)
    print(f"next: correct {shell_word(table)}, then: {runner()} {name} check --data {shell_word(table)}")
    return 0


def _guess(name: str, folder: Path, dataset: DataSet) -> GuessedTable:
    if dataset.guess is not None:
        return dataset.guess(folder)
    if dataset.pairs is None:
        raise BadInput(f"project {name} reads no table of files: see its README for the layouts that it reads")
    guess = guess_pairs(folder, dataset.pairs)
    if guess.rows or not dataset.pairs.labelled:
        return guess.table(folder)
    return replace(guess.table(folder), what="image with a label", help=_patterns(name, folder, guess, dataset.pairs))


def _patterns(name: str, folder: Path, guess: Guess, files: PairFiles) -> str:
    """Return the patterns that may pair the files of a folder in which no pair was found."""
    check = f"{runner()} {name} check --data {shell_word(folder)} --data.pattern"
    one, other = name_endings(guess.left_out.get(UNLABELLED, ()), files.stem) or ("IMAGE_ENDING", "LABEL_ENDING")
    return (
        "\nA label is recognised by a word such as mask, label, seg, gt, roi or manual in its name or folder. "
        f"Say it by patterns, first that of the images: {check} '{{id}}{one}' '{{id}}{other}'"
    )


def table_text(guess: GuessedTable, place: Path) -> str:
    """Return the table as CSV, without empty columns; paths are relative to its folder `place` if they lie below it."""
    columns = [column for column in dict.fromkeys(c for row in guess.rows for c in row) if _filled(guess, column)]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in guess.rows:
        cells = (row.get(column, "") for column in columns)
        writer.writerow([_relative(cell, place) if isinstance(cell, Path) else cell for cell in cells])
    return text.getvalue()


def _filled(guess: GuessedTable, column: str) -> bool:
    return any(row.get(column) for row in guess.rows)


def _relative(path: Path, place: Path) -> str:
    path = path.absolute()
    return path.relative_to(place).as_posix() if path.is_relative_to(place) else str(path)


def _show(guess: GuessedTable, folder: Path, table: Path) -> None:
    print(f"{table}: {counted(len(guess.rows), guess.what)}{guess.more}")
    for text in guess.shown[:_SHOWN]:
        print(f"  {text}")
    if len(guess.shown) > _SHOWN:
        print(f"  … {len(guess.shown) - _SHOWN:,} more")
    for text in guess.notes:
        print(text)
    for why, paths in guess.left_out.items():
        print(_left_out(folder, why, paths))


def _left_out(folder: Path, why: str, paths: Sequence[Path]) -> str:
    names = first_few([path.relative_to(folder).as_posix() for path in paths])
    return f"left out: {counted(len(paths), 'file')}, {why}: {names}"
