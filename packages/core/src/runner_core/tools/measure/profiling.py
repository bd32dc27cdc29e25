"""Measure where the time of a run goes: training steps, half of them by part, and work between steps.

Plain and watched steps take turns, so that a machine with varying speed treats both alike. Unusual turns, which
something else disturbed, are left out of the means.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

from runner_core.base.errors import BadInput, OutOfSpace
from runner_core.base.resources import peak_host_memory
from runner_core.base.writing import full_disk
from runner_core.contract import HostBatch, Json, Remedy
from runner_core.contract.phases import OTHER, PARTS, Phases
from runner_core.contract.setup import Data, Setup
from runner_core.engines.usage import Cores, Gpu, GpuSampler
from runner_core.tools.measure.between import Between, Event
from runner_core.tools.measure.bound import bound, roofline
from runner_core.training.assembly import assemble

STEPS, SECONDS = 100, 120.0
_TURNS = 5
_LOADER_SECONDS = 2.0
_TRACED = 3
"""Number of steps in a trace; viewers do not open files with more."""

Say = Callable[[str], None]


def profile_run(
    setup: Setup,
    data: Data,
    *,
    steps: int = STEPS,
    seconds: float = SECONDS,
    at: float = 0.5,
    trace: Path | None = None,
    folder: Path | None = None,
    say: Say = lambda text: None,
) -> dict[str, Json]:
    """Profile some steps of a training, and return facts as JSON values.

    They are the content of profile.json and the `report` of the hook `runner_remedies`. The trainer is made anew and
    discarded.

    Args:
        setup: The training.
        data: From `open_data`; its samples are made if they do not exist yet.
        steps: Steps to measure, fewer if they would take longer than `seconds`.
        seconds: Time for the steps.
        at: Moment of the training (0…1), because some losses start late.
        trace: A folder for the framework's own trace.
        folder: Where a checkpoint is written to time it, and removed again; default: a temporary folder.
        say: Receives progress lines.

    The keys:

    - `parts`: seconds of a plain step, divided like watched ones, in order; `events` are spread over the steps between
    - `seconds`: a step with all of these, their sum
    - `step`: seconds of a plain training step
    - `covered`: the parts of watched steps over their time by the clock
    - `watching`: the time of a watched step over that of a plain one
    - `samples_per_second`
    - `first_step`: seconds
    - `loader`: samples per second of the loader alone
    - `host`: seconds until the host has started a GPU's work of a step
    - `losses`: by term, `seconds` and `gradient`
    - `work`: `operations`, `flops`, `bytes` of a step
    - `roofline`: seconds it would take at this machine's `limits`: `compute`, `bandwidth`, `latency`
    - `use`: of processor and GPU
    - `memory`: bytes, `host` and `device`
    - `memory_plan`
    - `bound`: data, compute, bandwidth or latency
    - `reason`: one sentence
    - `asked`: `seconds`
    - `took`: seconds of everything

    Raises BadInput, as training would.
    """
    if not 0 <= at <= 1:
        raise BadInput(f"--at {at}: a moment of the training, from 0 (the beginning) to 1 (the end)")
    begun = perf_counter()
    with ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="runner-profile-")))
        try:
            run = _Run(setup, data, at, place, say)
            stack.callback(run.parts.loaders.close)
            facts = run.profile(steps, seconds, place, trace, say)
            return facts | {"asked": seconds, "took": perf_counter() - begun}
        except OSError as error:
            if full_disk(error):
                raise OutOfSpace(
                    f"{place}: the disk is full; name a folder with room for a checkpoint (--out)"
                ) from error
            raise


def remedies(setup: Setup, facts: Mapping[str, Json]) -> list[Remedy]:
    """Return the changes that the core, the project and the extensions suggest, the most promising first."""
    found = setup.plugins.all("runner_remedies", project=setup.project, report=facts)
    return sorted(found, key=lambda remedy: -(remedy.saves or 0.0))


class _Run:
    """Takes the steps of a training from a moment on."""

    def __init__(self, setup: Setup, data: Data, at: float, place: Path, say: Say) -> None:
        self.parts = parts = assemble(setup, data, place, say)
        self.setup, self.data, self.trainer, self.cadence = setup, data, parts.trainer, parts.cadence
        phases = setup.engine.phases(self.trainer)
        if phases is None:
            parts.loaders.close()
            raise BadInput(f"the engine {setup.engine.name} cannot take its steps apart: nothing to profile")
        self.phases: Phases = phases
        epochs = setup.config.train.epochs
        self.step = min(int(epochs * at), epochs - 1) * self.cadence.steps_per_epoch
        self._batches = self._endless()

    def _endless(self) -> Iterator[HostBatch]:
        while True:
            epoch = self.step // self.cadence.steps_per_epoch
            yield from self.parts.loaders.training.batches(epoch)
            self.step %= self.cadence.steps

    def steps(self, count: int) -> int:
        """Train, and return how many samples that took."""
        taken = 0
        for _ in range(count):
            batch = next(self._batches)
            taken += batch.count
            self.trainer.train_step(batch, self.step)
            self.step += 1
        return taken

    def profile(self, steps: int, seconds: float, place: Path, trace: Path | None, say: Say) -> dict[str, Json]:
        phases, block, memory = self.phases, self.trainer.block, self.parts.memory
        first = self._timed(block)
        second = self._timed(block) / block
        batch = next(self._batches)
        kept = HostBatch(batch.arrays, batch.count, lambda: None)
        prepared = phases.prepare(kept, self.step)
        self.step += prepared
        batch.release()
        if trace is not None:
            self._trace(trace)
        wanted = max(2 * block, min(steps, int(seconds / max(second, 1e-6))))
        each = max(1, wanted // (2 * _TURNS) // block) * block
        head = self._head() | {"first_step": first, "memory_plan": memory and memory.json()}
        facts = head | self._measured(each, max(2, wanted // (2 * each)))
        facts["memory"] = {"host": peak_host_memory(), "device": self.trainer.peak_memory()}
        events = Between(self.parts, place).measure(phases.settle, say)
        facts["events"] = {name: asdict(event) for name, event in events.items()}
        facts["parts"] |= {name: event.per_step for name, event in events.items()}
        facts["parts"] = _in_order(facts["parts"], events)
        facts["seconds"] = facts["step"] + sum(event.per_step for event in events.values())
        facts["samples_per_second"] = facts["samples"] / facts["step"]
        facts["loader"] = self._loader()
        facts |= self._work(say)
        facts |= bound(facts)
        return facts

    # ------------------------------------------------------------ steps

    def _timed(self, count: int) -> float:
        self.phases.settle()
        begun = perf_counter()
        self.steps(count)
        self.phases.settle()
        return perf_counter() - begun

    def _measured(self, each: int, turns: int) -> dict[str, Any]:
        """Measure `turns` turns, each with `each` plain and `each` watched steps."""
        phases, plain, watched = self.phases, list[dict[str, float]](), list[dict[str, float]]()
        with ExitStack() as stack:
            gpu = Gpu.find(self.setup.device)
            sampler = None if gpu is None else stack.enter_context(GpuSampler(gpu, 0.1))
            cores = Cores()
            for _ in range(turns):
                phases.settle()
                begun = perf_counter()
                taken = self.steps(each)
                phases.settle()
                plain.append({"seconds": (perf_counter() - begun) / each, "samples": taken / each})
                phases.watch()
                begun = perf_counter()
                self.steps(each)
                phases.settle()
                wall = perf_counter() - begun
                parts = _summed(phases.take())
                watched.append({part: value / each for part, value in parts.items()} | {"": wall / each})
                self.trainer.read_log()
            use = {"cpu": asdict(cores.take()), "gpu": None}
            if sampler is not None and (seen := sampler.take()) is not None:
                use["gpu"] = asdict(seen)
        usual, parts = _usual(plain, "seconds"), _usual(watched, "")
        wall = parts.pop("")
        taken_apart = sum(parts.values())
        covered = taken_apart / wall
        parts[OTHER] = parts.get(OTHER, 0.0) + max(0.0, wall - taken_apart)
        as_plain = usual["seconds"] / sum(parts.values())
        parts = {part: as_plain * value for part, value in parts.items()}
        return {
            "steps": 2 * each * turns,
            "step": usual["seconds"],
            "samples": usual["samples"],
            "parts": parts,
            "covered": covered,
            "watching": wall / usual["seconds"],
            "use": use,
        }

    def _trace(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        block = self.trainer.block
        with self.phases.trace(folder):
            self.steps(max(1, _TRACED // block) * block)

    def _loader(self) -> float:
        """Return the samples per second of the loader alone, after the batches that were already filled."""
        ready = self.setup.config.train.prefetch + self.trainer.block + 1
        for _ in range(ready if self.setup.config.train.workers else 0):
            next(self._batches).release()
        begun = perf_counter()
        taken = batches = 0
        while batches < 2 or (batches < 1000 and perf_counter() - begun < _LOADER_SECONDS):
            batch = next(self._batches)
            taken, batches = taken + batch.count, batches + 1
            batch.release()
        return taken / (perf_counter() - begun)

    # ------------------------------------------------------------ what a step is made of

    def _work(self, say: Say) -> dict[str, Any]:
        """Return what is counted, and what this machine reaches; less if memory does not suffice."""
        phases, precision = self.phases, self.setup.precision.compute
        batch = next(self._batches)
        found: dict[str, Any] = {"losses": {}, "work": None, "roofline": None, "host": None}
        try:
            if self.setup.device.kind != "cpu":
                found["host"] = min(phases.host_seconds(batch, self.step) for _ in range(3))
            costs = phases.losses(batch, _fullest(self.step, self.cadence.steps))
            found["losses"] = {name: asdict(cost) for name, cost in costs.items()}
            operations = phases.operations(batch, self.step)
        except BadInput as error:
            say(f"note: the operations of a step could not be counted: {error}")
            operations = []
        batch.release()
        limits = phases.limits(precision)
        found["limits"] = asdict(limits)
        if operations:
            flops, size = (sum(numbers) for numbers in zip(*operations, strict=True))
            found["work"] = {"operations": len(operations), "flops": flops, "bytes": size}
            found["roofline"] = asdict(roofline(operations, limits, precision))
        return found

    def _head(self) -> dict[str, Any]:
        setup, config = self.setup, self.setup.config
        device = asdict(setup.device)
        device["name"] = setup.device.name or platform.processor() or platform.machine()
        return {
            "project": setup.name,
            "preset": setup.preset,
            "data": "phantom" if setup.source is None else str(setup.source),
            "engine": setup.engine.name,
            "versions": setup.engine.versions(),
            "device": device,
            "precision": setup.precision.compute,
            "batch_size": config.train.batch_size,
            "accumulate": config.train.accumulate,
            "workers": config.train.workers,
            "steps_per_epoch": self.cadence.steps_per_epoch,
            "at_step": self.step,
        }


def _summed(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {part: sum(step.get(part, 0.0) for step in steps) for part in {part for step in steps for part in step}}


def _usual(turns: Sequence[Mapping[str, float]], by: str) -> dict[str, float]:
    """Return means over the middle half of the turns, ordered by one of their numbers.

    The means add up as the numbers of one turn do.
    """
    ordered = sorted(turns, key=lambda turn: turn[by])
    aside = len(ordered) // 4
    middle = ordered[aside : len(ordered) - aside]
    names = {name for turn in middle for name in turn}
    return {name: sum(turn.get(name, 0.0) for turn in middle) / len(middle) for name in names}


def _in_order(parts: Mapping[str, float], events: Mapping[str, Event]) -> dict[str, float]:
    return {part: parts.get(part, 0.0) for part in (*PARTS, *events, OTHER)}


def _fullest(step: int, steps: int) -> int:
    """Return a step from `step` on in which terms that are computed every 10, 50 or 100 steps are computed too.

    Returns `step` if the training has no such step.

    >>> _fullest(7, 1000), _fullest(7, 60), _fullest(7, 9)
    (99, 49, 7)
    """
    return next((n for every in (100, 50, 10) if (n := step // every * every + every - 1) < steps), step)
