"""The functions behind `export --to`: each writes one format, compares it with the checkpoint, and measures it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from runner_core import Arrays, BadInput, ExportJob, FrameworkFormat, Infer, cpu_name

from runner_export.beside import write_beside
from runner_export.latency import latencies
from runner_export.parity import compare
from runner_export.session import load_networks, open_openvino

if TYPE_CHECKING:
    from runner_export.axes import Axes
    from runner_export.window import Window

Networks = list[dict[str, Any]]
Write = Callable[["Window", "Axes", Path], dict[str, Any]]
_torch = partial(FrameworkFormat, "torch")


@_torch
def onnx(job: ExportJob) -> Sequence[Path]:
    """Write model.onnx."""
    windows = _windows(job)
    networks = _onnx(windows, job.folder)
    files = [job.folder / network["file"] for network in networks]
    return [*files, *_finish(job, "onnx", windows, networks)]


@_torch
def onnx_int8(job: ExportJob) -> Sequence[Path]:
    """Write model.onnx with weights and activations of 8 bits, calibrated on records."""
    from runner_export.quantise import quantise
    from runner_export.window import eager

    windows = _windows(job)
    networks = _onnx(windows, job.folder)
    found = load_networks(job.folder, networks)
    parity = compare(job, eager(windows), found, "onnx", _longer(windows, networks))
    print(f"onnx: {parity}, before 8 bits")
    small, about = quantise(job, found, networks)
    measured = _measured(job, windows, {"onnx": networks, "onnx-int8": small})
    files = [
        (job.folder / new["file"]).replace(job.folder / old["file"]) for old, new in zip(networks, small, strict=True)
    ]
    about = {"networks": networks, "parity": parity.as_json(job.source), "int8": about, **measured}
    return [*files, *write_beside(job, "onnx-int8", about)]


def openvino(job: ExportJob) -> Sequence[Path]:
    """Write model.xml and model.bin."""
    from runner_export.write import write_openvino

    if find_spec("openvino") is None:
        raise BadInput("--to openvino: `uv pip install openvino` installs what it needs")
    if job.project.framework == "keras":
        return _openvino_of_keras(job)
    windows = _windows(job)
    files, networks = [], []
    for network in _onnx(windows, job.folder):
        source = job.folder / network["file"]
        target = source.with_suffix(".xml")
        write_openvino(source, target)
        source.unlink()
        files += [target, target.with_suffix(".bin")]
        networks.append({**network, "file": target.name})
    return [*files, *_finish(job, "openvino", windows, networks)]


def _openvino_of_keras(job: ExportJob) -> Sequence[Path]:
    """Write a Keras network, compare it with the checkpoint as Keras computes it, and measure both."""
    from runner_export.keras_network import small_example, write_keras_openvino

    file = job.folder / "model.xml"
    network, example = write_keras_openvino(job, file)
    found = load_networks(job.folder, [network])
    parity = compare(job, job.trained.infer, found, "openvino", [small_example(example, network)])
    print(f"openvino: {parity}")
    threads = os.cpu_count() or 1
    variables = [np.asarray(variable) for variable in job.trained.network.variables]
    sizes = {"keras": sum(array.nbytes for array in variables), "openvino": _bytes(file)}
    measured = {"keras": job.trained.infer, "openvino": load_networks(job.folder, [network], threads)}
    about = {"networks": [network], "parity": parity.as_json(job.source, "Keras")}
    about |= _speed(measured, sizes, example, threads, ("keras", "tensorflow", "openvino", "numpy"))
    return [file, file.with_suffix(".bin"), *write_beside(job, "openvino", about)]


@partial(FrameworkFormat, "keras")
def keras(job: ExportJob) -> Sequence[Path]:
    """Write Keras's own format, and compare it as plain Keras opens it in a process of its own."""
    from runner_export.keras_file import describe_keras, plain_keras
    from runner_export.keras_network import largest, windows_of_keras

    files = job.own()
    file = next(file for file in files if file.suffix == ".keras")
    network = describe_keras(job, file)
    with plain_keras(job, network) as found:
        parity = compare(job, job.trained.infer, found, "keras")
    print(f"keras: {parity}")
    compared = parity.as_json(job.source, "Keras within runner")
    compared["opened_by"] = "plain Keras in a process of its own, where runner cannot be imported"
    about = {"networks": [network], "parity": compared}
    example = largest(windows_of_keras(job))
    sizes, threads = {"keras": file.stat().st_size}, os.cpu_count() or 1
    about |= _speed({"keras": job.trained.infer}, sizes, example, threads, ("keras", "tensorflow", "jax", "numpy"))
    return [*files, *write_beside(job, "keras", about)]


@_torch
def torch_export(job: ExportJob) -> Sequence[Path]:
    """Write model.pt2."""
    from runner_export.write import stem, write_torch

    windows = _windows(job)
    networks = [_written(write_torch, window, job.folder / f"{stem(window, windows)}.pt2") for window in windows]
    files = [job.folder / network["file"] for network in networks]
    return [*files, *_finish(job, "torch-export", windows, networks)]


def _windows(job: ExportJob) -> tuple[Window, ...]:
    from runner_export.window import windows_of  # this module imports no framework: it may refuse the project

    return windows_of(job)


def _onnx(windows: Sequence[Window], folder: Path) -> Networks:
    from runner_export.write import stem, write_onnx

    return [_written(write_onnx, window, folder / f"{stem(window, windows)}.onnx") for window in windows]


def _written(write: Write, window: Window, file: Path) -> dict[str, Any]:
    """Write a window so that as many axes may vary as the exporter can do, and return its description."""
    from runner_export.axes import multiples

    axes = multiples(window.graph, window.small)
    try:
        network = write(window, axes, file)
    except BadInput:
        axes = {name: [1, *[None] * (len(steps) - 1)] for name, steps in axes.items()}
        network = write(window, axes, file)
    for one in network["inputs"]:
        steps = axes[one["name"]]
        one["multiple"] = [
            n if isinstance(length, str) else None for n, length in zip(steps, one["shape"], strict=True)
        ]
    return network


def _longer(windows: Sequence[Window], networks: Networks) -> list[Arrays]:
    """Return an example of each network with other lengths along all axes that may vary."""
    from runner_export.axes import other_lengths

    found = []
    for window, network in zip(windows, networks, strict=True):
        axes = {one["name"]: one["multiple"] for one in network["inputs"]}
        found.append(other_lengths(window.small, axes))
    return found


def _finish(job: ExportJob, name: str, windows: Sequence[Window], networks: Networks) -> list[Path]:
    """Compare, measure, and write what lies beside the network."""
    from runner_export.window import eager

    found = load_networks(job.folder, networks)
    parity = compare(job, eager(windows), found, name, _longer(windows, networks))
    print(f"{name}: {parity}")
    about = {"networks": networks, "parity": parity.as_json(job.source)}
    return write_beside(job, name, about | _measured(job, windows, {name: networks}))


def _measured(job: ExportJob, windows: Sequence[Window], formats: Mapping[str, Networks]) -> dict[str, Any]:
    """Return latency and bytes of eager PyTorch, of each format, and of OpenVINO with an ONNX file."""
    import torch

    from runner_export.window import weights_bytes

    threads = torch.get_num_threads()
    largest = max(windows, key=lambda window: sum(array.size for array in window.example.values()))
    runtimes: dict[str, Infer] = {"eager": largest.graph.infer}
    sizes = {"eager": weights_bytes(largest.graph.network)}
    for name, networks in formats.items():
        runtimes[name] = load_networks(job.folder, networks, threads)
        sizes[name] = sum(_bytes(job.folder / network["file"]) for network in networks)
        if name == "onnx" and find_spec("openvino"):
            runtimes["openvino"] = load_networks(job.folder, networks, threads, open_openvino)
    return _speed(runtimes, sizes, largest.example, threads, ("torch", "onnx", "onnxruntime", "openvino", "numpy"))


def _speed(
    runtimes: Mapping[str, Infer], sizes: Mapping[str, int], example: Arrays, threads: int, packages: Sequence[str]
) -> dict[str, Any]:
    """Return the entries of export.json about latency, bytes and versions."""
    found = latencies(runtimes, example)
    print("; ".join(f"{name} {milliseconds:.3g} ms" for name, milliseconds in found.items()))
    speed = {
        "milliseconds": found,
        "input": ", ".join(f"{name} {_text(array.shape)}" for name, array in example.items()),
        "threads": threads,
        "processor": cpu_name(),
    }
    versions = {name: version(name) for name in packages if find_spec(name)}
    return {"latency": speed, "bytes": dict(sizes), "versions": versions}


def _bytes(file: Path) -> int:
    return sum(one.stat().st_size for one in file.parent.glob(f"{file.stem}.*"))


def _text(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape))
