"""Compare a training with the one that a card describes: data, versions, device, weights, scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from runner_core.base.text import counted
from runner_core.contract.records import Table
from runner_core.output.report.page import Block, Note, decimal_or_dash
from runner_core.tools.card.text import flat_versions, interval, shown_scores

Verdict = Literal["same bits", "same scores", "not reproduced"]


@dataclass(frozen=True)
class Sameness:
    """The differences between two trainings.

    Attributes:
        verdict: Whether the weights are the same bits, or at least the scores agree.
        different: What differs besides the result: data, versions, device. Empty if nothing does.
        scores: Name, the card's value, this training's value, and whether they agree.
    """

    verdict: Verdict
    different: list[str]
    scores: list[tuple[str, float, float | None, bool]]
    tolerance: float

    def blocks(self, card: Mapping[str, Any]) -> Iterator[Block]:
        """Yield the result for the screen."""
        for text in self.different or ["data, versions and device are those of the card"]:
            yield Note(text, "", "differs" if self.different else "same")
        intervals = {score["name"]: interval(score) for score in card["scores"]}
        rows = [
            [name, decimal_or_dash(was), intervals.get(name, ""), decimal_or_dash(now), "yes" if agrees else "NO"]
            for name, was, now, agrees in self.scores
        ]
        columns = ["score", "card", "its 95 % interval", "now", f"agrees within {self.tolerance:.0%} or the interval"]
        if rows:
            yield Table("", "", columns, rows)
        yield Note(_SAID[self.verdict], "", self.verdict)


_SAID: Mapping[Verdict, str] = {
    "same bits": "the trained weights equal the card's, bit for bit",
    "same scores": "the weights differ, and every score agrees with the card's",
    "not reproduced": "at least one score does not agree with the card's",
}


def compare(card: Mapping[str, Any], now: Mapping[str, Any], tolerance: float) -> Sameness:
    """Compare the facts of a training with those of a card.

    A score agrees if it lies within the card's interval, or if it differs by at most `tolerance` of the card's value.
    """
    scores = [*_scores(card, now, tolerance)]
    verdict: Verdict = "same scores" if scores and all(agrees for *_, agrees in scores) else "not reproduced"
    if card["weights"]["sha256"] == now["weights"]["sha256"]:
        verdict = "same bits"
    return Sameness(verdict, [*_different(card, now)], scores, tolerance)


def _scores(
    card: Mapping[str, Any], now: Mapping[str, Any], tolerance: float
) -> Iterator[tuple[str, float, float | None, bool]]:
    """Yield the scores of whole records, or the validation metrics if there are none."""
    found = {score["name"]: score["value"] for score in now["scores"]} or now["metrics"]
    wanted = shown_scores(card) or [
        {"name": name, "value": value, "low": None, "high": None} for name, value in card["metrics"].items()
    ]
    for score in wanted:
        was, value = score["value"], found.get(score["name"])
        if was is None:
            continue
        near = value is not None and abs(value - was) <= tolerance * abs(was)
        within = value is not None and score["low"] is not None and score["low"] <= value <= score["high"]
        yield score["name"], was, value, near or within


def _different(card: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    was, data = card["data"], now["data"]
    if was["identity"] and was["identity"] != data["identity"]:
        changed = sum(1 for name, digest in was["contents"].items() if data["contents"].get(name, digest) != digest)
        about = f"{counted(changed, 'training record')} of the same name with another content" if changed else (
            "labels, validation records or their preparation are not the card's"
        )  # fmt: skip
        yield f"data: {about}"
    versions, mine = flat_versions(card["versions"]), flat_versions(now["versions"])
    for name in sorted({*versions, *mine}):
        if versions.get(name) != mine.get(name):
            yield f"{name}: {versions.get(name, 'none')} in the card, {mine.get(name, 'none')} now"
    if card["device"] != now["device"]:
        yield f"device: {card['device']} in the card, {now['device']} now"
