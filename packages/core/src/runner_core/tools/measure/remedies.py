"""List what `tune` tries, without what cannot help in this run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from runner_core.contract import Json, Remedy
from runner_core.contract.project import Project
from runner_core.engines.usage import usable_cores
from runner_core.plugins.defaults import blocks_may_help
from runner_core.tools.measure.outcome import Case
from runner_core.tools.measure.trial import Ready

WAITS = 0.02
"""Share of time waiting for data below which nothing is tried against it."""
_SHARE_OF_DEVICE = 0.3
"""Share of the device's memory that the whole data set may take."""
_BETWEEN = ("validate.", "checkpoint.", "log.", "health.")
"""Sections of settings for work between steps."""

Settings = Mapping[str, Json]


@dataclass(frozen=True)
class Candidate:
    """A remedy, and a function that tells if it applies to the settings with the kept changes."""

    remedy: Remedy
    applies: Callable[[Settings], bool] = lambda settings: True

    @property
    def name(self) -> str:
        return self.remedy.name

    @property
    def case(self) -> Case:
        return Case(self.name, dict(self.remedy.settings), self.remedy.why, self.remedy.same)


@dataclass(frozen=True)
class LeftOut:
    """A remedy that is not tried, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Facts:
    """Inputs of the list: the project, the initial settings (flat), and the results and times of their trial."""

    project: Project
    settings: Settings
    ready: Ready
    wait_share: float
    step_seconds: float
    free_ram: int

    @property
    def torch(self) -> bool:
        return self.project.framework == "torch"

    @property
    def gpu(self) -> bool:
        return self.ready.kind != "cpu"


def systematic(facts: Facts) -> tuple[list[Candidate], list[LeftOut]]:
    """Return the candidates, in the order in which they mostly help on such a device, and those left out."""
    tried: list[Candidate] = []
    left: list[LeftOut] = []
    usual = (_data, _threads, _layout, _micro_batches, _blocks, _precision, _batch_size, _compilation)
    on_gpu = (_data, _precision, _layout, _compilation, _blocks, _batch_size, _micro_batches)
    for part in on_gpu if facts.gpu else usual:
        for found in part(facts):
            if isinstance(found, Candidate):
                tried.append(found)
            else:
                left.append(found)
    return tried, left


def with_remedies(remedies: Sequence[Remedy], tried: Sequence[Candidate]) -> tuple[list[Candidate], list[LeftOut]]:
    """Return the candidates with the remedies that a profile suggests first, and those left out.

    Remedies that are in the list are taken from it. Those that change nothing in the timed steps are left out.
    """
    first: list[Candidate] = []
    left: list[LeftOut] = []
    for remedy in remedies:
        if all(name.startswith(_BETWEEN) for name in remedy.settings):
            listed = ", ".join(f"{name} {value}" for name, value in remedy.settings.items())
            left.append(
                LeftOut(remedy.name, f"not in the steps that are timed; to have it, set {listed}: {remedy.why}")
            )
            continue
        same = [c for c in tried if remedy.settings.items() <= c.remedy.settings.items()]
        first.append(replace(same[0], remedy=replace(same[0].remedy, why=remedy.why)) if same else Candidate(remedy))
    taken = [dict(one.remedy.settings) for one in first]
    return [*first, *(c for c in tried if dict(c.remedy.settings) not in taken)], left


Found = Iterator[Candidate | LeftOut]


def _data(facts: Facts) -> Found:
    settings, cache = facts.settings, facts.ready.cache
    if facts.gpu and cache in ("memmap", "memory", "blosc2"):
        yield from _on_device(facts)
    if facts.wait_share < WAITS:
        share = f"{facts.wait_share:.1%} of the time goes by waiting for data: nothing to gain"
        yield LeftOut("workers, prefetch, another cache", share)
        return
    cores = usable_cores()
    for count in sorted({0, 1, 2, 4, min(8, cores)}):
        if count <= cores:
            text = f"{count} worker{'s' if count > 1 else ''}" if count else "no workers"
            yield Candidate(Remedy(text, {"train.workers": count}, "which processes fill the batches"))
    for ahead in (4, 8):
        remedy = Remedy(f"prefetch {ahead}", {"train.prefetch": ahead}, "more batches are kept ready")
        yield Candidate(remedy, partial(_looks_ahead, ahead))
    if cache in ("blosc2", "off"):
        yield Candidate(
            Remedy("cache as a memory map", {"cache.mode": "memmap"}, "nothing is unpacked or prepared again")
        )
    if cache != "memory" and settings["cache.mode"] != "stream":
        if 2 * facts.ready.set_bytes > facts.free_ram:
            yield LeftOut("cache in memory", "the set would take more than half of the memory that is free")
        else:
            yield Candidate(
                Remedy("cache in memory", {"cache.mode": "memory"}, "no page of the cache is read from disk")
            )


def _on_device(facts: Facts) -> Found:
    total = facts.ready.device_total
    name, why = "set on the GPU", "no batch is copied to the GPU"
    if facts.project.learning().augment is not None:
        yield LeftOut(name, "samples are augmented on the host")
    elif not total or facts.ready.set_bytes > _SHARE_OF_DEVICE * total:
        yield LeftOut(name, f"it would take more than {_SHARE_OF_DEVICE:.0%} of the GPU's memory")
    else:
        yield Candidate(Remedy(name, {"cache.mode": "device"}, why))


def _precision(facts: Facts) -> Found:
    now = facts.ready.precision
    why = f"a 16-bit number takes half of the room of {now}, and the device may compute in it faster"
    if now not in ("bfloat16", "float16"):
        yield Candidate(Remedy("bfloat16", {"precision.mode": "bfloat16"}, why))
    if facts.gpu and now == "float32":
        yield Candidate(
            Remedy("tf32", {"precision.mode": "tf32"}, "matrix products and convolutions round their inputs")
        )


def _layout(facts: Facts) -> Found:
    if not facts.torch:
        return
    other = "off" if facts.settings["train.channels_last"] == "on" else "on"
    remedy = Remedy(
        f"channels last {other}", {"train.channels_last": other}, "convolutions read memory in another order"
    )
    yield Candidate(remedy)


def _compilation(facts: Facts) -> Found:
    now = facts.settings["train.compile"]
    if now == "auto":
        now = "on" if facts.gpu and not facts.torch else "off"
    if not facts.torch and not facts.gpu and now == "off":
        yield LeftOut("compile on", "on a CPU, XLA takes minutes to compile and then computes slower")
        return
    other = "off" if now == "on" else "on"
    what = "operations are fused" if other == "on" else "nothing is compiled"
    yield Candidate(Remedy(f"compile {other}", {"train.compile": other}, what))


def _blocks(facts: Facts) -> Found:
    if facts.torch or facts.ready.block > 1:
        return
    if not blocks_may_help(facts.step_seconds):
        reason = f"a step takes {1000 * facts.step_seconds:.0f} ms: what surrounds it is little"
        yield LeftOut("steps per execution", reason)
        return
    remedy = Remedy("8 steps per execution", {"train.steps_per_execution": 8}, "several steps go to the device at once")
    yield Candidate(remedy)


def _micro_batches(facts: Facts) -> Found:
    now, batch = facts.settings["train.accumulate"], facts.ready.batch
    if not facts.project.learning().splittable:
        yield LeftOut("micro-batches", "the project's batches may not be cut (train.accumulate)")
        return
    for count in (1, 2, 4):
        if count != now and batch >= 2 * count:
            name = f"{count} micro-batches" if count > 1 else "no micro-batches"
            yield Candidate(
                Remedy(name, {"train.accumulate": count}, "less memory at a time may fit into faster memory")
            )


def _threads(facts: Facts) -> Found:
    cores = usable_cores()
    now = facts.ready.threads or cores
    for count in sorted({cores, max(1, cores // 2)} - {now}, reverse=True):
        remedy = Remedy(
            f"{count} thread{'s' if count > 1 else ''}", {"train.threads": count}, f"it computes with {now} now"
        )
        yield Candidate(remedy)


def _batch_size(facts: Facts) -> Found:
    """Yield doubled batch sizes, as long as they are kept, then half the size; the epoch's length stays the same."""
    batch, steps = facts.ready.batch, facts.settings["train.steps_per_epoch"]
    sizes = [2 * batch, 4 * batch, 8 * batch, batch // 2]
    for size in sizes:
        if not 1 <= size <= facts.ready.samples_per_epoch or (size < batch and batch % 2):
            continue
        settings: dict[str, Json] = {"train.batch_size": size}
        if steps is not None:
            settings["train.steps_per_epoch"] = max(1, round(steps * batch / size))
        remedy = Remedy(f"batch size {size}", settings, "samples share what a step costs", same=False)
        before = batch if size < batch else size // 2
        yield Candidate(remedy, partial(_has_batch, before))


def _looks_ahead(count: int, now: Settings) -> bool:
    return bool(now["train.workers"] > 0 and now["train.prefetch"] < count)


def _has_batch(size: int, now: Settings) -> bool:
    return bool(now["train.batch_size"] == size)
