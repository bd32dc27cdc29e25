"""ssmunet's spectral layers on a CPU: what each optimisation saves in time and memory, and how fast patches load."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from runner_core.contract.setup import Setup
from runner_core.data.loader import Loader
from runner_core.data.pipeline import RecordPipeline
from runner_core.plugins.manager import Plugins
from runner_core.plugins.settings import from_preset
from runner_core.training.data import open_data
from runner_ssmunet import spectral
from runner_ssmunet.network import SSMUNetwork

from benchmarks.harness import Aim, Options, Result, Table, Turns, Way, number, peak_bytes

LENGTH, SIDE, TISSUE = 425, 40, 0.6
SHIPPED, EVERY_PIXEL, IN_CHUNKS, KEPT, EAGER, THREE = (
    "as shipped, 24 filters", "every pixel, also off the tissue", "nothing computed again, as below 1 GB",
    "no checkpointing", "scan in plain PyTorch", "3 filters, none of it",
)  # fmt: skip


def network(
    length: int, filters: int = 24, chunk: int | None = None, tissue_only: bool = True, scan: str = "auto"
) -> SSMUNetwork:
    torch.manual_seed(0)
    shipped = from_preset(Plugins.load("ssmunet").project(), "default").model
    return SSMUNetwork(
        np.linspace(900, 1800, length).tolist(), 8, filters=filters, dropout=0.0, tissue_only=tissue_only,
        chunk=shipped.chunk if chunk is None else chunk, scan=scan,
    )  # fmt: skip


def patch(length: int, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A z-scored patch (1, side, side, length), 0 where there is no tissue: about two fifths of it."""
    made = torch.Generator().manual_seed(0)
    tissue = torch.rand(1, side, side, generator=made) < TISSUE
    return torch.randn(1, side, side, length, generator=made) * tissue[..., None], tissue


@contextmanager
def patch_kept(most: int) -> Iterator[None]:
    """Let a batch keep at most this many bytes for its gradient, for the length of the block."""
    before, spectral.KEPT = spectral.KEPT, most
    try:
        yield
    finally:
        spectral.KEPT = before


def learned(model: SSMUNetwork, spectra: torch.Tensor, tissue: torch.Tensor) -> list[torch.Tensor]:
    """Features of the patch and the gradients of the spectral layers."""
    features = model.features(spectra, tissue)
    return [features.detach(), *torch.autograd.grad(features.square().mean(), list(model.stack.parameters()))]


def layers(options: Options) -> tuple[Table, list[Aim]]:
    length, side = (65, 8) if options.quick else (LENGTH, SIDE)
    spectra, tissue = patch(length, side)
    cases = {
        SHIPPED: network(length),
        EVERY_PIXEL: network(length, tissue_only=False),
        IN_CHUNKS: network(length),
        KEPT: network(length, chunk=0),
        EAGER: network(length, scan="eager"),
        THREE: network(length, filters=3, chunk=0, tissue_only=False),
    }
    turns = Turns(2 if options.quick else 4)
    peaks: dict[str, int | None] = {}
    expected = learned(cases[SHIPPED], spectra, tissue)

    def contender(name: str) -> Way:
        model = cases[name]

        def work(turn: int = 0) -> list[torch.Tensor]:
            with patch_kept(1 << 40 if name == IN_CHUNKS else 0):
                return learned(model, spectra, tissue)

        if name != THREE:
            for found, true in zip(work(), expected, strict=True):
                torch.testing.assert_close(found, true, rtol=1e-3, atol=1e-5 + 1e-4 * float(true.abs().max()))
        peaks[name] = peak_bytes(work)
        return work

    for name in cases:
        turns.add(name, lambda name=name: contender(name))
    times = turns.run()
    rows: list[list[Any]] = []
    for name, taken in times.items():
        peak = peaks[name]
        shown = None if peak is None else peak / 1e6
        rows.append([name, taken.median * 1e3 / side**2, taken.median / times[SHIPPED].median, shown])
    columns = ["spectral layers, forward and backward", "ms a pixel of the patch", "time, as shipped = 1", "peak, MB"]
    with_all, three = peaks[SHIPPED], peaks[THREE]
    aims = []
    if with_all is not None and three is not None:
        text = "24 filters in no more memory than 3 without checkpointing"
        text += f": {number(with_all / 1e6)} and {number(three / 1e6)} MB"
        aims = [Aim(text, with_all <= three)]
    return Table(columns, rows), aims


def loading(options: Options) -> Table:
    """Patches a second: from the files for every patch anew, and from the cache."""
    plugins = Plugins.load("ssmunet")
    kind = plugins.project()
    with tempfile.TemporaryDirectory() as cache:
        config = from_preset(kind, "demo" if options.quick else "default")
        config.cache.dir, config.data.split = Path(cache), "none"
        config.train.batch_size, config.train.workers = 4, 0
        config.data.patch = 32
        setup = Setup(kind(config), config, "default", None, plugins)
        begun = time.perf_counter()
        data = open_data(setup, lambda text: None)
        preparation = time.perf_counter() - begun
        samples = setup.project.samples(data.store, data.splits["train"], "train")
        loader = Loader(samples, batch_size=4, seed=0, shuffle=True)

        def from_cache(turn: int) -> float:
            begun, seen = time.perf_counter(), 0
            for batch in loader.batches(turn):
                seen += batch.count
                batch.release()
            return (time.perf_counter() - begun) / seen

        def from_files(turn: int) -> float:
            begun = time.perf_counter()
            RecordPipeline.of(setup)(data.records[turn % len(data.records)])
            return time.perf_counter() - begun

        turns = Turns(2 if options.quick else 5)
        turns.add("runner, from the cache", lambda: from_cache, own_clock=True)
        turns.add("a core read and prepared for each patch", lambda: from_files, own_clock=True)
        times = turns.run()
        loader.close()
    slow = times["a core read and prepared for each patch"].median
    rows: list[list[Any]] = [[name, 1 / t.median, slow / t.median] for name, t in times.items()]
    length = next(iter(samples.spec.values())).shape[-1]
    return Table(
        [f"patches of 32² × {length}, phantom ({preparation:.1f} s to prepare)", "patches a second", "ratio"], rows
    )


def run(options: Options) -> Result:
    threads = torch.get_num_threads()
    table, aims = layers(options)
    return Result(
        title="ssmunet's spectral layers",
        what=f"One patch of {SIDE}² pixels × {LENGTH} wavenumbers of which {TISSUE:.0%} are tissue, 2 Mamba layers "
        f"without dropout, 16 states, float32, {threads} threads. All rows of 24 filters give the same features and "
        "gradients.",
        tables=[table, loading(options)],
        aims=aims,
        remarks=["Checkpointing computes the forward pass twice; what it saves is memory."],
        packages=("torch", "numba", "numpy"),
    )
