"""What takes memory in a training: part by part, each with the setting that decides it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from runner_core.memory.asked import Asked, Facts

Place = Literal["host", "device", "disk", "cache"]
"""cache: the disk of `cache.dir`, where it is another one than the run's."""
Known = Literal["exact", "measured", "counted", "estimated", "at most"]
SURE = {"exact": 1.0, "measured": 0.8, "counted": 0.6, "estimated": 0.5, "at most": 0.0}
"""Share of a part that it takes at least, by how it is known: a run is refused where even these do not fit."""

_LIBRARIES = 100_000_000
"""What libraries take with the first step besides: threads, kernels that are made as they are needed."""
_WORKER = 80_000_000
"""A worker process: Python, NumPy, the project, no framework. Measured."""


@dataclass(frozen=True)
class Part:
    """`moment`: what is there in a step only, or while a checkpoint is written only, is not there together."""

    place: Place
    name: str
    bytes: int
    known: Known
    setting: str = ""
    moment: Literal["always", "step", "checkpoint"] = "always"


def parts(asked: Asked, facts: Facts) -> list[Part]:
    """Those that take anything, by place, in the order in which they come to be."""
    found = [*_host(asked, facts), *_network(asked, facts), *_batches(asked, facts), *_disk(asked, facts)]
    order = ("host", "device", "disk", "cache")
    return sorted((part for part in found if part.bytes > 0), key=lambda part: order.index(part.place))


def total(found: Sequence[Part], place: Place, least: bool = False) -> int:
    """Bytes at the moment that takes most; `least`: those that it takes even where the estimates are too high."""
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
    times = 1 if facts.on_gpu else facts.processes
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
    yield Part("host", "a checkpoint being written", footprint.checkpoint, "estimated", moment="checkpoint")


def _batches(asked: Asked, facts: Facts) -> Iterator[Part]:
    slots, several = facts.block + asked.prefetch + 1, facts.processes
    batch = asked.batch_size * facts.sample
    validation = (asked.validation_batch or asked.batch_size) * facts.validation_sample
    yield Part("host", "batches kept ready", several * slots * batch, "exact", "train.batch_size, train.prefetch")
    yield Part("host", "the same of validation", several * slots * validation, "exact", "validate.batch_size")
    if asked.workers:
        processes = asked.workers + (1 if facts.validation_sample else 0)
        yield Part("host", "worker processes", several * processes * _WORKER, "estimated", "train.workers")
    if facts.on_gpu and facts.footprint:
        yield Part("device", "the next batch", facts.block * batch, "exact", "train.batch_size")


def _disk(asked: Asked, facts: Facts) -> Iterator[Part]:
    """A checkpoint is written before an old one goes, and the best one is kept besides."""
    own_disk = "cache" in facts.has
    known: Known = "at most" if asked.cache == "stream" else "estimated"
    yield Part("cache" if own_disk else "disk", "cache of prepared data", facts.to_cache, known, "cache.dir")
    if facts.footprint:
        count = max(0, asked.keep + 2 - facts.kept)
        yield Part("disk", "checkpoints", count * facts.footprint.checkpoint, "exact", "checkpoint.keep")
