"""`runner ssmunet select-bands RUN`: the few wavenumbers that tell the classes apart best, for fast instruments.

`lasso` fits logistic regression to single pixels with a penalty on the length of each wavenumber's coefficients, over
all classes (group lasso: Yuan and Lin 2006). The penalty falls step by step, and wavenumbers are taken in the order in
which they get coefficients.

`greedy` adds wavenumbers one by one. Each is the one with which linear discriminant analysis of single pixels tells
patients that it was not fitted to apart best: the mean log posterior of the true class, classes of equal weight, over
folds of the training cores' patients. A pixel's values are scaled to length 1 over the chosen wavenumbers alone, as an
instrument would that measures no others. The first is amide I, which the others are measured against.

Validation cores take no part in the choice. They give the curve: the mIoU of logistic regression on single pixels.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import runner_core
from runner_core import (
    BadInput,
    Markup,
    Note,
    Page,
    Series,
    Table,
    claimed,
    html,
    line_chart,
    replace_csv,
    replace_json,
    replace_text,
    to_json,
)

from runner_ssmunet import baseline, scores
from runner_ssmunet.axis import gaps
from runner_ssmunet.filters import NAMED_BANDS
from runner_ssmunet.statistics import Moments, balanced

Array = np.ndarray[Any, np.dtype[Any]]

COUNT = 16
WIDTH = 10.0
PIXELS = 6000
"""Most annotated pixels of the training cores; every core contributes an equal share."""
FOLDS = 3
PATH, STEPS, LEAST = 0.85, 150, 1e-4
"""lasso: each penalty as a share of the last, steps of the fit under each, and the least as a share of the first."""
RIDGE = 1e-3
"""Share of the mean variance that is added to each variance within classes."""


@dataclass(frozen=True)
class Pixels:
    """Annotated pixels: `spectra` (P, L) on the axis, `classes` (P,) from 0, `groups` (P,) of their cores."""

    spectra: Array
    classes: Array
    groups: Array


def select_bands(parser: ArgumentParser, words: Sequence[str]) -> int:
    """Choose the few wavenumbers that tell the classes apart best, and write them for `train` and for an instrument.

    Chooses on the training cores of a run, and shows on its validation cores how the mIoU grows with their number.
    """
    parser.add_argument("run", type=Path, metavar="RUN", help="a run: its cores, split and preparation are used")
    parser.add_argument("--data", metavar="FOLDER", help="the run's cores, if they lie elsewhere now")
    parser.add_argument("--k", type=int, default=COUNT, help=f"number of wavenumbers (default: {COUNT})")
    parser.add_argument(
        "--by", choices=("lasso", "greedy"), default="lasso",
        help="lasso: by a penalised regression; greedy: one by one, better for fewer than 8 (default: lasso)",
    )  # fmt: skip
    parser.add_argument("--width", type=float, default=WIDTH, help=f"width of each in cm-1 (default: {WIDTH:g})")
    parser.add_argument("--out", type=Path, help="new or empty folder (default: runs/ssmunet/select-bands-TIME)")
    options = parser.parse_args(words)
    if options.k < 2:
        raise BadInput(f"--k {options.k}: choose two wavenumbers or more; one alone has no length to be scaled by")
    if not options.width > 0:
        raise BadInput(f"--width {options.width:g}: a band has a width above 0")
    run = runner_core.open(options.run, "ssmunet")
    project: Any = run.network(options.data, split="train").project
    _refuse_prepared(project.config, options.run)
    axis = np.asarray(project.statistics["wavenumbers"])
    if options.k > (most := fitting(axis, options.width)):
        raise _too_many(most, options.width)
    with claimed("ssmunet", "select-bands", options.out) as out:
        training, held_out = (
            annotated_pixels(run.network(options.data, split=split), axis, options.width, limit)
            for split, limit in (("train", PIXELS), ("validation", None))
        )
        chosen = []
        choose = {"lasso": lasso, "greedy": greedy}[options.by]
        for rank, (place, value) in enumerate(choose(training, axis, options.k, options.width), start=1):
            print(f"{rank:3}  {axis[place]:7.1f} cm⁻¹  {_near(axis[place]):16} {value}")
            chosen.append(place)
        rows = curve(training, held_out, chosen, len(axis), len(project.outputs))
        _write(out, options, axis[chosen], rows)
    print(
        f"report: {out / 'report.html'}\ntrain on them: runner ssmunet train --data … --config {out / 'settings.yaml'}"
    )
    return 0


def _refuse_prepared(config: Any, run: Path) -> None:
    """Raise BadInput for a preparation that needs more wavenumbers than the chosen ones."""
    data = config.data
    if config.preprocess.steps or (data.baseline, data.derivative) != ("none", "none") or data.normalise == "amide1":
        raise BadInput(
            f"{run}: its spectra were prepared with preprocess.steps, data.baseline, data.derivative or amide1, which "
            "an instrument of few wavenumbers cannot do: name a run without them (data.normalise vector or none)"
        )
    if config.model.features is not None:
        raise BadInput(f"{run}: it was trained on the features of another network: name a run trained on spectra")


def annotated_pixels(network: Any, axis: Array, width: float, limit: int | None) -> Pixels:
    """Return annotated pixels of the network's records, each wavenumber averaged over `width` cm⁻¹."""
    project, average = network.project, averaging(axis, width)
    spectra, classes, groups = [], [], []
    share = None if limit is None else -(-limit // len(network.records))
    for number, (record, cropped) in enumerate(network.each("reading")):
        truth = project.combining().labels(record, cropped)
        places = np.flatnonzero(truth >= 0) if truth is not None else np.empty(0, int)
        if share is not None:
            places = np.sort(np.random.default_rng(number).permutation(places)[:share])
        own = project.prepared_spectra(cropped)
        spectra.append(own.reshape(-1, own.shape[-1])[places].astype(np.float64) @ average)
        classes.append(truth.ravel()[places] if truth is not None else places)
        groups += [record.group] * len(places)
    if not groups:
        raise BadInput("none of these cores has an annotated pixel of tissue to choose wavenumbers by")
    return Pixels(np.concatenate(spectra), np.concatenate(classes), np.array(groups))


def fitting(axis: Array, width: float) -> int:
    """Return the number of wavenumbers of the ascending axis that can be chosen, no two closer than `width`."""
    count, last = 0, -np.inf
    for place in axis:
        if place - last >= width:
            count, last = count + 1, place
    return count


def averaging(axis: Array, width: float) -> Array:
    """Return the matrix (L, L) of means over `width` cm⁻¹ around each wavenumber, which do not reach across gaps."""
    part = np.searchsorted([after for _, after in gaps(axis.tolist())], axis, side="right")
    near = (np.abs(axis[:, None] - axis) <= width / 2) & (part[:, None] == part)
    return np.asarray(near / near.sum(0))


# ---------------------------------------------------------------- the choice


def greedy(pixels: Pixels, axis: Array, count: int, width: float) -> Iterator[tuple[int, str]]:
    """Yield the numbers of `count` wavenumbers on the axis, the best first, each with why it was taken.

    Two are never closer than `width`. Raises BadInput if there are not as many.
    """
    names, member = np.unique(pixels.groups, return_inverse=True)
    folds = min(FOLDS, len(names))
    if folds < 2:
        raise BadInput("the training cores are of one patient only: what tells patients apart cannot be judged on it")
    chosen = [int(np.abs(axis - NAMED_BANDS["amide I"]).argmin())]
    if abs(axis[chosen[0]] - NAMED_BANDS["amide I"]) > width:
        chosen = [int(np.abs(pixels.spectra).mean(0).argmax())]
    yield chosen[0], "the reference"
    while len(chosen) < count:
        free = [k for k in range(len(axis)) if np.abs(axis[chosen] - axis[k]).min() >= width]
        if not free:
            raise _too_many(len(chosen), width)
        values = [posterior(scaled(pixels.spectra, [*chosen, k]), pixels.classes, member % folds) for k in free]
        chosen.append(free[int(np.argmax(values))])
        yield chosen[-1], f"log posterior {max(values):.3f}"


def _too_many(found: int, width: float) -> BadInput:
    return BadInput(f"only {found} wavenumbers of width {width:g} could be chosen: lower --k or --width")


def lasso(pixels: Pixels, axis: Array, count: int, width: float) -> Iterator[tuple[int, str]]:
    """Yield the numbers of `count` wavenumbers in the order in which they get coefficients, each with its penalty.

    Two are never closer than `width`. Raises BadInput if there are not as many.
    """
    values = scaled(pixels.spectra, list(range(len(axis))))
    values = (values - values.mean(0)) / (values.std(0) + 1e-12)
    counts = np.bincount(pixels.classes)
    weights = balanced(counts, 10)[pixels.classes]
    weights /= weights.sum()
    design = np.concatenate([values, np.ones((len(values), 1))], axis=1)  # the last row of coefficients: intercepts
    truth = np.eye(len(counts))[pixels.classes]
    steepest = float(np.linalg.norm(design * np.sqrt(weights)[:, None], 2) ** 2 / 2)
    coefficients = np.zeros((design.shape[1], len(counts)))
    share = weights @ truth
    first = np.linalg.norm(values.T @ (weights[:, None] * (share - truth)), axis=1).max()
    chosen: list[int] = []
    penalty = float(first)
    while len(chosen) < count:
        penalty *= PATH
        free = [place for place in range(len(axis)) if not chosen or np.abs(axis[chosen] - axis[place]).min() >= width]
        if penalty < LEAST * first or not free:
            raise _too_many(len(chosen), width)
        coefficients = _penalised(design, truth, weights, penalty, steepest, coefficients)
        sizes = np.linalg.norm(coefficients[:-1], axis=1)
        for place in np.argsort(-sizes)[: np.count_nonzero(sizes)].tolist():
            if len(chosen) < count and (not chosen or np.abs(axis[chosen] - axis[place]).min() >= width):
                chosen.append(place)
                yield place, f"penalty {penalty:.2g}"


def _penalised(design: Array, truth: Array, weights: Array, penalty: float, steepest: float, start: Array) -> Array:
    """Return coefficients of the penalised regression, by accelerated proximal steps (Beck and Teboulle 2009)."""
    old = point = start
    momentum = 1.0
    for _ in range(STEPS):
        logits = design @ point
        logits -= logits.max(1, keepdims=True)
        found = np.exp(logits)
        found /= found.sum(1, keepdims=True)
        new = point - design.T @ (weights[:, None] * (found - truth)) / steepest
        sizes = np.linalg.norm(new[:-1], axis=1, keepdims=True)
        new[:-1] *= np.maximum(0, 1 - penalty / steepest / np.maximum(sizes, 1e-300))
        after = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        point, old, momentum = new + (momentum - 1) / after * (new - old), new, after
    return old


def scaled(spectra: Array, chosen: Sequence[int]) -> Array:
    """Return the chosen wavenumbers (P, k), each pixel scaled to length √k over them."""
    own = spectra[:, chosen]
    size = np.sqrt(np.mean(own**2, axis=1, keepdims=True))
    return np.asarray(own / np.where(size > 0, size, 1))


def posterior(values: Array, classes: Array, folds: Array) -> float:
    """Return the mean log posterior of the true class, each fold by a discriminant fitted to the others.

    Classes have equal weights, in the fit and in the mean. A class that the fit does not know is left out.
    """
    found = []
    for fold in np.unique(folds):
        fitted = discriminant(values[folds != fold], classes[folds != fold])
        known, means, whitening = fitted
        inside = (folds == fold) & np.isin(classes, known)
        distance = ((values[inside] @ whitening)[:, None] - means @ whitening) ** 2
        logits = -distance.sum(-1) / 2
        logs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        own = logs[np.arange(len(logs)), np.searchsorted(known, classes[inside])]
        found += [own[classes[inside] == label].mean() for label in np.unique(classes[inside])]
    return float(np.mean(found)) if found else -np.inf


def discriminant(values: Array, classes: Array) -> tuple[Array, Array, Array]:
    """Return the classes, their means (K, k) and the matrix (k, k) that whitens the variation within classes."""
    known = np.unique(classes)
    means = np.stack([values[classes == label].mean(0) for label in known])
    rest = values - means[np.searchsorted(known, classes)]
    within = rest.T @ rest / max(1, len(rest) - len(known))
    within += np.eye(len(within)) * (RIDGE * np.trace(within) / len(within) + 1e-12)
    return known, means, np.linalg.inv(np.linalg.cholesky(within)).T


# ---------------------------------------------------------------- the curve


def curve(training: Pixels, held_out: Pixels, chosen: Sequence[int], length: int, classes: int) -> list[dict[str, Any]]:
    """Return the mIoU on held-out pixels with the first k chosen, and with k evenly spaced; last: with all."""
    rows: list[dict[str, Any]] = []
    for count in range(2, len(chosen) + 1):
        even = np.linspace(0, length - 1, count).round().astype(int).tolist()
        own, evenly = (regression(training, held_out, some, classes) for some in (chosen[:count], even))
        rows.append({"k": count, "miou": own, "miou_evenly_spaced": evenly})
    every = regression(training, held_out, range(length), classes)
    return [*rows, {"k": length, "miou": every, "miou_evenly_spaced": every}]


def regression(training: Pixels, held_out: Pixels, chosen: Sequence[int], classes: int) -> float:
    """Return the mIoU of logistic regression on the chosen wavenumbers."""
    own, other = (scaled(pixels.spectra, list(chosen)) for pixels in (training, held_out))
    moments = Moments(own.shape[1])
    moments.add(own)
    weights = balanced(np.bincount(training.classes, minlength=classes), 10)
    found = baseline.fit((own - moments.mean) / moments.std(), training.classes, weights)
    guess = baseline.baseline((other - moments.mean) / moments.std(), found).argmax(1)
    names = [str(number) for number in range(classes)]
    return float(scores.summary(scores.confusion(guess, held_out.classes, classes), names)["miou"])


# ---------------------------------------------------------------- what is written


def _write(out: Path, options: Any, chosen: Array, rows: list[dict[str, Any]]) -> None:
    bands = [[float(f"{place:.6g}"), options.width, rank] for rank, place in enumerate(chosen.tolist(), start=1)]
    replace_csv(out / "bands.csv", [["wavenumber", "width", "rank"], *bands])
    replace_csv(out / "curve.csv", [[*rows[0]], *([*row.values()] for row in rows)])
    places = ", ".join(f"{place:g}" for place, _, _ in sorted(bands))
    replace_text(
        out / "settings.yaml",
        f"# the wavenumbers (cm-1) that select-bands chose on the training cores of {options.run}\n"
        f"data:\n  wavenumbers: [{places}]\n  band_width: {options.width:g}\n  bin: 1\n",
    )
    result: Mapping[str, Any] = {
        "run": str(options.run),
        "by": options.by,
        "width": options.width,
        "bands": bands,
        "curve": rows,
    }
    replace_json(out / "bands.json", to_json(dict(result)))
    replace_text(out / "report.html", html(_page(options, bands, rows)))


def _page(options: Any, bands: Sequence[Sequence[float]], rows: Sequence[Mapping[str, Any]]) -> Page:
    every = rows[-1]
    series = [
        Series(name, kind, [(row["k"], row[column]) for row in rows[:-1]])
        for name, kind, column in (("chosen", "a", "miou"), ("evenly spaced", "b", "miou_evenly_spaced"))
    ]
    about = [
        Note(f"{options.run}: chosen on its training cores (--by {options.by}); judged on its validation cores."),
        Note(
            f"The curve is that of logistic regression on single pixels. With all {every['k']} wavenumbers it has "
            f"{every['miou']:.3f}. A network that sees neighbours scores higher: train one with settings.yaml."
        ),
    ]
    table: list[list[str | float]] = [[f"{rank:.0f}", place, width, _near(place)] for place, width, rank in bands]
    chart = line_chart("mIoU", series, better="↑", across="wavenumbers")
    return Page(
        "Band selection", "Wavenumbers that tell the classes apart", about,
        [
            ("mIoU over the number of wavenumbers", [Markup(chart)]),
            ("wavenumbers", [Table("bands", "Best first", ("rank", "wavenumber, cm⁻¹", "width, cm⁻¹", "near"), table)]),
        ],
    )  # fmt: skip


def _near(place: float) -> str:
    """Return the name of a band within 20 cm⁻¹, or an empty string."""
    name = min(NAMED_BANDS, key=lambda own: abs(NAMED_BANDS[own] - place))
    return name if abs(NAMED_BANDS[name] - place) <= 20 else ""
