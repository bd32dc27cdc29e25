"""Several devices of this process under TensorFlow's MirroredStrategy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from tensorflow.python.distribute import collective_all_reduce_strategy
from tensorflow.python.eager import context

from runner_core.base.errors import BadInput
from runner_core.contract import Tensors
from runner_core.engines.keras.backend import Function

_STREAM = "seed_generator_state"
"""Name of the variable in which Keras keeps where a layer's random stream is: (seed, numbers drawn)."""


def _known() -> list[dict[str, Any]]:
    """Return what Keras knows in this thread alone: names, the dtype policy, its own generator."""
    return [vars(place) for place in (global_state.GLOBAL_STATE_TRACKER, global_state.GLOBAL_SETTINGS_TRACKER)]


class Mirrored:
    """`Replicas` of the first devices of a kind."""

    def __init__(self, kind: str, count: int) -> None:
        """Use the first `count` devices of a `kind`: CPU or GPU."""
        self.count = count
        # On processors, sums on one of them: collective operations are slower there, and their order is not fixed.
        sums = tf.distribute.ReductionToOneDevice() if kind == "CPU" else None
        names = [f"{kind}:{number}" for number in range(count)]
        self._strategy = tf.distribute.MirroredStrategy(names, cross_device_ops=sums)

    @contextmanager
    def holding(self) -> Iterator[None]:
        with self._strategy.scope():
            yield

    @contextmanager
    def changing(self) -> Iterator[None]:
        with self._strategy.scope(), tf.variable_creator_scope(self._create):
            yield

    def _create(self, create: Callable[..., Any], **options: Any) -> Any:
        # All devices compute the same values for a weight that is set in a step (constraints, `after_step`).
        options["aggregation"] = tf.VariableAggregation.ONLY_FIRST_REPLICA
        if not options.get("trainable", True):
            options["synchronization"] = tf.VariableSynchronization.ON_READ
        return create(**options)

    def prepare(self, optimizer: keras.optimizers.Optimizer) -> None:
        name = "_all_reduce_sum_gradients"
        if not hasattr(optimizer, name):
            raise BadInput(
                f"Keras {keras.__version__} has no {name}, so gradients of several devices would be added up twice: "
                "train on one device (--devices 1), or with a version of Keras that uv.lock names"
            )
        setattr(optimizer, name, lambda pairs: pairs)

    def each(self, step: Function) -> Function:
        def run(*arguments: Any) -> Any:
            known = [dict(values) for values in _known()]

            def on_one(*given: Any) -> Any:  # in a thread of its own, where Keras would know nothing
                for here, values in zip(_known(), known, strict=True):
                    here.update(values)
                return step(*given)

            found = self._strategy.run(on_one, arguments)
            return self._strategy.experimental_local_results(found)[0]

        return run

    def share(self, arrays: Tensors) -> Tensors:
        number = self._number()
        with tf.device("CPU:0"):  # only the share goes to the device
            return {name: _share(tensor, number, self.count) for name, tensor in arrays.items()}

    def stream(self, words: Any) -> Any:
        return keras.ops.cast(words, "int64") + tf.constant([self._number() << 32, 0], "int64")

    def mean(self, tensors: Sequence[Any]) -> list[Any]:
        here = tf.distribute.get_replica_context()
        return list(here.all_reduce(tf.distribute.ReduceOp.MEAN, list(tensors)))

    def changed(self, variables: Iterable[keras.Variable]) -> list[keras.Variable]:
        return [v for v in variables if "float" in str(v.dtype) and self._is_local(v)]

    def spread(self, variables: Iterable[keras.Variable]) -> None:
        for variable in variables:
            if variable.path.endswith(_STREAM) and self._is_local(variable):
                first, *others = variable.value.values
                for number, other in enumerate(others, 1):
                    other.assign(first + tf.constant([number << 32, 0], first.dtype))

    def _is_local(self, variable: keras.Variable) -> bool:
        on_read = tf.VariableSynchronization.ON_READ
        return getattr(variable.value, "synchronization", None) == on_read and hasattr(variable.value, "values")

    def _number(self) -> Any:
        found = tf.distribute.get_replica_context().replica_id_in_sync_group
        return int(found if isinstance(found, int) else tf.get_static_value(found))


class Workers(Mirrored):
    """`Replicas` of one device in each of several processes; this process's batches are its share already.

    It is made before TensorFlow computes anything.
    """

    def __init__(self, addresses: Sequence[str], number: int) -> None:
        """Let process `number` of those that serve TensorFlow at `addresses` (HOST:PORT) exchange gradients."""
        self.count, self._own = len(addresses), number
        context.context().configure_coordination_service("")  # the team's heartbeat decides who is lost
        collective_all_reduce_strategy.CollectiveAllReduceExtended._enable_check_health = False
        workers = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": list(addresses)}), task_type="worker", task_id=number, rpc_layer="grpc"
        )
        ways = tf.distribute.experimental.CommunicationImplementation
        way = ways.NCCL if tf.config.get_visible_devices("GPU") else ways.RING
        options = tf.distribute.experimental.CommunicationOptions(implementation=way)
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(workers, options)

    def reach(self, patience: float) -> str:
        """Wait until every process answers; return "", or which one did not within `patience` seconds, and why."""
        until = time.monotonic() + patience
        for number in range(self.count):
            while True:
                try:
                    context.context().check_collective_ops_peer_health(f"/job:worker/replica:0/task:{number}", 1000)
                    break
                except tf.errors.OpError as error:
                    if time.monotonic() > until:
                        return f"process {self._own} could not reach process {number}: {error.message.splitlines()[0]}"
                time.sleep(0.05)
        return ""

    def share(self, arrays: Tensors) -> Tensors:
        return arrays

    def spread(self, variables: Iterable[keras.Variable]) -> None:
        for variable in variables:
            if variable.path.endswith(_STREAM) and self._is_local(variable):
                (own,) = variable.value.values
                own.assign(own % [1 << 32, own.dtype.max] + tf.constant([self._own << 32, 0], own.dtype))

    def _number(self) -> int:
        return self._own


def _share(tensor: Any, number: int, count: int) -> Any:
    if not len(tensor.shape):
        return tensor
    each = tensor.shape[0] // count
    return tensor[number * each : (number + 1) * each]
