"""Bytes that a GPU sends in a step, counted: what each setting of the section `exchange` changes.

Four processes on the CPU (gloo) make two groups of two, as two machines with two GPUs. They take one step of two
micro-batches with a small transformer. Every collective on floating-point numbers is counted with what a ring sends for
it: (n - 1) / n of the whole for all-gather and reduce-scatter, twice that for an all-reduce. So the counts are those of
NCCL's rings and do not depend on the machine. *Link*: what leaves a machine. A ring over all processes leaves it once;
with two levels, each GPU has a ring of its own to the other machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.harness import ROOT, Cell, Options, Result, Table

PROCESSES, GROUP, MICRO = 4, 2, 2
BLOCKS, WIDTH = 6, 192
BATCH, FEATURES = 64, 384
"""Samples of a device, and numbers of an embedding, for the loss over the whole batch."""
HALF = {"exchange.gather": "bfloat16", "exchange.reduce": "bfloat16"}
WAYS: dict[str, dict[str, Any]] = {
    "ddp, after each micro-batch": {"train.strategy": "ddp", "exchange.gradients": "micro_batch"},
    "ddp": {"train.strategy": "ddp"},
    "ddp, sums in bfloat16": {"train.strategy": "ddp", "exchange.reduce": "bfloat16"},
    "fsdp": {"train.strategy": "fsdp"},
    "fsdp, gradients once a step": {"train.strategy": "fsdp", "exchange.gradients": "step"},
    "fsdp, weights in bfloat16": {"train.strategy": "fsdp", "exchange.gather": "bfloat16"},
    "fsdp, both in bfloat16": {"train.strategy": "fsdp", **HALF},
    "hsdp, after each micro-batch": {"train.strategy": "hsdp", "exchange.gradients": "micro_batch"},
    "hsdp": {"train.strategy": "hsdp"},
    "hsdp, both in bfloat16": {"train.strategy": "hsdp", **HALF},
}
KINDS = ("all-gather", "reduce-scatter", "all-reduce")


def run(options: Options) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, "-m", "benchmarks.exchange", folder]
        processes = [
            subprocess.Popen([*command, str(number)], env=environment, cwd=ROOT) for number in range(PROCESSES)
        ]
        if any([process.wait(300) for process in processes]):  # noqa: C419 - all are waited for
            raise RuntimeError("a process failed")
        counted = json.loads((Path(folder) / "sent").read_text(encoding="utf-8"))
    ways = [row(name, counted[name]) for name in WAYS]
    features = [row(name, counted[name])[:-1] for name in ("sums of all parts", "each its own part")]
    weights = counted["weights"]
    return Result(
        "What processes exchange",
        __doc__ or "",
        [
            Table(["", *(f"{kind} (MB)" for kind in KINDS), "sent by a GPU (MB)", "a machine's link (MB)"], ways),
            Table(["gathered features", *(f"{kind} (MB)" for kind in KINDS), "sent by a GPU (MB)"], features),
        ],
        remarks=[
            f"{weights:,} weights of float32 ({4 * weights / 1e6:.3g} MB) in {BLOCKS} blocks; {MICRO} micro-batches a "
            f"step. Features: {BATCH} samples a device with {FEATURES} numbers of float32 (`exchange.features`).",
            "gloo itself sends as much for a reduce-scatter as for an all-reduce (measured on its sockets: 2 (n - 1) / "
            "n of the whole). So on CPUs reduce-scatter saves memory and no bytes.",
        ],
        packages=("torch",),
    )


def row(name: str, sent: Mapping[str, int]) -> list[Cell]:
    each = [sent.get(kind, 0) / 1e6 for kind in KINDS]
    link = GROUP * each[2] if name.startswith("hsdp") else sum(each)
    return [f"runner, {name}", *each, sum(each), link]


def main(folder: Path, number: int) -> None:
    """Count a step of each way; process `number` of all."""
    from torch import distributed

    distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=number, world_size=PROCESSES
    )
    counted: dict[str, Any] = {name: step(settings) for name, settings in WAYS.items()}
    counted |= {"sums of all parts": gathered("all"), "each its own part": gathered("scatter")}
    counted["weights"] = sum(parameter.numel() for parameter in transformer().parameters())
    if number == 0:
        (folder / "sent").write_text(json.dumps(counted), encoding="utf-8")
    distributed.barrier()
    distributed.destroy_process_group()


def transformer() -> Any:
    from torch import nn

    blocks = [nn.TransformerEncoderLayer(WIDTH, 3, 4 * WIDTH, dropout=0, batch_first=True) for _ in range(BLOCKS)]
    return nn.Sequential(*blocks, nn.Linear(WIDTH, 10))


def step(settings: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes that this process sends in a step after the first, by collective."""
    import torch
    from runner_core.config import RunConfig
    from runner_core.config.values import overlay_named
    from runner_core.contract import Precision, Step
    from runner_core.engines.torch.parallel import parallel
    from runner_core.engines.torch.traffic import Traffic

    more = {"exchange.shard_devices": GROUP} if settings["train.strategy"] == "hsdp" else {}
    config = overlay_named(RunConfig(), {**settings, **more}, "the benchmark")
    project: Any = SimpleNamespace(config=config, learning=lambda: SimpleNamespace(shard_units=lambda net: net[:-1]))
    torch.manual_seed(0)
    network, tokens = transformer(), torch.randn(2, 5, WIDTH)
    precision = Precision("bfloat16" if "exchange.gather" in settings else "float32")
    way = parallel(project, network, torch.device("cpu"), precision, 1, PROCESSES)

    def loss() -> Step:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision.mixed):
            return Step(network(tokens).float().square().mean(), {}, None)

    for _ in range(2):
        with Traffic() as traffic:
            for _ in range(MICRO - 1):
                with way.withholding():
                    way.train(loss).loss.backward()
            way.train(loss).loss.backward()
            way.settle()
        for parameter in network.parameters():
            parameter.grad = None
    return dict(traffic.sent)


def gathered(how: str) -> dict[str, int]:
    """Return the bytes that this process sends for the features of a loss over the whole batch."""
    import torch
    from runner_core import ranks
    from runner_core.engines.torch.traffic import Traffic

    ranks.gather_by(how)
    with Traffic() as traffic:
        ranks.gathered(torch.randn(BATCH, FEATURES, requires_grad=True)).square().sum().backward()
    return dict(traffic.sent)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
