"""A toy project for tests of extensions: bright squares in noise, which a tiny network (PyTorch) learns in seconds."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runner_core.base.errors import BadInput, did_you_mean
from runner_core.cli.options import TrainOptions
from runner_core.cli.start import Started
from runner_core.cli.train import train_with
from runner_core.config import RunConfig, TrainConfig
from runner_core.config.values import overlay_named
from runner_core.contract.data import Cropped, Samples, Store
from runner_core.contract.facets import DataSet
from runner_core.contract.hooks import hookimpl
from runner_core.contract.project import Project
from runner_core.contract.records import Decoded, Record, Statistics
from runner_core.contract.run import Precision
from runner_core.contract.setup import Setup
from runner_core.contract.values import Array, Arrays, Infer, Progress, Step, Tensors
from runner_core.data.phantoms import write_phantom
from runner_core.data.samples import WholeSamples
from runner_core.engines.process import undisturbed
from runner_core.plugins import defaults, discovery
from runner_core.plugins.manager import Plugins
from runner_core.plugins.settings import from_preset, refuse_nonsense

_SIDE = 16


class Toy(Project):
    """Images of 16 × 16 pixels in six groups; a record is NAME.npy, with the image and its mask."""

    name, framework, Config = "toy", "torch", RunConfig
    monitor = ("loss", "min")
    dataset = DataSet(labels=("mask",))

    def records(self, root: Path) -> Sequence[Record]:
        """Return a record for each image; a pair of images is a group."""
        files = sorted(root.glob("*_image.npy"))
        names = [file.name.removesuffix("_image.npy") for file in files]
        return [
            Record(name, name[:-1], {"image": file, "mask": root / f"{name}_mask.npy"})
            for name, file in zip(names, files, strict=True)
        ]

    def decode(self, record: Record) -> Decoded:
        """Read the files."""
        arrays = {name: np.load(file, allow_pickle=False) for name, file in record.files.items()}
        return Decoded(arrays, spacing=(1.0, 1.0), guide="image")

    def prepare(self, decoded: Decoded) -> Arrays:
        """Return the arrays as they are."""
        return decoded.arrays

    def samples(self, store: Store, records: Sequence[int], split: str) -> Samples:
        """Return whole images."""
        return WholeSamples(store, records)

    def on_device(self, batch: Tensors, statistics: Statistics, rng: Any | None) -> Tensors:
        """Add the channels' axis."""
        return {name: value[:, None].float() if name in ("image", "mask") else value for name, value in batch.items()}

    def model(self, precision: Precision) -> Any:
        """Return two layers."""
        from runner_core.engines.torch import toy

        return toy.network()

    def step(self, model: Any, batch: Tensors, progress: Progress) -> Step:
        """Return the cross-entropy."""
        from runner_core.engines.torch import toy

        logits = model(batch["image"]).float()
        loss = toy.loss(logits, batch["mask"])
        return Step(loss, {"cross_entropy": loss}, logits)

    def predict(self, cropped: Cropped, infer: Infer) -> Array:
        """Return the mask."""
        logits = infer({"image": cropped.prepared["image"][None]})["prediction"][0, 0]
        return cropped.box.restore((logits > 0).astype(np.uint8))

    def write(self, record: Record, prediction: Array, out: Path) -> Sequence[Path]:
        """Write the mask."""
        np.save(out / f"{record.key}.npy", prediction)
        return [out / f"{record.key}.npy"]

    def score(self, record: Record, prediction: Array) -> Mapping[str, float]:
        """Return the share of wrong pixels."""
        return {"error": float(np.mean(np.load(record.files["mask"], allow_pickle=False) != prediction))}

    def phantom(self, folder: Path, rng: np.random.Generator) -> None:
        """Write two images for each of six groups."""
        for name in (f"{group}{image}" for group in "abcdef" for image in "12"):
            mask = np.zeros((_SIDE, _SIDE), np.uint8)
            y, x = rng.integers(1, _SIDE // 2, 2)
            mask[y : y + 6, x : x + 6] = 1
            image = mask + rng.normal(0, 0.3, mask.shape)
            np.save(folder / f"{name}_image.npy", image.astype(np.float32))
            np.save(folder / f"{name}_mask.npy", mask)


def _settings() -> RunConfig:
    """Return the settings of a run of 12 steps, 2 validations and 2 checkpoints."""
    config = RunConfig()
    config.train = TrainConfig(epochs=2, steps_per_epoch=6, batch_size=4, learning_rate=0.05, device="cpu")
    config.train.warmup, config.train.deterministic, config.train.threads = 0.0, True, 1
    config.cache.workers = config.log.every = 1
    config.health.memory = "off"
    return config


Toy.presets = {"default": _settings, "demo": _settings}


@hookimpl
def runner_project() -> type[Project]:
    """Return the toy."""
    return Toy


def train_toy(folder: Path, extension: str, settings: Mapping[str, Any] | None = None) -> Path:
    """Train a toy project with an installed extension, on the CPU in a few seconds, and return the run folder.

    It is a whole run of 12 steps: preparation, two validations, two checkpoints, scores, report. The extension is found
    through its entry point; no other extension is active. Needs PyTorch (runner-core[torch]).

    Args:
        folder: A new or empty folder for data, cache and run, such as pytest's `tmp_path`.
        extension: Its name.
        settings: Settings by dotted name, the extension's and all others: {"webhook.timeout": 1, "train.epochs": 3}.

    Raises:
        BadInput: The extension cannot be loaded, a setting is refused, or a hook fails.
        Unhealthy: A health rule stopped the run.
    """
    plugins = _plugins(extension)
    config = from_preset(Toy, "demo", plugins.sections(Toy))
    config.cache.dir = folder / "cache"
    config = overlay_named(config, settings or {}, "settings")
    refuse_nonsense(config)
    project = Toy(config)
    data = write_phantom(project, folder / "data")
    started = Started(TrainOptions(run_dir=folder / "run"), Setup(project, config, "demo", data, plugins), None, ())
    with undisturbed() as framework:
        framework(Toy.framework)
        code = train_with(started, list)
    assert code == 0, f"the toy's training ended with exit code {code}"
    return folder / "run"


def _plugins(extension: str) -> Plugins:
    """Return the core, the toy and the extension."""
    installed = discovery.extensions()
    if extension not in installed:
        there = ", ".join(installed) or "none"
        raise BadInput(
            f"no extension {extension!r} is installed{did_you_mean(extension, installed)} (installed: {there}); "
            "`pip install -e .` in its folder installs it"
        )
    plugins = Plugins()
    plugins.register(defaults, "core")
    plugins.register(sys.modules[__name__], Toy.name, kind="project")
    plugins.add(installed[extension])
    return plugins
