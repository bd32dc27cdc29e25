"""Several processes that each have a part of the network: FSDP, over all of them or within groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed, nn
from torch.func import functional_call

from runner_core.base.errors import BadInput
from runner_core.config import ExchangeConfig
from runner_core.contract import Precision
from runner_core.contract.project import Project
from runner_core.engines.for_torch import refuse_precision
from runner_core.engines.process import unheard
from runner_core.engines.torch.around import Around, when
from runner_core.engines.torch.precision import OBSERVED
from runner_core.engines.torch.shards import gathered

LEAST_APART = 1 << 16
"""Least number of weights of a layer that is gathered in bfloat16; a smaller one stays with its unit, in float32."""


class Sharded:
    """Every process keeps a part of each weight, its gradient and its optimizer state (`fully_shard`).

    The weights of each of the project's `shard_units` are gathered while it computes, the other weights for the whole
    step. With `exchange.gather` bfloat16, large linear layers and convolutions (`rounded_layers`) are gathered apart,
    in the type in which autocast computes with them: so nothing is rounded that is not rounded otherwise. With
    `shards`, that many neighbouring processes keep a whole network together, and the groups exchange the gradients of
    each part.
    """

    unused: list[str] | None = None

    def __init__(
        self,
        project: Project,
        network: nn.Module,
        device: torch.device,
        precision: Precision,
        kept: Set[nn.Module] = frozenset(),
        shards: int | None = None,
    ) -> None:
        """Shard the network; raise BadInput for weights that cannot be sharded.

        Weights of `kept` (those of `precision.keep_float32`) are always gathered in float32.
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        exchange = project.config.exchange
        refuse_precision(exchange, precision)
        for name, parameter in network.named_parameters():
            if parameter.ndim == 0:
                raise BadInput(f"train.strategy fsdp cannot divide {name}, a single number: give it the shape (1,)")
            parameter.data = parameter.data.contiguous()  # it knows no other layout (channels last)
        self.name = "fsdp" if shards is None else "hsdp"
        if shards is None:
            mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
        else:
            groups = distributed.get_world_size() // shards
            with unheard(1):
                mesh = init_device_mesh(device.type, (groups, shards), mesh_dim_names=("replicate", "shard"))
        self._network, self._exchange = network, exchange
        self._at_once = exchange.gradients == "step"
        self._between_at_once = shards is not None and exchange.gradients == "auto"
        self._root: Any = Around(network)
        shard_units = project.learning().shard_units
        layers = rounded_layers(network, kept) if exchange.gather == "bfloat16" else []
        self._apart = bool(layers)
        for layer in layers:
            fully_shard(layer, mesh=mesh, mp_policy=_types(exchange, gather=torch.bfloat16))
        for unit in () if shard_units is None else shard_units(network):
            if unit not in layers:
                fully_shard(unit, mesh=mesh, mp_policy=_types(exchange))
        # Always reshard: otherwise the root's weights would stay whole after a validation, and not show changes.
        fully_shard(self._root, mesh=mesh, reshard_after_forward=True, mp_policy=_types(exchange))

    def train(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return self._root(function, *arguments)
        except RuntimeError as error:
            if not (self._apart and "mixed torch.Tensor and DTensor" in str(error)):
                raise
            raise BadInput(
                "exchange.gather bfloat16 gathers each large layer when it is called, and this network uses the "
                "weights of one without calling it: leave exchange.gather out"
            ) from error

    evaluate = train

    @property
    def exchange(self) -> Mapping[str, str]:
        types = {"exchange.gather": self._exchange.gather, "exchange.reduce": self._exchange.reduce}
        return {"exchange.gradients": "auto" if self._between_at_once else when(self._at_once), **types}

    @contextmanager
    def withholding(self) -> Iterator[None]:
        toggles = []
        if self._at_once:
            toggles.append(self._root.set_requires_gradient_sync)
        elif self._between_at_once:
            toggles.append(self._root.set_requires_all_reduce)
        for toggle in toggles:
            toggle(False)
        try:
            yield
        finally:
            for toggle in toggles:
                toggle(True)

    def settle(self, unused: Sequence[str] | None = None) -> None:
        return None

    def check(self) -> None:
        return None

    agree = check

    def read(self, function: Callable[..., Any], *arguments: Any) -> Any:
        named = {**dict(self._network.named_parameters()), **dict(self._network.named_buffers())}
        whole = {f"network.{name}": gathered(tensor.detach()) for name, tensor in named.items()}
        return functional_call(Around(self._network), whole, (function, *arguments))


def _types(exchange: ExchangeConfig, gather: torch.dtype | None = None) -> Any:
    """Return the types in which `fully_shard` exchanges weights and gradients; None is their own."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    reduce = torch.bfloat16 if exchange.reduce == "bfloat16" else torch.float32 if gather is not None else None
    return MixedPrecisionPolicy(param_dtype=gather, reduce_dtype=reduce, cast_forward_inputs=False)


def rounded_layers(network: nn.Module, kept: Set[nn.Module] = frozenset()) -> list[nn.Module]:
    """Return the layers of which autocast rounds all weights anyway, if they are worth an exchange of their own.

    A layer that computes its weights from others (weight normalisation, a class of the project's own), or shares them
    with another layer, is none of them, nor is one of `kept`.
    """
    owners = Counter(weight for module in network.modules() for weight in module._parameters.values())

    def found(module: nn.Module) -> Iterator[nn.Module]:
        if not isinstance(module, OBSERVED):
            for child in module.children():
                yield from found(child)
            return
        weights = [*module.parameters()]
        worth = sum(weight.numel() for weight in weights) >= LEAST_APART
        if worth and module not in kept and _is_plain(module) and all(owners[weight] == 1 for weight in weights):
            yield module

    return [*dict.fromkeys(found(network))]


def _is_plain(layer: nn.Module) -> bool:
    """Return True if the layer is PyTorch's own and computes with its weights as they are, and autocast rounds them."""
    own = type(layer).__module__.startswith("torch.nn.modules.")
    return own and not layer._forward_pre_hooks and not isinstance(layer, (nn.Bilinear, nn.RNNBase))
