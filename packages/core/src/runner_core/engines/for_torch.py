"""Settings that PyTorch alone has, and what they refuse before PyTorch is imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from runner_core.base.errors import BadInput
from runner_core.config import ExchangeConfig, RunConfig, TrainConfig
from runner_core.contract import Precision
from runner_core.contract.project import Project
from runner_core.contract.setup import SHARDED


def refuse_for_keras(project: Project, train: TrainConfig) -> None:
    """Raise BadInput for the first setting that the Keras engine does not have; imports no framework."""
    if train.strategy != "auto":
        raise BadInput(
            f"train.strategy {train.strategy} is for PyTorch; in Keras each device has the whole network: leave it out"
        )
    if train.channels_last == "on":
        raise BadInput("train.channels_last is for PyTorch; in Keras convolutions have channels last: leave it out")
    for name, value in asdict(project.config.exchange).items() - asdict(ExchangeConfig()).items():
        raise BadInput(f"exchange.{name} {value} is for PyTorch: leave it out")
    if train.optimizer == "muon":
        raise BadInput(f"train.optimizer muon is for PyTorch, and project {project.name} uses Keras: take adamw")


def refuse_sharing(config: RunConfig, precision: Precision, ranks: int, hosts: Sequence[str] | None = None) -> None:
    """Raise BadInput for settings with which `ranks` processes cannot share a network.

    `hosts` names the machine of each process, in their order; None: not known yet. What `train.strategy` auto becomes
    is not known before there is a network.
    """
    strategy, shards = config.train.strategy, config.exchange.shard_devices
    if strategy in SHARDED:
        refuse_precision(config.exchange, precision)
    if strategy == "hsdp" and (shards is not None or hosts is not None):
        shard_count(shards, hosts or (), ranks)
    if strategy == "ddp":
        refuse_deterministic(config)


def refuse_precision(exchange: ExchangeConfig, precision: Precision) -> None:
    """Raise BadInput if fsdp and hsdp cannot exchange the weights of a network that computes so."""
    if precision.loss_scaling:
        raise BadInput("train.strategy fsdp does not go with precision.mode float16: use bfloat16, or ddp")
    if exchange.gather == "bfloat16" and precision.compute != "bfloat16":
        raise BadInput(
            f"exchange.gather bfloat16 rounds the weights of layers that compute in {precision.compute}: "
            "set precision.mode bfloat16, or leave it out"
        )


def refuse_deterministic(config: RunConfig) -> None:
    """Raise BadInput if ddp cannot be bit-identical.

    Without its search, DDP orders its buckets anew after its first step. A resumed run would have the former order in
    its first step, so sums over three or more processes would round differently there.
    """
    if config.exchange.unused == "none" and config.train.deterministic:
        raise BadInput("train.deterministic needs exchange.unused find, its default then: leave exchange.unused out")


def shard_count(asked: int | None, hosts: Sequence[str], ranks: int) -> int:
    """Return the number of processes that keep a whole network together; raise BadInput if groups are not alike."""
    shards = asked or len([host for host in hosts if host == hosts[0]])
    if shards < 2:
        raise BadInput(
            "train.strategy hsdp divides the network among the processes of a machine, and the first machine has one: "
            "take fsdp or ddp, or set exchange.shard_devices"
        )
    where = "exchange.shard_devices" if asked else "the number of processes on the first machine"
    if shards == ranks or ranks % shards:
        raise BadInput(
            f"train.strategy hsdp divides {ranks} processes into groups of {shards} ({where}), and needs at least two "
            "equal groups: set exchange.shard_devices to a divisor, or take fsdp"
        )
    uneven = [number for number in range(ranks) if hosts and hosts[number] != hosts[number - number % shards]]
    if uneven and asked is None:
        raise BadInput(
            f"train.strategy hsdp needs as many processes on each machine, with neighbouring numbers: process "
            f"{uneven[0]} is on {hosts[uneven[0]]}, with {shards} on each; set exchange.shard_devices, or take fsdp"
        )
    return shards
