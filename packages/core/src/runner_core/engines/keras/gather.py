"""Keep the whole data set on the device (`cache.mode: device`), so that a batch is one gather there."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from runner_core.base.errors import BadInput, OutOfSpace
from runner_core.contract import Array, StoredArray, Tensors
from runner_core.data.samples import RowSamples
from runner_core.engines.keras.backend import Backend, OutOfDeviceMemory


class DeviceRows:
    """Stored arrays on the device; maps `{"row", "record"}` to the fields of the samples (`RowSamples`)."""

    def __init__(self, samples: Any, backend: Backend) -> None:
        """Copy the arrays to the device.

        Raises BadInput for samples that are not rows, and OutOfSpace if the set is larger than the memory.
        """
        if not isinstance(samples, RowSamples):
            raise BadInput("cache.mode device needs samples that are rows (RowSamples); use cache.mode memmap")
        self._offsets = samples.fields
        try:
            with backend.allocating():
                self._arrays = {name: _variable(_whole(array), name) for name, array in samples.arrays.items()}
                self._bounds = _variable(samples.record_rows.astype(np.int32), "bounds")
        except OutOfDeviceMemory:
            raise OutOfSpace("the data set does not fit into the device's memory; use cache.mode memmap") from None

    @property
    def variables(self) -> list[keras.Variable]:
        return [*self._arrays.values(), self._bounds]

    def __call__(self, batch: Tensors) -> Tensors:
        """Return fields (samples, offsets, …) and `record`; a neighbour beyond a record's end is its last row."""
        ops = keras.ops
        rows, records = ops.cast(batch["row"], "int32"), ops.cast(batch["record"], "int32")
        first = ops.take(self._bounds.value, records)[:, None]
        last = ops.take(self._bounds.value, records + 1)[:, None] - 1
        fields: Tensors = {"record": batch["record"]}
        for name, array in self._arrays.items():
            offsets = ops.convert_to_tensor(self._offsets[name], "int32")
            wanted = ops.clip(rows[:, None] + offsets, first, last)
            fields[name] = ops.take(array.value, wanted, axis=0)
        return fields


def _variable(array: Array, name: str) -> keras.Variable:
    return keras.Variable(array, dtype=str(array.dtype), trainable=False, name=f"cached_{name}")


def _whole(array: StoredArray) -> Array:
    """Return the concatenation of all records, copied record by record."""
    whole = np.empty((sum(shape[0] for shape in array.shapes), *array.shapes[0][1:]), array.dtype)
    begin = 0
    for record, shape in enumerate(array.shapes):
        whole[begin : begin + shape[0]] = array.read(record)
        begin += shape[0]
    return whole
