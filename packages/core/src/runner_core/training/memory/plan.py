"""The memory plan of a training: what it takes on host, device and disk, and what is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from runner_core.base.errors import OutOfSpace
from runner_core.base.files import size_text
from runner_core.base.text import aligned, counted
from runner_core.config import RunConfig
from runner_core.config.values import flat
from runner_core.contract import Json
from runner_core.contract.setup import Data, Setup
from runner_core.contract.team import Team
from runner_core.output.runfolder import RUNS
from runner_core.training.memory.survey import Facts, survey


@dataclass(frozen=True)
class Asked:
    """Settings that decide how much memory a training takes and that a refusal may name."""

    batch_size: int
    accumulate: int
    prefetch: int
    workers: int
    cache: str
    """The mode that `cache.mode` resolved to."""
    keep: int
    validation_batch: int | None
    background: bool = False

    @staticmethod
    def of(config: RunConfig, cache: str) -> Asked:
        train = config.train
        return Asked(
            batch_size=train.batch_size,
            accumulate=max(1, train.accumulate),
            prefetch=train.prefetch,
            workers=train.workers,
            cache=cache,
            keep=max(1, config.checkpoint.keep),
            validation_batch=config.validate.batch_size,
            background=config.checkpoint.background,
        )

    @property
    def micro(self) -> int:
        """Samples per micro-batch."""
        return -(-self.batch_size // self.accumulate)

    def with_changes(self, **changed: int | str) -> Asked:
        return replace(self, **changed)  # type: ignore[arg-type]


Place = Literal["host", "device", "disk", "cache"]
"""The place "cache" is the disk of `cache.dir` if that is not the run's disk."""
Known = Literal["exact", "measured", "counted", "estimated", "at most"]
SURE = {"exact": 1.0, "measured": 0.8, "counted": 0.6, "estimated": 0.5, "at most": 0.0}
"""Least share of a part's estimate that it really takes, by how the estimate is known.

A run is refused if even these shares do not fit.
"""

_LIBRARIES = 100_000_000
"""Bytes that libraries take with the first step: threads, and kernels compiled on demand."""
_WORKER = 80_000_000
"""Bytes of a worker process (Python, NumPy, the project, no framework); measured."""


@dataclass(frozen=True)
class Part:
    """A part of the memory.

    Parts whose `moment` is "step" and parts whose `moment` is "checkpoint" are not in memory at the same time.
    """

    place: Place
    name: str
    bytes: int
    known: Known
    setting: str = ""
    moment: Literal["always", "step", "checkpoint"] = "always"


def parts(asked: Asked, facts: Facts) -> list[Part]:
    """Return the parts above 0 bytes, by place, in the order in which they are allocated."""
    found = [*_host(asked, facts), *_network(asked, facts), *_batches(asked, facts), *_disk(asked, facts)]
    order = ("host", "device", "disk", "cache")
    return sorted((part for part in found if part.bytes > 0), key=lambda part: order.index(part.place))


def total(found: Sequence[Part], place: Place, least: bool = False) -> int:
    """Return the bytes in use at the peak; `least` counts only what is taken even if the estimates are too high."""
    sums = dict.fromkeys(("always", "step", "checkpoint"), 0.0)
    for part in found:
        if part.place == place:
            sums[part.moment] += part.bytes * (SURE[part.known] if least else 1.0)
    return round(sums["always"] + max(sums["step"], sums["checkpoint"]))


def _host(asked: Asked, facts: Facts) -> Iterator[Part]:
    several = facts.processes
    if facts.program:
        program = max(0, facts.program - facts.counted) + (_LIBRARIES if facts.footprint else 0)
        yield Part("host", "program and libraries", several * program, "estimated" if several > 1 else "measured")
    if asked.cache == "memory":
        yield Part("host", "data set in memory", several * facts.plain, "exact", "cache.mode")
    if asked.cache == "device" and not facts.on_gpu:
        yield Part("host", "data set on the device", facts.plain, "exact", "cache.mode")


def _network(asked: Asked, facts: Facts) -> Iterator[Part]:
    footprint = facts.footprint
    if footprint is None:
        return
    place: Place = "device" if facts.on_gpu else "host"
    times = 1 if facts.on_gpu else facts.processes * facts.devices
    if facts.on_gpu:
        yield Part("device", "driver and other processes", footprint.held, "measured")
        if asked.cache == "device":
            yield Part("device", "data set on the device", facts.plain, "exact", "cache.mode")
    yield Part(place, "weights", times * footprint.weights, "exact")
    yield Part(place, "average of the weights", times * footprint.average, "exact", "train.ema")
    yield Part(place, "optimizer", times * footprint.optimizer, "exact")
    yield Part(place, "gradients", times * footprint.gradients, "exact", moment="step")
    if footprint.how != "unknown":
        settings = "train.batch_size, train.accumulate" if asked.accumulate > 1 else "train.batch_size"
        yield Part(
            *(place, "activations of a step", times * footprint.step(asked.micro), footprint.how, settings, "step")
        )
    if asked.background:  # the copy is kept from checkpoint to checkpoint
        name, setting = "a copy to write checkpoints from", "checkpoint.background"
        yield Part("host", name, footprint.checkpoint, "estimated", setting)
    else:
        yield Part("host", "a checkpoint being written", footprint.checkpoint, "estimated", moment="checkpoint")


def _batches(asked: Asked, facts: Facts) -> Iterator[Part]:
    slots, several = facts.block + asked.prefetch + 1, facts.processes
    batch = asked.batch_size * facts.sample
    validation = (asked.validation_batch or asked.batch_size) * facts.validation_sample
    ring = several * slots * facts.devices * batch
    yield Part("host", "batches kept ready", ring, "exact", "train.batch_size, train.prefetch")
    yield Part("host", "the same of validation", several * slots * validation, "exact", "validate.batch_size")
    if asked.workers:
        processes = asked.workers + (1 if facts.validation_sample else 0)
        yield Part("host", "worker processes", several * processes * _WORKER, "estimated", "train.workers")
    if facts.on_gpu and facts.footprint:
        yield Part("device", "the next batch", facts.block * batch, "exact", "train.batch_size")


def _disk(asked: Asked, facts: Facts) -> Iterator[Part]:
    """Yield the cache and the checkpoints.

    A new checkpoint is written before an old one is removed, and the best one is kept in addition.
    """
    own_disk = "cache" in facts.has
    known: Known = "at most" if asked.cache == "stream" else "estimated"
    yield Part("cache" if own_disk else "disk", "cache of prepared data", facts.to_cache, known, "cache.dir")
    if facts.footprint:
        count = max(0, asked.keep + 2 - facts.kept)
        yield Part("disk", "checkpoints", count * facts.footprint.checkpoint, "exact", "checkpoint.keep")


_ROOM = 0.95
"""Largest share of the available memory that a remedy may use."""


def fits(asked: Asked, facts: Facts, place: Place) -> bool:
    return total(parts(asked, facts), place) <= _ROOM * facts.has[place]


def remedies(asked: Asked, facts: Facts, place: Place, *, splittable: bool, recompute: str) -> list[str]:
    """Return remedies that are each enough alone, the cheapest first; empty if none is known.

    `recompute` is the project's setting that keeps fewer activations, if it is off. How much it saves is not known in
    advance.
    """
    single = [text for change, text in _changes(asked, facts, place, splittable) if fits(change, facts, place)]
    network = place == "device" or (place == "host" and not facts.on_gpu)
    if recompute and network:
        single.append(f"try {recompute}, which keeps fewer activations and computes them again")
    return single


def accumulate_that_fits(asked: Asked, facts: Facts, place: Place) -> int | None:
    """Return the fewest micro-batches with which the same batch fits, or None if not even single samples fit."""

    def enough(micro: int) -> bool:
        return fits(asked.with_changes(accumulate=-(-asked.batch_size // micro)), facts, place)

    micro = _largest(enough, asked.micro - 1)
    return None if micro is None else -(-asked.batch_size // micro)


def _changes(asked: Asked, facts: Facts, place: Place, splittable: bool) -> Iterator[tuple[Asked, str]]:
    if place == "cache":
        return
    if place == "disk":
        if keep := _largest(lambda n: fits(asked.with_changes(keep=n), facts, place), asked.keep - 1):
            yield asked.with_changes(keep=keep), f"set checkpoint.keep to {keep}"
        return
    if asked.cache == ("memory" if place == "host" else "device"):
        yield asked.with_changes(cache="memmap"), "set cache.mode to memmap, which leaves the data on the disk"
    if splittable and (parted := accumulate_that_fits(asked, facts, place)):
        yield asked.with_changes(accumulate=parted), f"set train.accumulate to {parted}: micro-batches learn the same"
    if batch := _largest(lambda n: fits(_smaller(asked, n), facts, place), asked.batch_size - 1):
        rest = " (and validate.batch_size)" if (asked.validation_batch or 0) > batch else ""
        yield _smaller(asked, batch), f"set train.batch_size to {batch} or less{rest}"
    if place == "host" and asked.workers:
        yield asked.with_changes(workers=0), "set train.workers to 0"
    if place == "host" and asked.background:
        yield asked.with_changes(background=False), "set checkpoint.background to false: training waits for each"
    if place == "host" and asked.prefetch:
        yield (
            asked.with_changes(prefetch=0),
            f"set train.prefetch to 0, instead of {counted(asked.prefetch, 'batch', 'batches')}",
        )


def _smaller(asked: Asked, batch: int) -> Asked:
    """Return the settings with smaller batches, also for validation, and with `accumulate` no larger than the batch."""
    validation = asked.validation_batch
    changed = asked.with_changes(batch_size=batch, accumulate=min(asked.accumulate, batch))
    return changed if validation is None else changed.with_changes(validation_batch=min(validation, batch))


def _largest(enough: Callable[[int], bool], most: int) -> int | None:
    """Return the largest number from 1 to `most` for which `enough` holds, or None.

    If `enough` holds for a number, it must hold for all smaller ones.
    """
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if enough(middle) else (low, middle - 1)
    return low or None


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
    """Parts of the memory, and a refusal if they do not fit.

    `has` holds the available bytes by place. `refusal` says why training is impossible and which settings help.
    """

    COLUMNS = ("where", "part", "takes", "known", "setting")

    parts: Sequence[Part]
    has: Mapping[str, int]
    refusal: str | None = None
    warnings: tuple[str, ...] = ()

    def needs(self, place: Place) -> int:
        """Return the bytes in use at the peak."""
        return total(self.parts, place)

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Rows of a table with `COLUMNS`: the parts of each place, then their total and the available memory."""
        found: list[tuple[str, ...]] = []
        for place, title in _TITLES.items():
            own = [part for part in self.parts if part.place == place]
            found += [(title, p.name, size_text(p.bytes), p.known, p.setting) for p in own]
            if own:
                has = size_text(self.has[place]) if place in self.has else "?"
                found.append((title, "at most at once", size_text(self.needs(place)), "", f"of {has} free"))
        return found

    def line(self) -> str:
        """Return one line that covers all places."""
        shown = [
            f"{title} {size_text(self.needs(place))} of {size_text(self.has[place])}"
            for place, title in _TITLES.items()
            if place in self.has and self.needs(place)
        ]
        return f"memory: {', '.join(shown)} free"

    def lines(self) -> list[str]:
        """Return the table for a screen, followed by the remarks."""
        return [*aligned([self.COLUMNS, *self.rows]), *self.remarks()]

    def remarks(self) -> list[str]:
        lines = [f"WARNING: {text}" for text in self.warnings]
        return [*lines, f"ERROR: {self.refusal}"] if self.refusal else lines

    def refuse(self, team: Team) -> None:
        """Raise OutOfSpace in all processes of a training if it does not fit for one of them."""
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
    """Plan the memory of a training on `data`, whose samples exist already.

    A step of a few samples is tried if the engine supports it; generators and buffers are restored afterwards.

    Args:
        setup: The training.
        data: Its data.
        trainer: The engine's trainer; None makes one, unless `network` is False.
        folder: The folder of the run.
        network: False leaves the network out and imports no framework.
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
    """Return the message about a place, and whether it refuses the training; None if there is room."""
    learning, has, found = setup.project.learning(), facts.has[place], parts(asked, facts)
    recompute = "" if flat(setup.config).get(learning.recompute) else learning.recompute
    if facts.footprint is not None and facts.footprint.too_large and place == "device":
        ways = [f"try {recompute}"] if recompute else []
        ways.append("use a smaller model or smaller samples")
        return f"not even the fewest samples that can be tried fit into the device's memory: {', or '.join(ways)}", True
    needs = total(found, place)
    if needs <= has:
        return None
    ways = remedies(asked, facts, place, splittable=learning.splittable, recompute=recompute)
    ways = ways or [_LAST.get(place, "use a smaller model or smaller samples")]
    largest = sorted((p for p in found if p.place == place), key=lambda p: -p.bytes)[:3]
    told = ", ".join(f"{p.name} {size_text(p.bytes)}" for p in largest)
    text = (
        f"this training takes about {size_text(needs)} of {_NOUNS[place]} ({told}), {size_text(has)} are free: "
        + ", or ".join(ways)
    )
    # Training splits a GPU's batch by itself if that learns the same: only the attempt is lost.
    cut = place == "device" and learning.splittable and accumulate_that_fits(asked, facts, place) is not None
    return text, total(found, place, least=True) > has and not cut
