"""Run a function of pixels chunk by chunk and keep only its inputs for the gradient (Chen et al. 2016), or all of it.

This replaces `torch.utils.checkpoint` around every chunk, which leaves each chunk's graph on the heap between the large
tensors: its small pieces keep freed memory from being reused. With 24 filters and 425 wavenumbers the peak on a CPU
then grew by 0.3 MB per pixel; here it is 0.12 GB per thread for any number of pixels. The generators' states, too, are
saved once, not for every chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import get_device_states, set_device_states

from runner_ssmunet.threads import shared


def in_chunks(
    run: Callable[[Tensor], Tensor], x: Tensor, chunk: int, parameters: Sequence[Tensor], draws: bool,
    keep: bool = False,
) -> Tensor:  # fmt: skip
    """Return `run(x)`, computed in chunks of `chunk` rows of `x` (P, …). Rows must be independent.

    With `keep`, every chunk's graph is kept, and nothing is computed again: the same bits, more memory, less time.

    Gradients are computed for `x` and for `parameters`, which must be all that `run` depends on. A recomputed chunk
    draws the same random numbers and has the same precision. On a CPU the chunks are shared among threads, unless `run`
    `draws` random numbers: they come from one generator, in order.
    """
    learned = [parameter for parameter in parameters if parameter.requires_grad]
    if torch.is_grad_enabled() and (learned or x.requires_grad):
        y: Tensor = _InChunks.apply(run, chunk, draws, keep, x, *learned)
        return y
    return _forward(run, x, chunk, draws, _State(x))


def _forward(run: Callable[[Tensor], Tensor], x: Tensor, chunk: int, draws: bool, state: _State) -> Tensor:
    def share(parts: Sequence[Tensor]) -> list[Tensor]:
        with torch.no_grad(), state.precision():
            return [run(part) for part in parts]

    parts = x.split(chunk)
    shares = [share(parts)] if _in_order(x, draws) else shared(parts, share)
    return torch.cat([part for results in shares for part in results])


def _in_order(x: Tensor, draws: bool) -> bool:
    return draws or x.device.type != "cpu"


class _InChunks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, run: Callable[[Tensor], Tensor], chunk: int, draws: bool, keep: bool, x: Tensor, *learned: Tensor
    ) -> Tensor:
        ctx.run, ctx.chunk, ctx.draws, ctx.learned = run, chunk, draws, learned
        ctx.state, ctx.kept = _State(x), None
        ctx.save_for_backward(x)
        if not keep:
            return _forward(run, x, chunk, draws, ctx.state)
        wants_x = ctx.needs_input_grad[4]

        def share(parts: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
            with torch.enable_grad(), ctx.state.precision():
                inputs = [part.detach().requires_grad_(wants_x) for part in parts]
                return [(part, run(part)) for part in inputs]

        parts = x.split(chunk)
        shares = [share(parts)] if _in_order(x, draws) else shared(parts, share)
        ctx.kept = [pair for pairs in shares for pair in pairs]
        return torch.cat([y.detach() for _, y in ctx.kept])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        wants_x = ctx.needs_input_grad[4]
        graphs = ctx.kept or [(part, None) for part in x.split(ctx.chunk)]

        def share(chunks: Sequence[tuple[tuple[Tensor, Tensor | None], Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
            of_x: list[Tensor] = []
            sums = [torch.zeros_like(parameter) for parameter in ctx.learned]
            for (part, y), own in chunks:
                if y is None:
                    part = part.detach().requires_grad_(wants_x)
                    with torch.enable_grad(), ctx.state.precision():
                        y = ctx.run(part)
                wanted = [part, *ctx.learned] if wants_x else ctx.learned
                found = list(torch.autograd.grad(y, wanted, own, retain_graph=ctx.kept is not None))
                if wants_x:
                    of_x.append(found.pop(0))
                for total, one in zip(sums, found, strict=True):
                    total += one
            return of_x, sums

        chunks = list(zip(graphs, gradient.split(ctx.chunk), strict=True))
        with ctx.state.again():
            shares = [share(chunks)] if _in_order(x, ctx.draws) else shared(chunks, share)
        of_x, sums = zip(*shares, strict=True)
        totals = [sum(parts[1:], parts[0]) for parts in zip(*sums, strict=True)]
        return None, None, None, None, torch.cat([g for one in of_x for g in one]) if wants_x else None, *totals


class _State:
    """The rest that decides the result: the generators' states and the precision at the time of creation."""

    def __init__(self, x: Tensor) -> None:
        self._kind = x.device.type
        self._cast = torch.is_autocast_enabled(self._kind)
        self._dtype = torch.get_autocast_dtype(self._kind)
        self._host = torch.get_rng_state()
        self._devices, self._states = get_device_states(x)

    def precision(self) -> torch.autocast:
        """Return the autocast of the forward pass, without its cache of cast weights.

        Cached weights from a forward pass without gradient would have none later.
        """
        return torch.autocast(self._kind, self._dtype, enabled=self._cast, cache_enabled=False)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Restore the generators' saved states; afterwards put back the current ones."""
        with torch.random.fork_rng(self._devices, device_type=self._kind):
            torch.set_rng_state(self._host)
            set_device_states(self._devices, self._states, device_type=self._kind)
            yield
