"""Does `check --with` find wrong labels? Seed one fault at a time into a held-out record, and see where it ranks.

    runner brainunet phantom heads && runner brainunet crossval --data heads --out cv
    python benchmarks/wrong_labels.py brainunet --data heads --with cv

Every record that some run never saw gets every kind of fault in turn; the other records keep their labels. A fault is
found if its record is among the worst tenth. Labels are changed in memory only.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from runner_core.base.text import aligned
from runner_core.cli.ensembles import load_ensemble, seen_by, start_each
from runner_core.cli.options import CheckOptions
from runner_core.tools.labels.confident import Classes
from runner_core.tools.labels.evidence import compared, signs, total
from runner_core.tools.labels.judge import Judging, Usual, measured
from runner_core.training.data import data_folder, read_records

Array = Any
SHIFT, ERODED, PART, TENTH = 3, 2, 0.2, 0.1


def another(label: Array, other: Array) -> Array:
    """Lay another record's label into the grid of this one."""
    found = np.full_like(label, _rest(label))
    common = tuple(slice(min(a, b)) for a, b in zip(label.shape, other.shape, strict=True))
    found[common] = other[common]
    return found


def shifted(label: Array, other: Array) -> Array:
    return np.roll(label, SHIFT, axis=int(np.argmax(label.shape)))


def eroded(label: Array, other: Array) -> Array:
    """Take the outermost voxels off each class."""
    rest, inside = _rest(label), np.ones(label.shape, bool)
    for _ in range(ERODED):
        same = inside.copy()
        for axis in range(label.ndim):
            for step in (1, -1):
                same &= np.roll(inside, step, axis) & (np.roll(label, step, axis) == label)
        inside = same
    return np.where(inside | (label < 0), label, rest)


def without_a_part(label: Array, other: Array) -> Array:
    """Leave out the last fifth of what is labelled, along the first axis."""
    rows = np.flatnonzero((np.nan_to_num(label) > 0).any(tuple(range(1, label.ndim))))
    found = label.copy()
    part = found[rows[int((1 - PART) * len(rows))] :]
    part[part > 0] = _rest(label)
    return found


def mirrored(label: Array, other: Array) -> Array:
    return label[::-1].copy()


def permuted(label: Array, other: Array) -> Array:
    """Give each class the number of the next one."""
    classes = max(2, int(label.max()) + 1)
    return np.where(label < 0, label, (label + 1) % classes)


def _rest(label: Array) -> Any:
    return label.dtype.type(0)


OF_VALUES = {
    "another patient's": another,
    "shifted by 3 voxels": shifted,
    "left and right exchanged": mirrored,
    "missing part": without_a_part,
}
OF_CLASSES: dict[str, Callable[[Array, Array], Array]] = {
    **OF_VALUES,
    "eroded by 2 voxels": eroded,
    "class ids permuted": permuted,
}


def found_share(judging: Judging) -> tuple[list[float], dict[str, list[int]]]:
    """Return the scores of the sound records, and for each fault the rank of each record that got it (0 is worst)."""
    usual: Usual = judging.usual
    kept = [one.arrays() for one in judging.stored]
    of = signs(kept[0][1].ndim)
    sound = [measured(usual, *arrays)[0] for arrays in kept]
    ranks: dict[str, list[int]] = {}
    for name, change in (OF_CLASSES if isinstance(usual, Classes) else OF_VALUES).items():
        for n, (soft, label, spread) in enumerate(kept):
            other = kept[(n + 1) % len(kept)][1]
            row = measured(usual, soft, change(label, other).astype(label.dtype), spread)[0]
            scores = [total(far) for far in compared([*sound[:n], row, *sound[n + 1 :]], of)]
            ranks.setdefault(name, []).append(sum(score > scores[n] for score in scores))
    return [total(far) for far in compared(sound, of)], ranks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("project")
    parser.add_argument("--data", required=True)
    parser.add_argument("--with", dest="runs", action="append", type=Path, required=True)
    options = parser.parse_args()
    members = start_each(options.project, "check", CheckOptions, ["--data", options.data], options.runs)
    setup = members[0].setup
    records = read_records(setup, data_folder(setup, print), print)
    ensemble, _ = load_ensemble(members)
    with TemporaryDirectory() as folder:
        judging = Judging(ensemble.knowing(seen_by(members, records, records)[1]), Path(folder))
        for record in records:
            judging.observe(record)
        if not judging.stored:
            raise SystemExit("all runs were trained on all records")
        sound, ranks = found_share(judging)
    places = max(1, round(TENTH * len(sound)))
    print(f"{len(sound)} records; scores of the sound ones: median {np.median(sound):.1f}, highest {max(sound):.1f}")
    rows = [[name, f"{np.mean(np.array(own) < places):.0%}", f"{np.mean(own) + 1:.1f}"] for name, own in ranks.items()]
    print(*aligned([["fault", f"among the worst {places}", "mean rank"], *rows]), sep="\n")


if __name__ == "__main__":
    main()
