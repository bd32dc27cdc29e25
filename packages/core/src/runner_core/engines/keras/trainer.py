"""A Keras network under training, driven by `runner_core.training.loop`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import keras
import numpy as np

from runner_core.base.errors import BadInput
from runner_core.contract import Array, Arrays, Finding, HostBatch, Progress, State, Step, Tensors
from runner_core.contract.footprint import Footprint
from runner_core.contract.kernels import Observed, Updated, Way
from runner_core.contract.phases import MOVE, OPTIMIZER, WAIT, unnoticed
from runner_core.contract.setup import Data, Setup
from runner_core.engines import returned
from runner_core.engines.keras import precision
from runner_core.engines.keras.backend import Backend, OutOfDeviceMemory
from runner_core.engines.keras.checkpoint import flatten, unflatten
from runner_core.engines.keras.gradient_norms import GradientNorms
from runner_core.engines.keras.kernels import Comparing, update
from runner_core.engines.keras.learning import DeviceRows, Learning, host_arrays, moment_of
from runner_core.engines.keras.memory import MicroBatch, footprint
from runner_core.engines.keras.network import (
    apart,
    arrays,
    assign,
    build,
    checksum,
    compared,
    is_float,
    named,
    other_weights,
)
from runner_core.engines.keras.validation import Totals, Validating
from runner_core.engines.memory import NoRoom, no_room
from runner_core.engines.schedule import Schedule
from runner_core.engines.steplog import GRADIENT_NORM, Notes, StepLog, refuse_nonfinite
from runner_core.engines.validation import Validation
from runner_core.engines.weights import distance


class KerasTrainer:
    """`Trainer` for Keras: a step is one call of a compiled function, and so is a block of steps."""

    undivided: Sequence[str] = ()
    first_validates = True

    def __init__(self, setup: Setup, data: Data, steps: int, backend: Backend, xla: bool) -> None:
        project, config, self._team = setup.project, setup.config.train, setup.team
        if config.steps_per_execution > 1 and not backend.blocks:
            raise BadInput("train.steps_per_execution: only TensorFlow takes several steps at once; leave it at 1")
        self.project, self.config = project, config
        self.statistics = project.statistics = data.statistics
        self.block = config.steps_per_execution
        self.steps = steps
        self._per_epoch = max(1, steps // config.epochs)
        self._replicas = backend.replicas(setup.device, setup.team.devices)
        xla = xla and self._replicas.count == 1
        self._backend, self._device, self._xla = backend, setup.device, xla
        self._policy = setup.precision
        self.strategy = "single" if self._replicas.count == 1 else "mirrored"
        self.exchange: Mapping[str, str] = {}  # TensorFlow decides it
        self.network = build(project, setup.precision, config.seed, setup.start, self._replicas)
        gather = DeviceRows(data.samples["train"], backend) if data.store.device else None
        self._learning = Learning(
            project, config, self.network, setup.precision, data.statistics, steps, backend, gather, self._replicas
        )
        self._spread()
        self._schedule = Schedule(project, config)
        self._rate = 0.0
        metrics = setup.metrics()
        self._log = _CompiledLog(self._learning)
        self._norms = GradientNorms(project, self.network, data.statistics, backend, metrics, gather)
        self._seen: Counter[str] | None = None
        self.notes = Notes()
        self.faults: Sequence[Finding] = ()
        self._micro = MicroBatch(project, config, self._learning, backend, setup.device, self.notes.add)
        self._step = self._compile()
        self._waiting: list[tuple[Arrays, Any, float]] = []
        over = Progress(steps, steps, config.epochs)
        self._validating = Validating(project, self.network, data.statistics, over, gather)
        read = [*self.network.variables, *([] if gather is None else gather.variables)]
        self._validate = backend.compiled(self._validating, read, xla)
        self._validation = Validation(metrics, self._compute, OutOfDeviceMemory, backend.free, self.notes.add)
        floats = {n: v for n, v in named(self.network.variables).items() if is_float(v)}
        self._weights = list(floats)
        self._finite = backend.compiled(_all_finite(list(floats.values())), self.network.variables, False)
        self._initially = self._finite_weights()
        self._computed: Callable[[], bool] | None = None
        self._comparing: Comparing | None = None
        self.phase: Callable[[str], None] = unnoticed

    # ------------------------------------------------------------ steps

    def train_step(self, batch: HostBatch, step: int) -> None:
        """Take one optimizer step, or its part of a block, and release the batch.

        Raises BadInput if memory does not suffice.
        """
        self.phase(WAIT)
        epoch = step // self._per_epoch
        self._rate = self._learning.base_rate * self._schedule(Progress(step, self.steps, epoch))
        moment = moment_of(step, epoch, self.config.seed)
        if self.block == 1:
            try:
                tensors = host_arrays(batch.arrays, self._backend)
            except OutOfDeviceMemory:
                raise no_room("bringing the batch to the device", self.config.batch_size) from None
            batch.release()
            self.phase(MOVE)
            numbers = self._run(step, tensors, moment, np.float32(self._rate))
            if self._norms.due(step):
                self._measure_gradients(tensors, step)
        else:
            self._waiting.append(({name: array.copy() for name, array in batch.arrays.items()}, moment, self._rate))
            batch.release()
            self.phase(MOVE)
            inside = (step + 1) % self._per_epoch
            if inside % self.block and inside:
                return
            taken, self._waiting = self._waiting, []
            numbers = self._run_block(taken)
            for number, (arrays, *_) in enumerate(taken, step + 1 - len(taken)):
                if self._norms.due(number):
                    self._measure_gradients(host_arrays(arrays, self._backend), number)
        self._log.unread.append((step + 1 - (1 if numbers.ndim == 1 else len(numbers)), numbers))
        if self._device.kind == "cuda":
            self._computed = self._backend.watch(numbers)
        self.phase(OPTIMIZER)

    def _measure_gradients(self, tensors: Tensors, step: int) -> None:
        """Measure after the step, because only then it is known which weights have a gradient.

        So the result is the same in every start of the run.
        """
        self._norms.look(self._learning.weights_without_gradient)
        with self._undisturbed():
            self._norms.measure(tensors, self._micro.size, Progress(step, self.steps, step // self._per_epoch))

    def _run(self, step: int, tensors: Tensors, moment: Any, rate: Any) -> Any:
        while True:
            self._micro.mark()
            try:
                with self._observing():
                    return self._step(tensors, moment, rate)
            except OutOfDeviceMemory:
                if self._team.count > 1:  # the others have taken the step, or wait in it
                    raise no_room("a step of several processes", self.config.batch_size) from None
            self._micro.shrink(tensors, moment, step)  # outside: the exception keeps the failed step's memory alive
            self._step = self._compile()

    def _run_block(self, taken: Sequence[tuple[Arrays, Any, float]]) -> Any:
        batches, moments, rates = zip(*taken, strict=True)
        stacked = {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}
        try:
            tensors = host_arrays(stacked, self._backend)
            self.phase(MOVE)
            with self._observing():
                return self._step(tensors, np.stack(moments), np.array(rates, np.float32))
        except OutOfDeviceMemory:
            doing = f"a block of {len(batches)} steps (train.steps_per_execution)"
            raise no_room(doing, self.config.batch_size) from None

    def _compile(self) -> Callable[..., Any]:
        learning, backend, step = self._learning, self._backend, self._replicas.each(self._learning)
        if self.block == 1:
            return backend.compiled(step, learning.variables, self._xla)

        def block(stacked: Tensors, moments: Any, rates: Any) -> Any:
            return backend.over(lambda one: step(*one), (stacked, moments, rates))

        return backend.compiled(block, learning.variables, self._xla)

    @contextmanager
    def _observing(self) -> Iterator[None]:
        """Observe the precision in which layers compute while the first step is traced."""
        if self._seen is not None:
            yield
            return
        self._seen = Counter()
        with precision.observed(self.network, self._seen, self._policy):
            yield

    # ------------------------------------------------------------ numbers and validation

    def read_log(self) -> dict[str, Any]:
        """Return means since the last call; waits for the device."""
        self._log.settle()
        bad = self._log.first_nonfinite()
        facts: dict[str, Any] = dict(self._norms.take(self._log.every()))
        if self.config.clip is not None:
            facts["clipped"] = self._log.share_above(GRADIENT_NORM, self.config.clip)
        values: dict[str, Any] = {**self._log.means(), "learning_rate": self._rate, "facts": facts}
        if bad is not None:
            values["nonfinite_step"], values["nonfinite_term"] = bad
        if self._seen is not None:
            values["precision_seen"] = dict(self._seen)
        return dict(self._team.share(values)) if self._team.count > 1 else values

    def checksum(self) -> int | None:
        """Return a number that changes with any bit of the trained weights, or None while the learning rate is 0.

        Waits for the device.
        """
        return checksum(self._learning.trained) if self._rate else None

    def losses(self) -> list[float]:
        """Return the loss of each step since the last `read_log`; waits for the device."""
        self._log.settle()
        return self._log.of("loss")

    def validate(self, batches: Iterable[HostBatch]) -> dict[str, float]:
        """Return means over samples, metrics, and extremes of the decision; training's random streams are restored."""
        try:
            if not self._team.first:
                for batch in batches:  # in step with the first one, so that all meet a signal
                    batch.release()
                return dict(self._team.share(None))
            with self._undisturbed():
                found = self._validation(batches, Totals(self._validating), lambda batch: batch.release())
            return dict(self._team.share(found))
        except OutOfDeviceMemory:
            raise no_room("validation", self.config.batch_size) from None

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Use averaged weights, if the run keeps them, and restore the network's random streams afterwards."""
        frozen = {name: v for name, v in named(self._learning.frozen).items() if not is_float(v)}
        before, average = arrays(frozen), self._learning.average
        try:
            with nullcontext() if average is None else average.in_place():
                yield
        finally:
            assign(frozen, before)
            self._spread()

    def _spread(self) -> None:
        """Give each device random streams of its own, after all were set to those of the first one."""
        self._replicas.spread(self._learning.frozen)

    def _compute(self, batch: HostBatch) -> tuple[Tensors, Step]:
        tensors, prediction, numbers = self._validate(host_arrays(batch.arrays, self._backend))
        return tensors, Step(numbers, {}, prediction)

    def watch(self) -> Arrays:
        """Return what the project watches in the network that validation saw, as copies on the host."""
        average = self._learning.average
        with nullcontext() if average is None else average.in_place():
            return returned.watch(self.project, self.network)

    def snapshots(self, arrays: Arrays) -> Mapping[str, Array]:
        """Return the project's pictures of these samples.

        Raises Unhealthy instead of drawing NaN, and BadInput if memory does not suffice.
        """
        self._refuse_nonfinite()
        try:
            with self._undisturbed(), self._backend.allocating():
                return self._validating.snapshots(host_arrays(arrays, self._backend))
        except OutOfDeviceMemory:
            raise no_room("drawing samples", self.config.batch_size) from None

    # ------------------------------------------------------------ checkpoints

    def recalled(self, setup: Setup, state: State, arrays: Arrays) -> dict[str, Any] | None:
        """Return how the network from `state` differs from the validated one on these samples: facts for health rules.

        Returns None if there is no memory for both. Training is not affected.
        """

        def step(validating: Validating) -> Step:
            return validating.step(host_arrays(arrays, self._backend))[1]

        try:
            with apart(), self._undisturbed(), self._backend.allocating():
                network = setup.engine.load(setup, state).network
                loaded = self._validating.of(setup.project, network)
                different = distance(compared(step(self._validating)), compared(step(loaded)))
                return {"weights_differ": other_weights(self.network, network), "prediction_differs": different}
        except (OutOfDeviceMemory, NoRoom):
            return None

    def state(self) -> State:
        """Return copies on the host; raise Unhealthy instead of returning NaN."""
        self._refuse_nonfinite()
        learning = self._learning
        tree = {
            "policy": precision.policy_name(self._policy),
            "backend": self._backend.name,
            "model": arrays(named(self.network.variables)),
            "ema": None if learning.average is None else learning.average.state(),
            "optimizer": arrays(named(learning.optimizer.variables)),
            "log": self._log.state(),
            "gradient_norms": self._norms.state(),
            "micro": self._micro.size * self._replicas.count,  # independent of the number of devices
            "statistics": self.statistics,
        }
        values, tensors = flatten(tree)
        return State({"keras": values}, tensors)

    def hold(self, divided: bool) -> State:
        return self.state()

    def load_state(self, state: State) -> None:
        """Restore the state; raise BadInput for a checkpoint of another precision policy or network."""
        saved = unflatten(state)
        policy = precision.policy_name(self._policy)
        if saved["policy"] != policy:
            raise BadInput(
                f"the checkpoint was trained under the precision policy {saved['policy']}, this run computes under "
                f"{policy}: set precision.mode to {saved['policy'].removeprefix('mixed_')}"
            )
        assign(named(self.network.variables), saved["model"])
        if self._learning.average is not None:
            self._learning.average.load(saved["ema"])
        assign(named(self._learning.optimizer.variables), saved["optimizer"])
        self._log.load(saved["log"])
        self._norms.load(saved.get("gradient_norms") or saved.get("pulls") or {})  # its name before 0.1.0
        self._spread()
        size = -(-saved["micro"] // self._replicas.count)
        if size != self._micro.size:
            self._micro.size = size
            self._step = self._compile()
        self.statistics.clear()
        self.statistics.update(saved["statistics"])

    def _refuse_nonfinite(self) -> None:
        refuse_nonfinite(self._log, self._bad_weight)

    def _bad_weight(self) -> str | None:
        """Return the first weight that was finite at the start and is not any more, or None."""
        found = zip(self._weights, self._initially, self._finite_weights(), strict=True)
        return next((name for name, before, now in found if before and not now), None)

    def _finite_weights(self) -> list[bool]:
        return np.asarray(keras.ops.convert_to_numpy(self._finite())).tolist()

    # ------------------------------------------------------------ the device

    def measured(self) -> tuple[Learning, Backend, bool, Callable[..., Any]]:
        """Return what `KerasPhases` measures: the step, its backend, whether XLA compiles it, and it compiled."""
        learning, backend = self._learning, self._backend
        alone = self.block == 1
        whole = self._step if alone else backend.compiled(self._replicas.each(learning), learning.variables, self._xla)
        return learning, backend, self._xla, whole

    def footprint(self, arrays: Arrays) -> Footprint:
        """Return the memory that training takes, from the graph of a step, which is the first step's own."""
        with self._observing():
            learning, backend, _, step = self.measured()
            return footprint(learning, step, self.config.batch_size, arrays, backend, self._device)

    def observe(self, arrays: Arrays, way: Way) -> Observed:
        """Return what the first step computes of these samples, for a comparison; this trainer trains no more then.

        Each call starts from the same weights. Raises BadInput if memory does not suffice.
        """
        if self._comparing is None:
            self._comparing = Comparing(self._learning, self._backend, self._xla)
        try:
            return self._comparing.observe(host_arrays(arrays, self._backend), way)
        except OutOfDeviceMemory:
            raise no_room("comparing kernels", self.config.batch_size) from None

    def update(self, gradients: Arrays, before: Arrays | None = None) -> Updated:
        """Return the weights after two updates with these gradients, for a comparison; see `observe`.

        With `before`, the updates begin with these weights, and nothing is compiled.
        """
        return update(self._learning, gradients, before, self._backend, self._xla)

    def idle(self) -> bool:
        return self._computed is None or self._computed()

    def peak_memory(self) -> int:
        return self._backend.peak_memory(self._device)


def _all_finite(variables: list[keras.Variable]) -> Callable[[], Any]:
    ops = keras.ops
    return lambda: ops.stack([ops.all(ops.isfinite(variable.value)) for variable in variables])


class _CompiledLog(StepLog):
    """Log of compiled steps, each of which returns all its numbers in one tensor."""

    def __init__(self, learning: Learning) -> None:
        super().__init__()
        self._learning = learning
        self.unread: list[tuple[int, Any]] = []
        """(steps before, numbers): the numbers of a step are (terms,), those of a block (steps, terms)."""

    def settle(self) -> None:
        unread, self.unread = self.unread, []
        for step, numbers in unread:
            for offset, row in enumerate(np.atleast_2d(keras.ops.convert_to_numpy(numbers)).tolist()):
                self.add(step + offset, dict(zip(self._learning.names, row, strict=True)))
