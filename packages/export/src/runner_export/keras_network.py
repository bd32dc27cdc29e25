"""Export a Keras network, on TensorFlow's backend, as OpenVINO: one graph from stored arrays to outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import Arrays, BadInput, ExportJob

from runner_export.parity import RECORDS
from runner_export.session import silent_openvino
from runner_export.window import resized


def write_keras_openvino(job: ExportJob, file: Path) -> tuple[dict[str, Any], Arrays]:
    """Write `file` (.xml) and its .bin; return its description, and the largest arrays that `predict` gave it.

    The batch may have any length; so may the window's sides, where the network itself takes any multiple of
    `Standalone.multiple`. Raises BadInput for another backend of Keras, and where OpenVINO cannot convert the network.
    """
    import keras

    if keras.backend.backend() != "tensorflow":
        raise BadInput(
            f"--to openvino: Keras runs on {keras.backend.backend()}, and this needs KERAS_BACKEND=tensorflow"
        )
    import tensorflow as tf

    seen = windows_of_keras(job)
    names = sorted(seen[0])
    project, network, statistics = job.project, job.trained.network, job.trained.statistics
    outputs: list[str] = []

    def forward(*tensors: Any) -> Any:
        batch = project.on_device(dict(zip(names, tensors, strict=True)), statistics, None)
        found = project.infer(lambda x: network(x, training=False), batch)
        outputs[:] = found
        return [tf.identity(tensor, name=name) for name, tensor in found.items()]

    step = project.standalone().multiple
    any_size = None in network.inputs[0].shape[1:]
    signature = [
        tf.TensorSpec([None, *(None if any_size and n > 1 else n for n in array.shape[1:])], array.dtype, name=name)
        for name, array in sorted(seen[0].items())
    ]
    openvino = silent_openvino()
    try:
        concrete = tf.function(forward, input_signature=signature, autograph=False).get_concrete_function()
        model = openvino.convert_model(concrete)
    except BadInput:
        raise
    except Exception as error:  # the converter raises exceptions of its own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        raise BadInput(f"--to openvino: OpenVINO cannot convert this network ({reason})") from error
    model = _only_outputs(openvino, model, outputs)
    order = [next(name for name in names if name in _names(port)) for port in model.inputs]
    for port, name in zip([*model.inputs, *model.outputs], [*order, *outputs], strict=True):
        port.get_tensor().set_names({name})
    openvino.save_model(model, file, compress_to_fp16=False)
    described: dict[str, Any] = {
        "file": file.name,
        "inputs": [_described(port, name, step) for port, name in zip(model.inputs, order, strict=True)],
        "outputs": [_described(port, name, step) for port, name in zip(model.outputs, outputs, strict=True)],
    }
    for one in described["inputs"]:
        steps = (1, *[step] * (len(one["shape"]) - 1))
        one["multiple"] = [
            n if isinstance(length, str) else None for n, length in zip(steps, one["shape"], strict=True)
        ]
    return described, largest(seen)


def windows_of_keras(job: ExportJob) -> list[Arrays]:
    """Return the arrays of every call of the network for some of the job's records."""
    seen: list[Arrays] = []

    def infer(arrays: Arrays) -> Arrays:
        seen.append({name: np.array(array) for name, array in arrays.items()})
        return job.trained.infer(arrays)

    for record, cropped in islice(job.records(), RECORDS):
        job.project.predict(cropped, infer)
        if not seen:
            raise BadInput(f"{record.key}: `predict` of {job.project.name} does not call its network for this record")
    return seen


def _only_outputs(openvino: Any, model: Any, names: Sequence[str]) -> Any:
    """Return the model with the named outputs alone, in their order.

    The converter makes an output of every operation whose result nobody uses: of the mask that `on_device` makes too.
    """
    ports = [next(port for port in model.outputs if name in _names(port)) for name in names]
    return openvino.Model([port.get_node() for port in ports], model.get_parameters(), "network")


def _names(port: Any) -> set[str]:
    return {name.partition(":")[0] for name in (*port.get_names(), port.get_node().get_friendly_name())}


def largest(windows: Sequence[Arrays]) -> Arrays:
    """Return the arrays that have the most numbers."""
    return max(windows, key=lambda arrays: sum(array.size for array in arrays.values()))


def small_example(example: Arrays, network: Mapping[str, Any]) -> Arrays:
    """Return a part of an example with three samples, and three steps along every other axis that may vary."""
    out: Arrays = {}
    for one in network["inputs"]:
        array = example[one["name"]]
        for axis, step in enumerate(one["multiple"]):
            array = array if step is None else resized(array, axis, 3 * step)
        out[one["name"]] = array
    return out


def _described(port: Any, name: str, step: int) -> dict[str, Any]:
    lengths = list(port.get_partial_shape())
    side = f"{{}}_{{}} ({step}n)" if step > 1 else "{}_{}"
    axes = ("batch", *(side.format(name, axis) for axis in range(1, len(lengths))))
    shape: Sequence[Any] = [
        length.get_length() if length.is_static else axis for length, axis in zip(lengths, axes, strict=True)
    ]
    return {"name": name, "dtype": np.dtype(port.get_element_type().to_dtype()).name, "shape": shape}
