"""`runner PROJECT init-data DIR`: write a table of a folder's files by guessing, for the user to correct."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path

from runner_core.base.calling import runner
from runner_core.base.errors import BadInput
from runner_core.base.location import shell_word
from runner_core.base.text import counted, first_few
from runner_core.base.writing import write_once
from runner_core.cli.options import InitDataOptions
from runner_core.cli.start import start_new
from runner_core.contract.facets import PairFiles
from runner_core.data.pairs.guess import UNLABELLED, Guess, guess_pairs, name_endings

_SHOWN = 4


def init_data(name: str, arguments: Sequence[str]) -> int:
    started = start_new(name, "init-data", InitDataOptions, arguments)
    folder, files = started.options.folder, started.setup.project.dataset.pairs
    if files is None:
        raise BadInput(
            f"project {name} does not read pairs of files, an image and its label, so there is no such table: see its "
            "README for the layouts that it reads"
        )
    if not folder.is_dir():
        raise BadInput(f"{folder}: there is no such folder")
    table = started.options.out or folder / "manifest.csv"
    if os.path.lexists(table):
        raise BadInput(f"{table} is there already, and is never overwritten: name another file with --out")
    guess = guess_pairs(folder, files)
    if not guess.rows:
        raise _nothing(name, folder, guess, files)
    try:
        write_once(table, table_text(guess, table.absolute().parent))
    except OSError as error:
        raise BadInput(f"{table} cannot be written: {error.strerror or error}; name another file with --out") from error
    _show(guess, folder, table)
    print(f"next: correct {shell_word(table)}, then: {runner()} {name} check --data {shell_word(table)}")
    return 0


def _nothing(name: str, folder: Path, guess: Guess, files: PairFiles) -> BadInput:
    """Return the refusal of a folder in which no pair was found: its files, and the patterns that may pair them."""
    found = "".join(f"\n{_left_out(folder, why, paths)}" for why, paths in guess.left_out.items())
    text = f"{folder}: no image{' with a label' if files.labelled else ''} was found{found or ': it is empty'}"
    if not files.labelled or not found:
        return BadInput(text)
    check = f"{runner()} {name} check --data {shell_word(folder)} --data.pattern"
    one, other = name_endings(guess.left_out.get(UNLABELLED, ()), files.stem) or ("IMAGE_ENDING", "LABEL_ENDING")
    return BadInput(
        f"{text}\nA label is recognised by a word such as mask, label, seg, gt, roi or manual in its name or folder. "
        f"Say it by patterns, first that of the images: {check} '{{id}}{one}' '{{id}}{other}'"
    )


def table_text(guess: Guess, place: Path) -> str:
    """Return the table as CSV; paths are relative to its folder `place` if they lie below it, else absolute."""
    columns = ["id", "group", *(["split"] if any(row.split for row in guess.rows) else []), "image"]
    columns += ["label"] if any(row.label for row in guess.rows) else []
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in guess.rows:
        label = "" if row.label is None else _relative(row.label, place)
        cells = {"id": row.id, "group": row.group, "split": row.split or "train", "label": label}
        cells["image"] = _relative(row.image, place)
        writer.writerow([cells[column] for column in columns])
    return text.getvalue()


def _relative(path: Path, place: Path) -> str:
    path = path.absolute()
    return path.relative_to(place).as_posix() if path.is_relative_to(place) else str(path)


def _show(guess: Guess, folder: Path, table: Path) -> None:
    rows = guess.rows
    groups = sorted({row.group for row in rows})
    with_label = sum(row.label is not None for row in rows)
    print(f"{table}: {counted(len(rows), 'image')}, {with_label:,} with a label")
    for row in rows[:_SHOWN]:
        label = "no label" if row.label is None else row.label.relative_to(folder)
        print(f"  {row.image.relative_to(folder)} with {label}, group {row.group}")
    if len(rows) > _SHOWN:
        print(f"  … {len(rows) - _SHOWN:,} more")
    print(f"groups, which no split cuts: {len(groups):,} ({first_few(groups)}), guessed: {guess.groups}")
    for why, paths in guess.left_out.items():
        print(_left_out(folder, why, paths))


def _left_out(folder: Path, why: str, paths: Sequence[Path]) -> str:
    names = first_few([path.relative_to(folder).as_posix() for path in paths])
    return f"left out: {counted(len(paths), 'file')}, {why}: {names}"
