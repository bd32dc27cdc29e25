"""The files of a network in each format, from windows of it."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from runner_core import BadInput

from runner_export.axes import Axes
from runner_export.session import silent_openvino
from runner_export.window import Window

OPSET = 20
"""Of ONNX: known to onnxruntime since 1.17 and OpenVINO since 2024."""


def stem(window: Window, windows: Sequence[Window]) -> str:
    """Return the file name of a window without its ending: model, or model-INPUT if there are several."""
    if len(windows) == 1:
        return "model"
    others = {name for other in windows if other is not window for name in other.graph.inputs}
    return f"model-{next(name for name in window.graph.inputs if name not in others)}"


def write_onnx(window: Window, axes: Axes, file: Path) -> dict[str, Any]:
    """Write a window as ONNX and return its description: file, inputs and outputs."""
    import onnx

    with quiet(), refusing("onnx"), torch.no_grad():
        program = torch.onnx.export(
            window.graph,
            window.tensors,
            dynamo=True,
            dynamic_shapes=_dynamic(window, axes),
            input_names=list(window.graph.inputs),
            output_names=list(window.graph.outputs),
            opset_version=OPSET,
            external_data=False,
            verbose=False,
        )
        assert program is not None
        program.save(str(file), external_data=False)
    model = onnx.load(file)
    _name_axes(model, axes)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, file)
    return describe(file)


def describe(file: Path) -> dict[str, Any]:
    """Return what an ONNX file says of its inputs and outputs; a name in place of a length means: any."""
    import onnx

    model = onnx.load(file, load_external_data=False)

    def values(found: Any) -> list[dict[str, Any]]:
        return [
            {
                "name": value.name,
                "dtype": onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name,
                "shape": [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim],
            }
            for value in found
        ]

    return {"file": file.name, "inputs": values(model.graph.input), "outputs": values(model.graph.output)}


def write_openvino(onnx_file: Path, file: Path) -> None:
    """Write an ONNX file as OpenVINO's .xml and .bin, its weights in float32."""
    openvino = silent_openvino()
    openvino.save_model(openvino.Core().read_model(onnx_file), file, compress_to_fp16=False)


def write_torch(window: Window, axes: Axes, file: Path) -> dict[str, Any]:
    """Write a window as .pt2 and return its description."""
    with quiet(), refusing("torch-export"), torch.no_grad():
        program = torch.export.export(window.graph, window.tensors, dynamic_shapes=_dynamic(window, axes), strict=False)
        program._example_inputs = None  # they would be pickled
        torch.export.save(program, file)
    nodes = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
    inputs = [nodes[name] for name in program.graph_signature.user_inputs]
    outputs = [nodes[name] for name in program.graph_signature.user_outputs]
    shapes = {name: list(map(str, tensor.shape)) for name, tensor in zip(window.graph.inputs, inputs, strict=True)}
    known = _axis_names(shapes, axes)

    def values(names: Sequence[str], tensors: Sequence[Any]) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "dtype": str(tensor.dtype).removeprefix("torch."),
                "shape": [n if isinstance(n, int) else known.get(str(n), str(n)) for n in tensor.shape],
            }
            for name, tensor in zip(names, tensors, strict=True)
        ]

    return {
        "file": file.name,
        "inputs": values(window.graph.inputs, inputs),
        "outputs": values(window.graph.outputs, outputs),
    }


def _dynamic(window: Window, axes: Axes) -> Any:
    """Return the exporter's description of the axes that may vary."""
    auto = torch.export.Dim.AUTO
    shapes = ({n: auto for n, step in enumerate(axes[name]) if step} for name in window.graph.inputs)
    return {"tensors": tuple(shapes)}


def _axis_names(shapes: Mapping[str, Sequence[str]], axes: Axes) -> dict[str, str]:
    """Return a name for each of the exporter's symbols: it says of what the length is a multiple."""
    names: dict[str, str] = {}
    for value, symbols in shapes.items():
        for place, (symbol, step) in enumerate(zip(symbols, axes[value], strict=True)):
            if symbol and not symbol.isdigit():
                name = "batch" if place == 0 else f"{value}_{place}"
                names.setdefault(symbol, name if step == 1 else f"{name} ({step}n)")
    return names


def _name_axes(model: Any, axes: Axes) -> None:
    """Give the axes of inputs that may vary a name, wherever they occur."""
    shapes = {value.name: [dim.dim_param for dim in value.type.tensor_type.shape.dim] for value in model.graph.input}
    names = _axis_names(shapes, axes)
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.dim_param = names[dim.dim_param]


@contextmanager
def refusing(name: str) -> Iterator[None]:
    """Turn the exporter's errors into one message."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        cause = error.__cause__
        because = f" ({str(cause).strip().splitlines()[0]})" if cause and str(cause).strip() else ""
        raise BadInput(
            f"--to {name}: PyTorch {torch.__version__} cannot export this network: {reason}{because}"
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the exporter's progress, warnings, logs and the graphs that it cannot export from the screen."""
    disabled, nowhere = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
