"""Health rules of self-supervised training, whose losses fall even if everything collapses.

The main sign is `teacher_information` (`facts`). It is 0 if the teacher answers the same to every crop, whether that is
one prototype (the loss falls to 0) or all alike (it stays at ln K). In trials, as shares of its maximum ln 2B nats:
small networks that learn 3 … 30 %, from the first steps on; without centring or sharpening 0.001 … 0.1 % within 50
steps. A network whose blocks begin as the identity (LayerScale 1e-5) is at 0 too until they take part. So only a run
that was above `INFORMED` and fell is stopped; others are warned of when the learning rate has warmed up. If the answers
fall to a few prototypes instead of one, all crops together (information + entropy) show it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from runner_core import Finding, HealthEvent, HealthRule, Json

from runner_dinocell.config import CellConfig

INFORMED, SAME, COLLAPSED = 0.05, 0.01, 0.001
"""Shares of ln 2B: a teacher that distinguishes crops, hardly does, and no longer does."""
FEW = 1 / 3
"""Share of ln 2B: all answers together have less entropy if the crops share a handful of prototypes."""
ALIKE, LINE, NEAR = 0.01, 1.5, 0.01
"""Below these spread, rank and neighbours' distance, embeddings are constant, on a line, or on top of each other."""
UNLEARNED = 0.01
"""Share of ln K: a loss within this distance of ln K was not learned."""
LEVELS = 64
"""Fewest plausible grey values. Cell Painting's 16-bit images have 180 to 1500 in a channel; squeezed into 8 bits, 1 to
14."""
LAST = 5
"""Lines of the log that judge the end of a training."""
SOON, LATE = 50, 1000
"""Steps that a symptom must last: a collapse takes dozens; losses may stay at ln K for hundreds."""

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Symptom:
    """A symptom in the log: what is `seen`, for how many `steps` before it is reported, and advice.

    `seen` returns a few words, or None. `warm`: only once the learning rate has warmed up; `after`: only once this was
    seen as well.
    """

    name: str
    level: Literal["warning", "error"]
    steps: int
    seen: Callable[[Facts], str | None]
    advice: str
    warm: bool = True
    after: Callable[[Facts], bool] | None = None


class Lasting:
    """A symptom that lasts from log line to log line, reported once per episode."""

    def __init__(self, symptom: Symptom) -> None:
        self.name = symptom.name
        self._symptom = symptom
        self.memory: dict[str, Json] = {"line": 0, "since": None, "told": False, "rate": 0.0, "ready": False}

    def observe(self, event: HealthEvent) -> Finding | None:
        if event.moment != "log":
            return None
        memory, symptom = self.memory, self._symptom
        before, memory["line"] = memory["line"], event.step
        seen = symptom.seen(event.facts) if self._ready(event.facts) else None
        if seen is None:
            memory["since"], memory["told"] = None, False
            return None
        if memory["since"] is None:
            memory["since"] = before
        lasts = event.step - memory["since"]
        if memory["told"] or lasts < symptom.steps:
            return None
        memory["told"] = True
        text = f"for {lasts} steps {seen}. {symptom.advice}" if symptom.steps else f"{seen}. {symptom.advice}"
        return Finding(self.name, symptom.level, text)

    def _ready(self, facts: Facts) -> bool:
        """Return whether the learning rate has begun to fall and what must come first was seen; true stays true."""
        memory, symptom = self.memory, self._symptom
        falls = facts["learning_rate"] < memory["rate"]
        memory["rate"] = max(memory["rate"], facts["learning_rate"])
        if not memory["ready"]:
            first = symptom.after is None or symptom.after(facts)
            memory["ready"] = first and (falls or not symptom.warm)
        return bool(memory["ready"])


class Sharper:
    """Warn at the first step if the teacher is not sharper than the student; depends on the settings alone."""

    name = "teacher temperature"

    def __init__(self, config: CellConfig) -> None:
        self._config = config.loss

    def observe(self, event: HealthEvent) -> Finding | None:
        loss = self._config
        if event.moment != "first_step" or loss.teacher_temperature < loss.student_temperature:
            return None
        text = (
            f"loss.teacher_temperature {loss.teacher_temperature:g} is not below loss.student_temperature "
            f"{loss.student_temperature:g}: the teacher's answers are no sharper than the student's, which learns to "
            "say nothing. DINOv2 has 0.07 and 0.1"
        )
        return Finding(self.name, "warning", text)


class Untaught:
    """Note at the end if the image-level loss never left ln K.

    Short trainings end before `losses at ln K` warns.
    """

    name = "image-level loss"

    def __init__(self, config: CellConfig) -> None:
        self._limit = UNLEARNED * math.log(config.model.prototypes)
        self.memory: dict[str, Json] = {"dino_margin": [], "ibot_margin": []}

    def observe(self, event: HealthEvent) -> Finding | None:
        if event.moment == "log":
            for name, last in self.memory.items():
                if name in event.facts:
                    self.memory[name] = [*last, event.facts[name]][-LAST:]
        if event.moment != "end" or not self._at_limit("dino_margin"):
            return None
        learned = self.memory["ibot_margin"] and not self._at_limit("ibot_margin")
        rest = "what was learned comes from iBOT" if learned else "and nothing else did"
        return Finding(self.name, "note", f"the image-level loss ended at ln K: DINO taught nothing, {rest}")

    def _at_limit(self, name: str) -> bool:
        return max(self.memory[name], default=math.inf) < self._limit


def rules(config: CellConfig) -> Sequence[HealthRule]:
    """Return new health rules for a run."""
    return [Sharper(config), Untaught(config), *(Lasting(symptom) for symptom in symptoms(config))]


def symptoms(config: CellConfig) -> list[Symptom]:
    most, chance_loss = math.log(2 * config.train.batch_size), math.log(config.model.prototypes)
    recipe = "Look at loss.centring, loss.teacher_temperature and teacher.momentum, or lower train.learning_rate"
    return [
        Symptom(
            "collapse", "error", SOON, _answers_the_same(COLLAPSED * most), recipe, warm=False,
            after=lambda facts: facts.get("teacher_information", 0.0) > INFORMED * most,
        ),
        Symptom("teacher says nothing", "warning", SOON, _answers_the_same(SAME * most), recipe),
        Symptom("few prototypes", "warning", SOON, _shares_few(FEW * most), recipe, warm=False),
        Symptom("embeddings alike", "warning", SOON, _alike, "Raise loss.koleo, or lower train.learning_rate"),
        Symptom("losses at ln K", "warning", LATE, _unlearned(chance_loss), recipe),
        Symptom(
            "grey levels", "warning", 0, _few_levels,
            "Were 16-bit images squeezed into 8 bits? `runner dinocell check` lists the files", warm=False,
        ),
    ]  # fmt: skip


def _answers_the_same(least: float) -> Callable[[Facts], str | None]:
    def seen(facts: Facts) -> str | None:
        information = facts.get("teacher_information", math.inf)
        if information >= least:
            return None
        entropy, loss = facts.get("teacher_entropy", math.nan), facts.get("dino", math.nan)
        return (
            f"the teacher has answered the same to every crop (teacher_information {information:.2g} nats, of "
            f"entropy {entropy:.3g}), whatever the loss says (dino {loss:.3g})"
        )

    return seen


def _shares_few(least: float) -> Callable[[Facts], str | None]:
    def seen(facts: Facts) -> str | None:
        together = facts.get("teacher_information", math.inf) + facts.get("teacher_entropy", math.inf)
        if together >= least:
            return None
        return f"the teacher has answered all crops with {math.exp(together):.2g} prototypes"

    return seen


def _alike(facts: Facts) -> str | None:
    limits = {"feature_spread": ALIKE, "feature_rank": LINE, "neighbour_distance": NEAR}
    below = [f"{name} {facts[name]:.2g}" for name, limit in limits.items() if facts.get(name, math.inf) < limit]
    return f"all crops have had nearly the same embedding ({', '.join(below)})" if below else None


def _unlearned(chance_loss: float) -> Callable[[Facts], str | None]:
    def seen(facts: Facts) -> str | None:
        names = [name for name in ("dino", "ibot") if facts.get(f"{name}_margin", math.inf) < UNLEARNED * chance_loss]
        if not names:
            return None
        return f"{' and '.join(names)} stood at ln K = {chance_loss:.3g}, where a student is that knows nothing"

    return seen


def _few_levels(facts: Facts) -> str | None:
    levels = facts.get("grey_levels", math.inf)
    return f"images have {levels:.3g} grey values in the channel that has fewest" if levels < LEVELS else None
