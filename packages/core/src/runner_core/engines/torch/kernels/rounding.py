"""A mode in which each operation is off at random, by as much as its dtype rounds."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from runner_core.engines.kernels import EPS

_EXACT = {
    "clone", "detach", "alias", "_to_copy", "contiguous", "copy", "lift_fresh", "cat", "stack", "index", "gather",
    "index_select", "slice_scatter", "select_scatter", "embedding", "constant_pad_nd", "flip", "roll", "where",
    "masked_fill", "repeat", "sort", "topk", "max", "min", "amax", "amin", "relu", "threshold_backward", "sign",
    "round", "floor", "ceil", "clamp", "clamp_min", "clamp_max", "maximum", "minimum", "abs", "neg", "zeros_like",
    "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty", "scatter", "tril", "triu", "eq",
    "one_hot", "max_pool2d_with_indices", "max_pool3d_with_indices", "nonzero", "masked_select", "_unsafe_index",
}  # fmt: skip
"""Operations that copy or choose numbers, or whose results every kernel has exactly."""


_MAKES = ("new_", "empty", "zeros", "ones", "full", "rand")
"""Beginnings of the names of operations that make tensors, perhaps without values."""
_LEAST_TERMS = 8.0
"""Roundings that every operation may have: a batch_norm in float32 was 7 of them off, and no fault is that small."""
_LOOKED_AT = 256
HALVES = {torch.bfloat16: EPS["bfloat16"], torch.float16: EPS["float16"]}
"""16-bit dtypes, and the largest relative error of rounding to them."""
_NORMALISES = re.compile("norm|softmax|loss|var|std")
_PRODUCTS = ("convolution", "mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "linear", "_scaled_dot_product")


class Rounding(TorchDispatchMode):
    """Inside this context, each result of an operation is off at random, by up to what its dtype rounds.

    16-bit operations are computed in float32 by plain kernels and rounded then, as right kernels do. A float32 sum of n
    terms is off by up to √n roundings: kernels add in any order (Higham 2002, section 4.2, in the mean).

    Args:
        seed: Of the random numbers.
        device: On which the network computes.
        tf32: Whether products of float32 matrices round their inputs to tf32.
    """

    def __init__(self, seed: int, device: torch.device, tf32: bool) -> None:
        super().__init__()
        self._random = torch.Generator(device).manual_seed(seed)
        self._tf32 = tf32
        self._dtypes: dict[Any, list[torch.dtype | None]] = {}
        """dtypes of the results of 16-bit operations, by operation and dtypes of its arguments."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = floats_of(func, args, kwargs)
        if not any(leaf.dtype in HALVES for leaf in given) or torch.Tag.nondeterministic_seeded in func.tags:
            result = func(*args, **kwargs)
            return tree_map(lambda leaf: self._rounded(func, given, leaf, None), result) if given else result
        key = func, tuple(leaf.dtype for leaf in given), str(kwargs.get("dtype"))
        if key not in self._dtypes:
            self._dtypes[key] = [getattr(leaf, "dtype", None) for leaf in tree_leaves(func(*args, **kwargs))]
        wide = widened(func, args, kwargs, torch.float32)
        if wide is None:
            return func(*args, **kwargs)
        dtypes = iter(self._dtypes[key])
        return tree_map(lambda leaf: self._rounded(func, given, leaf, next(dtypes)), wide)

    def _rounded(self, func: Any, given: Sequence[Tensor], wide: Any, dtype: torch.dtype | None) -> Any:
        """Return a result off at random, in a dtype; None: its own."""
        if not isinstance(wide, Tensor) or not wide.is_floating_point() or not wide.numel():
            return wide
        dtype = dtype or wide.dtype
        error = sum(relative_errors(func, given, wide, dtype, self._tf32))
        off = torch.empty_like(wide).uniform_(-error, error, generator=self._random).mul_(wide).add_(wide)
        if _has_counts(wide):  # they are exact
            off = torch.where(wide == wide.round(), wide, off)
        return off.to(dtype)


def _has_counts(tensor: Tensor) -> bool:
    """Return whether a few of its numbers are whole, as in counts and masks; zeros stay zeros anyway."""
    few = tensor.detach().flatten()[:: max(1, tensor.numel() // _LOOKED_AT)]
    return bool(((few == few.round()) & (few != 0)).any())


def relative_errors(
    func: Any, given: Sequence[Tensor], result: Tensor, dtype: torch.dtype, tf32: bool
) -> tuple[float, float]:
    """Return the relative errors of a result that rounding explains, in whatever order a kernel adds.

    The first is a share of the result, which is rounded to `dtype`, the second a share of the terms that are added up.
    """
    # some kernels round to the narrowest dtype that they are given
    own = max(HALVES.get(one, 0.0) for one in (dtype, *(leaf.dtype for leaf in given)))
    count = max(_LEAST_TERMS, math.sqrt(terms(func, given, result)))
    if _NORMALISES.search(func.overloadpacket.__name__):  # layer_norm adds gradients up in 16 bits on a CPU
        own *= count
    return own, 2 * EPS["float32"] * count + (EPS["tf32"] if tf32 and is_product(func) else 0.0)


def is_product(func: Any) -> bool:
    return func.overloadpacket.__name__.startswith(_PRODUCTS)


def terms(func: Any, given: Sequence[Tensor], result: Tensor) -> float:
    """Return about how many numbers are added up for an element of a result.

    >>> a, b = torch.ones(2, 5), torch.ones(5, 3)
    >>> terms(torch.ops.aten.mm.default, [a, b], a @ b), terms(torch.ops.aten.sum.default, [a], a.sum())
    (5.0, 10.0)
    """
    sizes = sorted((leaf.numel() for leaf in given), reverse=True)
    count = max(1, result.numel())
    if is_product(func) and len(sizes) > 1:  # (M, K) · (K, N): √(MK · KN / MN) = K; for convolutions alike
        return max(1.0, math.sqrt(sizes[0] * sizes[1] / count))
    if _NORMALISES.search(func.overloadpacket.__name__):  # each element depends on a sum over many
        return max(1.0, sizes[0] / max(1, min(sizes[-1], count)))
    return max(1.0, sizes[0] / count)


def floats_of(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """Return the floating-point arguments of an operation that computes; [] for one that copies, views or changes."""
    name = func.overloadpacket.__name__
    if name in _EXACT or name.startswith(_MAKES) or any(a.alias_info is not None for a in func._schema.arguments):
        return []
    leaves = tree_leaves((args, kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def widened(func: Any, args: Any, kwargs: Any, to: torch.dtype) -> Any:
    """Return the result with all floating-point arguments in a wider type, None where the operation refuses them."""
    narrower = {torch.bfloat16, torch.float16, torch.float32} - {to}
    changes = "batch_norm" in func.overloadpacket.__name__  # some of its arguments, which its schema does not say

    def wide(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            plain = leaf.to(to, copy=changes) if leaf.dtype in narrower or (changes and leaf.dtype == to) else leaf
            return plain.contiguous()
        return to if leaf in narrower else leaf

    try:
        return func(*tree_map(wide, args), **tree_map(wide, kwargs))
    except (RuntimeError, TypeError, NotImplementedError):
        return None
