"""One combination of settings under measurement, alive in a process of its own.

The process does what a training does (`runner_core.measure.worker`) as far as it is told to: so many steps, then it
waits. Several can be alive at once and take turns, which is how a machine that is now fast and now slow is dealt with.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self, TypeVar

from runner_core.measure.process import TrialFailed, WorkerProcess
from runner_core.protocols import Fix, Json

__all__ = ["Base", "Ready", "Trial", "TrialFailed", "Turn"]


@dataclass(frozen=True)
class Base:
    """What all trials of a command share. `settings`: the resolved ones, by section, as JSON; `source`: the data, None
    for the phantom; `extensions`: those chosen where several provide a capability, `without` those switched off."""

    project: str
    preset: str
    source: str | None
    settings: Mapping[str, Json]
    extensions: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ready:
    """What is known of a trial once it has taken its first step."""

    engine: str
    device: str
    """Its name."""
    kind: str
    """cpu, cuda."""
    device_total: int
    """Bytes of its memory; 0: nobody knows."""
    threads: int | None
    """Of the CPU that the framework computes with; None: it does not say."""
    precision: str
    cache: str
    """How prepared arrays are kept."""
    set_bytes: int
    """Of all prepared arrays; 0 where they are fetched as they are used."""
    batch: int
    """Samples of an optimizer step."""
    sample: Mapping[str, str]
    """What one is made of, by name: shape and type."""
    steps_per_epoch: int
    samples_per_epoch: int
    block: int
    """Steps that go to the device at once."""
    lead: int
    """Steps at most that a turn begins with before its clock runs: batches that were filled while others had theirs."""
    parameters: int | None
    """Of the network; None where the engine does not show it."""
    seconds: float
    """From the start of the process to the end of the first step."""
    first_step_seconds: float
    """Of which the first step took: with compilation."""
    loss: float
    """Of the first step."""
    host_bytes: int
    device_bytes: int
    notes: tuple[str, ...] = ()
    """What the engine had to say: a micro-batch that was halved since memory ran out."""


@dataclass(frozen=True)
class Turn:
    """Steps in a row. `seconds` and `wait_seconds` (for data) are of the `samples` counted, without the lead-in;
    `losses` of every step, the lead-in included; `first`: steps that were taken before, of which `start` takes one."""

    seconds: float
    samples: int
    steps: int
    wait_seconds: float
    first: int
    losses: list[float] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    @property
    def per_step(self) -> float:
        return self.seconds / self.steps

    @property
    def per_sample(self) -> float:
        return self.seconds / self.samples


Answer = TypeVar("Answer", Ready, Turn)


class Trial:
    """Settings by dotted name over those of `base`. A context manager: the process ends with it, and with this process,
    however that ends. Every method raises TrialFailed, after which the trial is closed.

    `memory_bytes`: host memory of its own (without files that it maps) at which the process is ended. `timeout`:
    seconds that one call may take, None: as long as it takes. `say` is told of caches that are built.
    """

    def __init__(
        self,
        base: Base,
        name: str,
        settings: Mapping[str, Json],
        *,
        memory_bytes: int | None = None,
        timeout: float | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.base, self.name, self.settings = base, name, dict(settings)
        self.memory_bytes, self.timeout = memory_bytes, timeout
        self.ready: Ready | None = None
        self._say = say or (lambda text: None)
        self._process: WorkerProcess | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        """Of its process, while it is alive."""
        assert self._process is not None
        return self._process.pid

    # ------------------------------------------------------------ what it can be asked for

    def start(self) -> Ready:
        """Begin a training with these settings, and take its first step; once more, where it is alive already."""
        begun = time.monotonic()
        self._open()
        found = self._ask("start", base=asdict(self.base), settings=self.settings)
        self.ready = _made(Ready, {**found, "seconds": time.monotonic() - begun})
        return self.ready

    def prepare(self) -> None:
        """Build the cache of these settings, where it is missing, in a process that ends with that: what it takes is no
        training's memory, and none of its time."""
        self._open()
        self._ask("prepare", base=asdict(self.base), settings=self.settings)
        self.close()

    def profile(self, seconds: float) -> tuple[dict[str, Json], list[Fix]]:
        """What a short profile of these settings finds (profile.json), and the remedies that it speaks for. The trial
        is closed afterwards. `seconds`: of the steps that are measured."""
        self._open()
        found = self._ask("profile", base=asdict(self.base), settings=self.settings, seconds=seconds)
        self.close()
        return found["report"], [Fix(**fix) for fix in found["fixes"]]

    def steps(self, count: int) -> Turn:
        """Go on training for `count` steps (more, where several go to the device at once), after a lead-in that is not
        counted. A trial that comes to the training's last step goes on with the first one's samples and rate."""
        return _made(Turn, self._ask("steps", count=count))

    def data(self, seconds: float) -> float:
        """Samples/s of the loader alone, over about so many seconds. Training goes on with the batch it stood at; where
        samples are fetched, with those that come after: nothing waits for what was fetched already."""
        return float(self._ask("data", seconds=seconds))

    def network(self, count: int) -> float:
        """Seconds of a step, over `count` of them that all take the training's first batch: without the loader. Changes
        the weights, so that losses afterwards say nothing."""
        return float(self._ask("network", count=count))

    def loss(self, count: int) -> float | None:
        """Seconds of the loss alone, forward and back to the network's output, over `count` times; None where the
        engine cannot tell it from the network. Takes the network one step forward."""
        found = self._ask("loss", count=count)
        return None if found is None else float(found)

    def evaluate(self, samples: int) -> dict[str, float]:
        """Loss, terms and metrics over the first `samples` samples that training takes (whole batches of the base's
        size), in evaluation mode, not augmented, with the weights as they are. Training does not notice."""
        return {name: float(value) for name, value in self._ask("evaluate", samples=samples).items()}

    def memory(self) -> tuple[int, int]:
        """Bytes that it held at most until now: on the host (with its worker processes), and on the device."""
        host, device = self._ask("memory")
        return int(host), int(device)

    def close(self) -> None:
        """End the process. Its memory is free afterwards."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _open(self) -> None:
        self.close()
        self._process = WorkerProcess(self.memory_bytes, self._say)

    def _ask(self, what: str, **arguments: Json) -> Json:
        if self._process is None:
            raise TrialFailed(f"{self.name} is not running")
        try:
            return self._process.ask(what, arguments, self.timeout)
        except BaseException:  # half an answer would be taken for the next one's
            self.close()
            raise


def _made(kind: type[Answer], values: Mapping[str, Any]) -> Answer:
    notes: Sequence[str] = values.get("notes", ())
    known = {f.name for f in fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in known} | {"notes": tuple(notes)})
