"""What is said of a whole image: what runner calls, in the order of the data.

What needs torch is in network.py and objective.py: `--help`, `check` and the processes that prepare images would wait
for it here.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from runner_core import BadInput, Checks, DataSet, Decoded, Judging, Pictures, Project, Record, Step, WholeSamples

from runner_newproject import labels, phantom
from runner_newproject.config import Settings, demo
from runner_newproject.files import find, labelled, resize
from runner_newproject.images import one_kind, read, usable


class NewTask(Project):
    name, framework, Config = "newproject", "torch", Settings
    presets = {"default": Settings, "demo": demo}
    monitor = labels.MONITOR
    # raise prepare_version when decode or prepare changes, so that what is cached is made anew
    # labels names the column that predictions never see
    dataset = DataSet(prepare_version=1, phantom_version=phantom.VERSION, labels=(labels.COLUMN,))
    config: Settings

    # ---- files → arrays, once for each image

    def records(self, root: Path) -> Sequence[Record]:
        """change this: where images and labels lie, and which images belong together (`group`)."""
        return labelled(root)

    def inputs(self, path: Path) -> Sequence[Record]:
        """Return what `predict` is given: an image or a folder of them, without labels."""
        if found := find(path / "images") or find(path):
            return [Record(name, name, {"image": file}) for name, file in found.items()]
        raise BadInput(f"{path}: no images here")

    def decode(self, record: Record) -> Decoded:
        image = read(record.files["image"])
        return Decoded({"image": image}, (1.0,) * (image.ndim - 1), guide="image", meta=dict(record.values))

    def prepare(self, decoded: Decoded) -> dict[str, np.ndarray]:
        """change this: every image gets one size."""
        arrays = {"image": resize(decoded.arrays["image"], self.config.data.side)}
        if labels.COLUMN in decoded.meta:
            arrays["label"] = np.array([labels.number(decoded.meta[labels.COLUMN])], labels.DTYPE)
        return arrays

    def prepare_settings(self) -> Mapping[str, Any]:
        """Return what decode and prepare depend on: other settings build the cache anew."""
        return {"side": self.config.data.side, "labels": labels.SETTINGS}

    def fit(self, store: Any, training: Sequence[int]) -> dict[str, Any]:
        """Learned from the training images alone: their channels' mean and spread, and those of the labels."""
        images, targets = (store.arrays[name] for name in ("image", "label"))
        axes = tuple(range(one_kind(store.keys, images.shapes)))
        sums = np.mean([[x.mean(axes), (x.astype(float) ** 2).mean(axes)] for x in map(images.read, training)], axis=0)
        std = np.sqrt(np.maximum(sums[1] - sums[0] ** 2, 1e-6))
        start, spread = labels.start(np.array([targets.read(record)[0] for record in training]))
        scale = {"mean": sums[0].astype(np.float32), "std": std.astype(np.float32)}
        return scale | {"start": start, "spread": spread, "axes": len(axes)}

    # ---- arrays → batches → loss

    def samples(self, store: Any, records: Sequence[int], split: str) -> WholeSamples:
        return WholeSamples(store, records)

    @property
    def network(self) -> Any:
        from runner_newproject import network

        return network

    @property
    def objective(self) -> Any:
        from runner_newproject import objective

        return objective

    def on_device(self, batch: dict[str, Any], statistics: Mapping[str, Any], rng: Any) -> dict[str, Any]:
        return self.network.read_batch(batch, statistics, rng)

    def model(self, precision: Any) -> Any:
        found = self.statistics
        width = self.config.model.width
        return self.network.Network(found["axes"], len(found["mean"]), width, found["start"], found["spread"])

    def step(self, model: Any, batch: dict[str, Any], progress: Any) -> Step:
        output = model(batch["image"])
        terms = self.objective.losses(output, batch["label"], self.statistics["spread"])
        return Step(sum(terms.values()), terms, output)

    def metrics(self) -> Sequence[Any]:
        return self.objective.metrics()

    # ---- whole images; `cropped` (runner_core.Cropped) is a record without its label

    def predict(self, cropped: Any, infer: Any) -> np.ndarray:
        """Return what `labels.decide` makes of the network's output (outputs,)."""
        image = usable(cropped, int(self.statistics["axes"]), len(self.statistics["mean"]))
        return labels.decide(infer({"image": image[None]})["prediction"][0])

    def baseline(self, cropped: Any) -> np.ndarray:
        """Return what a network must beat: the same for every image."""
        return labels.decide(np.asarray(self.statistics["start"]))

    def write(self, record: Record, prediction: np.ndarray, out: Path) -> Sequence[Path]:
        path = out / f"{record.key}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        row = {"image": record.key, **labels.row(prediction)}
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([row.keys(), row.values()])
        return [path]

    def judging(self) -> Judging:
        return Judging(collect=self._collect)

    def _collect(self, files: Sequence[Path], out: Path) -> Sequence[Path]:
        """Write the images' rows into one table."""
        rows = [file.read_text("utf-8").partition("\n") for file in files]
        table = out / "predictions.csv"
        table.write_text(rows[0][0] + "\n" + "".join(row for _, _, row in rows), "utf-8")
        return [table]

    def score(self, record: Record, prediction: np.ndarray) -> dict[str, float]:
        return labels.score(prediction, record.values[labels.COLUMN])

    # ---- checks and pictures

    def checks(self) -> Checks:
        """Return what `check` and the contract test look at."""
        return Checks(
            annotation=lambda decoded: labels.annotation(decoded.meta.get(labels.COLUMN)),
            plain_metrics=lambda output, batch: labels.plain_metrics(output, batch["label"]),
        )

    def pictures(self) -> Pictures:
        return Pictures(figure=self._figure)

    def _figure(self, record: Record, prediction: np.ndarray) -> np.ndarray:
        """Return the image (a volume's middle page), and below it what is predicted and true."""
        image = read(record.files["image"]).astype(np.float32)
        image = image if image.ndim == 3 else image[len(image) // 2]
        grey = np.broadcast_to(image / max(image.max(), 1) * 255, (*image.shape[:2], 3)).astype(np.uint8)
        page = Image.new("RGB", (256, 288))
        page.paste(Image.fromarray(grey).resize((256, 256)))
        truth = f", true: {record.values[labels.COLUMN]}" if labels.COLUMN in record.values else ""
        ImageDraw.Draw(page).text((4, 264), f"predicted: {labels.row(prediction)[labels.COLUMN]}{truth}")
        return np.asarray(page)

    def phantom(self, folder: Path, rng: np.random.Generator) -> None:
        phantom.write(folder, rng)
