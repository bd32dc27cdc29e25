"""Measure the parts of a Keras trainer's steps.

All that the device does in a step is one compiled function, which cannot contain clocks. So functions that end earlier
(after augmentation, network, loss, gradients) are compiled. The additional time of each is its part's share of the
whole step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from runner_core.contract import HostBatch, Progress, Step, Tensors
from runner_core.contract.phases import (
    AUGMENT,
    BACKWARD,
    FORWARD,
    LOSS,
    OPTIMIZER,
    OTHER,
    WAIT,
    Limits,
    LossCost,
    Operation,
    unnoticed,
)
from runner_core.contract.project import Project
from runner_core.engines.device import chunks
from runner_core.engines.keras.backend import Backend, Function
from runner_core.engines.keras.learning import Learning, host_arrays, moment_of
from runner_core.engines.keras.network import Bound

if TYPE_CHECKING:
    from runner_core.engines.keras.trainer import KerasTrainer


_FEWEST, _MOST, _SECONDS = 4, 60, 6.0
"""Least and largest number of runs of each function, and the seconds for all of them."""
_LOSS_SECONDS = 90.0
"""Seconds after which no further term is compiled by itself."""
_LOSS_TIMES = 10
"""Number of runs of each term when it is timed."""


class KerasPhases:
    """`Phases` for Keras; `whole` is the compiled training step (arrays, moment, rate)."""

    def __init__(self, trainer: KerasTrainer, learning: Learning, backend: Backend, xla: bool, whole: Function) -> None:
        self._trainer, self._learning, self._backend, self._xla, self._whole = trainer, learning, backend, xla, whole
        self._shares: dict[str, float] = {OPTIMIZER: 1.0}
        """Share of each part in the device's work of a step."""
        self._shapes: list[tuple[tuple[int, ...], str]] = []
        """Shapes and dtypes of the network's outputs, from which the loss is computed."""
        self._steps: list[dict[str, float]] = []
        self._mark = 0.0

    # ------------------------------------------------------------ steps

    def prepare(self, batch: HostBatch, step: int) -> int:
        backend, learning = self._backend, self._learning
        tensors, moment = self._given(batch, step)
        rate = np.float32(learning.base_rate)
        parts = -(-batch.count // learning.size)
        until: dict[str, Callable[[], Any]] = {
            OTHER: self._timed(lambda arrays, moment: moment, tensors, moment),
            AUGMENT: self._timed(learning.prepared, tensors, moment),
            FORWARD: self._timed(lambda *given: self._stepped(*given)[1], tensors, moment),
            LOSS: self._timed(lambda *given: self._stepped(*given)[0].loss, tensors, moment),
            BACKWARD: self._timed(learning.trial, tensors, moment),
            OPTIMIZER: lambda: self._whole(tensors, moment, rate),
        }
        until[FORWARD]()
        if not self._shapes:  # `step` reaches into the network, so network and loss cannot be separated
            del until[FORWARD]
        seconds = self._usual(until)
        augment = seconds[AUGMENT]
        if parts > 1:  # up to the loss, only a micro-batch was computed
            for part in (FORWARD, LOSS):
                if part in seconds:
                    seconds[part] = augment + parts * (seconds[part] - augment)
        self._shares = _shares(seconds)
        backend.free()
        return 0

    def watch(self) -> None:
        self._steps, self._trainer.phase = [], self._clock
        self.settle()
        self._mark = perf_counter()

    def take(self) -> list[dict[str, float]]:
        self.settle()
        self._trainer.phase = unnoticed
        steps, self._steps = self._steps, []
        for step in steps:
            if (device := step.pop(OPTIMIZER, None)) is not None:
                step |= {part: share * device for part, share in self._shares.items()}
        return steps

    def _clock(self, part: str) -> None:
        self.settle()
        now = perf_counter()
        if part == WAIT or not self._steps:
            self._steps.append({})
        self._steps[-1][part] = self._steps[-1].get(part, 0.0) + now - self._mark
        self._mark = now

    def settle(self) -> None:
        self._backend.settle()

    def host_seconds(self, batch: HostBatch, step: int) -> float:
        tensors, moment = self._given(batch, step)
        self.settle()
        begun = perf_counter()
        self._whole(tensors, moment, np.float32(self._learning.base_rate))
        return perf_counter() - begun

    # ------------------------------------------------------------ what a step is made of

    def loss_seconds(self, batch: HostBatch, step: int, count: int) -> float | None:
        tensors, moment = self._given(batch, step)
        learning = self._learning
        bound = Bound(learning.network, training=True)
        given = learning.project, bound, learning.prepared(tensors, moment), self._progress(step)
        return loss_seconds(*given, count, self._backend, self._xla)

    def losses(self, batch: HostBatch, step: int) -> dict[str, LossCost]:
        """Return the cost of each term with its gradient at the network's output.

        Each term is computed by itself from existing outputs, because a difference of two whole steps would be noise.
        """
        if not self._shapes:
            return {}
        learning = self._learning
        tensors, moment = self._given(batch, step)
        parts, begun = -(-batch.count // learning.size), perf_counter()
        names = ["loss"]
        few = self._few(learning.prepared(tensors, moment))
        progress = self._progress(step)
        found: dict[str, LossCost] = {}
        for name in names:
            gradient = _GradientNorm(self, name, names)
            run = self._backend.compiled(gradient, [*learning.variables, *gradient.shifts], self._xla)
            norm = float(keras.ops.convert_to_numpy(run(tensors, moment)))
            term: Any = _Term(learning.project, name)
            bound = Bound(learning.network, training=True)
            seconds = loss_seconds(term, bound, few, progress, _LOSS_TIMES, self._backend, self._xla)
            if seconds is not None:
                found[name] = LossCost(parts * seconds, norm, True)
            if perf_counter() - begun > _LOSS_SECONDS:
                break
        return found

    def operations(self, batch: HostBatch, step: int) -> list[Operation]:
        tensors, moment = self._given(batch, step)
        learning, parts = self._learning, -(-batch.count // self._learning.size)
        rate = np.float32(learning.base_rate)
        if parts == 1:
            return self._backend.operations(learning, (tensors, moment, rate))
        return parts * self._backend.operations(learning, (self._few(tensors), moment, rate))

    def limits(self, precision: str) -> Limits:
        return limits(self._backend, precision)

    @contextmanager
    def trace(self, folder: Path) -> Iterator[None]:
        """Write a trace for TensorBoard's profiler plugin."""
        with self._backend.trace(folder):
            yield
            self.settle()

    # ------------------------------------------------------------ traced

    def _stepped(self, arrays: Tensors, moment: Any, shifts: Sequence[Any] = ()) -> tuple[Any, list[Any]]:
        """Return the result of the project's `step` for a micro-batch, and the network's outputs in it."""
        learning = self._learning
        few = self._few(learning.prepared(arrays, moment))
        network = _Listening(learning.network, shifts)
        ops = keras.ops
        progress = Progress(ops.cast(moment[0], "float32"), learning.steps, ops.cast(moment[1], "float32"))
        made = learning.project.step(network, few, progress)
        self._shapes = [(tuple(t.shape), keras.backend.standardize_dtype(t.dtype)) for t in network.outputs]
        return made, network.outputs

    # ------------------------------------------------------------ timing

    def _few(self, tensors: Tensors) -> Tensors:
        """Return the samples of one micro-batch."""
        size = self._learning.size
        return {name: tensor[:size] if len(tensor.shape) else tensor for name, tensor in tensors.items()}

    def _given(self, batch: HostBatch, step: int) -> tuple[Tensors, Any]:
        moment = moment_of(step, self._progress(step).epoch, self._learning.config.seed)
        return host_arrays(batch.arrays, self._backend), moment

    def _progress(self, step: int) -> Progress:
        steps = self._learning.steps
        return Progress(step, steps, step // max(1, steps // self._learning.config.epochs))

    def _timed(self, function: Function, *arguments: Any) -> Callable[[], Any]:
        run = self._backend.compiled(function, self._learning.variables, self._xla)
        return lambda: run(*arguments)

    def _usual(self, work: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
        """Return the usual seconds of each function, which take turns: the lower quartile.

        Slower runs were disturbed by something else.
        """
        taken: dict[str, list[float]] = {name: [] for name in work}
        for run in work.values():  # traced and compiled
            run()
        self.settle()
        end, rounds = perf_counter() + _SECONDS, 0
        while rounds < _FEWEST or (rounds < _MOST and perf_counter() < end):
            for name, run in work.items():
                begun = perf_counter()
                run()
                self.settle()
                taken[name].append(perf_counter() - begun)
            rounds += 1
        return {name: float(np.quantile(times, 0.25)) for name, times in taken.items()}


class _Term:
    """A project whose loss is one of its terms."""

    def __init__(self, project: Project, name: str) -> None:
        self._project, self._name = project, name

    def step(self, model: Any, batch: Tensors, progress: Progress) -> Step:
        made = self._project.step(model, batch, progress)
        return made._replace(loss={"loss": made.loss, **made.terms}[self._name])


class _GradientNorm:
    """Norm of a term's gradient at the network's output, computed with respect to zeros that are added there."""

    def __init__(self, phases: KerasPhases, name: str, names: list[str]) -> None:
        self._phases, self._name, self._names = phases, name, names
        self.shifts = [
            keras.Variable(keras.ops.zeros(shape, dtype), dtype=dtype, trainable=False, name=f"shift_{n}")
            for n, (shape, dtype) in enumerate(phases._shapes)
        ]

    def __call__(self, arrays: Tensors, moment: Any) -> Any:
        learning, ops = self._phases._learning, keras.ops

        def term() -> tuple[Any, tuple[()]]:
            step = self._phases._stepped(arrays, moment, self.shifts)[0]
            terms = {"loss": step.loss, **step.terms}
            self._names += [name for name in terms if name not in self._names]
            return ops.cast(terms[self._name], "float32") + 0.0 * ops.sum(ops.cast(self.shifts[0], "float32")), ()

        gradients, _ = self._phases._backend.gradients(term, self.shifts, learning.variables)
        squares = [ops.sum(ops.square(ops.cast(g, "float32"))) for g in gradients if g is not None]
        return ops.sqrt(sum(squares))


class _Listening(Bound):
    """A network in training mode that keeps its outputs; `shifts` are added to them."""

    def __init__(self, network: keras.Layer, shifts: Sequence[Any]) -> None:
        super().__init__(network, training=True)
        self._shifts = list(shifts)
        self.outputs: list[Any] = []

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        output = super().__call__(*inputs, **options)
        flat = keras.tree.flatten(output)
        begin = len(self.outputs)
        if self._shifts:
            flat = [t + s for t, s in zip(flat, self._shifts[begin : begin + len(flat)], strict=True)]
            output = keras.tree.pack_sequence_as(output, flat)
        self.outputs += flat
        return output


def _shares(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the share of each part in the total time, from the seconds at the end of each part.

    A part's time is the difference to the part before. If noise makes an end earlier than the one before, both become
    one.
    """
    levels: list[tuple[float, int]] = []
    for end in seconds.values():
        level = end, 1
        while levels and levels[-1][0] > level[0]:
            other = levels.pop()
            count = other[1] + level[1]
            level = (other[0] * other[1] + level[0] * level[1]) / count, count
        levels.append(level)
    ends = [end for end, count in levels for _ in range(count)]
    return {part: (end - before) / ends[-1] for part, before, end in zip(seconds, [0.0, *ends], ends, strict=False)}


def loss_seconds(
    project: Project, bound: Bound, tensors: Tensors, progress: Progress, count: int, backend: Backend, xla: bool
) -> float | None:
    """Return the mean seconds of `project.step` and its gradient back to the network's outputs, over `count` runs.

    `tensors` is the result of `on_device`. Returns None if the step computes its loss from anything other than results
    of calling the network or its layers. The network runs once, in training mode.
    """
    tape = _Tape()
    played: Any = _Played(bound, tape)
    project.step(played, tensors, progress)
    if not tape.answers:
        return None
    tape.recording = False

    def step(tensors: Tensors) -> Any:
        tape.rewind()
        gradients, loss = backend.gradients(
            lambda: (project.step(played, tensors, progress).loss,) * 2, tape.answers, ()
        )
        return [loss, *(gradient for gradient in gradients if gradient is not None)]

    compiled = backend.compiled(step, tape.answers, xla)
    if len(_settled(compiled(tensors))) < 2:
        return None
    begun = perf_counter()
    for _ in range(count):
        found = compiled(tensors)
    _settled(found)
    return (perf_counter() - begun) / count


class _Tape:
    """Outputs of the network's calls in one step, in order; each tensor is kept in a variable of `answers`."""

    def __init__(self) -> None:
        self.recording = True
        self.answers: list[keras.Variable] = []
        self._outputs: list[Any] = []
        self._coming: Iterator[Any] = iter(())

    def play(self, call: Callable[[], Any]) -> Any:
        if self.recording:
            self._outputs.append(keras.tree.map_structure(self._keep, call()))
            output = self._outputs[-1]
        else:
            output = next(self._coming)
        return keras.tree.map_structure(_value, output)

    def rewind(self) -> None:
        self._coming = iter(self._outputs)

    def _keep(self, tensor: Any) -> Any:
        if not keras.ops.is_tensor(tensor) or "float" not in keras.backend.standardize_dtype(tensor.dtype):
            return tensor
        self.answers.append(keras.Variable(tensor, dtype=tensor.dtype, name=f"answer_{len(self.answers)}"))
        return self.answers[-1]


class _Played:
    """A network, or a layer or method of one, that returns recorded outputs when it is called."""

    def __init__(self, real: Any, tape: _Tape) -> None:
        self._real, self._tape = real, tape

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        return self._tape.play(lambda: self._real(*inputs, **options))

    def get_layer(self, *which: Any, **options: Any) -> Any:
        return _Played(self._real.get_layer(*which, **options), self._tape)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        return _Played(found, self._tape) if callable(found) else found


def _value(kept: Any) -> Any:
    return kept.value if isinstance(kept, keras.Variable) else kept


def _settled(tensors: list[Any]) -> list[Any]:
    """Return the tensors once the device has computed them."""
    for tensor in tensors:
        np.asarray(keras.ops.convert_to_numpy(keras.ops.reshape(tensor, (-1,))[:1]))
    return tensors


_CHAIN = 200


def limits(backend: Backend, precision: str, seconds: float = 0.3) -> Limits:
    """Measure the limits, with `seconds` for each number."""
    ops = keras.ops
    gpu = backend.on_gpu()
    size, copied = (4096, 2**28) if gpu else (1024, 2**26)

    def shortest(function: Any, *given: Any) -> float:
        run = backend.compiled(function, [], False)
        run(*given)
        backend.settle()
        return min(chunks(lambda: run(*given), backend.settle, 1, seconds))

    def product(dtype: str) -> float:
        matrix = ops.cast(keras.random.normal((size, size), seed=1), dtype)
        return 2 * size**3 / shortest(lambda a: ops.matmul(a, a), matrix)

    def chain(value: Any) -> Any:
        for _ in range(_CHAIN):
            value = ops.sin(value)
        return value

    dtype = precision if precision in ("bfloat16", "float16") else "float32"
    large = ops.zeros(copied // 4, "float32")
    found = {precision: product(dtype)}
    if gpu and precision != "bfloat16":
        found["bfloat16"] = product("bfloat16")
    return Limits(found, 2 * copied / shortest(ops.negative, large), shortest(chain, ops.ones(1)) / _CHAIN)
