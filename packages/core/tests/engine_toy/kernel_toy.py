"""A small torch project with kernels of its own, and kernels that are wrong in twenty-one ways."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import engine_toy as toy
import torch
from runner_core.config import RunConfig
from runner_core.contract import Remedy, Step
from runner_core.contract.setup import Setup
from runner_core.plugins import defaults
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

CHUNK = 3
"""Steps that the scan takes at once; 8 steps leave an incomplete last chunk."""


@dataclass
class OwnConfig:
    kernel: str = "plain"
    dropout: float = 0.0


@dataclass
class KernelConfig(RunConfig):
    own: OwnConfig = field(default_factory=OwnConfig)


class Fault:
    """How the project's own kernel is wrong; "" if it is right."""

    own = ""


class Scan(torch.autograd.Function):
    """y_t = a y_{t-1} + x_t along axis 1 of (B, T, C), chunk by chunk."""

    @staticmethod
    def forward(ctx: Any, x: Any, a: Any) -> Any:
        y, state = torch.empty_like(x), torch.zeros_like(x[:, 0])
        for t in range(x.shape[1]):
            if Fault.own == "border" and t and t % CHUNK == 0:
                state = y[:, t - 2]
            state = a * state + x[:, t]
            if Fault.own == "bfloat16 state":
                state = state.bfloat16().float()
            y[:, t] = state
        ctx.save_for_backward(a, y)
        return torch.where(torch.arange(x.shape[1])[:, None] < 6, y, 1.5 * y) if Fault.own == "corrupt" else y

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        a, y = ctx.saved_tensors
        dx, state = torch.empty_like(dy), torch.zeros_like(dy[:, 0])
        for t in reversed(range(dy.shape[1])):
            if Fault.own == "border backward" and (t + 1) % CHUNK == 0:
                state = torch.zeros_like(state)
            state = dy[:, t] + a * state
            dx[:, t] = state
        before = F.pad(y, (0, 0, 1, 0))[:, :-1]
        da = (dx * before).sum((0, 1))
        if Fault.own == "one sample":
            da = (dx * before)[0].sum(0)
        return dx, da


def scan(x: Any, a: Any, kernel: str) -> Any:
    if kernel == "fast":
        return Scan.apply(x.float(), a.float()).to(x.dtype)
    states, state = [], torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        state = a * state + x[:, t]
        states.append(state)
    return torch.stack(states, 1)


def attention(q: Any, k: Any, v: Any, mask: Any, kernel: str) -> Any:
    """Return attention over (B, T, C) with a causal mask."""
    if kernel == "fast":
        mask = None if Fault.own == "mask" else mask
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0 if Fault.own == "scale" else None)
    scores = (q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])).masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ v


class Block(nn.Module):
    """Scan, attention and dropout over the rows of an image; `fast` computes its end again for the gradient."""

    def __init__(self, width: int, own: OwnConfig) -> None:
        super().__init__()
        self.own = own
        self.decay = nn.Parameter(torch.zeros(width))
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.wide, self.out = nn.Linear(width, 256), nn.Linear(256, width)

    def forward(self, x: Any) -> Any:
        x = x + scan(x, torch.sigmoid(self.decay), self.own.kernel)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
        x = x + attention(q, k, v, mask, self.own.kernel)
        if self.own.kernel == "fast" and self.own.dropout:
            from torch.utils.checkpoint import checkpoint

            return checkpoint(self._last, x, use_reentrant=False, preserve_rng_state=Fault.own != "dropout")
        return self._last(x)

    def _last(self, x: Any) -> Any:
        return x + F.dropout(self.out(F.gelu(self.wide(x))), self.own.dropout, self.training)


class Net(nn.Module):
    def __init__(self, own: OwnConfig) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.pool, self.down = nn.MaxPool2d(2, padding=1), nn.Conv2d(8, 12, 3, stride=2, padding=1)
        self.shared = nn.LayerNorm(12)
        self.volume, self.head = nn.Conv3d(1, 1, 3, padding=1), nn.Linear(12, 1)
        self.block = Block(12, own)

    def forward(self, image: Any) -> Any:
        x = self.down(self.pool(F.silu(self.norm(self.first(image)))))  # (B, 12, 3, 3)
        x = x + self.volume(x[:, None])[:, 0]
        rows = x.flatten(2).transpose(1, 2)  # (B, 9, 12)
        return self.head(self.shared(self.block(self.shared(rows)))).mean((1, 2))


class Kernels(toy.Toy):
    """Regress the brightest row, by convolutions, norms, a scan and attention; nothing in it is at rest."""

    name, Config = "kerneltoy", KernelConfig
    monitor = ("loss", "min")
    presets: ClassVar = {"default": KernelConfig, "demo": KernelConfig}
    augment = None
    optimisations: ClassVar = (Remedy("own", off={}, part="network", plain={"own.kernel": "plain"}),)

    def model(self, precision: Any) -> Any:
        return Net(self.config.own)

    def step(self, model: Any, batch: Any, progress: Any) -> Step:
        prediction = model(batch["image"]).float()
        loss = F.mse_loss(prediction, batch["mask"].float().mean((1, 2, 3)) + 1)
        return Step(loss, {"mse": loss}, prediction)

    def metrics(self) -> Any:
        return []


class Hooks:
    versions: ClassVar[dict[str, str]] = {}

    def first(self, hook: str, **arguments: Any) -> Any:
        return getattr(defaults, hook)(**arguments)

    def all(self, hook: str, **arguments: Any) -> Any:
        return [*getattr(defaults, hook)(**arguments)]


def setup(kind: Any = Kernels, **settings: Any) -> Any:
    """A setup of the toy and its data; settings by dotted name with __ for the dot."""
    config = kind.Config()
    base = {"train__device": "cpu", "train__batch_size": 6, "train__epochs": 1, "train__ema": 0.9}
    for name, value in {**base, **settings}.items():
        section, _, key = name.partition("__")
        setattr(getattr(config, section), key, value)
    made = Setup(kind(config), config, "demo", None, Hooks())  # type: ignore[arg-type]
    return made, toy.make_data(made.project)


# ---------------------------------------------------------------- faults


class Kernel(TorchDispatchMode):
    """Stands below everything as the kernel of an operation; `change(arguments, result)` makes its result wrong."""

    def __init__(self, name: str, meets: Any, change: Any) -> None:
        super().__init__()
        self._name, self._meets, self._change = name, meets, change

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kept = [a.clone() if isinstance(a, torch.Tensor) and self._name.startswith("native_batch") else a for a in args]
        result = func(*args, **(kwargs or {}))
        met = func.overloadpacket.__name__ == self._name and self._meets(args)
        return self._change([*args, kept], result) if met else result


def half(args: Any) -> bool:
    return any(isinstance(a, torch.Tensor) and a.dtype in (torch.bfloat16, torch.float16) for a in args)


def last(args: Any) -> bool:
    def is_last(a: Any) -> bool:
        four = isinstance(a, torch.Tensor) and a.ndim == 4
        return four and not a.is_contiguous() and a.is_contiguous(memory_format=torch.channels_last)

    return any(map(is_last, args))


def last_weight(args: Any) -> bool:
    return last(args[2:3])


def volume(args: Any) -> bool:
    return half(args) and args[0].ndim == 5


def border(tensor: Any) -> Any:
    """A tensor whose last column is lost."""
    return torch.cat([tensor[..., :-1], torch.zeros_like(tensor[..., -1:])], -1)


def each(**changes: Any) -> Any:
    """Change single outputs of an operation, by number (_0, _1, …)."""

    def change(args: Any, result: Any) -> Any:
        found = list(result)
        for name, function in changes.items():
            before = found[int(name[1:])]
            found[int(name[1:])] = None if before is None else function(before)
        return tuple(found)

    return change


def not_updated(args: Any, result: Any) -> Any:
    *given, kept = args
    for tensor, old in zip(given[3:5], kept[3:5], strict=True):
        tensor.copy_(old)
    return result


def in_bfloat16(args: Any, result: Any) -> Any:
    """A matrix product whose sum is kept in bfloat16."""
    a, b = args[-3:-1]
    total = torch.zeros_like(result)
    for k in range(a.shape[-1]):
        total = (total + (a[..., k, None] * b[..., None, k, :]).to(total.dtype)).to(total.dtype)
    return total + args[0] if len(args) == 4 else total


@contextlib.contextmanager
def own(fault: str) -> Any:
    Fault.own = fault
    try:
        yield
    finally:
        Fault.own = ""


@contextlib.contextmanager
def compiler(change: Any, forward: bool = False, seen: Any = None, given: Any = lambda inputs: inputs) -> Any:
    """`compile` gives code whose backward (or forward) pass has its outputs changed; nothing is generated.

    `seen` is called with each graph of a backward (or forward) pass, `given` changes the inputs of its calls.
    """
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    def right(graph: Any, example: Any) -> Any:
        return make_boxed_func(graph.forward)

    def wrong(graph: Any, example: Any) -> Any:
        if seen is not None:
            seen(graph)
        return make_boxed_func(lambda *inputs: change([*graph.forward(*given(inputs))]))

    backend = aot_autograd(fw_compiler=wrong if forward else right, bw_compiler=right if forward else wrong)
    kept = nn.Module.compile

    def compile_module(self: Any) -> None:
        self._compiled_call_impl = torch.compile(self._call_impl, backend=backend)

    nn.Module.compile = compile_module  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.compile = kept  # type: ignore[method-assign]


def output(shape: tuple[int, ...], change: Any, number: int = 0) -> Any:
    """Change the first output of a shape, or another one."""

    def changed(outputs: Any) -> Any:
        places = [n for n, t in enumerate(outputs) if isinstance(t, torch.Tensor) and tuple(t.shape) == shape]
        outputs[places[number]] = change(outputs[places[number]])
        return outputs

    return changed


@contextlib.contextmanager
def average(update: Any) -> Any:
    from runner_core.engines.torch.weights import Average

    kept = Average.update
    Average.update = update  # type: ignore[method-assign]
    try:
        yield
    finally:
        Average.update = kept  # type: ignore[method-assign]


def of_twice_the_weights(self: Any, step: int, skipped: Any = None) -> None:
    with torch.no_grad():
        pair, live = self._pair
        torch._foreach_lerp_(pair, [2 * one for one in live], 0.5)


FAST = {"own__kernel": "fast"}
HALF, LAST, COMPILED = {"precision__mode": "bfloat16"}, {"train__channels_last": "on"}, {"train__compile": "on"}


def kernel(name: str, meets: Any, change: Any) -> Any:
    return lambda: Kernel(name, meets, change)


def layout(name: str, meets: Any, change: Any) -> tuple[Any, ...]:
    return kernel(name, meets, change), LAST, "train.channels_last", name


def bits(name: str, meets: Any, change: Any) -> tuple[Any, ...]:
    return kernel(name, meets, change), HALF, "precision", f"{name} (bfloat16"


def compiled(layer: str, change: Any, forward: bool = False) -> tuple[Any, ...]:
    return lambda: compiler(change, forward), COMPILED, "train.compile", layer


def captured() -> Any:
    """`compile` gives code that goes on with the weights of its first call."""
    kept: list[Any] = []

    def given(inputs: Any) -> list[Any]:
        if not kept:
            kept.extend(one.detach().clone() if isinstance(one, nn.Parameter) else None for one in inputs)
        return [one if weight is None else weight for one, weight in zip(inputs, kept, strict=True)]

    return compiler(lambda outputs: outputs, forward=True, given=given)


def mine(fault: str, layer: str = "block", **settings: Any) -> tuple[Any, ...]:
    return lambda: own(fault), {**FAST, **settings}, "own", layer


def rest(fault: Any) -> tuple[Any, ...]:
    """A fault that no setting does without."""
    return fault, FAST, "", ""


FAULTS: dict[str, tuple[Any, ...]] = {
    # pytorch#190796: gradients of convolution biases, the forward pass is right
    "compiled bias gradient": compiled("down.bias", output((12,), lambda t: 1.5 * t)),
    # pytorch#193061: scales and shifts that several norms share get one norm's gradient
    "compiled shared norm": compiled("shared", output((12,), lambda t: 0.5 * t, 1)),
    # pytorch#163539: 3-D convolutions in bfloat16
    "bfloat16 Conv3d": bits("convolution", volume, lambda a, r: border(r)),
    # mamba#997: the scan's forward pass is corrupt from some step on
    "corrupt scan": mine("corrupt"),
    "stale buffer": (kernel("native_batch_norm", last, not_updated), LAST, "train.channels_last", "norm.running_mean"),
    "transposed layout": layout("convolution_backward", last_weight, each(_1=lambda t: t.transpose(2, 3))),
    "missing scale": mine("scale"),
    "bfloat16 sum": bits("addmm", half, in_bfloat16),
    "chunk border": mine("border"),
    "chunk border, backward": mine("border backward"),
    "attention mask ignored": mine("mask"),
    "dropout not recomputed": mine("dropout", own__dropout=0.5),
    "state in bfloat16": mine("bfloat16 state"),
    "one sample's gradient": mine("one sample", "block.decay"),
    "lost border": layout("convolution_backward", last_weight, each(_0=border)),
    "layer norm's gradient": bits("native_layer_norm_backward", half, each(_0=lambda t: 1.3 * t)),
    "compiled forward": compiled("forward", output((6,), lambda t: 1.02 * t), forward=True),
    "weights captured while compiling": (captured, COMPILED, "train.compile", "forward"),
    "compiled gradient lost": compiled("block.qkv", output((36, 12), torch.zeros_like)),
    "pooled neighbour": layout("max_pool2d_with_indices_backward", last, lambda a, r: r.roll(1, -1)),
    "fused optimizer": rest(kernel("_fused_adamw_", lambda a: True, lambda a, r: [p.mul_(1.001) for p in a[0]] and r)),
    "average of wrong weights": rest(lambda: average(of_twice_the_weights)),
}
"""Name → the fault, settings that meet it, the option that is to blame, and what the message names."""
