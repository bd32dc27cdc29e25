"""How many wrong labels `runner PROJECT check --with CV` finds: faults seeded into records that a network never saw.

    python benchmarks/wrong_labels.py NAME [--data FOLDER]

trains a small cross-validation (CASES says how) and keeps what was found in benchmarks/results/wrong_labels, from which
`python -m benchmarks wrong_labels` makes the table of docs/benchmarks.md.

    python benchmarks/wrong_labels.py NAME --data FOLDER --with CV

only says what is found in your own data, with your own runs. Labels are changed in memory, never in a file.

One fault at a time: every record gets every kind of fault in turn, and the other records keep their labels. A fault is
found if its record is among the worst tenth. Faults that change a whole plate are found by the share of its records
among as many of the worst.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))  # it is no package that one installs

from runner_core.base.text import aligned
from runner_core.cli.ensembles import load_ensemble, seen_by, start_each
from runner_core.cli.options import CheckOptions
from runner_core.tools.labels.confident import Values
from runner_core.tools.labels.embedded import Embedded
from runner_core.tools.labels.evidence import compared, signs, total
from runner_core.tools.labels.judge import Judging, measured, nothing_known
from runner_core.training.data import data_folder, read_records

from benchmarks.harness import ROOT, Aim, Cell, Options, Result, Table

Array = Any
Stored = tuple[Array, Array, Array | None]
"""Soft outputs, label, and how much several networks disagree."""
KEPT = ROOT / "benchmarks" / "results" / "wrong_labels"
TENTH, AIM = 0.1, 0.9

# ---------------------------------------------------------------- faults in maps: (label, another record's) → label

SHIFT, ERODED, PART, SCALE = 3, 2, 0.2, 0.9
IGNORED = -1


def another(label: Array, other: Array) -> Array:
    """Lay another record's label into the grid of this one."""
    found = np.zeros_like(label)
    common = tuple(slice(min(a, b)) for a, b in zip(label.shape, other.shape, strict=True))
    found[common] = other[common]
    return found


def shifted(label: Array, other: Array) -> Array:
    return np.roll(label, SHIFT, axis=int(np.argmax(label.shape)))


def eroded(label: Array, other: Array) -> Array:
    """Take the outermost voxels off each class."""
    inside = np.ones(label.shape, bool)
    for _ in range(ERODED):
        same = inside.copy()
        for axis in range(label.ndim):
            for step in (1, -1):
                same &= np.roll(inside, step, axis) & (np.roll(label, step, axis) == label)
        inside = same
    return np.where(inside | (label < 0), label, 0)


def without_a_part(label: Array, other: Array) -> Array:
    """Leave out the last fifth of what is labelled, along the first axis."""
    rows = np.flatnonzero((np.nan_to_num(label) > 0).any(tuple(range(1, label.ndim))))
    found = label.copy()
    part = found[rows[int((1 - PART) * len(rows))] :]
    part[part > 0] = 0
    return found


def mirrored(axis: int) -> Callable[[Array, Array], Array]:
    return lambda label, other: np.flip(label, axis)


def permuted(label: Array, other: Array) -> Array:
    """Give each class the number of the next one."""
    classes = max(2, int(label.max()) + 1)
    return np.where(label < 0, label, (label + 1) % classes)


def exchanged(label: Array, other: Array) -> Array:
    """Exchange the names of the two classes that cover most of the record."""
    one, two = np.argsort(-np.bincount(label[label >= 0]), kind="stable")[:2]
    return np.where(label == one, two, np.where(label == two, one, label))


def scaled(label: Array, other: Array) -> Array:
    return label * SCALE


def scaled_target(label: Array, other: Array) -> Array:
    """Scale the dose where it is high, as if the target had been prescribed less."""
    return np.where(label > 0.8 * np.nanquantile(label, 0.99), label * SCALE, label)


MASKS: dict[str, Callable[[Array, Array], Array]] = {
    "another record's": another,
    "shifted by 3 voxels": shifted,
    "left and right exchanged": mirrored(0),
    "eroded by 2 voxels": eroded,
    "last fifth missing": without_a_part,
    "class ids permuted": permuted,
}
TISSUES = {
    **{name: MASKS[name] for name in ("another record's", "shifted by 3 voxels", "class ids permuted")},
    "left and right exchanged": mirrored(1),
    "two classes exchanged": exchanged,
}
DOSES = {
    **{name: MASKS[name] for name in ("another record's", "shifted by 3 voxels", "last fifth missing")},
    "left and right exchanged": mirrored(1),
    "scaled by 0.9": scaled,
    "target's dose scaled by 0.9": scaled_target,
}

# ---------------------------------------------------------------- faults in labels of whole records, by plate and well


def another_treatment(wells: Mapping[tuple[str, str], str]) -> Iterator[dict[tuple[str, str], str]]:
    """Yield each well with the next treatment."""
    names = sorted({*wells.values()})
    yield from ({well: names[(names.index(own) + 1) % len(names)]} for well, own in wells.items())


def two_exchanged(wells: Mapping[tuple[str, str], str]) -> Iterator[dict[tuple[str, str], str]]:
    """Yield each two successive wells of a plate that have other treatments, exchanged."""
    places = sorted(wells)
    for one, two in pairwise(places):
        if one[0] == two[0] and wells[one] != wells[two]:
            yield {one: wells[two], two: wells[one]}


def turned_plate(wells: Mapping[tuple[str, str], str]) -> Iterator[dict[tuple[str, str], str]]:
    """Yield each plate with its list of treatments upside down."""
    for plate in sorted({plate for plate, _ in wells}):
        places = [well for well in sorted(wells) if well[0] == plate]
        turned = dict(zip(places, [wells[well] for well in reversed(places)], strict=True))
        yield {well: label for well, label in turned.items() if label != wells[well]}


PLATES: dict[str, Callable[[Mapping[tuple[str, str], str]], Iterator[dict[tuple[str, str], str]]]] = {
    "a well with another treatment": another_treatment,
    "two wells exchanged": two_exchanged,
    "a plate turned by half": turned_plate,
}

# ---------------------------------------------------------------- what is found


@dataclass(frozen=True)
class Found:
    """How many of the seeded faults are among the worst: the share of each kind, and the mean rank (1 is the worst)."""

    records: int
    median: float
    """Of the scores of the records with their own labels."""
    highest: float
    shares: Mapping[str, float]
    ranks: Mapping[str, float]
    seeded: Mapping[str, int]

    @property
    def share(self) -> float:
        """Share of all seeded faults that are found."""
        return float(np.average([*self.shares.values()], weights=[*self.seeded.values()]))

    def rows(self) -> list[list[Cell]]:
        return [
            [name, self.seeded[name], f"{share:.0%}", round(self.ranks[name], 1)] for name, share in self.shares.items()
        ]


def places_of(count: int) -> int:
    """Return the number of records in the worst tenth."""
    return max(1, round(TENTH * count))


def _usual(scores: Sequence[float]) -> tuple[float, float]:
    return round(float(np.median(scores)), 2), round(max(scores), 2)


def found_in_maps(judging: Judging, faults: Mapping[str, Callable[[Array, Array], Array]]) -> Found:
    """Seed each fault into each stored record, and compare it with the others."""
    kept = _boxed([one.arrays() for one in judging.stored])
    of = signs(kept[0][1].ndim, isinstance(judging.usual, Values))
    sound = [measured(judging.usual, *arrays)[0] for arrays in kept]
    ranks: dict[str, list[int]] = {name: [] for name in faults}
    for n, (soft, label, spread) in enumerate(kept):
        other = kept[(n + 1) % len(kept)][1]
        others = nothing_known(judging.ensemble.combining)
        for place in {*range(len(kept))} - {n}:
            others.observe(*kept[place])
        for name, change in faults.items():
            wrong = seeded(change, soft, label, other)
            usual = deepcopy(others)  # thresholds are known from the wrong label too
            usual.observe(soft, wrong, spread)
            row = measured(usual, soft, wrong, spread)[0]
            scores = [total(far) for far in compared([*sound[:n], row, *sound[n + 1 :]], of)]
            ranks[name].append(sum(score > scores[n] for score in scores))
    worst = places_of(len(kept))
    return Found(
        len(kept),
        *_usual([total(far) for far in compared(sound, of)]),
        {name: round(float(np.mean(np.array(own) < worst)), 4) for name, own in ranks.items()},
        {name: round(float(np.mean(own)) + 1, 2) for name, own in ranks.items()},
        {name: len(own) for name, own in ranks.items()},
    )


def _boxed(kept: list[Stored]) -> list[Stored]:
    """Leave out what lies beyond the labelled voxels of all records, if they have one grid."""
    if len({label.shape for _, label, _ in kept}) > 1:
        return kept
    known = np.logical_or.reduce([_known(label) for _, label, _ in kept])
    ends = [(min(own), max(own) + 1) for own in np.nonzero(known)]
    box = (..., *(slice(max(0, first - SHIFT), last + SHIFT) for first, last in ends))
    return [(soft[box], label[box], None if spread is None else spread[box]) for soft, label, spread in kept]


def _known(label: Array) -> Array:
    return label != IGNORED if label.dtype.kind == "i" else np.isfinite(label)


def seeded(change: Callable[[Array, Array], Array], soft: Array, label: Array, other: Array) -> Array:
    """Return the wrong label, as the project would read it: nothing where it never takes one."""
    wrong = change(label, other).astype(label.dtype)
    if label.dtype.kind == "f":  # a dose is known wherever one is possible
        return np.where(np.isfinite(label), np.nan_to_num(wrong), label)
    return np.where((soft == 0).all(0), IGNORED, wrong) if len(soft) > 1 else wrong


def found_in_plates(judging: Embedded) -> Found:
    """Give wells other labels, and compare the records."""
    own = list(judging.labels)
    records: list[Any] = judging.records
    wells = [(record.plate, record.well) for record in records]
    base = judging.conclude()
    shares: dict[str, list[float]] = {name: [] for name in PLATES}
    ranks: dict[str, list[float]] = {name: [] for name in PLATES}
    for name, faults in PLATES.items():
        for given in faults(dict(zip(wells, own, strict=True))):
            judging.labels = [given.get(well, label) for well, label in zip(wells, own, strict=True)]
            order = [one.record.key for one in judging.conclude().judged]
            keys = {record.key for record, well in zip(judging.records, wells, strict=True) if well in given}
            places = [order.index(key) for key in keys]
            shares[name].append(float(np.mean(np.array(places) < max(places_of(len(order)), len(keys)))))
            ranks[name].append(float(np.mean(places)) + 1)
    judging.labels = own
    return Found(
        len(base.judged),
        *_usual([one.score for one in base.judged]),
        {name: round(float(np.mean(values)), 4) for name, values in shares.items()},
        {name: round(float(np.mean(values)), 2) for name, values in ranks.items()},
        {name: len(values) for name, values in shares.items()},
    )


def find(name: str, data: Path, runs: Sequence[Path]) -> Found:
    """Let the runs judge the records that they never saw, and seed faults into them."""
    members = start_each(name, "check", CheckOptions, ["--data", str(data)], runs)
    setup = members[0].setup
    records = read_records(setup, data_folder(setup, print), print)
    ensemble = load_ensemble(members)[0].knowing(seen_by(members, records, records)[1])
    embeds = ensemble.combining.kind == "embeddings"
    with tempfile.TemporaryDirectory() as folder:
        judging = Embedded(ensemble) if embeds else Judging(ensemble, Path(folder))
        for record in records:
            judging.observe(record)
        if isinstance(judging, Embedded):
            return found_in_plates(judging)
        if not judging.stored:
            raise SystemExit("all runs were trained on all records")
        return found_in_maps(judging, CASES[name].faults)


# ---------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """A small cross-validation of a project, and the faults that labels of its kind have."""

    what: str
    data: Callable[[Path, Path | None], None]
    """`data(folder, given)` writes the data into the folder."""
    words: str
    faults: Mapping[str, Callable[..., Any]]

    def train(self, name: str, given: Path | None, folder: Path) -> tuple[Path, Path]:
        """Return the folders of the data and of the cross-validation."""
        data, out = folder / "data", folder / "cv"
        data.mkdir()
        self.data(data, given)
        command = [str(Path(sys.executable).with_name("runner")), name, "crossval", "--preset", "demo"]
        command += ["--data", str(data), "--out", str(out), "--cache.dir", str(folder / "cache"), *self.words.split()]
        subprocess.run(command, check=True, env={"OMP_NUM_THREADS": "1", **os.environ})
        return data, out


def _heads(folder: Path, given: Path | None) -> None:
    from benchmarks.verdict import write_heads

    write_heads(folder, 24)


def _patients(folder: Path, given: Path | None) -> None:
    """Take the 48 training patients of the challenge with the lowest numbers."""
    there = sorted((given or folder).glob("train-pats/pt_*"), key=lambda path: int(path.name[3:]))
    if len(there) < 48:
        raise SystemExit("--data: needs the challenge's data, with 48 patients or more in train-pats")
    (folder / "train-pats").mkdir()
    for path in there[:48]:
        (folder / "train-pats" / path.name).symlink_to(path.resolve())


def _cores(folder: Path, given: Path | None) -> None:
    from runner_ssmunet.phantom import write_phantom

    write_phantom(folder, np.random.default_rng(18), faulty=False)


def _volumes(folder: Path, given: Path | None) -> None:
    from runner_vesuvius.phantom import write_phantom

    write_phantom(folder, np.random.default_rng(18), volumes=(6, 6, 6, 6), unlabelled=0, shape=(64, 64, 64))


def _plates(folder: Path, given: Path | None) -> None:
    from runner_dinocell.phantom import write_phantom

    write_phantom(folder, np.random.default_rng(18))


ONE = "--train.epochs 1 --validate.every 1 --checkpoint.every 1"
CASES = {
    "brainunet": Case(
        "24 generated heads of 24 people",
        _heads,
        f"--folds 2 {ONE} --data.spacing 4 --data.size 64 --data.views axial --train.steps-per-epoch 150",
        MASKS,
    ),
    "openkbp": Case(
        "48 real patients of the OpenKBP challenge",
        _patients,
        f"--folds 2 {ONE} --data.size 32 --predict.views none --train.steps-per-epoch 1000",
        DOSES,
    ),
    "ssmunet": Case("20 generated cores of 10 patients", _cores, "--folds 2", TISSUES),
    "vesuvius": Case(
        "24 generated volumes of 4 scrolls",
        _volumes,
        "--folds 2 --train.epochs 6 --data.patches 16",
        MASKS,
    ),
    "dinocell": Case(
        "192 generated fields of 4 plates", _plates, "--folds 2 --train.epochs 40 --validate.every 40", PLATES
    ),
}


# ---------------------------------------------------------------- what is kept, and the page


def keep(name: str, found: Found) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    content = json.dumps({"project": name, **asdict(found)}, indent=1, ensure_ascii=False)
    (KEPT / f"{name}.json").write_text(content + "\n", encoding="utf-8")


def kept() -> dict[str, Found]:
    files = {name: KEPT / f"{name}.json" for name in CASES}
    found = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.exists()}
    return {name: Found(**{key: own[key] for key in Found.__dataclass_fields__}) for name, own in found.items()}


HEADS = ["fault", "seeded", "among the worst tenth", "mean rank"]


def run(options: Options) -> Result:
    found = kept()
    rows: list[list[Cell]] = []
    for name, own in found.items():
        rows += [[f"{name}: {row[0]}", *row[1:]] for row in own.rows()]
        rows.append([f"runner {name} check", sum(own.seeded.values()), f"{own.share:.0%}", None])
    return Result(
        title="Wrong labels that `check --with` finds",
        what="Small cross-validations judge the records that each network never saw. Every record gets every fault in "
        "turn, one at a time, while the others keep their labels; the fault is found if its record is among the worst "
        "tenth. Where a fault changes several records (wells, plates), the share of them is counted among as many of "
        "the worst, or the worst tenth if that is more.",
        tables=[Table(HEADS, rows)],
        aims=[
            Aim(f"{name}: 90 % of the faults are among the worst tenth: {own.share:.0%}", own.share >= AIM)
            for name, own in found.items()
        ],
        remarks=[
            *(f"{name}: {CASES[name].what}; preset `demo` with `{CASES[name].words}`." for name in found),
            "The measures of values and of parts, the discriminant analysis of embeddings and the lengths of trainings "
            "were chosen on these records and faults, so expect somewhat less on other data.",
            "`python benchmarks/wrong_labels.py NAME` trains one of them and keeps what it finds; this page only shows "
            "that. openkbp needs the challenge's data (`--data`).",
        ],
        packages=("numpy",),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=CASES)
    parser.add_argument("--data", type=Path, help="your data, with --with; else the challenge's, for openkbp")
    parser.add_argument("--with", dest="runs", action="append", type=Path, help="finished runs, which judge --data")
    parser.add_argument("--keep", action="store_true", help="keep what is found even so: these are the runs of CASES")
    options = parser.parse_args()
    if options.runs:
        if options.data is None:
            parser.error("--with needs --data, the records to judge")
        found = find(options.name, options.data, options.runs)
    else:
        with tempfile.TemporaryDirectory() as folder:
            data, cv = CASES[options.name].train(options.name, options.data, Path(folder))
            found = find(options.name, data, [cv])
    if options.keep or not options.runs:
        keep(options.name, found)
    usual = f"median {found.median:.1f}, highest {found.highest:.1f}"
    print(f"{found.records} records; scores of the sound ones: {usual}")
    print(*aligned([HEADS, *([str(cell) for cell in row] for row in found.rows())]), sep="\n")


if __name__ == "__main__":
    main()
