"""Calls of whole cores and patients from the classes of their pixels: malignant or not, for example."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from runner_core import BadInput, Between, Table, did_you_mean, first_few

from runner_ssmunet import scores
from runner_ssmunet.labels import MISSED, UNANNOTATED

Array = np.ndarray[Any, np.dtype[Any]]
Score = Mapping[str, float]

VALUE, POSITIVE, ANNOTATED = "call", "call_positive_pixels", "call_pixels"
"""Scores of a core: its call's value, its annotated pixels of positive classes, and of all classes of interest."""


SETTINGS = tuple(f"calls.{name}" for name in ("positive", "negative", "rule", "patient", "threshold"))
"""Settings that say what is judged, and leave the network alone."""


@dataclass
class CallsConfig:
    """Calls of whole cores and patients in `evaluate` and `crossval`."""

    positive: tuple[str, ...] = ()
    """Names of the classes that make a core or a patient positive (malignant: tumour necrosis). Empty: no calls."""
    negative: tuple[str, ...] = ()
    """Names of the classes that stand against them. Empty: all others. Classes of neither list do not count."""
    rule: Literal["mean", "majority"] = "mean"
    """What a core's value is. mean: the positive classes' share of the mean probabilities of its tissue pixels;
    majority: the share of pixels called positive, among those called positive or negative."""
    patient: Literal["mean", "any"] = "mean"
    """mean: a patient has the mean of the cores' values; any: the highest, and one positive core makes it positive."""
    threshold: Annotated[float, Between(0, 1)] = 0.5
    """Value from which a core or a patient is called positive. AUC does not depend on it."""


def sides(config: CallsConfig, names: Sequence[str]) -> tuple[Array, Array]:
    """Return the numbers of the positive and of the negative outputs. Raises BadInput for a name that is no class."""
    for setting, chosen in (("positive", config.positive), ("negative", config.negative)):
        if wrong := [name for name in chosen if name not in names]:
            hint = did_you_mean(wrong[0], names)
            raise BadInput(f"calls.{setting} names {wrong[0]}, which is no class{hint}; there are {first_few(names)}")
    others = config.negative or tuple(name for name in names if name not in (*config.positive, UNANNOTATED))
    if config.positive and not others:
        raise BadInput("calls.positive names every class: none is left to stand against them")
    return tuple(np.array([names.index(name) for name in chosen], int) for chosen in (config.positive, others))  # type: ignore[return-value]


def core_scores(config: CallsConfig, names: Sequence[str], probabilities: Array, tissue: Array, truth: Array) -> Score:
    """Return a core's value from `probabilities` (K, H, W), and its annotated pixels; empty without `positive`.

    `truth` (H, W) holds the outputs' numbers, −1 for unannotated. The value is NaN for a core without tissue, or with
    no pixel of the classes of interest.
    """
    if not config.positive:
        return {}
    positive, negative = sides(config, names)
    pixels = probabilities[:, tissue].astype(np.float32)
    if config.rule == "mean":
        each = pixels.mean(1) if pixels.size else np.zeros(len(names))
    else:
        each = np.bincount(pixels.argmax(0), minlength=len(names)) if pixels.size else np.zeros(len(names))
    found, against = float(each[positive].sum()), float(each[negative].sum())
    marked, of = (int(np.isin(truth, part).sum()) for part in (positive, np.concatenate([positive, negative])))
    value = found / (found + against) if found + against > 0 else float("nan")
    return {VALUE: value, POSITIVE: float(marked), ANNOTATED: float(of)}


def tables(config: CallsConfig, groups: Sequence[str], rows: Sequence[Score], kind: str) -> Iterator[Table]:
    """Yield the calls' scores for cores and patients with intervals over patients, and each patient's call.

    `kind` is what a group is: patient, slide or core. Cores whose classes of interest nobody annotated have no true
    call, and count nowhere.
    """
    known = [(g, row) for g, row in zip(groups, rows, strict=True) if _is_known(row)]
    if not config.positive or not known:
        return
    patients = sorted({group for group, _ in known})
    by_group = {group: _Cases.of([row for g, row in known if g == group]) for group in patients}
    levels = [("cores", by_group)]
    if kind != "core":
        levels.append((f"{kind}s", {group: cases.joined(config.patient) for group, cases in by_group.items()}))
    body = [_level(name, cases, config.threshold) for name, cases in levels]
    what = f"Calls: {', '.join(config.positive)} against {', '.join(config.negative) or 'all other classes'}"
    title = f"{what}; 95 % intervals over {kind}s" if kind != "core" else f"{what}; 95 % intervals"
    yield Table("calls", title, ("", "number", "positive", "AUC", "sensitivity", "specificity", "accuracy"), body)
    if kind != "core":
        lines = [_line(group, cases, levels[1][1][group], config.threshold) for group, cases in by_group.items()]
        yield Table("called", f"Call of each {kind}", (kind, "cores", "value", "called", "annotated as"), lines)


def confusion_table(groups: Sequence[str], rows: Sequence[Score], names: Sequence[str], kind: str) -> Table:
    """Return the share of each true class that was taken for each class, with 95 % intervals over patients."""
    members = [np.array([group == one for group in groups]) for one in sorted(set(groups))]
    cells = np.stack([scores.matrix(row, names) for row in rows])
    whole, without = cells.sum(0), [cells[~own].sum(0) for own in members]

    def cell(row: int, column: int) -> str:
        return _text(lambda counts: _ratio(counts[row, column], counts[row].sum()), whole, without)

    body = [[name, *(cell(row, column) for column in range(len(names) + 1))] for row, name in enumerate(names)]
    title = f"Confusion: share of each true class (rows) by what it was taken for, 95 % intervals over {kind}s"
    return Table("confusion-shares", title, ("true class", *names, MISSED), body)


# ---------------------------------------------------------------- inside


@dataclass(frozen=True)
class _Cases:
    """Values of cases and whether they are positive in truth."""

    values: Array
    truth: Array

    @classmethod
    def of(cls, rows: Sequence[Score]) -> _Cases:
        return cls(
            np.array([row[VALUE] for row in rows]), np.array([2 * row[POSITIVE] >= row[ANNOTATED] for row in rows])
        )

    @classmethod
    def together(cls, parts: Sequence[_Cases]) -> _Cases:
        if not parts:
            return cls(np.empty(0), np.empty(0, bool))
        return cls(np.concatenate([p.values for p in parts]), np.concatenate([p.truth for p in parts]))

    def joined(self, rule: str) -> _Cases:
        """Return the case of all these cores together; equal numbers of positive and negative cores are positive."""
        if rule == "any":
            return _Cases(np.array([self.values.max()]), np.array([self.truth.any()]))
        return _Cases(np.array([self.values.mean()]), np.array([2 * self.truth.sum() >= len(self.truth)]))

    def auc(self) -> float:
        """Return the chance that a positive case has a higher value than a negative one, half for a tie."""
        high, low = self.values[self.truth][:, None], self.values[~self.truth]
        return _ratio(float((high > low).sum() + 0.5 * (high == low).sum()), high.size * low.size)

    def right(self, threshold: float, truth: bool | None) -> float:
        """Return the share of cases called rightly, of those with this truth, or of all."""
        right = (self.values >= threshold) == self.truth
        return _ratio(float(right.sum()), right.size) if truth is None else self._of(right, self.truth == truth)

    @staticmethod
    def _of(right: Array, chosen: Array) -> float:
        return _ratio(float(right[chosen].sum()), int(chosen.sum()))


def _is_known(row: Score) -> bool:
    value, annotated = row.get(VALUE), row.get(ANNOTATED)
    return value is not None and bool(annotated) and np.isfinite(value)


def _level(name: str, by_group: Mapping[str, _Cases], threshold: float) -> list[str | float]:
    """Return a row of the table: scores of all cases with intervals over groups."""
    parts = [*by_group.values()]
    whole = _Cases.together(parts)
    without = [_Cases.together(parts[:n] + parts[n + 1 :]) for n in range(len(parts))]
    measures: tuple[Callable[[_Cases], float], ...] = (
        _Cases.auc,
        lambda cases: cases.right(threshold, True),
        lambda cases: cases.right(threshold, False),
        lambda cases: cases.right(threshold, None),
    )
    texts = [_text(measure, whole, without) for measure in measures]
    return [name, len(whole.values), int(whole.truth.sum()), *texts]


def _line(group: str, cores: _Cases, patient: _Cases, threshold: float) -> list[str | float]:
    value = float(patient.values[0])
    names = {True: "positive", False: "negative"}
    return [group, len(cores.values), value, names[value >= threshold], names[bool(patient.truth[0])]]


def interval_text(value: float, without: Sequence[float], share: bool = True) -> str:
    """Return a set's score with its 95 % interval as text; `without` is the score without each group.

    A `share` stays between 0 and 1, and has no interval at either end.
    """
    from runner_core import group_interval

    if not np.isfinite(value):
        return "–"
    low, high = group_interval(value, without) if not share or 0 < value < 1 else (np.nan, np.nan)
    if not (np.isfinite(low) and np.isfinite(high)):
        return f"{value:.3f}"
    low, high = (max(low, 0), min(high, 1)) if share else (low, high)
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


def _text(measure: Callable[[Any], float], whole: Any, without: Sequence[Any]) -> str:
    return interval_text(measure(whole), [measure(part) for part in without])


def _ratio(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole else float("nan")
