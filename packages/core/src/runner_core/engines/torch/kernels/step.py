"""Compute one training step and the updates after it, and return what they computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from runner_core.contract import Array, Progress, Tensors
from runner_core.contract.kernels import Observed, Updated, Way
from runner_core.engines.kernels import jitter
from runner_core.engines.torch.checkpoint import seed_generators
from runner_core.engines.torch.gradient_norms import tensors_in
from runner_core.engines.torch.kernels.plain import plain_kernels
from runner_core.engines.torch.kernels.rounding import Rounding
from runner_core.engines.torch.kernels.shadow import Shadow
from runner_core.engines.torch.learning import Learning
from runner_core.engines.torch.memory import Rewind

_UPDATES = 2


def observe(learning: Learning, tensors: Tensors, progress: Progress, way: Way, policy: str, seed: int) -> Observed:
    """Return what a step computes for a batch on the device, with the network's weights a few percent away.

    Each call starts from the weights that the network began with, and leaves others: the network is one for this
    comparison alone. `policy` is the precision that is computed in.
    """
    network, begun = learning.network, time.perf_counter()
    _move_weights(network, way.weights)
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
    network.zero_grad()
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
        learning.parallel.check()
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
def _move_weights(network: nn.Module, number: int) -> None:
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            if not hasattr(parameter, "_begun"):
                parameter._begun = host(parameter)
            parameter.copy_(torch.from_numpy(jitter(name, parameter._begun, number)))


@contextmanager
def _compiled(network: nn.Module) -> Iterator[None]:
    """Compile the network inside this context; dropout then draws what it draws where nothing is compiled."""
    from torch._inductor import config

    with config.patch(fallback_random=True):
        if (compiled := getattr(network, "_compared", None)) is None:
            network.compile()
            network._compared = network._compiled_call_impl
        else:
            network._compiled_call_impl = compiled
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
