"""Compute the first step of a PyTorch training to compare it: as it is trained, by plain kernels, or with rounding."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from runner_core.contract import Array, Progress, Tensors
from runner_core.contract.kernels import Disagreement, Observed, Updated, Way
from runner_core.engines.kernels import EPS, jitter
from runner_core.engines.torch.checkpoint import seed_generators
from runner_core.engines.torch.gradient_norms import tensors_in
from runner_core.engines.torch.learning import Learning
from runner_core.engines.torch.memory import Rewind
from runner_core.engines.torch.parallel import CHANNELS_LAST

_UPDATES = 2


def observe(learning: Learning, tensors: Tensors, progress: Progress, way: Way, policy: str, seed: int) -> Observed:
    """Return what a step computes for a batch on the device, with the network's weights a few percent away.

    The network is not restored: it is one for this comparison alone. `policy` is the precision that is computed in.
    """
    network, begun = learning.network, time.perf_counter()
    _move_weights(network)
    rewind = Rewind(network, device_of(network))
    rewind.mark()
    found = Observed()
    calls: dict[str, int] = {}
    with ExitStack() as inside:
        eager, now = way.plain or not learning.compiles, [""]
        if eager:
            inside.enter_context(_called(network, calls, now, found if way.layers else None))
        if way.plain:
            inside.enter_context(plain_kernels())
        elif learning.compiles:
            inside.enter_context(_compiled(network))
        if way.rounding is not None:
            inside.enter_context(Rounding(way.rounding, device_of(network), policy == "tf32"))
        shadow = inside.enter_context(Shadow(lambda: now[0], policy == "tf32")) if way.shadow and eager else None
        _compute(learning, tensors, progress, found, rewind, seed)
    found.order, found.wrong = calls, [] if shadow is None else [*shadow.wrong.values()]
    named = ((name, buffer) for name, buffer in network.named_buffers() if buffer.is_floating_point())
    found.values.update({f"buffer {name}": host(buffer) for name, buffer in named})
    rewind.back()
    found.seconds = time.perf_counter() - begun
    return found


def _compute(
    learning: Learning, tensors: Tensors, progress: Progress, found: Observed, rewind: Rewind, seed: int
) -> None:
    """Compute loss and gradients; float16 scales the loss, by less each time until nothing overflows."""
    trained = {n: p for n, p in learning.network.named_parameters() if p.requires_grad}
    scale = 1.0 if learning.scaler is None else 2.0**16
    while True:
        rewind.back()
        seed_generators(seed)
        for parameter in trained.values():
            parameter.grad = None
        step = learning.step(learning.parallel.train, tensors, progress)
        outputs = [*tensors_in(step.prediction)] if step.outputs is None else [*tensors_in(step.outputs)]
        values = {"the loss": step.loss.detach()}
        values |= {f"the term {n}": t.detach() for n, t in step.terms.items() if isinstance(t, Tensor)}
        values |= {f"the prediction ({n})": t.detach() for n, t in enumerate(outputs) if t.is_floating_point()}
        (step.loss * scale).backward()
        gradients = [p.grad for p in trained.values() if p.grad is not None]
        if scale == 1.0 or all(bool(g.isfinite().all()) for g in gradients):
            break
        scale /= 16
    for name in found.output_gradients:
        found.output_gradients[name] /= scale
    found.values = {name: host(value) for name, value in values.items()}
    found.gradients = {
        name: host(torch.zeros_like(p) if p.grad is None else p.grad / scale) for name, p in trained.items()
    }


def update(learning: Learning, gradients: Mapping[str, Array], before: Mapping[str, Array] | None) -> Updated:
    """Return the weights and their average after `_UPDATES` updates with these gradients.

    With `before`, the updates start from these weights, and are computed weight by weight, by plain operations.
    """
    trained = {n: p for n, p in learning.network.named_parameters() if n in gradients}
    if before is not None:
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(torch.from_numpy(before[name]))
        for group in learning.optimizer.param_groups:
            group |= {name: False for name in ("fused", "foreach") if name in group}
    begun, steps = {name: host(p) for name, p in trained.items()}, []
    average = {} if learning.average is None else learning.average.state()
    average_before = {name: host(t) for name, t in average.items()}
    learning.scaler = None  # what it does besides scaling is to skip steps that overflow
    for step in range(_UPDATES):
        for name, parameter in trained.items():
            parameter.grad = torch.from_numpy(gradients[name]).to(parameter.device).reshape_as(parameter)
            parameter.grad = torch.empty_like(parameter).copy_(parameter.grad)
        learning.rate.set(Progress(step + 1, 100, 0))
        learning.update(Progress(step, 100, 0))
        steps.append({name: host(p) for name, p in trained.items()})
    return Updated(begun, steps, average_before, {name: host(t) for name, t in average.items()})


def host(tensor: Tensor) -> Array:
    """Return a float32 copy in host memory."""
    return tensor.detach().to("cpu", torch.float32, copy=True).contiguous().numpy()


def device_of(network: nn.Module) -> torch.device:
    return next(network.parameters()).device


@torch.no_grad()
def _move_weights(network: nn.Module) -> None:
    for name, parameter in network.named_parameters():
        if parameter.requires_grad and not getattr(parameter, "_moved", False):
            parameter.copy_(torch.from_numpy(jitter(name, host(parameter))))
            parameter._moved = True


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Compute by PyTorch's own plain kernels inside this context."""
    cudnn = torch.backends.cudnn
    precision_before, tf32 = torch.get_float32_matmul_precision(), cudnn.allow_tf32
    onednn = torch._C._get_mkldnn_enabled()
    torch.set_float32_matmul_precision("highest")
    torch._C._set_mkldnn_enabled(False)  # torch.backends.mkldnn.flags warns of Intel's GPUs
    try:
        with (
            cudnn.flags(enabled=False, benchmark=False, deterministic=True, allow_tf32=False),
            sdpa_kernel(SDPBackend.MATH),
            torch.compiler.set_stance("force_eager"),
        ):
            yield
    finally:
        torch._C._set_mkldnn_enabled(onednn)
        torch.set_float32_matmul_precision(precision_before)
        cudnn.allow_tf32 = tf32


@contextmanager
def _compiled(network: nn.Module) -> Iterator[None]:
    """Compile the network inside this context; dropout then draws what it draws where nothing is compiled."""
    from torch._inductor import config

    with config.patch(fallback_random=True):
        network.compile()
        try:
            yield
        finally:
            network._compiled_call_impl = None


@contextmanager
def _called(network: nn.Module, calls: dict[str, int], now: list[str], layers: Observed | None) -> Iterator[None]:
    """Count the calls of modules in `calls`, in their order, and keep the leaves' outputs in `layers`.

    `now` holds the name of the leaf that computes.
    """
    handles = []
    for name, module in network.named_modules():
        leaf = not any(True for _ in module.children())
        if name and leaf:
            handles.append(module.register_forward_pre_hook(lambda *_, name=name: now.__setitem__(0, name)))
        if name:
            handles.append(module.register_forward_hook(_note(name, calls, now if leaf else None, layers)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _note(name: str, calls: dict[str, int], now: list[str] | None, layers: Observed | None) -> Callable[..., None]:
    times = 0

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal times
        times += 1
        call = name if times == 1 else f"{name} (call {times})"  # a layer may be called several times
        calls[call] = len(calls)
        if now is None or not isinstance(output, Tensor) or not output.is_floating_point():
            return
        now[0] = f"what follows {name}"
        if layers is not None:
            layers.outputs[call] = host(output)
        if output.requires_grad:
            output.register_hook(partial(came, call))

    def came(call: str, gradient: Tensor) -> None:
        assert now is not None
        now[0] = name
        if layers is not None:
            layers.output_gradients[call] = host(gradient)

    return note


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
_HALVES = {torch.bfloat16: EPS["bfloat16"], torch.float16: EPS["float16"]}
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
        if not any(leaf.dtype in _HALVES for leaf in given) or torch.Tag.nondeterministic_seeded in func.tags:
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
        random = torch.empty_like(wide).uniform_(-1, 1, generator=self._random)
        off = torch.addcmul(wide, wide, random, value=error)
        return torch.where(wide == wide.round(), wide, off).to(dtype)  # counts and masks are exact


def relative_errors(
    func: Any, given: Sequence[Tensor], result: Tensor, dtype: torch.dtype, tf32: bool
) -> tuple[float, float]:
    """Return the relative errors of a result that rounding explains, in whatever order a kernel adds.

    The first is a share of the result, which is rounded to `dtype`, the second a share of the terms that are added up.
    """
    # some kernels round to the narrowest dtype that they are given
    own = max(_HALVES.get(one, 0.0) for one in (dtype, *(leaf.dtype for leaf in given)))
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

    def wide(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            plain = leaf.to(to) if leaf.dtype in narrower else leaf.clone()  # batch_norm changes some of its arguments
            return plain.contiguous()
        return to if leaf in narrower else leaf

    try:
        return func(*tree_map(wide, args), **tree_map(wide, kwargs))
    except (RuntimeError, TypeError, NotImplementedError):
        return None


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
        with plain_kernels():
            right = widened(func, args, kwargs, torch.float64)
            if right is not None:
                pairs = zip(tree_leaves(result), tree_leaves(right), strict=False)
                for number, (one, other) in enumerate(pairs):
                    if isinstance(one, Tensor) and one.is_floating_point() and one.numel():
                        self._judge(func, args, kwargs, given, number, one, other)
        return result

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


_SHADOW_MARGIN = 4.0
"""An operation may be off by this multiple of what rounding explains, and a slice by twice that."""


def _ratio(error: Tensor, explained: Tensor) -> float:
    """Return the largest error of the whole, or of a slice along an axis, as a multiple of what is allowed."""
    bound = (_SHADOW_MARGIN * explained).square()
    found = [error.square().mean() / (bound.mean() + 1e-76)]
    for axis in range(error.ndim if error.ndim > 1 else 0):
        others = [n for n in range(error.ndim) if n != axis]
        largest = 4 * torch.maximum(bound.mean(others), bound.mean())
        found.append((error.square().mean(others) / (largest + 1e-76)).max())
    return math.sqrt(float(torch.stack(found).max()))


def _sizes(tensor: Tensor) -> Tensor:
    return tensor.abs() if tensor.is_floating_point() else tensor


def _last(tensor: Tensor) -> bool:
    layout = CHANNELS_LAST.get(tensor.ndim)
    return layout is not None and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=layout)
