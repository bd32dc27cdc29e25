"""Which pixels of a grey image belong to which class: what runner calls, in the order of the data.

What needs torch is in network.py: `--help`, `check` and the processes that prepare images would wait for it here.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from runner_core import BadInput, Checks, DataSet, Decoded, Health, PatchSamples, Pictures, Project, Record, Step

from runner_newproject import phantom
from runner_newproject.config import CLASSES, Settings, demo
from runner_newproject.files import annotation, find, group, read, read_classes

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
            raise BadInput(f"{root}: no images here; wanted images/NAME.png and masks/NAME.png (or .tif)")
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
        return Decoded(arrays, spacing=(1.0, 1.0), guide="image")

    def prepare(self, decoded: Decoded) -> dict[str, np.ndarray]:
        """change this: each image's own range of grey becomes uint8; mirrored borders make sides multiples of 32."""
        image = decoded.arrays["image"].astype(np.float32)
        low, high = np.percentile(image, (0.5, 99.8))
        grey = np.clip((image - low) / max(high - low, 1) * 255, 0, 255).astype(np.uint8)
        border = [(0, max(self.config.data.patch, -(-n // 32) * 32) - n) for n in image.shape]
        return {name: np.pad(x, border, "symmetric") for name, x in (decoded.arrays | {"image": grey}).items()}

    def prepare_settings(self) -> Mapping[str, Any]:
        """Return what decode and prepare depend on: other settings build the cache anew."""
        return {"patch": self.config.data.patch, "values": VALUES}

    def fit(self, store: Any, training: Sequence[int]) -> dict[str, Any]:
        """Learned from the training images alone: the mean grey of each class, for `baseline`."""
        pixels, total = sums = np.zeros((2, len(VALUES)))
        for record in training:
            image, mask = (store.arrays[name].read(record).ravel() for name in ("image", "mask"))
            sums += [np.bincount(mask, weights, len(VALUES)) for weights in (None, image)]
        if missing := [name for name, count in zip(CLASSES, pixels, strict=True) if not count]:
            raise BadInput(f"no training image has a pixel of {', '.join(missing)}")
        return {"grey": total / pixels}

    # ---- arrays → batches → loss

    def samples(self, store: Any, records: Sequence[int], split: str) -> PatchSamples:
        """Squares at random places, as many of each image as would cover it."""
        side, shapes = self.config.data.patch, store.arrays["image"].shapes
        counts = [-(-shapes[r][0] * shapes[r][1] // side**2) for r in records]
        return PatchSamples(store, ["image", "mask"], (side, side), records, counts)

    @property
    def network(self) -> Any:
        from runner_newproject import network

        return network

    def on_device(self, batch: dict[str, Any], statistics: Mapping[str, Any], rng: Any) -> dict[str, Any]:
        return self.network.read_batch(batch, rng)

    def model(self, precision: Any) -> Any:
        return self.network.unet(len(CLASSES), self.config.model.width)

    def step(self, model: Any, batch: dict[str, Any], progress: Any) -> Step:
        logits = model(batch["image"])
        terms = self.network.losses(logits, batch["mask"])
        return Step(sum(terms.values()), terms, logits)

    def metrics(self) -> Sequence[Any]:
        return self.network.metrics()

    def health(self) -> Health:
        """Return what health rules look at: a run whose decision never varies is stopped."""
        return Health(decision=lambda prediction: self.network.decide(prediction))

    # ---- whole images: class numbers (H, W) uint8; `cropped` (runner_core.Cropped) is a record without its labels

    def predict(self, cropped: Any, infer: Any) -> np.ndarray:
        logits = infer({"image": cropped.prepared["image"][None]})["prediction"][0]
        return self.whole(cropped, logits.argmax(-1))

    def baseline(self, cropped: Any) -> np.ndarray:
        """Return what a network must beat: for each pixel the class whose mean grey is nearest."""
        return self.whole(cropped, abs(cropped.prepared["image"][..., None] - self.statistics["grey"]).argmin(-1))

    def whole(self, cropped: Any, classes: np.ndarray) -> np.ndarray:
        """Return classes of a prepared image in the grid of its file: without the border, and 0 outside the crop."""
        height, width = cropped.decoded.arrays["image"].shape
        return cropped.box.restore(classes[:height, :width].astype(np.uint8))

    def write(self, record: Record, prediction: np.ndarray, out: Path) -> Sequence[Path]:
        path = out / f"{record.key}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.array(VALUES, np.uint8)[prediction]).save(path)
        return [path]

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
        return Checks(
            annotation=annotation, plain_metrics=self._plain_metrics, grid=lambda file: list(read(file).shape)
        )

    def _plain_metrics(self, prediction: np.ndarray, batch: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the metrics by definition, for the contract test. Logits (B, H, W, K), batch["mask"] (B, H, W)."""
        found, true = (np.eye(len(VALUES))[x][..., 1:] for x in (prediction.argmax(-1), batch["mask"]))
        both, sizes = (found * true).sum((1, 2)), (found + true).sum((1, 2))
        return {"dice": float(((2 * both + 1) / (sizes + 1)).mean())}

    def pictures(self) -> Pictures:
        return Pictures(figure=self._figure)

    def _figure(self, record: Record, prediction: np.ndarray) -> np.ndarray:
        """Side by side: image, prediction, mask."""
        arrays = self.decode(record).arrays
        panels = [arrays["image"] / arrays["image"].max(initial=1), prediction / len(VALUES)]
        panels += [arrays["mask"] / len(VALUES)] if "mask" in arrays else []
        return np.stack([np.hstack(panels) * 255] * 3, axis=-1).astype(np.uint8)

    def phantom(self, folder: Path, rng: np.random.Generator) -> None:
        phantom.write(folder, rng)
