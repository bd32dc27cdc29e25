"""The part that is exported: the network as `predict` calls it, from the arrays that it is given to its outputs.

That includes `on_device` and `infer` of the project: scaling, normalisation, the last sigmoid. A project may call its
network in several ways (ssmunet: spectra to features, features to probabilities). Each way is a window of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from runner_core import Array, Arrays, BadInput, ExportJob, Infer, Tensors
from torch import Tensor, nn

SAMPLES = 2
"""Samples of the example that is traced: of an axis of length 1 the exporter would assume that it always is."""


class Graph(nn.Module):
    """The function that is traced: tensors in the order of `inputs` → tensors in the order of `outputs`."""

    def __init__(self, job: ExportJob, inputs: Sequence[str]) -> None:
        super().__init__()
        self.network = job.trained.network.cpu()
        self.project, self.statistics, self.inputs = job.project, job.trained.statistics, tuple(inputs)
        self.traced = job.project.standalone().infer or job.project.infer
        self.outputs: tuple[str, ...] = ()

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs in the order of `outputs`, by the operations that are exported."""
        found = self.traced(self.network, self._inputs(tensors))
        return tuple(_plain(found[name]) for name in self.outputs)

    @torch.no_grad()
    def infer(self, arrays: Arrays) -> Arrays:
        """Return what eager PyTorch computes in float32, as `predict` does; the names are then in `outputs`."""
        tensors = [torch.from_numpy(np.ascontiguousarray(arrays[name])) for name in self.inputs]
        found = self.project.infer(self.network, self._inputs(tensors))
        self.outputs = tuple(found)
        return {name: _plain(tensor).numpy() for name, tensor in found.items()}

    def _inputs(self, tensors: Sequence[Tensor]) -> Tensors:
        batch = dict(zip(self.inputs, tensors, strict=True))
        return self.project.on_device(batch, self.statistics, None)


@dataclass(frozen=True)
class Window:
    """A way in which `predict` calls the network, with the largest arrays of a record as its example."""

    graph: Graph
    example: Arrays

    @property
    def small(self) -> Arrays:
        """The example with `SAMPLES` samples."""
        return {name: resized(array, 0, SAMPLES) for name, array in self.example.items()}

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The small example, in the order of the graph's inputs."""
        small = self.small
        return tuple(torch.from_numpy(small[name]) for name in self.graph.inputs)


def windows_of(job: ExportJob) -> tuple[Window, ...]:
    """Return the ways in which the project calls its network for the first of the job's records."""
    graphs: dict[tuple[str, ...], Graph] = {}
    examples: dict[tuple[str, ...], Arrays] = {}

    def infer(arrays: Arrays) -> Arrays:
        names = tuple(sorted(arrays))
        graph = graphs.setdefault(names, Graph(job, names))
        if names not in examples or _size(arrays) > _size(examples[names]):
            examples[names] = {name: array.copy() for name, array in arrays.items()}
        return graph.infer(arrays)

    record, cropped = next(job.records())
    job.project.predict(cropped, infer)
    if not graphs:
        raise BadInput(f"{record.key}: `predict` of {job.project.name} does not call its network for this record")
    return tuple(Window(graph, examples[names]) for names, graph in graphs.items())


def eager(windows: Sequence[Window]) -> Infer:
    """Return the function that calls the window whose inputs the arrays are, in eager PyTorch."""
    by_inputs = {frozenset(window.graph.inputs): window.graph for window in windows}
    return lambda arrays: by_inputs[frozenset(arrays)].infer(arrays)


def _plain(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


def _size(arrays: Arrays) -> int:
    return sum(array.size for array in arrays.values())


def resized(array: Array, axis: int, length: int) -> Array:
    """Return the array with another length along an axis: cut, or begun again."""
    return np.ascontiguousarray(np.take(array, np.arange(length) % array.shape[axis], axis))


def weights_bytes(network: Any) -> int:
    """Return the bytes of a network's weights and buffers."""
    return sum(tensor.numel() * tensor.element_size() for tensor in network.state_dict().values())
