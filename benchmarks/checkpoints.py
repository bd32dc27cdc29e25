"""How long training waits for a checkpoint: until it is on the disk, or until it is copied and a thread writes it.

The state is that of a network of 24 million weights with AdamW's averages. Two processes (gloo) divide it as fsdp does:
gathered in the first one, as runner did before, or each its rows.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # one of the two processes imports this file by its path

from benchmarks.harness import Aim, Options, Result, Times, Turns, compared, number

LAYERS, QUICK_LAYERS, WIDTH = 6, 1, 2000
"""Each has WIDTH² weights of 4 bytes, and two averages of the same size."""
TURNS = 7
WAITS = "runner, waits (checkpoint.background false)"
THREAD, TORCH = "runner, a thread writes", "torch.save, not flushed"
GATHERS, PARTS = "gathered, the first process writes", "each copies its rows, threads write"
SAID = "seconds of turn"
SHARE, EPOCH = 0.01, 300
"""Largest share of an epoch of so many seconds that a checkpoint (`checkpoint.every` 1) may hold training up."""


def run(options: Options) -> Result:
    layers = QUICK_LAYERS if options.quick else LAYERS
    folder = Path(tempfile.mkdtemp(prefix="runner-checkpoints-", dir="/var/tmp"))
    try:
        held = _alone(folder, layers, 2 if options.quick else TURNS)
        divided = _divided(folder, layers, 2 if options.quick else TURNS)
    finally:
        shutil.rmtree(folder)
    size = 3 * layers * 4 * WIDTH**2 / 1e6
    tables = [
        compared(held, WAITS, f"held up by a checkpoint of {size:.0f} MB, one process"),
        compared(divided, GATHERS, "the same, two processes with fsdp"),
    ]
    ours = {"one process": held[THREAD], "two processes": divided[PARTS]}
    shares = {name: times.median / EPOCH for name, times in ours.items()}
    aims = [
        Aim(f"{name}: at most {SHARE:.0%} of an epoch of {EPOCH} s: {number(100 * share)} %", share <= SHARE)
        for name, share in shares.items()
    ]
    remarks = [
        "Held up: from the end of a step until the next can begin, with nothing else to wait for. A thread writes and "
        "flushes meanwhile, on the same cores: on a CPU the steps beside it are slower for as long.",
        "Every way but torch.save writes checksums and flushes to the disk.",
    ]
    title = "Checkpoints while training goes on"
    return Result(title, __doc__ or "", tables, aims, remarks, packages=("torch", "safetensors"))


def _state(layers: int) -> tuple[Any, dict[str, Any]]:
    """Return a network and its tensors, those of AdamW too, by the names of a checkpoint."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    network = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    return network, _tensors(network)


def _tensors(network: Any) -> dict[str, Any]:
    weights = {f"model.{name}": tensor.detach() for name, tensor in network.state_dict().items()}
    return weights | {
        f"optimizer.{average}.{name}": tensor.clone() for average in ("m", "v") for name, tensor in weights.items()
    }


def _alone(folder: Path, layers: int, turns: int) -> dict[str, Times]:
    import torch
    from runner_core.base.background import Background
    from runner_core.contract import State
    from runner_core.engines.torch.checkpoint import Held, SafetensorsFormat
    from runner_core.training.checkpoints import Checkpoints

    _, tensors = _state(layers)
    checkpoints = Checkpoints(folder / "one", SafetensorsFormat(), project="benchmark", keep=1)
    background, held = Background("checkpoint"), Held()

    def waits(turn: int) -> None:
        checkpoints.save(State({}, tensors), 2 * turn + 1, 0, None, False)

    def thread(turn: int) -> float:
        begun = time.perf_counter()
        copies, *_ = held(tensors, False)
        background.begin(lambda: checkpoints.save(State({}, copies), 2 * turn + 2, 0, None, False))
        seconds = time.perf_counter() - begun
        background.wait()
        return seconds

    clock = Turns(turns)
    clock.add(WAITS, lambda: waits)
    clock.add(THREAD, lambda: thread, own_clock=True)
    clock.add(TORCH, lambda: lambda turn: torch.save(tensors, folder / "plain.pt"))
    return clock.run()


def _divided(folder: Path, layers: int, turns: int) -> dict[str, Times]:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    words = [sys.executable, __file__, str(folder), str(layers), str(turns)]
    both = [subprocess.Popen([*words, str(n)], env=environment, stdout=subprocess.PIPE, text=True) for n in range(2)]
    said = [process.communicate(timeout=600)[0] for process in both]
    if any(process.returncode for process in both):
        raise RuntimeError("a process of the two failed")
    found = {GATHERS: Times(), PARTS: Times()}
    for line in said[0].splitlines():
        if line.startswith(SAID):  # gloo says something too
            turn, gathers, parts = line.removeprefix(SAID).split()
            found[GATHERS].by_turn[int(turn)], found[PARTS].by_turn[int(turn)] = float(gathers), float(parts)
    return found


def one_of_two(folder: Path, layers: int, turns: int, me: int) -> None:
    """Measure both ways in process `me`; the first prints the seconds of each turn."""
    import torch
    from runner_core.base.background import Background
    from runner_core.contract import State
    from runner_core.contract.team import Place
    from runner_core.engines.torch.checkpoint import Held, SafetensorsFormat, flatten
    from runner_core.engines.torch.team import TorchTeam
    from runner_core.training.checkpoints import Checkpoints
    from torch.distributed.fsdp import fully_shard

    team = TorchTeam(Place(me, 2, me, 2, f"file://{folder / 'meeting'}"), torch.device("cpu"), 300.0)
    network, _ = _state(layers)
    fully_shard(network)
    tensors, aside = _tensors(network), team.aside()
    checkpoints = Checkpoints(folder / "two", SafetensorsFormat(), project="benchmark", keep=1)
    background, held = Background("checkpoint"), Held()

    def gathers(step: int) -> None:
        _, whole = flatten(tensors)
        if me == 0:
            checkpoints.save(State({}, whole), step, 0, None, False)
        team.share(None)

    def parts(step: int) -> None:
        copies, shapes, holders = held(tensors, True)
        background.begin(lambda: checkpoints.save(State({}, copies, shapes, holders), step, 0, None, False, aside))

    for turn in range(turns + 1):
        seconds = [_timed(team, partial(gathers, 2 * turn + 1)), _timed(team, partial(parts, 2 * turn + 2))]
        background.wait()
        if me == 0 and turn:  # the first is for warming up
            print(SAID, turn, *seconds, flush=True)
    team.leave()


def _timed(team: Any, work: Callable[[], None]) -> float:
    team.share(None)
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


if __name__ == "__main__":
    one_of_two(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
