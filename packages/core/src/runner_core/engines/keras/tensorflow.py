"""The TensorFlow backend of Keras."""

from __future__ import annotations

import ctypes
import functools
import gc
import queue
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.random.seed_generator import global_seed_generator

from runner_core.base.errors import BadInput
from runner_core.config import TrainConfig
from runner_core.contract import Array, Device
from runner_core.contract.phases import Operation
from runner_core.contract.team import Place
from runner_core.engines.device import cpu, gpu_number, refuse_missing_gpus, unusable
from runner_core.engines.keras import graph
from runner_core.engines.keras.backend import Function, OutOfDeviceMemory
from runner_core.engines.keras.mirrored import Mirrored, Workers
from runner_core.engines.keras.replicas import One, Replicas
from runner_core.engines.process import unheard
from runner_core.engines.usage import Gpu

# Messages for a lack of memory from cuDNN, cuBLAS and XLA, whose errors are not ResourceExhaustedError.
_OUT_OF_MEMORY = re.compile(r"(?i)RESOURCE_EXHAUSTED|out of memory|OOM when|ALLOC_FAILED|No algorithm worked")


class TensorFlow:
    """`Backend` for TensorFlow."""

    name = "tensorflow"
    blocks = True

    def __init__(self) -> None:
        self._watch: _Watch | None = None
        self._devices = 1
        self._workers: Workers | None = None
        self._first = 0  # the GPU that stands for `train.device`

    def device(self, asked: str) -> Device:
        """Return the device, the only one that TensorFlow sees unless `spread` was called.

        GPUs take memory as they need it.
        """
        gpus = tf.config.list_physical_devices("GPU")
        unseen = "" if gpus else _unseen()
        index = gpu_number(asked, len(gpus), "TensorFlow", unseen)
        if index is None:
            _see([])
            return cpu(unseen if asked == "auto" else "")
        index += self._first
        _see(gpus[index : index + self._devices])
        details = tf.config.experimental.get_device_details(gpus[index])
        ampere = details.get("compute_capability", (0, 0))[0] >= 8  # computes in bfloat16 and tf32
        name = details.get("device_name", "GPU")
        return Device(
            "cuda", index, len(gpus), name=name, memory_bytes=_gpu_memory(index), bfloat16=ampere, tf32=ampere
        )

    def spread(self, asked: str, count: int) -> None:
        found = tf.config.list_physical_devices("GPU")
        refuse_missing_gpus(count, count, asked, len(found), "TensorFlow", "" if found else _unseen())
        self._devices = count
        if asked == "cpu":
            _divide_processor(count)

    def take(self, asked: str, place: Place) -> None:
        found = tf.config.list_physical_devices("GPU")
        unseen = "" if found else _unseen()
        refuse_missing_gpus(place.count, place.local_count, asked, len(found), "TensorFlow", unseen)
        self._first = place.local

    def meet(self, addresses: Sequence[str], number: int, patience: float) -> str:
        try:
            with unheard(2):
                self._workers = Workers(addresses, number)
        except (tf.errors.OpError, RuntimeError) as error:
            return f"process {number} could not start its server: {error}"
        return self._workers.reach(patience)

    def unreachable(self, error: BaseException) -> bool:
        return isinstance(error, tf.errors.OpError) and "ollective" in str(error)

    def replicas(self, device: Device, count: int) -> Replicas:
        if self._workers is not None:
            return self._workers
        return One() if count == 1 else Mirrored("CPU" if device.kind == "cpu" else "GPU", count)

    def configure(self, config: TrainConfig, device: Device, tf32: bool) -> None:
        if config.threads is not None and tf.config.threading.get_intra_op_parallelism_threads() != config.threads:
            try:
                tf.config.threading.set_intra_op_parallelism_threads(config.threads)
                tf.config.threading.set_inter_op_parallelism_threads(config.threads)
            except RuntimeError:
                raise BadInput(
                    "train.threads: TensorFlow has already started with another number; start a new process"
                ) from None
        tf.config.experimental.enable_tensor_float_32_execution(tf32)
        if config.deterministic:
            tf.config.experimental.enable_op_determinism()

    def tensor(self, array: Array) -> tf.Tensor:
        if self._devices == 1:
            return tf.convert_to_tensor(array)
        with tf.device("CPU:0"):  # each device takes its share from there
            return tf.convert_to_tensor(array)

    def seed(self, words: Any) -> None:
        global_seed_generator().state.assign(words)

    @contextmanager
    def allocating(self) -> Iterator[None]:
        try:
            yield
            return
        except tf.errors.OpError as error:
            if not (isinstance(error, tf.errors.ResourceExhaustedError) or _OUT_OF_MEMORY.search(str(error))):
                raise
        raise OutOfDeviceMemory

    def compiled(self, function: Function, variables: Sequence[keras.Variable], xla: bool) -> Function:
        # tf.function's search for a fitting trace takes longer than a small step, so this looks it up by shape
        traces: dict[Any, Any] = {}

        def trace(arguments: tuple[Any, ...], tensors: list[Any]) -> Any:
            names = [tuple(argument) for argument in arguments if isinstance(argument, dict)]
            key = (*names, *[(tensor.dtype, tuple(tensor.shape)) for tensor in tensors])
            if key not in traces:
                traces[key] = _trace(function, arguments, tensors, xla)
            return traces[key]

        @functools.wraps(function)
        def run(*arguments: Any) -> Any:
            tensors = [t if isinstance(t, tf.Tensor) else tf.convert_to_tensor(t) for t in tf.nest.flatten(arguments)]
            with self.allocating():
                return trace(arguments, tensors)(*tensors)

        run.trace = trace  # type: ignore[attr-defined]
        return run

    def gradients(
        self, loss: Callable[[], tuple[Any, Any]], variables: Sequence[keras.Variable], others: Sequence[keras.Variable]
    ) -> tuple[list[Any], Any]:
        values = [variable.value for variable in variables]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)
            scalar, more = loss()
        found = tape.gradient(scalar, values)
        return [None if g is None else tf.convert_to_tensor(g) for g in found], more  # an embedding's are sparse

    def tape(self) -> Any:
        return tf.GradientTape(persistent=True, watch_accessed_variables=False)

    def apply(self, optimizer: keras.optimizers.Optimizer, gradients: list[Any], trained: list[keras.Variable]) -> None:
        optimizer.apply(gradients, trained)

    def over(self, body: Function, stacked: Any) -> Any:
        return tf.map_fn(body, stacked, fn_output_signature=tf.float32, parallel_iterations=1)

    def fold(self, body: Callable[[Any, Any], Any], total: Any, count: int) -> Any:
        def more(i: Any, total: Any) -> tuple[Any, Any]:
            return i + 1, body(total, i)

        return tf.while_loop(lambda i, _: i < count, more, (0, total), parallel_iterations=1)[1]

    def after(self, tensors: Sequence[Any], then: Callable[[], Any]) -> Any:
        with tf.control_dependencies(tensors):
            return then()

    def watch(self, tensor: Any) -> Callable[[], bool]:
        if self._watch is None:
            self._watch = _Watch()
        return self._watch(tensor)

    def free(self) -> None:
        """Collect garbage, because cycles around an exception may still hold memory.

        TensorFlow's allocator reuses memory without references by itself.
        """
        gc.collect()

    def peak_memory(self, device: Device) -> int:
        return int(tf.config.experimental.get_memory_info("GPU:0")["peak"]) if device.kind == "cuda" else 0

    def held(self, device: Device) -> int:
        """Return the bytes held by others according to nvidia-ml-py, or 0."""
        gpu = Gpu.find(device)
        return (
            0
            if gpu is None
            else max(0, gpu.read()[2] - int(tf.config.experimental.get_memory_info("GPU:0")["current"]))
        )

    def peak_bytes(self, function: Function, like: tuple[Any, ...]) -> int | None:
        """Count from the traced graph; what XLA or Grappler fuse takes less."""
        arguments = _specs(like)
        return graph.peak_bytes(function.trace(arguments, tf.nest.flatten(arguments)).graph)  # type: ignore[attr-defined]

    def on_gpu(self) -> bool:
        return bool(tf.config.get_visible_devices("GPU"))

    def settle(self) -> None:
        tf.test.experimental.sync_devices()

    def operations(self, function: Function, arguments: tuple[Any, ...]) -> list[Operation]:
        """Return the operations of the traced graph; what XLA or Grappler fuse is counted separately."""
        tensors = [tf.convert_to_tensor(t) for t in tf.nest.flatten(arguments)]
        return graph.operations(_trace(function, arguments, tensors, False).graph)

    @contextmanager
    def trace(self, folder: Path) -> Iterator[None]:
        with tf.profiler.experimental.Profile(str(folder)):
            yield

    def versions(self) -> dict[str, str]:
        built = tf.sysconfig.get_build_info()
        found = {"tensorflow": tf.__version__}
        found["tensorflow threads"] = str(tf.config.threading.get_intra_op_parallelism_threads() or "automatic")
        if tf.config.get_visible_devices("GPU"):
            found |= {"cuda": str(built.get("cuda_version")), "cudnn": str(built.get("cudnn_version"))}
        return found


def _trace(function: Function, arguments: tuple[Any, ...], tensors: list[Any], xla: bool) -> Any:
    """Compile `function` for arguments like these, as a function of their tensors."""
    structure = tf.nest.map_structure(lambda _: None, arguments)  # the arguments themselves would stay in memory

    def flat(*given: Any) -> Any:
        return function(*tf.nest.pack_sequence_as(structure, given))

    like = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
    return tf.function(flat, jit_compile=xla or None, autograph=False).get_concrete_function(*like)


def _specs(like: Any) -> Any:
    """Convert (shape, dtype) to TensorSpec, in nested tuples and dictionaries."""
    if isinstance(like, dict):
        return {name: _specs(value) for name, value in like.items()}
    if isinstance(like[1], np.dtype):
        return tf.TensorSpec(like[0], like[1])
    return tuple(_specs(value) for value in like)


class _Watch:
    """Tells when tensors are computed; a thread waits, because TensorFlow has no query that does not wait."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[tuple[Any, threading.Event]] = queue.SimpleQueue()
        threading.Thread(target=self._wait, name="watch the device", daemon=True).start()

    def __call__(self, tensor: Any) -> Callable[[], bool]:
        done = threading.Event()
        self._asked.put((tensor, done))
        return done.is_set

    def _wait(self) -> None:
        while True:
            tensor, done = self._asked.get()
            with suppress(tf.errors.OpError):  # reading the tensor raises the error
                np.asarray(tensor)
            done.set()
            del tensor, done


def _see(gpus: list[Any]) -> None:
    """Make only these GPUs visible, and take memory as needed; a started TensorFlow must already use them."""
    try:
        if tf.config.get_visible_devices("GPU") != gpus:
            tf.config.set_visible_devices(gpus, "GPU")
        for gpu in gpus:
            if not tf.config.experimental.get_memory_growth(gpu):
                tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError:
        raise BadInput(
            "train.device: TensorFlow has started in this process already, on another device or with all of the GPU's "
            "memory; set the device before anything computes with it"
        ) from None


def _divide_processor(count: int) -> None:
    """Let TensorFlow see the processor as `count` devices, which share its threads."""
    (processor,) = tf.config.list_physical_devices("CPU")
    before = tf.config.get_logical_device_configuration(processor)
    if before is not None and len(before) == count:
        return
    try:
        tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * count)
    except RuntimeError:
        raise BadInput(
            f"train.devices {count}: TensorFlow has started in this process already, on another number of devices; "
            "train in a new process"
        ) from None


def _unseen() -> str:
    """Return a message if the machine has an NVIDIA GPU that TensorFlow cannot use, else ""."""
    why = (
        "it did not find CUDA's libraries, or the driver is too old; install tensorflow[and-cuda]"
        if tf.test.is_built_with_cuda()
        else "it is a build without CUDA; install tensorflow[and-cuda]"
    )
    return unusable(f"TensorFlow {tf.__version__}", why)


def _gpu_memory(index: int) -> int:
    """Return the bytes of a GPU's memory, or 0 if the driver does not tell.

    The driver numbers GPUs as TensorFlow does. nvidia-smi does not, if CUDA_VISIBLE_DEVICES is set or GPUs differ.
    """
    device, size = ctypes.c_int(), ctypes.c_size_t()
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    failed = (
        cuda.cuInit(0)
        or cuda.cuDeviceGet(ctypes.byref(device), index)
        or cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    )
    return 0 if failed else size.value
