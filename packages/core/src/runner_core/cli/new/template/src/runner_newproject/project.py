"""Which pixels of an image, or of a volume, belong to which class: what runner calls, in the order of the data.

What needs torch is in network.py: `--help`, `check` and the processes that prepare images would wait for it here.
"""

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import BadInput, Checks, DataSet, Decoded, Health, PatchSamples, Pictures, Project, Record, Step

from runner_newproject import phantom
from runner_newproject.config import CLASSES, Settings, demo
from runner_newproject.files import annotation, find, group, read_classes
from runner_newproject.images import bordered, one_kind, read, save, side_by_side, usable

VALUES = list(CLASSES.values())


class NewTask(Project):
    name, framework, Config = "newproject", "torch", Settings
    presets = {"default": Settings, "demo": demo}
    monitor = ("dice", "max")
    # raise prepare_version when decode or prepare changes, so that what is cached is made anew
    # labels names the files that predictions never see
    dataset = DataSet(prepare_version=1, phantom_version=phantom.VERSION, labels=("mask",))
    config: Settings

    # ---- files → arrays, once for each image

    def records(self, root: Path) -> Sequence[Record]:
        """change this: where images and masks lie, and (`files.group`) which images belong together."""
        images, masks = find(root / "images"), find(root / "masks")
        if not images:
            raise BadInput(f"{root}: no images here; wanted images/NAME.png and masks/NAME.png (or .tif, .npy)")
        if alone := sorted(images.keys() ^ masks.keys()):
            raise BadInput(f"{root}: {', '.join(alone[:5])}: of these, image or mask is missing")
        return [Record(name, group(name), {"image": images[name], "mask": masks[name]}) for name in images]

    def inputs(self, path: Path) -> Sequence[Record]:
        """Return what `predict` is given: an image or a folder of them, without masks."""
        if found := find(path / "images") or find(path):
            return [Record(name, group(name), {"image": file}) for name, file in found.items()]
        raise BadInput(f"{path}: no images here")

    def decode(self, record: Record) -> Decoded:
        arrays = {"image": read(record.files["image"])}
        if "mask" in record.files:
            arrays["mask"] = read_classes(record.files["mask"], VALUES, arrays["image"].shape)
        return Decoded(arrays, spacing=(1.0,) * (arrays["image"].ndim - 1), guide="image")

    def prepare(self, decoded: Decoded) -> dict[str, np.ndarray]:
        """change this: each image's own range of values becomes uint8."""
        image = decoded.arrays["image"].astype(np.float32)
        low, high = np.percentile(image, (0.5, 99.8))
        grey = np.clip((image - low) / ((high - low) or 1) * 255, 0, 255).astype(np.uint8)
        return bordered(decoded.arrays | {"image": grey}, self.patch(image.ndim - 1))

    def patch(self, axes: int) -> tuple[int, ...]:
        """Return the sides of what the network trains on: a square, or a block of a volume."""
        return (self.config.data.depth, self.config.data.patch, self.config.data.patch)[-axes:]

    def prepare_settings(self) -> Mapping[str, Any]:
        """Return what decode and prepare depend on: other settings build the cache anew."""
        return {"patch": self.patch(3), "values": VALUES}

    def fit(self, store: Any, training: Sequence[int]) -> dict[str, Any]:
        """Learned from the training images alone: the mean colour of each class (K, C), for `baseline`."""
        images, masks = store.arrays["image"], store.arrays["mask"]
        axes, sums = one_kind(store.keys, images.shapes), np.zeros((1 + images.shapes[0][-1], len(VALUES)))
        for record in training:
            mask, channels = masks.read(record).ravel(), np.moveaxis(images.read(record), -1, 0)
            sums += [np.bincount(mask, weights, len(VALUES)) for weights in (None, *(x.ravel() for x in channels))]
        if missing := [name for name, count in zip(CLASSES, sums[0], strict=True) if not count]:
            raise BadInput(f"no training image has a pixel of {', '.join(missing)}")
        return {"colour": (sums[1:] / sums[0]).T, "axes": axes}

    # ---- arrays → batches → loss

    def samples(self, store: Any, records: Sequence[int], split: str) -> PatchSamples:
        """Return patches at random places, as many of each image as would cover it."""
        shapes = store.arrays["mask"].shapes
        patch = self.patch(len(shapes[0]))
        counts = [-(-prod(shapes[record]) // prod(patch)) for record in records]
        return PatchSamples(store, ["image", "mask"], patch, records, counts)

    @property
    def network(self) -> Any:
        from runner_newproject import network

        return network

    def on_device(self, batch: dict[str, Any], statistics: Mapping[str, Any], rng: Any) -> dict[str, Any]:
        return self.network.read_batch(batch, rng)

    def model(self, precision: Any) -> Any:
        classes, channels = self.statistics["colour"].shape
        return self.network.unet(int(self.statistics["axes"]), channels, classes, self.config.model.width)

    def step(self, model: Any, batch: dict[str, Any], progress: Any) -> Step:
        logits = model(batch["image"])
        terms = self.network.losses(logits, batch["mask"])
        return Step(sum(terms.values()), terms, logits)

    def metrics(self) -> Sequence[Any]:
        return self.network.metrics()

    def health(self) -> Health:
        """Return what health rules look at: a run whose decision never varies is stopped."""
        return Health(decision=lambda prediction: self.network.decide(prediction))

    # ---- whole images: class numbers (…) uint8; `cropped` (runner_core.Cropped) is a record without its labels

    def predict(self, cropped: Any, infer: Any) -> np.ndarray:
        image = usable(cropped, int(self.statistics["axes"]), self.statistics["colour"].shape[1])
        return self.whole(cropped, infer({"image": image[None]})["prediction"][0].argmax(-1))

    def baseline(self, cropped: Any) -> np.ndarray:
        """Return what a network must beat: for each pixel the class whose mean colour is nearest."""
        image, colours = cropped.prepared["image"].astype(np.float32), self.statistics["colour"]
        return self.whole(cropped, np.argmin([((image - colour) ** 2).sum(-1) for colour in colours], axis=0))

    def whole(self, cropped: Any, classes: np.ndarray) -> np.ndarray:
        """Return classes of a prepared image in the grid of its file: without the border, and 0 outside the crop."""
        inside = tuple(slice(n) for n in cropped.decoded.arrays["image"].shape[:-1])
        return cropped.box.restore(classes[inside].astype(np.uint8))

    def write(self, record: Record, prediction: np.ndarray, out: Path) -> Sequence[Path]:
        suffix = ".tif" if prediction.ndim == 3 else ".png"
        return [save(np.array(VALUES, np.uint8)[prediction], out / f"{record.key}{suffix}")]

    def score(self, record: Record, prediction: np.ndarray) -> dict[str, float]:
        """Dice of each class but the first; NaN where neither mask nor prediction has it."""
        true, scores = self.decode(record).arrays["mask"], {}
        for number, name in list(enumerate(CLASSES))[1:]:
            sizes = np.sum(true == number) + np.sum(prediction == number)
            both = np.sum((true == number) & (prediction == number))
            scores[f"dice_{name}"] = float(2 * both / sizes) if sizes else float("nan")
        return scores

    # ---- checks and pictures

    def checks(self) -> Checks:
        """Return what `check` and the contract test look at."""
        return Checks(annotation=annotation, plain_metrics=self._plain_metrics, grid=lambda f: [*read(f).shape[:-1]])

    def _plain_metrics(self, prediction: np.ndarray, batch: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the metrics by definition, for the contract test. Logits (B, …, K), batch["mask"] (B, …)."""
        classes = [x.reshape(len(x), -1, 1) for x in (prediction.argmax(-1), batch["mask"])]
        found, true = (x == np.arange(1, len(VALUES)) for x in classes)
        return {"dice": float(((2 * (found & true).sum(1) + 1) / (found.sum(1) + true.sum(1) + 1)).mean())}

    def pictures(self) -> Pictures:
        return Pictures(figure=self._figure)

    def _figure(self, record: Record, prediction: np.ndarray) -> np.ndarray:
        """Side by side: image, prediction, mask; of a volume, the middle page."""
        arrays = self.decode(record).arrays
        classes = [prediction, *(arrays[name] for name in arrays if name == "mask")]
        return side_by_side([arrays["image"] / arrays["image"].max(initial=1e-6), *(x / len(VALUES) for x in classes)])

    def phantom(self, folder: Path, rng: np.random.Generator) -> None:
        phantom.write(folder, rng)
