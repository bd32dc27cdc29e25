"""Keep the whole data set on the device (`cache.mode: device`), so that a batch is one `index_select` there."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from runner_core.base.errors import BadInput, OutOfSpace
from runner_core.contract import StoredArray, Tensors
from runner_core.data.samples import RowSamples


class DeviceRows:
    """Stored arrays on the device; maps `{"row", "record"}` to the fields of the samples (`RowSamples`)."""

    def __init__(self, samples: Any, device: torch.device) -> None:
        """Copy the arrays to the device.

        Raises BadInput for samples that are not rows, and OutOfSpace if the set is larger than the memory.
        """
        if not isinstance(samples, RowSamples):
            raise BadInput("cache.mode device needs samples that are rows (RowSamples); use cache.mode memmap")
        self._bounds = torch.from_numpy(samples.record_rows).to(device)
        try:
            self._arrays = {name: _load(array, device) for name, array in samples.arrays.items()}
        except torch.OutOfMemoryError:
            raise OutOfSpace("the data set does not fit into the device's memory; use cache.mode memmap") from None
        self._offsets = {name: torch.tensor(o, device=device) for name, o in samples.fields.items()}

    def __call__(self, batch: Tensors) -> Tensors:
        """Return fields (samples, offsets, …) and `record`; a neighbour beyond a record's end is its last row."""
        rows, records = batch["row"], batch["record"]
        first, last = self._bounds[records, None], self._bounds[records + 1, None] - 1
        fields: Tensors = {"record": records}
        for name, array in self._arrays.items():
            wanted = torch.clamp(rows[:, None] + self._offsets[name], first, last)
            fields[name] = array.index_select(0, wanted.flatten()).view(*wanted.shape, *array.shape[1:])
        return fields


def _load(array: StoredArray, device: torch.device) -> torch.Tensor:
    """Return the concatenation of all records, copied record by record."""
    rows = sum(shape[0] for shape in array.shapes)
    empty = torch.from_numpy(np.empty(0, array.dtype))
    whole = torch.empty((rows, *array.shapes[0][1:]), dtype=empty.dtype, device=device)
    begin = 0
    for record, shape in enumerate(array.shapes):
        # a copy, because stored arrays are read-only and torch has no such tensors
        whole[begin : begin + shape[0]].copy_(torch.from_numpy(np.array(array.read(record))))
        begin += shape[0]
    return whole
