"""Classical methods on single spectra, beside a cross-validation's networks: the same folds, cores and scores.

scikit-learn and torch are imported inside the functions: everything that loads the project would wait for them.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from runner_core import BadInput, Table, counted

from runner_ssmunet import calls, scores
from runner_ssmunet.steps.operations import applied
from runner_ssmunet.steps.pipeline import operations_of

if TYPE_CHECKING:
    from runner_ssmunet.project import SSMUNet

Array = np.ndarray[Any, np.dtype[Any]]
Predict = Callable[[Array], Array]
"""Spectra (pixels, L) to probabilities (pixels, K)."""

PIXELS = 20_000
_SPARE = 4
"""How many times its even share of the sample a core may give, for classes that few cores have."""
_AT_ONCE = 20_000
_TREES, _EPOCHS, _BATCH = 200, 20, 256


def baselines(parser: ArgumentParser, words: Sequence[str]) -> int:
    """Score a random forest, a linear SVM and a 1-D CNN on the folds of a cross-validation, beside its networks.

    Each method learns from a sample of the annotated spectra of a fold's training cores, equal for all methods, and is
    scored on every annotated pixel of its validation cores. The report shows the table.
    """
    parser.add_argument("crossval", type=Path, metavar="DIR", help="the folder of `runner ssmunet crossval`")
    parser.add_argument("--methods", nargs="+", choices=[*METHODS], default=[*METHODS], help="default: all")
    parser.add_argument(
        "--pixels", type=int, default=PIXELS, help=f"spectra to learn from in each fold, as many of each class as "
        f"there are, default: {PIXELS}"
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the sample and of the methods, default: 0")
    options = parser.parse_args(words)
    if options.pixels < 1:
        raise BadInput(f"--pixels is {options.pixels}; it must be at least 1")
    if options.seed < 0:
        raise BadInput(f"--seed is {options.seed}; it must be 0 or more")
    experiment, runs = _folds(options.crossval)
    if {"forest", "svm"} & {*options.methods}:
        _sklearn("ensemble")  # before anything is read
    samples = _Samples(options.pixels, options.seed)
    project = _gather(runs, samples)
    found = {name: _Found() for name in options.methods}
    used = [
        _fold(run, samples, found, f"fold {number}/{len(runs)}", options.seed) for number, run in enumerate(runs, 1)
    ]
    spectra = " to ".join(f"{n:,}" for n in sorted({min(used), max(used)}))
    table = _table(experiment, project, found, f"trained on {spectra} spectra a fold, seed {options.seed}")
    print(f"\n{table.title}")
    for line in [table.columns, *table.rows]:
        print("  ".join(f"{cell:>30}" if n else f"{cell:<24}" for n, cell in enumerate(map(str, line))))
    print(f"report: {experiment.add_table(table)}")
    return 0


def _folds(path: Path) -> tuple[Any, list[Any]]:
    """Return a cross-validation, and one run of each of its folds."""
    import runner_core

    experiment = runner_core.open(path, "ssmunet")
    if not isinstance(experiment, runner_core.Experiment) or not experiment.summary.get("about", {}).get("folds"):
        raise BadInput(f"{path} is no cross-validation: `runner ssmunet crossval` makes one")
    if experiment.status != "done":
        raise BadInput(f"{path} is {experiment.status}: continue it, `runner ssmunet crossval --resume {path}`")
    folds = {str(run.settings["data.split"]): run for run in reversed(experiment.runs)}
    return experiment, [*folds.values()][::-1]


# ---------------------------------------------------------------- pixels


@dataclass
class _Samples:
    """Annotated spectra of each core, before what is fitted in a fold: `cores` (key → spectra (n, L), classes (n,)).

    A core gives at most a few times its even share of each class, so that all of them fit into memory.
    """

    pixels: int
    seed: int
    cores: dict[str, tuple[Array, Array]] = field(default_factory=dict)

    def add(self, key: str, spectra: Array, target: Array, classes: int, cores: int) -> None:
        """Draw from a core with `spectra` (H, W, L) and classes `target` (H, W), −1 for none."""
        rng = np.random.default_rng([self.seed, *key.encode()])
        most = -(-_SPARE * self.pixels // (classes * cores))
        places = [rng.permutation(np.flatnonzero(target == k))[:most] for k in range(classes)]
        drawn = np.sort(np.concatenate(places))
        self.cores[key] = spectra.reshape(-1, spectra.shape[-1])[drawn].astype(np.float32), target.ravel()[drawn]

    def of(self, keys: Sequence[str], classes: int) -> tuple[Array, Array]:
        """Return a stratified sample of these cores: an equal number of each class, as far as there are."""
        spectra, target = (np.concatenate(part) for part in zip(*(self.cores[key] for key in keys), strict=True))
        rng = np.random.default_rng(self.seed)
        left, kept = self.pixels, []
        for number, label in enumerate(sorted(range(classes), key=lambda k: int((target == k).sum()))):
            places = rng.permutation(np.flatnonzero(target == label))[: -(-left // (classes - number))]
            left -= len(places)
            kept.append(places)
        drawn = np.sort(np.concatenate(kept))
        return spectra[drawn], target[drawn]


def _gather(runs: Sequence[Any], samples: _Samples) -> SSMUNet:
    """Draw from every core once: those that validate in a fold, and those that train in all; return the project."""
    total = sum(1 for split in ("validation", "train") for _ in runs[0].records(split))
    for run, split in [*((run, "validation") for run in runs), (runs[0], "train")]:
        for project, record, cropped in run.records(split):
            if project.frozen is not None:
                raise BadInput(
                    "these networks learned from features (model.features), and classical methods from spectra"
                )
            if record.key not in samples.cores:
                target = project.combining().labels(record, cropped)
                samples.add(record.key, project._spectra(cropped.decoded), target, len(project.outputs), total)
    print(f"read {counted(len(samples.cores), 'core')}", flush=True)
    found: SSMUNet = project
    return found


def _fold(run: Any, samples: _Samples, found: Mapping[str, _Found], name: str, seed: int) -> int:
    """Train every method on a fold's training cores, score its validation cores; return the number of spectra used."""
    project, _, _ = next(run.records("validation"))
    classes, statistics = len(project.outputs), project.statistics
    operations, mean, std = operations_of(statistics), statistics["mean"], statistics["std"]

    def scaled(spectra: Array) -> Array:
        return np.asarray((applied(spectra, operations) - mean) / std, np.float32)

    spectra, target = samples.of([record.key for _, record, _ in run.records("train")], classes)
    trained: dict[str, Predict] = {}
    for method in found:
        trained[method] = METHODS[method].fit(scaled(spectra), target, classes, seed)
        print(f"{name}: {method} learned from {counted(len(target), 'spectrum', 'spectra')}", flush=True)
    for project, record, cropped in run.records("validation"):
        tissue = cropped.decoded.arrays["tissue"] > 0
        wanted = tissue if project.config.calls.positive else project.combining().labels(record, cropped) >= 0
        pixels = project._spectra(cropped.decoded)[wanted]
        parts = [scaled(pixels[start : start + _AT_ONCE]) for start in range(0, len(pixels), _AT_ONCE)]
        for method, own in found.items():
            probabilities = np.zeros((classes, *tissue.shape), np.float32)
            if parts:
                probabilities[:, wanted] = np.concatenate([trained[method](part) for part in parts]).T
            prediction = project._segmented(probabilities, tissue, np.empty(0), cropped.box)
            own.groups.append(record.group)
            own.keys.append(record.key)
            own.rows.append(dict(project.score(record, prediction)))
    return len(target)


# ---------------------------------------------------------------- methods


def _forest(spectra: Array, target: Array, classes: int, seed: int) -> Predict:
    forest = _sklearn("ensemble").RandomForestClassifier(
        _TREES, class_weight="balanced", min_samples_leaf=2, n_jobs=-1, random_state=seed
    )
    forest.fit(spectra, target)
    return lambda pixels: _spread(forest.predict_proba(pixels), forest.classes_, classes)


def _svm(spectra: Array, target: Array, classes: int, seed: int) -> Predict:
    """Return a linear support vector machine, one class against the rest; the class of the largest margin has all."""
    svm = _sklearn("svm").LinearSVC(C=0.01, class_weight="balanced", random_state=seed, max_iter=5000)
    svm.fit(spectra, target)
    return lambda pixels: _spread(np.eye(len(svm.classes_))[_ranked(svm, pixels)], svm.classes_, classes)


def _ranked(svm: Any, pixels: Array) -> Array:
    return np.searchsorted(svm.classes_, svm.predict(pixels))


def _cnn(spectra: Array, target: Array, classes: int, seed: int) -> Predict:
    """Return a network of three convolutions along the wavenumbers, with batch normalisation, and their mean."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        widths = (1, 16, 32, 64)
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Conv1d(before, after, 9, stride=2, padding=4), nn.BatchNorm1d(after), nn.ReLU()]
        network = nn.Sequential(
            *layers, nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Dropout(0.3), nn.Linear(256, classes)
        )
        x, y = torch.from_numpy(spectra)[:, None], torch.from_numpy(target)
        counts = torch.bincount(y, minlength=classes).float()
        weights = torch.where(counts > 0, len(y) / (counts.clamp(min=1) * (counts > 0).sum()), 0.0)
        steps = _EPOCHS * -(-len(y) // _BATCH)
        optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
        for _ in range(_EPOCHS):
            for part in torch.randperm(len(y)).split(_BATCH):
                if len(part) > 1 or len(y) == 1:  # batch normalisation needs two
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(network(x[part]), y[part], weights).backward()
                    optimizer.step()
                schedule.step()
    network.eval()

    def predict(pixels: Array) -> Array:
        with torch.no_grad():
            return np.asarray(network(torch.from_numpy(pixels)[:, None]).softmax(1).numpy())

    return predict


def _spread(probabilities: Array, there: Array, classes: int) -> Array:
    """Return probabilities of all classes, 0 of one that the training cores lack."""
    found = np.zeros((len(probabilities), classes), np.float32)
    found[:, there] = probabilities
    return found


def _sklearn(part: str) -> Any:
    try:
        return import_module(f"sklearn.{part}")
    except ImportError as error:
        raise BadInput(
            "forest and svm need the package scikit-learn: `uv pip install scikit-learn` adds it; --methods cnn needs "
            "no package"
        ) from error


@dataclass(frozen=True)
class _Method:
    title: str
    fit: Callable[[Array, Array, int, int], Predict]


METHODS = {
    "forest": _Method("random forest", _forest),
    "svm": _Method("linear SVM", _svm),
    "cnn": _Method("1-D CNN", _cnn),
}


# ---------------------------------------------------------------- result


@dataclass
class _Found:
    """Scores of a method, core by core."""

    keys: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    rows: list[dict[str, float]] = field(default_factory=list)


def _table(experiment: Any, project: SSMUNet, found: Mapping[str, _Found], what: str) -> Table:
    """Return the pooled scores of network, logistic regression and methods, with intervals over patients."""
    stored = json.loads((experiment.path / "scores.json").read_text("utf-8"))["records"]
    entries = {entry["record"]: entry for entry in stored}
    first = next(iter(found.values()))
    groups = {
        key: entries[key]["group"] if key in entries else g for key, g in zip(first.keys, first.groups, strict=True)
    }
    network = {key: entries[key]["scores"] for key in groups if key in entries}
    regression = {key: entries[key]["baseline"] for key in network if entries[key].get("baseline")}
    methods = {"network": network, "logistic regression": regression}
    methods |= {METHODS[name].title: dict(zip(own.keys, own.rows, strict=True)) for name, own in found.items()}
    measured = ("miou", "macro_f1", "accuracy")

    def pooled(rows: Mapping[str, Any], keys: Sequence[str], score: str) -> float:
        return scores.pooled([rows[key] for key in keys], project.outputs)[score]

    def less(rows: Mapping[str, Any], keys: Sequence[str]) -> float:
        return pooled(network, keys, "miou") - pooled(rows, keys, "miou")

    body: list[list[str | float]] = []
    for title, rows in methods.items():
        own = (
            [_with_interval(partial(pooled, rows, score=score), [*rows], groups) for score in measured] if rows else []
        )
        both = [key for key in rows if key in network]
        difference = "" if rows is network else _with_interval(partial(less, rows), both, groups, share=False)
        body += [[title, *own, difference]] if rows else []
    kind = project.config.data.group_by
    title = f"Classical methods on the same folds ({what}); 95 % intervals over {kind}s"
    return Table("baselines", title, ("method", *measured, "mIoU: network less method"), body)


def _with_interval(
    measure: Callable[[Sequence[str]], float], keys: list[str], groups: Mapping[str, str], share: bool = True
) -> str:
    names = sorted({groups[key] for key in keys})
    without = [measure([key for key in keys if groups[key] != name]) for name in names] if len(names) > 1 else []
    return calls.interval_text(measure(keys), without, share)
