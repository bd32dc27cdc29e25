"""One case of benchmarks/gpu.py: a project's steps, memory and data path, and what the device can do at most."""

from __future__ import annotations

import statistics
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from runner_core import HostBatch
from runner_core.base.writing import whole_folder
from runner_core.config.values import overlay_named
from runner_core.contract.setup import Data, Setup
from runner_core.data.loader import Loader
from runner_core.engines.device import chunks
from runner_core.plugins import defaults, discovery
from runner_core.plugins.discovery import Plugin
from runner_core.plugins.manager import Plugins
from runner_core.plugins.settings import from_preset
from runner_core.training.data import open_data

from benchmarks.harness import ROOT

COPY = "copy, GB/s (read and written)"


@dataclass(frozen=True)
class Case:
    """A project with settings by dotted name. `data`: writes the records to train on into a folder, in place of the
    phantom. `measure`: instead of training steps, a function of the device, and of whether it should be quick, that
    returns named numbers (what a kernel takes, say)."""

    project: str
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    preset: str = "default"
    data: Callable[[Path], None] | None = None
    measure: Callable[[str, bool], Mapping[str, float]] | None = None


def find_projects() -> dict[str, Plugin]:
    """Installed projects, and those of the checkout whose package is not installed."""
    found = discovery.projects()
    for path in sorted(ROOT.glob("packages/*/pyproject.toml")):
        about = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        for name, value in about.get("entry-points", {}).get(discovery.PROJECTS, {}).items():
            entry = EntryPoint(name, value, discovery.PROJECTS)
            found.setdefault(name, Plugin(name, "project", about["name"], about["version"], entry))
    return found


def measure(case: Case, device: str, cache: Path, seconds: float, quick: bool) -> dict[str, Any]:
    """Measure the case; `seconds` for the steps, half of it for each part of the data path."""
    if case.measure is not None:
        return {"table": dict(case.measure(device, quick))}
    setup = setup_of(case, device, cache, quick)
    data = open_data(setup, lambda text: None)
    data.samples = {"train": setup.project.samples(data.store, data.splits["train"], "train")}
    config = setup.config.train
    trainer = setup.engine.trainer(setup, data, 10**6)
    loader = loader_of(setup, data, trainer.block)
    batches = endless(loader)
    batch = next(batches)
    again = HostBatch(batch.arrays, batch.count, lambda: None)
    done = 0

    def step(given: HostBatch) -> None:
        nonlocal done
        trainer.train_step(given, done)
        done += 1

    torch = setup.engine.name == "torch"
    wait = waiter(device_of(setup)) if torch else trainer.read_log
    begun = time.perf_counter()
    counted = operations(lambda: step(again)) if torch and not compiles(setup) else {}
    if not counted:
        for _ in range(trainer.block):
            step(again)
    wait()
    first = time.perf_counter() - begun
    forget_peak(setup)
    times = chunks(lambda: step(again), wait, trainer.block, seconds)
    low, _, high = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else [times[0]] * 3
    batch.release()
    values: dict[str, Any] = {
        "precision": setup.precision.compute,
        "batch": config.batch_size,
        "samples": [config.batch_size, {n: list(s.shape) for n, s in data.samples["train"].spec.items()}, case.preset],
        "step": statistics.median(times),
        "quartiles": [low, high],
        "first_step": first,
        **memory(setup, trainer),
        **counted,
    }

    def rate(work: Callable[[], object]) -> float:
        return config.batch_size / statistics.median(chunks(work, wait, trainer.block, seconds / 2))

    values["with_loader"] = rate(lambda: step(next(batches)))
    values["loader"] = rate(lambda: next(batches).release())
    if torch:
        from runner_core.engines.torch.transfer import feed

        way = feed(device_of(setup))

        def bring() -> None:
            given = next(batches)
            way.take(given)
            way.done(given)

        values["to_device"] = rate(bring)
    loader.close()
    return values


def setup_of(case: Case, device: str, cache: Path, quick: bool) -> Setup:
    plugins = Plugins()
    plugins.register(defaults, "core")
    plugins.add(find_projects()[case.project])
    kind = plugins.project()
    preset = "demo" if quick else case.preset
    settings = {"train.device": device, "cache.dir": str(cache), "data.split": "none", **case.settings}
    config = overlay_named(from_preset(kind, preset), settings, f"case {case.name}")
    folder = None
    if case.data is not None:
        folder = cache / "data" / case.project / case.data.__name__
        if not folder.exists():
            with whole_folder(folder) as temporary:
                case.data(temporary)
    return Setup(kind(config), config, preset, folder, plugins)


def loader_of(setup: Setup, data: Data, block: int) -> Loader:
    """Make the loader as a run does."""
    config = setup.config.train
    return Loader(
        data.samples["train"],
        batch_size=config.batch_size,
        seed=config.seed,
        shuffle=True,
        steps_per_epoch=1024,
        workers=config.workers,
        prefetch=config.prefetch,
        block=block,
        allocate=setup.engine.allocate,
        pin=setup.engine.pin,
        augment=setup.project.learning().augment,
    )


def endless(loader: Loader) -> Iterator[HostBatch]:
    epoch = 0
    while True:
        yield from loader.batches(epoch)
        epoch += 1


# ---------------------------------------------------------------- memory and operations


def waiter(device: Any) -> Callable[[], object]:
    """Return a function that waits until a device of PyTorch has finished all work."""
    import torch
    from runner_core.engines.torch.accelerator import wait

    return partial(wait, torch.device(device))


def device_of(setup: Setup) -> Any:
    """Return PyTorch's device."""
    from runner_core.engines.torch.engine import torch_device

    return torch_device(setup.device)


def compiles(setup: Setup) -> bool:

    return setup.config.train.compile == "on"


def forget_peak(setup: Setup) -> None:
    if setup.device.kind != "cpu" and setup.engine.name == "torch":
        from runner_core.engines.torch import accelerator

        accelerator.forget_peak(device_of(setup))


def memory(setup: Setup, trainer: Any) -> dict[str, int]:
    """Most bytes allocated and, on CUDA, reserved on the device; nothing where it is the host."""
    if setup.device.kind == "cpu":
        return {}
    if setup.engine.name != "torch":
        return {"allocated": trainer.peak_memory()}
    import torch
    from runner_core.engines.torch import accelerator

    reserved = {"reserved": torch.cuda.max_memory_reserved()} if setup.device.kind == "cuda" else {}
    return {"allocated": accelerator.peak(device_of(setup)), **reserved}


def operations(work: Callable[[], None]) -> dict[str, int]:
    """Floating-point operations of `work`, and the bytes of all tensors that its operations read or write."""
    from runner_core.engines.torch.phases import operations

    found = operations(work)
    return {"flops": sum(one.flops for one in found), "bytes": sum(one.bytes for one in found)}


def limits(device: str, quick: bool) -> dict[str, float]:
    """Measure this device's peak: large matrix products by precision, copies within it and from page-locked memory."""
    import torch
    from runner_core.engines.torch.phases import matrix_rate, transfer_rate

    place = torch.device(device)
    gpu = place.type == "cuda"
    size, seconds = (512, 0.2) if quick else (8192, 1.5)
    found: dict[str, float] = {}
    for name in ("float32", "tf32", "bfloat16", "float16") if gpu else ("float32",):
        found[f"{name} matrix product, TFLOP/s"] = matrix_rate(place, name, size, seconds) / 1e12
    found[COPY] = copy_rate(device, quick) / 1e9
    if gpu:
        found["from page-locked memory, GB/s"] = transfer_rate(place, 2**28, seconds) / 1e9
    return found


def copy_rate(device: str, quick: bool) -> float:
    """Bytes a second, read and written, of a large copy within the device."""
    import torch
    from runner_core.engines.torch.phases import copy_rate as rate

    return rate(torch.device(device), 2**24 if quick else 2**30, 0.2 if quick else 1.5)
