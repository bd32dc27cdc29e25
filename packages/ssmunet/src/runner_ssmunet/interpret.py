"""`runner ssmunet interpret RUN`: which wavenumbers a trained network uses, and what its classes look like.

Two audits go over the axis in windows. *Occlusion* replaces a window of every spectrum by the mean of all training
tissue, whatever its class: the network knows such values, and they say nothing about a pixel. *Permutation* gives each
pixel the window of another tissue pixel of its core: every value is real, and belongs to another place. The drop of
the mIoU says what the network loses. A window can lose nothing because another one says the same.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import runner_core
from runner_core import Arrays, BadInput, Network, claimed, counted, replace_csv, replace_json, to_json

from runner_ssmunet import interpretation_page, scores, whole
from runner_ssmunet.filters import NAMED_BANDS
from runner_ssmunet.readers.blocks import release, space
from runner_ssmunet.statistics import Moments
from runner_ssmunet.steps.operations import applied
from runner_ssmunet.steps.pipeline import operations_of

Array = np.ndarray[Any, np.dtype[Any]]

AUDITS = ("occlusion", "permutation")
WIDTH = 30.0
RESAMPLES = 2000
LEVEL = 0.95
FEW = 5
"""Number of groups below which intervals are too short."""


@dataclass(frozen=True)
class Window:
    """Wavenumbers `low` to `high` (cm⁻¹), which are the columns `points` of the axis."""

    low: float
    high: float
    points: slice

    @property
    def bands(self) -> list[str]:
        """Names of the bands in it."""
        return [name for name, place in NAMED_BANDS.items() if self.low <= place < self.high]

    def __str__(self) -> str:
        return f"{self.low:.0f}–{self.high:.0f}"


@dataclass
class Audit:
    """The counts of an audit: confusion matrices (K, K + 1) of each core, and moments of annotated spectra by class.

    `cells` maps an audit and a window's number to one matrix for each core; ("", 0) is the network undisturbed.
    """

    names: Sequence[str]
    windows: Sequence[Window]
    wavenumbers: Array
    groups: list[str] = field(default_factory=list)
    cells: dict[tuple[str, int], list[Array]] = field(default_factory=dict)
    spectra: dict[tuple[int, str], Moments] = field(default_factory=dict)


def interpret(parser: ArgumentParser, words: Sequence[str]) -> int:
    """Show which wavenumbers a trained network uses: audits by occlusion and permutation, and its classes' spectra.

    Uses cores that the network was not trained on.
    """
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder, or one of its checkpoints")
    parser.add_argument("--data", metavar="FOLDER", help="labelled cores (default: the run's validation cores)")
    parser.add_argument("--split", help="validation, train, test or all (default: validation; all with --data)")
    parser.add_argument("--width", type=float, default=WIDTH, help=f"width of a window in cm-1 (default: {WIDTH:g})")
    parser.add_argument("--seed", type=int, default=0, help="seed of the permutations and of the intervals")
    parser.add_argument("--out", type=Path, help="new or empty folder (default: runs/ssmunet/interpret-TIME)")
    options = parser.parse_args(words)
    if not options.width > 0:
        raise BadInput(f"--width {options.width:g}: a window has a width above 0")
    if options.seed < 0:
        raise BadInput(f"--seed {options.seed}: give 0 or more")
    network = runner_core.open(options.run, "ssmunet").network(options.data, split=options.split)
    with claimed("ssmunet", "interpret", options.out) as out:
        found = audited(network, options.width, options.seed)
        result = summary(found, options.seed) | {
            "run": str(options.run), "checkpoint": network.checkpoint, "cores": len(found.groups),
            "groups": len({*found.groups}), "width": options.width, "seed": options.seed,
            "notes": [*_notes(network, found)],
        }  # fmt: skip
        _write(out, result, found, network)
    for note in result["notes"]:
        print(f"NOTE: {note}")
    print(interpretation_page.text(result))
    print(f"report: {out / 'report.html'}")
    return 0


def windows(wavenumbers: Array, width: float) -> list[Window]:
    """Return windows of `width` cm⁻¹ side by side from the first wavenumber on, without empty ones.

    >>> [str(window) for window in windows(np.array([1000.0, 1010, 1020, 1100]), 20)]
    ['1000–1020', '1020–1040', '1100–1120']
    """
    number = ((wavenumbers - wavenumbers[0]) // width).astype(int)
    found = []
    for own in np.unique(number):
        first, last = np.flatnonzero(number == own)[[0, -1]]
        low = float(wavenumbers[0] + own * width)
        found.append(Window(low, low + width, slice(int(first), int(last) + 1)))
    return found


def audited(network: Network, width: float, seed: int) -> Audit:
    """Predict every core undisturbed, and with each window occluded and permuted, and count."""
    project: Any = network.project
    axis = np.asarray(project.statistics["wavenumbers"])
    found = Audit(project.outputs, windows(axis, width), axis)
    print(
        f"{counted(len(network.records), 'core')}, {counted(len(found.windows), 'window')}: each core is predicted "
        f"{1 + len(AUDITS) * len(found.windows)} times"
    )
    for number, (record, cropped) in enumerate(network.each("auditing")):
        truth = project.combining().labels(record, cropped)
        if truth is None or not (truth >= 0).any():
            continue
        spectra, tissue = project.model_input(cropped)
        found.groups.append(record.group)
        _count_spectra(
            found, applied(project.prepared_spectra(cropped)[truth >= 0], _steps(project)), truth, record.group
        )
        rng = np.random.default_rng([seed, number])
        for (audit, window), changed in _changed(spectra, tissue, found.windows, rng):
            guess = _predicted(project, network, changed, tissue)
            matrix = scores.confusion(guess, truth, len(found.names))
            found.cells.setdefault((audit, window), []).append(matrix)
    if not found.groups:
        raise BadInput("none of these cores has an annotated pixel of tissue to audit the network with")
    return found


def _steps(project: Any) -> Any:
    return operations_of(project.statistics)


def _changed(
    spectra: Array, tissue: Array, parts: Sequence[Window], rng: np.random.Generator
) -> Iterator[tuple[tuple[str, int], Array]]:
    """Yield z-scored spectra (H, W, L) undisturbed, then with each window occluded (z-score 0: the mean), permuted."""
    yield ("", 0), spectra
    pixels = spectra[tissue]
    other = pixels[rng.permutation(len(pixels))]
    for number, window in enumerate(parts):
        for audit in AUDITS:
            changed = pixels.copy()
            changed[:, window.points] = 0 if audit == "occlusion" else other[:, window.points]
            image = spectra.copy()
            image[tissue] = changed
            yield (audit, number), image


def _predicted(project: Any, network: Network, spectra: Array, tissue: Array) -> Array:
    """Return the class of every pixel, −1 off the tissue."""
    config = project.config

    def infer(arrays: Arrays) -> Arrays:
        return network.infer({"scaled": arrays["spectra"]} if "spectra" in arrays else arrays)

    probabilities, _ = whole.predict(
        spectra, tissue, infer, len(project.outputs), config.data.patch, config.predict.overlap,
        config.validate.batch_size or config.train.batch_size, space, release,
    )  # fmt: skip
    return np.where(tissue, probabilities.argmax(0), -1)


def _count_spectra(found: Audit, pixels: Array, truth: Array, group: str) -> None:
    known = truth[truth >= 0]
    for label in np.unique(known):
        own = found.spectra.setdefault((int(label), group), Moments(pixels.shape[1]))
        own.add(pixels[known == label])


# ---------------------------------------------------------------- what was counted, as numbers


def values(counts: Array) -> Array:
    """Return the mIoU and each class's IoU (1 + K,) of a confusion matrix; NaN for a class that is nowhere."""
    each = scores.per_class(counts)["iou"]
    known = each[np.isfinite(each)]
    return np.concatenate([[known.mean() if known.size else np.nan], each])


def drops(found: Audit, audit: str, window: int, seed: int) -> Array:
    """Return the drop of the mIoU and of each class's IoU, and its interval's ends: (1 + K, 3).

    The interval is a percentile bootstrap over groups, the same draws before and after.
    """
    before, after = (np.stack(found.cells[key]) for key in (("", 0), (audit, window)))
    names = sorted({*found.groups})
    member = np.array([[group == name for group in found.groups] for name in names], float)
    drawn = np.random.default_rng(seed).multinomial(len(names), [1 / len(names)] * len(names), RESAMPLES) @ member
    value = values(before.sum(0)) - values(after.sum(0))
    if len(names) == 1:
        return np.stack([value, np.full_like(value, np.nan), np.full_like(value, np.nan)], axis=1)
    resampled = [np.tensordot(drawn, arm, 1) for arm in (before, after)]
    spread = np.stack([values(a) - values(b) for a, b in zip(*resampled, strict=True)])
    tail = (1 - LEVEL) / 2
    with np.errstate(all="ignore"):
        low, high = np.full_like(value, np.nan), np.full_like(value, np.nan)
        for column in np.flatnonzero(np.isfinite(spread).any(0)):
            low[column], high[column] = np.nanquantile(spread[:, column], (tail, 1 - tail))
    return np.stack([value, low, high], axis=1)


def summary(found: Audit, seed: int) -> dict[str, Any]:
    """Return the result as JSON has it."""
    whole_set = values(np.sum(found.cells["", 0], axis=0))
    parts = []
    for number, window in enumerate(found.windows):
        own: dict[str, Any] = {"low": window.low, "high": window.high, "bands": window.bands}
        for audit in AUDITS:
            rows = drops(found, audit, number, seed)
            named = zip(("miou", *found.names), rows.tolist(), strict=True)
            own[audit] = {name: {"drop": d, "low": low, "high": high} for name, (d, low, high) in named}
        parts.append(own)
    ious = dict(zip(found.names, whole_set[1:].tolist(), strict=True))
    return {"miou": float(whole_set[0]), "iou": ious, "windows": parts}


def class_spectra(found: Audit) -> dict[str, Array]:
    """Return by class (3, L): mean spectrum, difference from the mean of all classes, deviation between groups.

    A class's mean is that of its groups' means: a patient with many labels counts as much as one with few.
    """
    means, deviations = {}, {}
    for label, name in enumerate(found.names):
        own = [moments.mean for (number, _), moments in sorted(found.spectra.items()) if number == label]
        if own:
            means[name] = np.mean(own, axis=0)
            deviations[name] = np.std(own, axis=0, ddof=1) if len(own) > 1 else np.full(len(own[0]), np.nan)
    middle = np.mean(list(means.values()), axis=0)
    return {name: np.stack([mean, mean - middle, deviations[name]]) for name, mean in means.items()}


def _notes(network: Network, found: Audit) -> Iterator[str]:
    if network.trained_on:
        yield f"the network was trained on {counted(len(network.trained_on), 'of these cores', 'of these cores')}"
    if (count := len({*found.groups})) < FEW:
        yield f"intervals from {counted(count, 'group')} of cores are too short, or cannot be made"


def _write(out: Path, result: dict[str, Any], found: Audit, network: Network) -> None:
    spectra = class_spectra(found)
    replace_json(out / "interpretation.json", to_json(result))
    rows = [
        [audit, window["low"], window["high"], " + ".join(window["bands"]), name, *value.values()]
        for audit in AUDITS
        for window in result["windows"]
        for name, value in window[audit].items()
    ]
    replace_csv(out / "audits.csv", [["audit", "from", "to", "bands", "score", "drop", "low", "high"], *rows])
    kinds = ("mean", "difference", "deviation between groups")
    head = ["wavenumber", *(f"{name} {kind}" for name in spectra for kind in kinds)]
    columns = np.concatenate([found.wavenumbers[None], *spectra.values()])
    replace_csv(out / "spectra.csv", [head, *columns.T.tolist()])
    interpretation_page.write(out, result, spectra, found.wavenumbers, network.project)
