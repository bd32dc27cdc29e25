"""A combination of settings under measurement, alive in its own process.

The process (`runner_core.tools.measure.worker`) trains for as many steps as requested, then waits. Several can be alive
at once and take turns, so that a machine with varying speed slows all of them alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self, TypeVar

from runner_core.contract import Json, Remedy
from runner_core.tools.measure.process import TrialFailed, WorkerProcess
from runner_core.training.assembly import TrainingSpec

_MOST_REST = 2.0
"""Seconds to wait for threads and processes that fill batches ahead."""


def rest() -> None:
    """Wait until threads and processes that fill batches ahead are idle, because other trials have their turn now."""
    until = time.monotonic() + _MOST_REST
    before = _processor_seconds()
    while time.monotonic() < until:
        time.sleep(0.02)
        now = _processor_seconds()
        if now - before < 0.005:
            return
        before = now


def _processor_seconds() -> float:
    """Return the processor time of this process and its children."""
    import psutil

    total, process = 0.0, psutil.Process()
    for one in [process, *process.children(recursive=True)]:
        with suppress(psutil.Error):
            used = one.cpu_times()
            total += used.user + used.system
    return total


SHARE_OF_RAM = 0.9
"""Share of the free RAM that a trial may take; a larger one is stopped before the machine stops others."""


@dataclass(frozen=True)
class Ready:
    """Facts that are known about a trial after its first step."""

    engine: str
    device: str
    """Name of the device."""
    kind: str
    """`Device.kind`."""
    device_total: int
    """Bytes of the device's memory; 0 if unknown."""
    threads: int | None
    """CPU threads of the framework; None if unknown."""
    precision: str
    cache: str
    """Form in which prepared arrays are kept."""
    set_bytes: int
    """Bytes of all prepared arrays; 0 if they are fetched as they are used."""
    batch: int
    """Samples of an optimizer step."""
    sample: Mapping[str, str]
    """Shape and type of a sample's arrays, by name."""
    steps_per_epoch: int
    samples_per_epoch: int
    block: int
    """Steps that go to the device at once."""
    lead: int
    """Largest number of steps before a turn's clock starts, from batches filled during other turns."""
    parameters: int | None
    """Number of the network's parameters; None if the engine does not show it."""
    seconds: float
    """Seconds from the start of the process to the end of the first step."""
    first_step_seconds: float
    """Seconds of the first step, with compilation."""
    loss: float
    """Loss of the first step."""
    host_bytes: int
    device_bytes: int
    notes: tuple[str, ...] = ()
    """Messages of the engine, for example about a micro-batch halved for lack of memory."""
    strategy: str = "single"
    """`Trainer.strategy`."""
    exchange: Mapping[str, Json] = field(default_factory=dict)
    """What several devices exchange in a step, by the name of the setting that decides it."""


@dataclass(frozen=True)
class Turn:
    """Steps in a row.

    `seconds` and `wait_seconds` (for data) cover the counted `samples`, without the lead-in. `losses` has every step,
    including the lead-in. `first` is the number of steps taken before, one of them by `start`.
    """

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


@dataclass(frozen=True)
class Doubt:
    """Why gradients cannot be trusted: they are wrong, or could not be compared."""

    kind: Literal["wrong", "unchecked"]
    text: str


class Trial:
    """Settings by dotted name over those of `base`; every method raises TrialFailed, which closes the trial.

    It is a context manager: the process ends with it, and with this process, however that ends.

    Args:
        base: The training.
        name: The trial's name.
        settings: The settings.
        memory_bytes: Own host memory (without mapped files) at which the process is stopped.
        timeout: Seconds that one call may take; None for no limit.
        say: Receives messages about caches that are built.
    """

    def __init__(
        self,
        base: TrainingSpec,
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
        """Process id, while it is alive."""
        assert self._process is not None
        return self._process.pid

    # ------------------------------------------------------------ what it can be asked for

    def start(self) -> Ready:
        """Start a training with these settings and take its first step; start again if it is alive."""
        begun = time.monotonic()
        self._open()
        found = self._ask("start", base=asdict(self.base), settings=self.settings)
        self.ready = _answer(Ready, {**found, "seconds": time.monotonic() - begun})
        return self.ready

    def prepare(self) -> None:
        """Build the cache of these settings, if it is missing, in a separate process.

        Its memory and time then do not count for a training.
        """
        self._open()
        self._ask("prepare", base=asdict(self.base), settings=self.settings)
        self.close()

    def profile(self, seconds: float) -> tuple[dict[str, Json], list[Remedy]]:
        """Return the results of a short profile of these settings (profile.json), and the remedies that it suggests.

        `seconds` is the time for the measured steps. The trial is closed afterwards.
        """
        self._open()
        found = self._ask("profile", base=asdict(self.base), settings=self.settings, seconds=seconds)
        self.close()
        return found["report"], [Remedy(**remedy) for remedy in found["fixes"]]

    def doubt(self) -> Doubt | None:
        """Compare the gradients of these settings with plain operations' as `verify-kernels` does.

        Returns None if they agree. The trial is closed after.
        """
        self._open()
        found = self._ask("gradients", base=asdict(self.base), settings=self.settings)
        self.close()
        return None if found is None else Doubt(**found)

    def steps(self, count: int) -> Turn:
        """Train for `count` steps (more if several go to the device at once), after a lead-in that is not counted.

        After the training's last step, a trial continues with the first one's samples and learning rate.
        """
        return _answer(Turn, self._ask("steps", count=count))

    def data(self, seconds: float) -> float:
        """Return the samples/s of the loader alone, over about `seconds`.

        Training continues with the batch at which it stopped. If samples are fetched, it continues with those that
        follow, so nothing waits for samples fetched already.
        """
        return float(self._ask("data", seconds=seconds))

    def network(self, count: int) -> float:
        """Return the seconds of a step over `count` steps that all use the training's first batch, without the loader.

        This changes the weights, so that later losses mean nothing.
        """
        return float(self._ask("network", count=count))

    def loss(self, count: int) -> float | None:
        """Return the seconds of the loss alone, forward and back to the network's output, over `count` runs.

        It is None if the engine cannot separate it from the network. This takes the network one step forward.
        """
        found = self._ask("loss", count=count)
        return None if found is None else float(found)

    def evaluate(self, samples: int) -> dict[str, float]:
        """Return loss, terms and metrics over the first `samples` samples of training, in evaluation mode.

        They come in whole batches of the base's size, without augmentation, with the current weights. Training is not
        affected.
        """
        return {name: float(value) for name, value in self._ask("evaluate", samples=samples).items()}

    def memory(self) -> tuple[int, int]:
        """Return the peak bytes so far: on the host (with worker processes), and on the device."""
        host, device = self._ask("memory")
        return int(host), int(device)

    def close(self) -> None:
        """End the process, so that its memory is free."""
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
        except BaseException:  # half an answer would be taken for the next answer
            self.close()
            raise


def _answer(kind: type[Answer], values: Mapping[str, Any]) -> Answer:
    notes: Sequence[str] = values.get("notes", ())
    known = {f.name for f in fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in known} | {"notes": tuple(notes)})
