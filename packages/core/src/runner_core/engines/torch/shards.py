"""Tensors of which each of several processes has a part, and the files that such tensors are read from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from runner_core.contract import Array, Tensors


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole of a sharded tensor, on every process, which all must call; others are returned as they are."""
    full = getattr(tensor, "full_tensor", None)
    return tensor if full is None else full()


def own(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a sharded tensor, in the same memory; others are returned as they are."""
    local = getattr(tensor, "to_local", None)
    return tensor if local is None else local()


def is_rows(tensor: torch.Tensor) -> bool:
    """Return True if each process has some rows of the tensor, alone or as others in its place of other groups."""
    placements: Sequence[Any] = getattr(tensor, "placements", ())
    return bool(placements) and placements[-1].is_shard(0) and all(p.is_replicate() for p in placements[:-1])


def parts(tensor: Any) -> int:
    """Return the number of processes that have its rows together."""
    mesh = tensor.device_mesh
    return int(mesh.size(mesh.ndim - 1))


def is_copy(tensor: Any) -> bool:
    """Return True if a process of an earlier group has the same rows of the tensor."""
    return any(tensor.device_mesh.get_coordinate()[:-1])


class Rows:
    """A tensor whose rows are in several files, in order; read when it is known which ones are needed."""

    def __init__(self, parts: Sequence[torch.Tensor], shape: Sequence[int]) -> None:
        """Raise ValueError if the parts do not add up to the shape."""
        self._parts, self.shape = parts, torch.Size(shape)
        if not parts or torch.Size([sum(len(part) for part in parts), *parts[0].shape[1:]]) != self.shape:
            raise ValueError(f"the parts of a tensor of shape {tuple(shape)} do not add up")
        self.dtype = parts[0].dtype

    def take(self, begin: int, end: int) -> torch.Tensor:
        """Return the rows from `begin` to `end`."""
        found, first = [], 0
        for part in self._parts:
            rows = part[max(0, begin - first) : max(0, end - first)]
            first += len(part)
            if len(rows):
                found.append(rows)
        return torch.cat(found) if found else self._parts[0][:0]

    def whole(self) -> torch.Tensor:
        return self.take(0, self.shape[0])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array: Array = self.whole().numpy()
        return array if dtype is None else array.astype(dtype)


def divided(whole: Tensors, like: Tensors) -> Tensors:
    """Return whole tensors, or their `Rows`, sharded like those of the same names in `like`.

    Tensors are whole if those are not sharded or have other shapes.
    """
    return {name: _divided(tensor, like.get(name)) for name, tensor in whole.items()}


def _divided(whole: torch.Tensor | Rows, like: Any) -> torch.Tensor:
    mesh = getattr(like, "device_mesh", None)
    if isinstance(whole, Rows):
        if not is_rows(like) or whole.shape != like.shape:
            whole = whole.whole()
        else:
            return _own_rows(whole, like)
    if mesh is None or getattr(whole, "shape", None) != like.shape:
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole.to(like.device), mesh, like.placements)


def _own_rows(rows: Rows, like: Any) -> torch.Tensor:
    """Return a tensor sharded like `like`, of which each process reads only its own rows."""
    from torch.distributed.tensor import DTensor

    each = -(-rows.shape[0] // parts(like))  # as `torch.chunk` divides
    begin = min(each * like.device_mesh.get_coordinate()[-1], rows.shape[0])
    own_rows = rows.take(begin, begin + len(own(like))).to(like.device)
    return DTensor.from_local(own_rows, like.device_mesh, like.placements, shape=like.shape, stride=like.stride())
