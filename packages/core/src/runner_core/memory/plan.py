"""The memory plan of a training: what it takes on the host, on the device and on the disk, and what there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runner_core._errors import OutOfSpace
from runner_core._files import size_text
from runner_core._text import aligned
from runner_core.config.values import flat
from runner_core.memory.asked import Asked, Facts
from runner_core.memory.parts import Part, Place, parts, total
from runner_core.memory.remedy import accumulate_that_fits, remedies
from runner_core.memory.survey import survey
from runner_core.protocols import Json
from runner_core.runfolder import RUNS
from runner_core.setup import Data, Setup
from runner_core.team import Team

_TITLES: Mapping[Place, str] = {"host": "RAM", "device": "device", "disk": "disk", "cache": "disk of the cache"}
_NOUNS: Mapping[Place, str] = {
    "host": "RAM",
    "device": "the device's memory",
    "disk": "the run's disk",
    "cache": "the disk of the cache",
}
_LAST: Mapping[Place, str] = {
    "disk": "name a folder on another disk with --run-dir",
    "cache": "set cache.dir to another disk",
}


@dataclass(frozen=True)
class MemoryPlan:
    """`has`: bytes by place; `refusal`: why this cannot be trained, and the settings with which it can."""

    COLUMNS = ("where", "part", "takes", "known", "setting")

    parts: Sequence[Part]
    has: Mapping[str, int]
    refusal: str | None = None
    warnings: tuple[str, ...] = ()

    def needs(self, place: Place) -> int:
        """Bytes at the moment that takes most."""
        return total(self.parts, place)

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Of a table with `COLUMNS`: the parts, and below those of a place what they come to and what there is."""
        found: list[tuple[str, ...]] = []
        for place, title in _TITLES.items():
            own = [part for part in self.parts if part.place == place]
            found += [(title, p.name, size_text(p.bytes), p.known, p.setting) for p in own]
            if own:
                has = size_text(self.has[place]) if place in self.has else "?"
                found.append((title, "at most at once", size_text(self.needs(place)), "", f"of {has} free"))
        return found

    def line(self) -> str:
        """All places in one."""
        shown = [
            f"{title} {size_text(self.needs(place))} of {size_text(self.has[place])}"
            for place, title in _TITLES.items()
            if place in self.has and self.needs(place)
        ]
        return f"memory: {', '.join(shown)} free"

    def lines(self) -> list[str]:
        """The table, for a screen, with what is to be said of it."""
        return [*aligned([self.COLUMNS, *self.rows]), *self.remarks()]

    def remarks(self) -> list[str]:
        told = [f"WARNING: {text}" for text in self.warnings]
        return [*told, f"ERROR: {self.refusal}"] if self.refusal else told

    def refuse(self, team: Team) -> None:
        """Raises OutOfSpace, in all of a training's processes, where it does not fit for one of them."""
        for refusal in filter(None, team.every(self.refusal)):
            raise OutOfSpace(refusal)

    def json(self) -> dict[str, Json]:
        return {
            "parts": [asdict(part) for part in self.parts],
            "needs": {place: self.needs(place) for place in _TITLES if self.needs(place)},
            "has": dict(self.has),
            "refusal": self.refusal,
            "warnings": list(self.warnings),
        }


def plan(
    setup: Setup, data: Data, *, trainer: Any | None = None, folder: Path | None = None, network: bool = True
) -> MemoryPlan:
    """Of a training on `data`, whose samples are made already. `trainer`: the engine's; None: one is made, unless
    `network` is False: then nothing is said of the network, and no framework is imported. `folder`: of the run.

    A step of a few samples is tried where the engine does that; generators and buffers are afterwards as before.
    """
    if trainer is None and network:
        trainer = setup.engine.trainer(setup, data, 1)
    facts = survey(setup, data, trainer, RUNS if folder is None else folder)
    mode = data.plan.mode if data.plan is not None else setup.config.cache.mode
    asked = Asked.of(setup.config, "device" if data.store.device else mode)
    found = parts(asked, facts)
    refusal: str | None = None
    warnings: list[str] = []
    for place in _TITLES:
        if place not in facts.has:
            continue
        told = judged(setup, asked, facts, place)
        if told is not None and told[1] and refusal is None:
            refusal = told[0]
        elif told is not None:
            warnings.append(told[0])
    return MemoryPlan(found, facts.has, refusal, tuple(warnings))


def judged(setup: Setup, asked: Asked, facts: Facts, place: Place) -> tuple[str, bool] | None:
    """What is to be said of a place, and whether the training is refused for it. None: there is room."""
    project, has, found = setup.project, facts.has[place], parts(asked, facts)
    recompute = project.recompute if project.recompute and not flat(setup.config).get(project.recompute) else ""
    if facts.footprint is not None and facts.footprint.too_large and place == "device":
        ways = [f"try {recompute}"] if recompute else []
        ways.append("use a smaller model or smaller samples")
        return f"not even the fewest samples that can be tried fit into the device's memory: {', or '.join(ways)}", True
    needs = total(found, place)
    if needs <= has:
        return None
    ways = remedies(asked, facts, place, splittable=project.splittable, recompute=recompute)
    ways = ways or [_LAST.get(place, "use a smaller model or smaller samples")]
    largest = sorted((p for p in found if p.place == place), key=lambda p: -p.bytes)[:3]
    told = ", ".join(f"{p.name} {size_text(p.bytes)}" for p in largest)
    text = (
        f"this training takes about {size_text(needs)} of {_NOUNS[place]} ({told}), {size_text(has)} are free: "
        + ", or ".join(ways)
    )
    # A GPU's batch is cut by itself where that learns the same: all that is lost is the attempt.
    cut = place == "device" and project.splittable and accumulate_that_fits(asked, facts, place) is not None
    return text, total(found, place, least=True) > has and not cut
