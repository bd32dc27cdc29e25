"""What limits a training on 8, 64 and 512 GPUs: bytes between machines, beats in the store, the order of the samples.

Bytes are arithmetic: a ring of n processes sends 2 (n - 1) / n of what all of them sum up. runner sums float32
gradients in one ring (ddp), or gathers weights twice a step and sums gradients once, over all processes (fsdp) or
within each machine, and then sums each GPU's part between machines (hsdp). What a step waits for the network is that of
a machine with 8 GPUs on one link. Nothing is hidden behind the computation here, as PyTorch hides some of it, so these
are upper bounds.

The store and the order are measured: one process does what all ranks together do in the store of the first one, and
what each rank does at an epoch's start. No GPU was there, and no network between machines.
"""

from __future__ import annotations

import time

from runner_core.data.sampling import near_order_of

from benchmarks.harness import Cell, Options, Result, Table, number

GPUS, A_NODE = (8, 64, 512), 8
NETWORKS = {"22 M weights (ViT-S)": 22e6, "102 M (ResEnc-L)": 102e6, "304 M (ViT-L)": 304e6}
LINK, STEP = 50e9, 0.3
"""Bytes a second of a machine's link (400 Gbit/s), and seconds of a step."""
INTERVAL = 5.0
"""Seconds between two beats of a process, at `train.patience_seconds` 300."""
SAMPLES, RECORD_BYTES, RECORDS, BATCH = 10_000_000, 87, 5_000_000, 64
MEMORY = {"adamw, float32": 16}
"""Bytes of a weight, its gradient and its moments."""


def ring(size: float, processes: int) -> float:
    """Return the bytes that each process sends to sum `size` bytes of all in a ring."""
    return 2 * (processes - 1) / processes * size


def gathered(weights: float, gradients: float, processes: int) -> float:
    """Return the bytes that each process sends for a sharded step: weights gathered twice, gradients summed once."""
    return (processes - 1) / processes * (2 * weights + gradients)


def ways(weights: float, gpus: int) -> dict[str, tuple[float, float]]:
    """Return the bytes that a GPU sends in a step, and those of all that leave a machine, by the way to share.

    In a ring in the machines' order, one of a machine's processes sends outside.
    """
    found = {"ddp": [ring(4 * weights, gpus)] * 2}
    for name, wide, sums in (("", 4, 4), (", weights in bfloat16", 2, 4), (", all in bfloat16", 2, 2)):
        found[f"fsdp{name}"] = [gathered(wide * weights, sums * weights, gpus)] * 2
        inside, outside = gathered(wide * weights, sums * weights, A_NODE), ring(sums * weights, gpus // A_NODE)
        found[f"hsdp{name}"] = [inside + outside / A_NODE, outside]
    return {name: (sent, outside if gpus > A_NODE else 0.0) for name, (sent, outside) in found.items()}


def network() -> list[list[Cell]]:
    """Return the rows of what a step sends."""
    rows: list[list[Cell]] = []
    for name, weights in NETWORKS.items():
        each = [ways(weights, gpus) for gpus in GPUS]
        for way in each[0]:
            milliseconds = [1e3 * found[way][1] / LINK for found in each]
            rows.append([f"runner, {name}, {way}", each[-1][way][0] / 1e9, *milliseconds])
    return rows


def beating(ranks: int, rounds: int) -> float:
    """Return processor seconds a second that beats take: those of the store and of all its clients together."""
    from datetime import timedelta

    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    keys = [f"beat-{rank}" for rank in range(ranks)]
    begun = time.process_time()
    for beat in range(rounds):
        for key in keys:
            store.set(key, f"{beat} 1000")
            store.multi_get(["beat-0"])
        store.multi_get(keys)
    return (time.process_time() - begun) / rounds / INTERVAL


def ordering(count: int) -> float:
    """Return processor seconds in which a process computes the order of all samples of an epoch."""
    begun = time.process_time()
    near_order_of(0, 0, range(count), count, 1_000)
    return time.process_time() - begun


def run(options: Options) -> Result:
    samples, rounds = (SAMPLES // 100, 1) if options.quick else (SAMPLES, 5)
    order = ordering(samples)
    others: list[list[Cell]] = []
    for gpus in GPUS:
        steps = SAMPLES // (BATCH * gpus)
        epoch = steps * STEP
        others.append(
            [f"runner, {gpus} GPUs", steps, epoch, order * A_NODE * SAMPLES / samples / epoch, beating(gpus, rounds),
             RECORDS * RECORD_BYTES / 1e9, max(NETWORKS.values()) * MEMORY["adamw, float32"] / gpus / 1e6]
        )  # fmt: skip
    return Result(
        "What limits scaling",
        __doc__ or "",
        [
            Table(
                ["", "sent by a GPU (GB a step)", *(f"{gpus} GPUs: network (ms a step)" for gpus in GPUS)], network()
            ),
            Table(
                ["", f"steps of an epoch ({BATCH} samples a GPU)", f"epoch at {STEP} s a step (s)",
                 "order: cores of a machine", "store: cores of the first", "records on a machine (GB)",
                 "state of 304 M weights, sharded (MB a GPU)"],
                others,
            ),
        ],
        remarks=[
            f"A step of {STEP} s is assumed, a link of {LINK / 1e9:.0f} GB/s a machine, {A_NODE} GPUs a machine, "
            f"float32 gradients, {SAMPLES:,} samples and {RECORDS:,} records. Within a machine "
            "the network is not counted.",
            f"Each process computes the order of all samples once an epoch: {number(order)} s of processor time, in a "
            "thread. So its share of a machine grows as epochs get shorter: with 512 GPUs an epoch of these samples "
            "is over in less than two minutes.",
            "Each process beats every 5 s and reads the first one's beat; the first one reads all. Its cores count the "
            "store and all clients, so they are an upper bound. The metadata of a machine do not grow with the number "
            "of machines.",
            "Where the network is what a step waits for, two levels help (`hsdp`: sharded within a machine, replicated "
            "between: gradients alone cross the link, in place of weights twice and gradients), and bfloat16 (half): "
            "see the next section.",
        ],
        packages=("torch",),
    )  # fmt: skip
