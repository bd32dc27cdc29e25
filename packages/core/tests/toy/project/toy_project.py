"""A whole project in plain torch, as small as one can be: bright discs in noise, stacks of slices as .npy files.

A record is STEM.npy (slices, 24, 24) float32 beside STEM_mask.npy (the same shape, 0 or 1); what precedes the first
"_" of STEM is its group. The folder may be at a URL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MethodType
from typing import Any, ClassVar

import numpy as np
from runner_core import (
    BadInput,
    Checks,
    Combining,
    Cropped,
    DataSet,
    Decoded,
    Finding,
    Health,
    Learning,
    Pictures,
    Precision,
    PredictConfig,
    Project,
    Record,
    RowSamples,
    RunConfig,
    Step,
    hookimpl,
    mirrors_and_turns,
)
from runner_core.base.location import Location
from runner_core.config import LogConfig, TrainConfig


@dataclass
class ModelConfig:
    width: int = 8
    """Channels of the hidden layers."""
    dropout: float = 0.1
    """Share of hidden values dropped in training."""


@dataclass
class ToyPredict(PredictConfig):
    threshold: float = 0.5
    """Values above it are disc."""


@dataclass
class ToyConfig(RunConfig):
    train: TrainConfig = field(default_factory=lambda: TrainConfig(epochs=20, batch_size=8, learning_rate=1e-2))
    log: LogConfig = field(default_factory=lambda: LogConfig(every=5))
    model: ModelConfig = field(default_factory=ModelConfig)
    predict: ToyPredict = field(default_factory=ToyPredict)


def demo() -> ToyConfig:
    config = ToyConfig()
    config.train.epochs, config.train.steps_per_epoch = 3, 40
    config.model.width = 4
    return config


@dataclass
class ToyPredictOptions:
    scaled: bool = False
    """Also write the probabilities, as STEM_probability.npy."""


def declare(kind: Any, facet: str, **fields: Any) -> Any:
    """A method in place of the class's `facet`, with these fields instead; functions are given the project first."""
    old = getattr(kind, facet)

    def declared(self: Any) -> Any:
        own = {name: MethodType(value, self) if callable(value) else value for name, value in fields.items()}
        return replace(old(self), **own)

    return declared


class Toy(Project):
    name = "toy"
    framework = "torch"
    Config = ToyConfig
    presets: ClassVar = {"default": ToyConfig, "demo": demo}
    monitor = ("loss", "min")
    dataset = DataSet(labels=("mask",), remote=True)
    predict_options = ToyPredictOptions()
    config: ToyConfig

    def records(self, root: Location) -> Sequence[Record[Location]]:
        files = {file.name.removesuffix(".npy"): file for file in self._files(root) if file.suffix == ".npy"}
        stems = sorted(stem for stem in files if not stem.endswith("_mask"))
        if not stems:
            raise BadInput(f"{root}: no toy data here; expected STEM.npy beside STEM_mask.npy")
        return [self._record(stem, files[stem], files.get(f"{stem}_mask")) for stem in stems]

    def inputs(self, path: Location) -> Sequence[Record[Location]]:
        if path.suffix != ".npy":
            return self.records(path)
        mask = path.parent / f"{path.name.removesuffix('.npy')}_mask.npy"
        there = isinstance(mask, Path) and mask.exists()
        return [self._record(path.name.removesuffix(".npy"), path, mask if there else None)]

    def write_input(self, arrays: Mapping[str, Any], spacing: Any, folder: Path) -> Path:
        np.save(folder / "array.npy", arrays["image"], allow_pickle=False)
        return folder / "array.npy"

    def _files(self, root: Location) -> Sequence[Location]:
        if isinstance(root, Path):
            return list(root.glob("*.npy"))
        from runner_core.data.stream.client import remote_client

        return list(remote_client(self.config.remote).list(root))

    def _record(self, stem: str, image: Location, mask: Location | None) -> Record[Location]:
        return Record(stem, stem.partition("_")[0], {"image": image} | ({} if mask is None else {"mask": mask}))

    def decode(self, record: Record) -> Decoded:
        arrays = {role: self._read(file) for role, file in record.files.items()}
        shapes = {a.shape for a in arrays.values()}
        if len(shapes) != 1:
            raise BadInput(f"{record.files['mask']}: its shape is not that of {record.files['image']}: {shapes}")
        return Decoded(arrays, (1.0, 1.0, 1.0), "image")

    def _read(self, file: Path) -> Any:
        try:
            array = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise BadInput(f"{file}: not a whole .npy file: {error}") from error
        if array.ndim != 3 or array.shape[1:] != (24, 24):
            raise BadInput(f"{file}: expected (slices, 24, 24), found {array.shape}")
        return array

    def prepare(self, decoded: Decoded) -> dict[str, Any]:
        stored = {"image": (np.clip(decoded.arrays["image"], 0, 1) * 255).astype(np.uint8)}
        if "mask" in decoded.arrays:
            stored["mask"] = (decoded.arrays["mask"] > 0).astype(np.uint8)
        return stored

    def samples(self, store: Any, records: Sequence[int], split: str) -> RowSamples:
        return RowSamples(store, {"image": (0,), "mask": (0,)}, records)

    def _augment(self, sample: dict[str, Any], rng: np.random.Generator) -> None:
        if rng.random() < 0.5:
            for name in ("image", "mask"):
                sample[name][...] = sample[name][..., ::-1].copy()

    def on_device(self, batch: dict[str, Any], statistics: Any, rng: Any | None) -> dict[str, Any]:
        import torch

        image = batch["image"].float() / 64 - 2
        if rng is not None:
            image = image + 0.02 * torch.randn(image.shape, generator=rng, device=image.device)
        return {**batch, "image": image}

    def model(self, precision: Precision) -> Any:
        from torch import nn

        width = self.config.model.width
        return nn.Sequential(
            *(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Dropout(self.config.model.dropout)),
            *(nn.Conv2d(width, width, 5, padding=2), nn.ReLU(), nn.Conv2d(width, 1, 3, padding=1)),
        )

    def step(self, model: Any, batch: dict[str, Any], progress: Any) -> Step:
        from torch.nn import functional as F

        logits = model(batch["image"]).float()
        loss = F.binary_cross_entropy_with_logits(logits, batch["mask"].float())
        return Step(loss, {"bce": loss.detach()}, logits)

    def learning(self) -> Learning:
        return Learning(splittable=True, augment=self._augment)

    def health(self) -> Health:
        return Health(decision=lambda prediction: prediction > 0)

    def combining(self) -> Combining:
        return Combining(
            "probabilities",
            self._soft,
            lambda cropped, soft: cropped.box.restore(soft["disc"][0]),
            classes=("disc",),
            labels=self._labels,
            write_map=self._write_map,
            views=mirrors_and_turns({"image": (1, 2)}, {"disc": (2, 3)}),
            choices={"predict.threshold": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)},
        )

    def _soft(self, cropped: Cropped, infer: Any) -> dict[str, Any]:
        image = cropped.prepared["image"][:, None]
        return {"disc": (1 / (1 + np.exp(-infer({"image": image})["prediction"][:, 0])))[None]}

    def _labels(self, record: Record, cropped: Cropped) -> Any:
        if "mask" not in record.files:
            return None
        return cropped.box.crop(self._read(record.files["mask"])).astype(np.int64)

    def _write_map(self, cropped: Cropped, values: Any, stem: Path) -> list[Path]:
        path = stem.with_name(f"{stem.name}.npy")
        np.save(path, cropped.box.restore(values))
        return [path]

    def write(self, record: Record, prediction: Any, out: Path) -> Sequence[Path]:
        written = {out / f"{record.key}_mask.npy": (prediction > self.config.predict.threshold).astype(np.uint8)}
        if self.predict_options.scaled:
            written[out / f"{record.key}_probability.npy"] = prediction.astype(np.float32)
        for path, array in written.items():
            np.save(path, array, allow_pickle=False)
        return list(written)

    def score(self, record: Record, prediction: Any) -> Mapping[str, float]:
        truth, found = self._read(record.files["mask"]) > 0, prediction > self.config.predict.threshold
        return {
            "error": float(np.mean(truth != found)),
            "dice": float(2 * np.sum(truth & found) / max(1, truth.sum() + found.sum())),
        }

    def baseline(self, cropped: Cropped) -> Any:
        return (self._read(cropped.record.files["image"]) > 0.5).astype(np.float32)

    def pictures(self) -> Pictures:
        return Pictures(figure=self._figure)

    def _figure(self, record: Record, prediction: Any) -> Any:
        image = np.clip(self._read(record.files["image"])[0] * 255, 0, 255)
        return np.stack([image, prediction[0] * 255, image], axis=-1).astype(np.uint8)

    def checks(self) -> Checks:
        return Checks(record=self._check)

    def _check(self, record: Record) -> Sequence[Finding]:
        if "mask" in record.files and not self._read(record.files["mask"]).any():
            return [Finding("empty mask", "warning", f"{record.files['mask']}: nothing is marked")]
        return []

    def phantom(self, folder: Path, rng: np.random.Generator) -> None:
        rows, columns = np.mgrid[:24, :24]
        for group in range(5):
            for scan in "ab":
                centre, radius = rng.uniform(8, 16, (4, 2)), rng.uniform(3, 7, 4)
                mask = np.stack([np.hypot(rows - y, columns - x) < r for (y, x), r in zip(centre, radius, strict=True)])
                image = 0.25 + 0.5 * mask + rng.normal(0, 0.2, mask.shape)
                np.save(folder / f"p{group}_{scan}.npy", image.astype(np.float32))
                np.save(folder / f"p{group}_{scan}_mask.npy", mask.astype(np.uint8))


@hookimpl
def runner_project() -> type[Project]:
    return Toy
