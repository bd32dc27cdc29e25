"""A mode that computes each operation once more in float64 by plain kernels, and compares both."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from runner_core.contract.kernels import Disagreement
from runner_core.engines.torch.kernels.plain import plain_kernels
from runner_core.engines.torch.kernels.rounding import HALVES, floats_of, relative_errors, widened
from runner_core.engines.torch.parallel import CHANNELS_LAST


class Shadow(TorchDispatchMode):
    """Inside this context, each operation is computed once more in float64 by plain kernels, and compared.

    `wrong` lists the operations whose result rounding does not explain, each once per layer. Unlike the comparison of
    whole steps, nothing adds up from layer to layer, so this is as sharp in 16 bits as in 32.

    Args:
        layer: Returns the layer that computes now.
        tf32: Whether products of float32 matrices may round their inputs to tf32.
    """

    def __init__(self, layer: Callable[[], str], tf32: bool) -> None:
        super().__init__()
        self._layer, self._tf32 = layer, tf32
        self.wrong: dict[tuple[str, str], Disagreement] = {}
        self.worst = 0.0
        """Largest error as a multiple of its bound."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = floats_of(func, args, kwargs)
        result = func(*args, **kwargs)
        if not given or torch.Tag.nondeterministic_seeded in func.tags:
            return result
        self._compare(func, args, kwargs, given, result)
        if (larger := _larger(func, args)) is not None:
            product = torch.ops.aten.mm.default
            self._compare(product, larger, {}, larger, product(*larger))
        return result

    def _compare(self, func: Any, args: Any, kwargs: Any, given: Sequence[Tensor], result: Any) -> None:
        with plain_kernels():
            right = widened(func, args, kwargs, torch.float64)
            if right is not None:
                pairs = zip(tree_leaves(result), tree_leaves(right), strict=False)
                for number, (one, other) in enumerate(pairs):
                    if isinstance(one, Tensor) and one.is_floating_point() and one.numel():
                        self._judge(func, args, kwargs, given, number, one, other)

    def _judge(
        self, func: Any, args: Any, kwargs: Any, given: Sequence[Tensor], number: int, one: Tensor, right: Tensor
    ) -> None:
        finite = torch.isfinite(right) & (right.abs() < torch.finfo(one.dtype).max)
        error = torch.where(finite, one.double() - right, 0.0)
        size = torch.where(finite, right, 0.0).abs()
        own, added = relative_errors(func, given, one, one.dtype, self._tf32)
        ratio = _ratio(error, (own + added) * size)
        if ratio > 1:  # numbers may cancel: how large are the terms that were added?
            positive = tree_map_only(Tensor, _sizes, (args, kwargs))
            sums = widened(func, positive[0], positive[1], torch.float64)
            if sums is not None:
                total = torch.nan_to_num(tree_leaves(sums)[number].abs(), 0.0, 0.0, 0.0)
                ratio = _ratio(error, own * size + added * torch.maximum(total, size))
        self.worst = max(self.worst, ratio)
        if ratio > 1:
            key = self._layer(), func.overloadpacket.__name__
            share = float(error.norm() / size.norm().clamp_min(1e-300))
            kinds = ", ".join(dict.fromkeys(str(leaf.dtype).removeprefix("torch.") for leaf in given))
            what = f"{key[1]} ({kinds}{', channels last' if any(map(_last, given)) else ''}) in {key[0] or 'the loss'}"
            self.wrong.setdefault(key, Disagreement("operation", what, share, share / ratio))


_FOR_ONEDNN = 16**3
"""PyTorch gives products in 16 bits to oneDNN on a CPU if they take more multiplications (mkldnn/Matmul.cpp)."""


def _larger(func: Any, args: Any) -> tuple[Tensor, Tensor] | None:
    """Return the matrices of a product on a CPU, one of them repeated until oneDNN multiplies them; else None.

    Only a few samples are compared, and the products of a whole batch may be computed by other code. oneDNN's faults
    come with the layout of a matrix of one column or row (oneDNN#4209), so the other one is repeated.
    """
    if func not in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
        return None
    a, b = args[-2:]
    work = a.shape[0] * b.numel()
    if a.device.type != "cpu" or a.dtype not in HALVES or not 0 < work <= _FOR_ONEDNN:
        return None
    times = _FOR_ONEDNN // work + 1
    return (a.repeat(times, 1), b) if a.shape[0] >= b.shape[1] else (a, b.repeat(1, times))


_SHADOW_MARGIN = 4.0
"""An operation may be off by this multiple of what rounding explains, and a slice by twice that."""


def _ratio(error: Tensor, explained: Tensor) -> float:
    """Return the largest error of the whole, or of a slice along an axis, as a multiple of what is allowed."""
    bound, squared = (_SHADOW_MARGIN * explained).square_(), error.square()
    whole = bound.mean()
    found = [squared.mean() / (whole + 1e-76)]
    for axis in range(error.ndim if error.ndim > 1 else 0):
        others = [n for n in range(error.ndim) if n != axis]
        largest = 4 * torch.maximum(bound.mean(others), whole)
        found.append((squared.mean(others) / (largest + 1e-76)).max())
    return math.sqrt(float(torch.stack(found).max()))


def _sizes(tensor: Tensor) -> Tensor:
    return tensor.abs() if tensor.is_floating_point() else tensor


def _last(tensor: Tensor) -> bool:
    layout = CHANNELS_LAST.get(tensor.ndim)
    return layout is not None and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=layout)
