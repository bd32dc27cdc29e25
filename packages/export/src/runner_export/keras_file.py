"""Compare a written .keras file as plain Keras opens it: in a process of its own, where runner cannot be imported."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import Array, Arrays, BadInput, ExportJob, Infer

from runner_export import plain, session


def describe_keras(job: ExportJob, file: Path) -> dict[str, Any]:
    """Return what export.json says of the file's inputs and outputs; a name in place of a length means: any."""
    network, step = job.trained.network, job.project.standalone().multiple

    def values(tensors: Any, names: Any) -> list[dict[str, Any]]:
        found = []
        for tensor, name in zip(tensors, names, strict=True):
            side = f"{name}_{{}} ({step}n)" if step > 1 else f"{name}_{{}}"
            axes = ["batch", *(side.format(axis) for axis in range(1, len(tensor.shape)))]
            shape = [name if length is None else length for length, name in zip(tensor.shape, axes, strict=True)]
            found.append({"name": name, "dtype": str(tensor.dtype), "shape": shape})
        return found

    inputs = values(network.inputs, [tensor.name for tensor in network.inputs])
    for one in inputs:
        steps = (1, *[step] * (len(one["shape"]) - 1))
        one["multiple"] = [
            n if isinstance(length, str) else None for n, length in zip(steps, one["shape"], strict=True)
        ]
    return {"file": file.name, "inputs": inputs, "outputs": values(network.outputs, network.output_names)}


@contextmanager
def plain_keras(job: ExportJob, network: Mapping[str, Any]) -> Iterator[Infer]:
    """Open the described file in another process, and yield the function that predicts with it from stored arrays.

    What the project does before and after the network is done here. Raises BadInput if the file cannot be opened.
    """
    import keras

    names = [[one["name"] for one in network[side]] for side in ("inputs", "outputs")]
    with tempfile.TemporaryDirectory(prefix="runner-export-") as place, open(Path(place) / "log", "w+b") as log:
        for module in (plain, session):
            shutil.copy(str(module.__file__), place)
        words = [sys.executable, f"{place}/{Path(str(plain.__file__)).name}", str(job.folder), json.dumps([network])]
        environment = {**os.environ, "KERAS_BACKEND": keras.backend.backend(), "CUDA_VISIBLE_DEVICES": ""}
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        ) as child:

            def answer(line: str) -> None:
                assert child.stdin is not None
                assert child.stdout is not None
                try:
                    child.stdin.write(f"{line}\n")
                    child.stdin.flush()
                except BrokenPipeError:
                    pass
                if not any(said.startswith(plain.DONE) for said in child.stdout):
                    log.seek(0)
                    said = log.read().decode(errors="replace").strip().splitlines() or ["it says nothing"]
                    raise BadInput(f"--to keras: plain Keras cannot open {network['file']}: {said[-1][:300]}")

            def call(given: Any) -> Any:
                tensors = [np.asarray(keras.ops.convert_to_numpy(one)) for one in keras.tree.flatten(given)]
                np.savez(f"{place}/in.npz", **dict(zip(names[0], tensors, strict=True)))
                answer(place)
                with np.load(f"{place}/out.npz", allow_pickle=False) as found:
                    outputs: list[Array] = [found[name] for name in names[1]]
                return outputs if len(outputs) > 1 else outputs[0]

            def infer(arrays: Arrays) -> Arrays:
                batch = job.project.on_device(arrays, job.trained.statistics, None)
                found = job.project.infer(call, batch)
                return {name: np.asarray(keras.ops.convert_to_numpy(one)) for name, one in found.items()}

            try:
                yield infer
            finally:
                child.kill()
