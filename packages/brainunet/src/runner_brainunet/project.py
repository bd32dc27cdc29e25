"""The class that runner calls. Imports neither torch nor MONAI at its top."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import (
    Annotation,
    Array,
    Arrays,
    BadInput,
    Checks,
    Combining,
    Cropped,
    DataSet,
    Decoded,
    Finding,
    Health,
    Infer,
    Json,
    Judging,
    Layer,
    Learning,
    Metric,
    Original,
    PairFiles,
    Pictures,
    Precision,
    Progress,
    Project,
    Record,
    RowSamples,
    Samples,
    Standalone,
    Statistics,
    Step,
    Store,
    Tensors,
    View,
)

from runner_brainunet import (
    baseline,
    checks,
    files,
    nifti,
    nnunet,
    outputs,
    qc,
    sizes,
    slices,
    statistics,
    volume,
    whole,
)
from runner_brainunet.config import PRESETS, BrainConfig, undivided
from runner_brainunet.grid import Grid
from runner_brainunet.outputs import BrainPredictOptions


class BrainUNet(Project):
    """Skull stripping of T1 MRI with a 2-D U-Net, in the scanner's own grid."""

    name = "brainunet"
    framework = "torch"
    Config = BrainConfig
    presets = PRESETS
    monitor = ("volume_dice", "max")
    limits = (
        "For research, not for diagnosis. The network knows heads, scanners and contrasts like those it was trained "
        "on. Tumours, resections and children's heads are not among them unless the data had some: look at each "
        "mask."
    )
    bfloat16_on_cpu = True
    dataset = DataSet(
        crop="body",
        labels=files.LABELS,
        settings=("data.manifest", "data.pattern"),
        pairs=PairFiles(nifti.is_nifti, nifti.stem),
    )
    predict_options = BrainPredictOptions()
    config: BrainConfig

    @property
    def _cut(self) -> float:
        """Logit of `predict.threshold`."""
        threshold = self.config.predict.threshold
        return math.log(threshold / (1 - threshold))

    # ------------------------------------------------------------ data: files → prepared arrays

    def records(self, root: Path) -> Sequence[Record]:
        return files.find_records(root, self.config.data)

    def inputs(self, path: Path) -> Sequence[Record]:
        outputs.refuse(self.predict_options)
        return files.find_inputs(path, self.config.data)

    def write_input(self, arrays: Arrays, spacing: tuple[float, ...] | None, folder: Path) -> Path:
        return nifti.write_arrays(arrays, spacing, folder / "array.nii")  # it is read once: packing takes longer

    def decode(self, record: Record) -> Decoded:
        """Return the scan, its head (all but air: the cropper's guide) and its mask, in RAS at `data.spacing`."""
        path = record.files["image"]
        mask_path = record.files.get("mask")
        if not path.exists() and mask_path is not None:
            raise BadInput(f"{mask_path}: its scan {path.name} is missing.")
        image, scan = nifti.read_scan(path)
        grid = Grid.of(scan.shape, image.affine, self.config.data.spacing, nifti.millimetres(image))
        sizes.refuse_large(path, grid.model_shape, f"at data.spacing {self.config.data.spacing:g} mm", 16)
        volume = grid.to_model(scan)
        arrays: Arrays = {"image": volume, "head": (volume > slices.air_threshold(volume)).astype(np.uint8)}
        if mask_path is not None:
            arrays["mask"] = grid.to_model(self._truth(record, image)) > 0.5
        meta = {"grid": asdict(grid), "affine": image.affine.tolist()}
        original = Original(scan, nifti.spacing(image), str(image.get_data_dtype()))
        return Decoded(arrays, grid.model_spacing, "head", meta, original)

    def _truth(self, record: Record, image: Any) -> Array:
        path = record.files["mask"]
        if not path.exists():
            raise BadInput(f"{record.files['image']}: its mask {path} is missing.")
        return nifti.read_mask(path, image, record.files["image"])

    def prepare(self, decoded: Decoded) -> Arrays:
        """Return slices of every view as uint8: image and mask (rows, size, size), view (rows, 1)."""
        volume = decoded.arrays["image"]
        layout = self._layout(volume.shape)
        arrays: Arrays = {
            "image": layout.slices(slices.to_uint8(volume, decoded.arrays["head"] > 0)),
            "view": layout.view_of_row(),
        }
        if "mask" in decoded.arrays:
            arrays["mask"] = layout.slices(decoded.arrays["mask"].astype(np.uint8))
        return arrays

    def prepare_settings(self) -> Mapping[str, Json]:
        data = self.config.data
        return {"spacing": data.spacing, "size": data.size, "views": list(data.views), "gap": data.neighbours // 2}

    def _layout(self, shape: Sequence[int]) -> slices.Layout:
        data = self.config.data
        return slices.Layout(tuple(shape), data.size, tuple(data.views), data.neighbours // 2)

    def fit(self, store: Store, training: Sequence[int]) -> Statistics:
        return statistics.fit(store, training)

    # ------------------------------------------------------------ data: prepared arrays → batches

    def samples(self, store: Store, records: Sequence[int], split: str) -> Samples:
        half = self.config.data.neighbours // 2
        around = tuple(range(-half, half + 1))
        masks = around if self.config.augment.synthetic and split == "train" else (0,)
        return RowSamples(store, {"image": around, "mask": masks, "view": (0,)}, records)

    def on_device(self, batch: Tensors, statistics: Statistics, rng: Any | None) -> Tensors:
        """Return image (B, neighbours, H, W) in [0, 1] and mask (B, 1, H, W), both float; augmented with `rng`."""
        from runner_brainunet.batches import on_device

        return on_device(batch, self.config.augment, rng)

    # ------------------------------------------------------------ learning

    def model(self, precision: Precision) -> Any:
        from runner_brainunet.network import UNet

        return UNet(self.config.data.neighbours, self.config.model.features, self.config.model.norm)

    def step(self, model: Any, batch: Tensors, progress: Progress) -> Step:
        from runner_brainunet.objective import objective

        cut = self._cut if self.config.log.batch_dice else None
        return objective(model(batch["image"]).float(), batch, self.config.loss, cut)

    def _chance_losses(self) -> Mapping[str, float]:
        """Loss and terms if every voxel gets the same, best probability."""
        share = self.statistics.get("brain_share", 0)  # runs of version 0.1 have none
        return statistics.chance_losses(share, self.config.loss)

    def metrics(self) -> Sequence[Metric]:
        """Return volume_dice and volume_iou, means over the records. Each voxel counts once per view."""
        from runner_core import Overlap

        return (Overlap(lambda logits, batch: (logits > self._cut, batch["mask"] > 0.5), "volume_"),)

    def _plain_metrics(self, prediction: Any, batch: Arrays) -> Mapping[str, float]:
        dice, iou = [], []
        for record in np.unique(batch["record"]):
            of = batch["record"] == record
            found, true = prediction[of] > self._cut, batch["mask"][of] > 0.5
            dice.append(2 * (found & true).sum() / (found.sum() + true.sum()))
            iou.append((found & true).sum() / (found | true).sum())
        return {"volume_dice": float(np.mean(dice)), "volume_iou": float(np.mean(iou))}

    def learning(self) -> Learning:
        return Learning(splittable=not undivided(self.config))

    def health(self) -> Health:
        return Health(
            lower_bounds={"bce_loss": 0, "dice_loss": 0},
            chance_losses=self._chance_losses,
            decision=lambda logits: logits > self._cut,
        )

    # ------------------------------------------------------------ whole records

    def _soft(self, cropped: Cropped, infer: Infer) -> Arrays:
        """Return the probability of brain (1, x, y, z) on the network's grid."""
        layout = self._layout(cropped.decoded.arrays["image"].shape)
        size = self.config.validate.batch_size or self.config.train.batch_size
        coarse, near = 2 ** (len(self.config.model.features) - 1), self.config.data.neighbours
        return {"brain": whole.predict(cropped.prepared, layout, infer, near, size, coarse)[None]}

    def _mirrored(self, cropped: Cropped) -> Arrays:
        layout, prepared = self._layout(cropped.decoded.arrays["image"].shape), cropped.prepared
        return {**prepared, "image": layout.mirrored_slices(prepared["image"])}

    def _mirrored_back(self, soft: Arrays) -> Arrays:
        return {"brain": self._layout(soft["brain"].shape[1:]).mirrored(soft["brain"])}

    def _decide(self, cropped: Cropped, soft: Arrays) -> Array:
        """Return the brain mask (bool) on the scan's own 3-D grid, with its volume."""
        settings, grid = self.config.predict, Grid.from_json(cropped.decoded.meta["grid"])
        above = _on_scan(cropped, soft["brain"][0]) > settings.threshold
        found = whole.one_brain(above, settings.fill_holes)
        spread = volume.spread_ml(soft["brain"][0], float(np.prod(grid.model_spacing)) / 1e3)
        about = volume.volume_of(above, found, float(np.prod(grid.spacing)) / 1e3, spread)
        return volume.Brain.of(volume.with_margin(found, settings.margin, grid.scanner_spacing), about)

    def _labels(self, record: Record, cropped: Cropped) -> Array | None:
        """Return 1 for brain and 0 for all else (int8) on the network's grid."""
        if "mask" not in record.files:
            return None
        grid = Grid.from_json(cropped.decoded.meta["grid"])
        truth = self._truth(record, nifti.open_image(record.files["image"]))
        return cropped.box.crop(grid.to_model(truth) > 0.5).astype(np.int8)

    def combining(self) -> Combining:
        return Combining(
            kind="probabilities",
            soft=self._soft,
            decide=self._decide,
            classes=("brain",),
            labels=self._labels,
            write_map=lambda cropped, values, stem: outputs.write_map(cropped.record, _on_scan(cropped, values), stem),
            views=(View("left-right", self._mirrored, self._mirrored_back),),
            choices={
                "predict.threshold": (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9),
                "predict.fill_holes": (True, False),
            },
        )

    def write(self, record: Record, prediction: Array, out: Path) -> Sequence[Path]:
        """Write KEY_brainmask.nii.gz with the scan's grid and header, and KEY_brainmask.json with its volume.

        `--brain`, `--qc` and `--bids` add to that and change the names; `--nnunet` writes KEY.nii.gz alone.
        """
        options, settings = self.predict_options, self.config.predict
        return outputs.write(prediction, record, out, options, settings, lambda: self._figure(record, prediction))

    def _summarise(self, out: Path) -> Sequence[Path]:
        """Write the table of volumes, and the page of pictures; with `--bids` also what a BIDS dataset needs.

        With `--nnunet` write only what the masks' values mean.
        """
        if self.predict_options.nnunet:
            return [nnunet.describe_predictions(out)]
        return qc.summarise(out, self.predict_options.bids)

    def _grid(self, file: Path) -> Json:
        image = nifti.open_image(file)
        return {"shape": list(image.shape[:3]), "affine": image.affine.tolist()}

    def _remarks(self, record: Record, prediction: Array) -> Iterator[Finding]:
        return outputs.remarks(prediction, nifti.spacing(nifti.open_image(record.files["image"])))

    def score(self, record: Record, prediction: Array) -> Mapping[str, float]:
        """Return dice, iou, hd95_mm and surface_dice_1mm of the whole volume in true spacing."""
        from runner_brainunet.scores import volume_scores

        image = nifti.open_image(record.files["image"])
        return volume_scores(prediction, self._truth(record, image), nifti.spacing(image))

    def baseline(self, cropped: Cropped) -> Array:
        return baseline.baseline(nifti.read_scan(cropped.record.files["image"])[1])

    def _figure(self, record: Record, prediction: Array) -> Array:
        from runner_brainunet.figures import figure

        scan, truth, ras = self._in_ras(record)
        return figure(scan, ras.to_ras(prediction), truth, ras.spacing)

    def _layers(self, record: Record, prediction: Array | None) -> Sequence[Layer]:
        from runner_brainunet.figures import layers

        scan, truth, ras = self._in_ras(record)
        return layers(scan, None if prediction is None else ras.to_ras(prediction), truth, ras.spacing)

    def _in_ras(self, record: Record) -> tuple[Array, Array | None, Grid]:
        """Return a scan and its mask, if it has one, in RAS at the scan's own spacing."""
        image, scan = nifti.read_scan(record.files["image"])
        ras = Grid.of(scan.shape, image.affine, self.config.data.spacing, nifti.millimetres(image))
        truth = ras.to_ras(self._truth(record, image)) if "mask" in record.files else None
        return ras.to_ras(scan), truth, ras

    def _snapshots(self, model: Any, batch: Tensors) -> Mapping[str, Array]:
        from runner_brainunet.figures import snapshot

        found = (model(batch["image"]).float() > self._cut)[:, 0].cpu().numpy()
        images, masks = batch["image"].cpu().numpy(), batch["mask"][:, 0].cpu().numpy() > 0
        middle = images.shape[1] // 2
        return {f"sample {n + 1}": snapshot(images[n, middle], found[n], masks[n]) for n in range(len(found))}

    def _annotation(self, decoded: Decoded) -> Annotation | None:
        """Count voxels of the network's grid: brain, and all others."""
        mask = decoded.arrays.get("mask")
        if mask is None:
            return None
        brain = int(np.count_nonzero(mask))
        return Annotation({"other": mask.size - brain, "brain": brain})

    def export(self, model: Any, folder: Path) -> Sequence[Path]:
        from runner_brainunet.export import export

        return export(model, folder, self.config)

    def standalone(self) -> Standalone:
        from runner_brainunet.standalone import standalone

        return standalone(self.config)

    def checks(self) -> Checks:
        return Checks(
            record=lambda record: checks.findings(record.files["image"], record.files.get("mask")),
            prediction=self._remarks,
            annotation=self._annotation,
            plain_metrics=self._plain_metrics,
            grid=self._grid,
        )

    def judging(self) -> Judging:
        return Judging(summarise=self._summarise)

    def pictures(self) -> Pictures:
        from runner_brainunet.figures import LABELS

        return Pictures(
            figure=self._figure, labels=LABELS, layers=self._layers, snapshots=self._snapshots, snapshot_samples=3
        )

    # ------------------------------------------------------------ phantom

    def phantom(self, folder: Path, rng: np.random.Generator) -> None:
        from runner_brainunet.phantom import write_phantom

        write_phantom(folder, rng)


def _on_scan(cropped: Cropped, values: Array) -> Array:
    """Bring values (x, y, z) from the network's cropped grid to the scan's own, with 0 outside the crop."""
    return Grid.from_json(cropped.decoded.meta["grid"]).to_scanner(cropped.box.restore(values))
