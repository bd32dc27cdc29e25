"""How often `runner compare` gives a verdict: between equal settings, and between settings that differ by a known gain.

    python benchmarks/verdict.py NAME [--data FOLDER] [--of FOLDER]

trains ten networks of a project (SOURCES says how, for each NAME), or takes a finished `runner PROJECT repeat` (--of),
and keeps its scores in benchmarks/results/verdict. From these scores of real networks `python -m benchmarks verdict`
draws pairs of arms: other seeds and other records for each pair.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))  # it is no package that one installs

from runner_core.tools.runs import read_run
from runner_core.tools.uncertainty import difference
from runner_core.tools.verdict import Arm, Paired, Verdict, pair

from benchmarks.curves import Curve, Panel, picture
from benchmarks.harness import ROOT, Aim, Cell, Options, Result, Table

SCORES, PICTURE = ROOT / "benchmarks" / "results" / "verdict", ROOT / "docs" / "images" / "verdict.svg"
PAIRS, RESAMPLES = 200, 999
SEEDS, PATIENTS = (2, 3, 5), (10, 20, 30, 60)
CLAIM = (5, 30)
"""Seeds and patients for which the claims are made."""


def write_heads(folder: Path, count: int = 80) -> None:
    """Write generated heads of as many people, in voxels of twice the phantom's size: they are scored eight times as
    fast."""
    from runner_brainunet.phantom import _person, _save, _scanner, make_head

    rng = np.random.default_rng(18)
    for number in range(count):
        place = folder / f"sub-P{number + 1:02d}"
        place.mkdir(parents=True)
        person, scanner = _person(rng), _scanner(rng, number)
        x, y, z = scanner.spacing
        scanner = replace(scanner, spacing=(2 * x, 2 * y, 2 * z))
        scan, mask, affine = make_head(person, scanner, rng)
        name = f"{place.name}_ses-1_T1w"
        _save(scan, affine, place / f"{name}.nii.gz")
        _save(mask.astype(np.uint8), affine, place / f"{name}_brainmask.nii.gz")


def _heads(folder: Path, data: Path | None) -> list[str]:
    write_heads(folder / "heads")
    return ["--data", str(folder / "heads"), "--data.validation-fraction", "0.8"]


def _patients(folder: Path, data: Path | None) -> list[str]:
    """The 20 training patients of the challenge with the lowest numbers train, the next 40 validate."""
    there = sorted((data or folder).glob("train-pats/pt_*"), key=lambda path: int(path.name[3:]))
    if len(there) < 60:
        raise SystemExit("--data: needs the challenge's data, with 60 patients or more in train-pats")
    for path in there[:60]:
        (folder / "patients" / "train-pats").mkdir(parents=True, exist_ok=True)
        (folder / "patients" / "train-pats" / path.name).symlink_to(path.resolve())
    names = [path.name for path in there]
    (folder / "split.yaml").write_text(json.dumps({"train": names[:20], "validation": names[20:60]}))
    return ["--data", str(folder / "patients"), "--data.split", str(folder / "split.yaml")]


@dataclass(frozen=True)
class Source:
    """Scores that are kept: how they are made, and the gains to plant, in points of `unit`."""

    project: str
    what: str
    data: Callable[[Path, Path | None], list[str]]
    """Writes data into a folder, from real ones if need be; returns the words that name them."""
    words: str
    unit: float
    point: str
    gains: Sequence[float]
    claimed: float
    """Gain that is to be found in 80 % of the pairs."""
    drawn: bool = True
    """Whether the picture shows its curves."""

    @property
    def about(self) -> str:
        return f"{self.what} (preset `demo` with `{self.words}`)"

    def train(self, data: Path | None, folder: Path) -> Path:
        """Train ten networks that differ by their seed; return the folder of the repetition."""
        out, words = folder / "repeat", [*self.data(folder, data), *self.words.split()]
        command = [str(Path(sys.executable).with_name("runner")), self.project, "repeat", "--seeds", "10"]
        subprocess.run([*command, "--preset", "demo", *EVERY, *words, "--out", str(out)], check=True)
        return out


EVERY = ("--train.epochs", "1", "--validate.every", "1", "--checkpoint.every", "1")
HEADS = "--data.spacing 4 --data.size 64 --data.views axial"
BRAINUNET = Source(
    project="brainunet",
    what="brainunet's Dice on 64 generated heads, trained on 16 others",
    data=_heads,
    words=f"{HEADS} --train.steps-per-epoch 600",
    unit=0.01,
    point="Dice points",
    gains=(0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0),
    claimed=1.0,
)
SOURCES = {
    "brainunet": BRAINUNET,
    "brainunet-150": replace(
        BRAINUNET,
        what="the same, trained for 150 steps instead of 600",
        words=f"{HEADS} --train.steps-per-epoch 150",
        drawn=False,
    ),
    "openkbp": Source(
        project="openkbp",
        what="openkbp's dose score on 40 patients of the challenge, trained on 20 others",
        data=_patients,
        words="--data.size 32 --train.steps-per-epoch 150 --predict.views none",
        unit=1.0,
        point="Gy",
        gains=(0.1, 0.2, 0.3, 0.5, 0.75, 1.0),
        claimed=0.5,
    ),
}


@dataclass(frozen=True)
class Kept:
    """Scores (networks, records) of networks that differ by their seed only."""

    score: str
    direction: str
    records: Sequence[str]
    values: np.ndarray[Any, np.dtype[np.float64]]

    @classmethod
    def read(cls, name: str) -> Kept:
        found = json.loads((SCORES / f"{name}.json").read_text(encoding="utf-8"))
        return cls(found["score"], found["direction"], found["records"], np.array(found["values"]))

    @property
    def sign(self) -> int:
        return 1 if self.direction == "max" else -1


def keep(name: str, folder: Path) -> None:
    """Write the headline scores of a repetition, which `pair` takes from its folder as `compare` does."""
    run = read_run(folder)
    arm = Arm(name, run.networks)
    paired = pair(arm, arm, arm.headline)
    if paired is None or len(set(paired.groups)) < len(paired.groups):
        raise SystemExit(f"{folder}: needs one score for each record, and one record for each group")
    if len(paired.arms[0]) < 2 * max(SEEDS):
        raise SystemExit(f"{folder}: has {len(paired.arms[0])} networks, and pairs need {2 * max(SEEDS)}")
    SCORES.mkdir(parents=True, exist_ok=True)
    content = {
        "score": arm.headline,
        "direction": run.direction,
        "records": list(paired.groups),
        "values": np.round(paired.arms[0], 6).tolist(),
    }
    text = json.dumps(content).replace("], [", "],\n  [")
    (SCORES / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    print(f"{len(paired.arms[0])} networks, {len(paired.groups)} records: {SCORES / f'{name}.json'}")


def answers(kept: Kept, seeds: int, patients: int, gain: float, pairs: int) -> dict[str, float]:
    """Return the share of each answer among pairs of arms whose second is better by `gain` on average over patients.

    The gain of a patient is drawn from a normal distribution whose standard deviation is the gain too, so that one
    patient in six gets worse. It is the same for all seeds, as that of a real change is.

    "t-test" is the share that Welch's t-test of the networks' means calls different, without looking at patients.
    """
    from scipy.stats import ttest_ind

    rng = np.random.default_rng(18)
    found = dict.fromkeys(("better", "worse", "cannot tell", "t-test"), 0.0)
    for _ in range(pairs):
        networks = rng.permutation(len(kept.values))[: 2 * seeds]
        chosen = rng.choice(len(kept.records), patients, replace=False)
        base, other = (kept.values[part][:, chosen] for part in (networks[:seeds], networks[seeds:]))
        other = other + kept.sign * gain * (1 + rng.standard_normal(patients))
        names = [kept.records[place] for place in chosen]
        away = difference(base, other, names, RESAMPLES)
        verdict = Verdict("A", "B", kept.score, kept.direction, away, Paired((base, other), names))
        found[verdict.answer] += 1 / pairs
        found["t-test"] += (ttest_ind(base.mean(1), other.mean(1), equal_var=False).pvalue <= 0.05) / pairs
    return found


def run(options: Options) -> Result:
    pairs = 4 if options.quick else PAIRS
    known = {name: source for name, source in SOURCES.items() if (SCORES / f"{name}.json").exists()}
    parts = [measured(name, source, pairs) for name, source in known.items()]
    if not options.quick:
        panels = [panel for part in parts for panel in part.panels]
        PICTURE.write_text(picture(panels, (0.05, 0.8)), encoding="utf-8")
    return Result(
        title="The verdict of `runner compare`",
        what=f"How often {pairs} pairs of arms get a verdict, drawn from the scores of ten networks that differ by "
        "their seed: each pair has other seeds and other patients. Equal settings should get one in 5 % of the pairs "
        "at most. Then a gain is planted in the second arm: each patient's is drawn from a normal distribution whose "
        "mean and standard deviation are the gain, so that one patient in six gets worse.",
        tables=[table for part in parts for table in part.tables],
        aims=[aim for part in parts for aim in part.aims],
        remarks=[
            *(f"{name}: {source.about}." for name, source in known.items()),
            *(part.spread for part in parts),
            *_too_short(dict(zip(known, parts, strict=True))),
            "The pairs share ten networks and their patients, so they are not independent of each other: read a share "
            "of 5 % as between 2 and 9 %.",
            "![Share of pairs with a verdict, by gain](images/verdict.svg)",
        ],
        packages=("numpy",),
    )


@dataclass(frozen=True)
class Part:
    """What was measured on the scores of one project."""

    tables: Sequence[Table]
    panels: Sequence[Panel]
    aims: Sequence[Aim]
    spread: str


def measured(name: str, source: Source, pairs: int) -> Part:
    kept = Kept.read(name)
    patients = [count for count in PATIENTS if count <= len(kept.records)]
    cases = [(seeds, count) for seeds in SEEDS for count in patients]
    shares = {
        (case, gain): answers(kept, *case, gain * source.unit, pairs) for case in cases for gain in (0.0, *source.gains)
    }
    heads = [f"{name}, {source.point}", "no gain: any verdict", *(f"{gain:g}" for gain in source.gains)]
    equal = {case: 1 - shares[case, 0.0]["cannot tell"] for case in cases}
    rows: list[list[Cell]] = [
        [_called(*case), _percent(equal[case]), *(_percent(shares[case, gain]["better"]) for gain in source.gains)]
        for case in cases
    ]
    wrong = max(shares[case, gain]["worse"] for case in cases for gain in source.gains if gain >= source.claimed)
    right = shares[CLAIM, source.claimed]["better"]
    gained = f"a gain of {source.claimed:g} {source.point}"
    aims = [
        Aim(f"{name}, {_called(*CLAIM)}: at most 5 % of equal pairs get a verdict: {_percent(equal[CLAIM])}",
            equal[CLAIM] <= 0.05),
        Aim(f"{name}, {_called(*CLAIM)}: {gained} is found in 80 % of the pairs: {_percent(right)}", right >= 0.8),
        Aim(f"{name}: {gained} or more is never called worse: {_percent(wrong)} of the pairs at most", not wrong),
    ]  # fmt: skip

    def curve(case: tuple[int, int], title: str) -> Curve:
        return Curve(title, [(0.0, equal[case]), *((gain, shares[case, gain]["better"]) for gain in source.gains)])

    seeds, count = CLAIM
    panels = [
        Panel(f"{name}: {count} patients", f"planted gain ({source.point})",
              [curve((n, count), f"{n} seeds") for n in SEEDS]),
        Panel(f"{name}: {seeds} seeds", f"planted gain ({source.point})",
              [curve((seeds, n), f"{n} patients") for n in patients]),
    ]  # fmt: skip
    spread = f"{_spread(name, kept, source)} Welch's t-test of the networks' means would find {gained} in "
    spread += f"{_percent(shares[CLAIM, source.claimed]['t-test'])} of the pairs ({seeds} seeds, {count} patients)."
    return Part([Table(heads, rows)], panels if source.drawn else [], aims, spread)


def _too_short(parts: dict[str, Part]) -> list[str]:
    """Say for which trainings a gain of 1 Dice point is found, if it is so."""
    met = {name: part.aims[1].met for name, part in parts.items()}
    if not met.get("brainunet") or met.get("brainunet-150", True):
        return []
    return [
        "The aim that a gain of 1 Dice point is found holds for trainings that are long enough (brainunet, 600 steps). "
        "It does not hold for trainings that are cut short (brainunet-150): their seeds differ so much that the gain "
        "is often lost among them."
    ]


def _spread(name: str, kept: Kept, source: Source) -> str:
    """Say how much the scores differ, as standard deviations in points."""
    values = kept.values / source.unit
    seeds, patients = values.mean(1).std(ddof=1), values.mean(0).std(ddof=1)
    rest = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
    return (
        f"Standard deviations in {source.point}, {name}: {seeds:.2g} between the means of seeds, {patients:.2g} "
        f"between patients, {rest.std():.2g} of a patient's score from seed to seed besides (mean {values.mean():.4g})."
    )


def _called(seeds: int, patients: int) -> str:
    """Name a row; that of the claim is bold on the page."""
    return f"{'runner compare, ' if (seeds, patients) == CLAIM else ''}{seeds} seeds, {patients} patients"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", choices=SOURCES)
    parser.add_argument("--data", type=Path, help="the challenge's data, for openkbp")
    parser.add_argument("--of", type=Path, help="a finished repetition, to take its scores")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        keep(options.name, options.of or SOURCES[options.name].train(options.data, Path(folder)))


if __name__ == "__main__":
    main()
