"""Several processes that each have the whole network: DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from re import findall
from typing import Any

import torch
from torch import distributed, nn

from runner_core.base.errors import BadInput
from runner_core.contract import Step
from runner_core.engines.torch.around import Around, when


class Replicated:
    """Every process has the whole network, and the mean of all gradients (DistributedDataParallel).

    A weight that a step does not use (a mask token when nothing is masked) has to be found, or DDP waits for its
    gradient. The search takes time in every step, so the first step, computed without DDP, tells whether to search.

    Without the search, a process that left out weights after all hands in zeros for them. Which weights each process
    used and left out goes with the gradients, as that of one more weight, `marks`: so a weight that no process used
    stays without gradient, and `agree` knows what some process left out.

    Args:
        network: The network.
        unused: `exchange.unused`.
        at_once: Exchange gradients once per step, not after each micro-batch.
        reduce: `exchange.reduce`.
    """

    name = "ddp"

    def __init__(self, network: nn.Module, unused: str = "auto", at_once: bool = True, reduce: str = "float32") -> None:
        self._around = Around(network, _only_to_learn_from)
        self._learned = {name: p for name, p in network.named_parameters() if p.requires_grad}
        self._at_once, self._finds, self._left_out = at_once, True, set[str]()
        self._asked, self._reduce = unused, reduce
        self.unused: list[str] | None = None
        self._wrapped: nn.parallel.DistributedDataParallel | None = None
        if unused != "auto":
            self._wrap(unused == "find")
        else:
            for tensor in (*network.parameters(), *network.buffers()):  # as DDP does
                _in_place(tensor.detach(), lambda whole: distributed.broadcast(whole, 0))

    @property
    def exchange(self) -> Mapping[str, str]:
        return {
            "exchange.gradients": when(self._at_once),
            "exchange.unused": "find" if self._finds else "none",
            "exchange.reduce": self._reduce,
        }

    def _wrap(self, finds: bool) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

        self._finds = finds
        if self._wrapped is not None:
            self._wrapped._remove_autograd_hooks()
            del self._around.marks
        some = next(self._around.parameters())
        if finds:  # This parameter is never used, so PyTorch does not warn that all are.
            self._around.unused = nn.Parameter(torch.zeros(1, device=some.device))
        else:
            self._used = torch.ones(len(self._learned), device=some.device, dtype=some.dtype)
            self._ever = torch.zeros_like(self._used)
            self._around.marks = nn.Parameter(torch.cat([self._used, self._ever]))
        self._wrapped = nn.parallel.DistributedDataParallel(self._around, find_unused_parameters=finds)
        if self._reduce == "bfloat16":  # DDP refuses the hook by its name where there is no NCCL
            self._wrapped.register_comm_hook(None, lambda state, bucket: bf16_compress_hook(state, bucket))  # noqa: PLW0108

    def train(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._wrapped is not None:
            return self._wrapped(function, *arguments)
        step = self._around(function, *arguments)
        if isinstance(step, Step):
            reached = _reached(step.loss)
            self._left_out |= {name for name, parameter in self._learned.items() if id(parameter) not in reached}
        return step

    def evaluate(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    read = evaluate

    @contextmanager
    def withholding(self) -> Iterator[None]:
        with self._wrapped.no_sync() if self._wrapped is not None and self._at_once else nullcontext():
            yield

    @torch.no_grad()
    def settle(self, unused: Sequence[str] | None = None) -> None:
        if self._wrapped is not None:
            return
        if unused is None:
            unused = self._averaged()
        self.unused = list(unused)
        self._wrap(bool(unused))

    def _averaged(self) -> list[str]:
        """Average the gradients of the first step; return the names of the weights that some process left out."""
        learned, count = self._learned, distributed.get_world_size()
        flags = [[name in self._left_out for name in learned], [p.grad is None for p in learned.values()]]
        counts = torch.tensor(flags, dtype=torch.int32, device=next(iter(learned.values())).device)
        distributed.all_reduce(counts)
        left_out, without = counts.tolist()
        for parameter, processes in zip(learned.values(), without, strict=True):
            if processes < count:  # otherwise the optimizer leaves it alone, as with one process
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                low = parameter.grad.bfloat16() if self._reduce == "bfloat16" else parameter.grad
                _in_place(low.div_(count), distributed.all_reduce)
                parameter.grad.copy_(low)
        return [name for name, processes in zip(learned, left_out, strict=True) if processes]

    def check(self) -> None:
        wrapped = self._wrapped
        if wrapped is None or self._finds or not wrapped.require_backward_grad_sync:
            return
        marks = self._around.marks
        without = [parameter.grad is None for parameter in self._learned.values()]
        used = 1 - torch.tensor(without).to(self._used) if any(without) else self._used
        marks.grad = None
        marks.backward(torch.cat([used, 1 - used]))
        try:
            wrapped.reducer._rebuild_buckets()  # as the next step would, which is too late: this one is used now
        except RuntimeError as error:
            learned = [parameter for parameter in wrapped.module.parameters() if parameter.requires_grad]
            awaited = [learned[number] for number in _awaited(error)]
            torch.autograd.backward(awaited, [torch.zeros_like(parameter) for parameter in awaited])
            wrapped.reducer._rebuild_buckets()
        by_some, left_out = marks.grad.tensor_split(2)
        torch.maximum(self._ever, left_out, out=self._ever)
        if any(without):
            for parameter, alone, others in zip(self._learned.values(), without, by_some.tolist(), strict=True):
                if alone and not others:  # the optimizer leaves it alone, as with one process
                    parameter.grad = None

    def agree(self) -> str | None:
        if self._wrapped is None or self._finds:
            return None
        names = [name for name, ever in zip(self._learned, self._ever.tolist(), strict=True) if ever]
        if not names:
            return None
        some = ", ".join(names[:4]) + (" …" if len(names) > 4 else "")
        if self._asked == "none":
            raise BadInput(
                f"a step left out {some} in some process, and exchange.unused none says that every step uses all "
                "weights: --resume the run with --exchange.unused find"
            )
        self.unused = names
        self._wrap(True)
        return (
            f"a step left out {some} in some process, which the first step used: from here on each step is "
            "searched for such weights (exchange.unused find)"
        )


def _awaited(error: RuntimeError) -> list[int]:
    """Return the numbers of the weights whose gradients DDP still waits for; raise the error if it names none."""
    found = findall(r"did not receive grad for rank \d+: ([\d, ]+)", str(error))
    if not found:
        raise error
    return [int(number) for number in found[-1].replace(",", " ").split()]


def _only_to_learn_from(step: Any) -> Any:
    """Return the step with a graph only for the loss, so that DDP awaits no gradient for a weight of the prediction."""
    if not isinstance(step, Step):
        return step
    terms = {name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in step.terms.items()}
    return Step(step.loss, terms)


def _reached(loss: torch.Tensor) -> set[int]:
    """Return the ids of the weights that get a gradient from `loss`."""
    found: set[int] = set()
    seen, waiting = set[Any](), [loss.grad_fn]
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if type(node).__name__ == "AccumulateGrad":
            found.add(id(node.variable))
        waiting += [function for function, _ in node.next_functions]
    return found


def _in_place(tensor: torch.Tensor, collective: Callable[[torch.Tensor], Any]) -> None:
    """Run a collective on a tensor of any layout."""
    whole = tensor.contiguous()
    collective(whole)
    if whole is not tensor:
        tensor.copy_(whole)
