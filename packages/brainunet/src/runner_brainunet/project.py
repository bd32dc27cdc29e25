"""brainunet: what runner calls. Imports neither torch nor MONAI at its top."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from runner_core._errors import BadInput
from runner_core.config import RunConfig
from runner_core.project import Annotation, Decoded, Original, Project, Record, Statistics
from runner_core.protocols import (
    Array,
    Arrays,
    Finding,
    Infer,
    Json,
    Metric,
    Precision,
    Progress,
    Samples,
    Step,
    Store,
    Tensors,
    is_streamed,
)
from runner_core.samples import RowSamples

from runner_brainunet import checks, files, nifti, slices
from runner_brainunet.config import PRESETS, BrainConfig
from runner_brainunet.grid import Grid
from runner_brainunet.postprocess import one_brain, otsu_brain


@dataclass
class BrainPredictOptions:
    brain: bool = False
    """Also write the scan with everything but the brain set to 0."""


class BrainUNet(Project):
    """Skull stripping of T1 MRI with a 2-D U-Net, in the scanner's own grid."""

    name: ClassVar[str] = "brainunet"
    framework: ClassVar[Literal["torch", "keras"]] = "torch"
    Config: ClassVar[type[RunConfig]] = BrainConfig
    PredictOptions: ClassVar[type] = BrainPredictOptions
    presets: ClassVar[Mapping[str, Callable[[], RunConfig]]] = PRESETS
    monitor: ClassVar[tuple[str, Literal["max", "min"]]] = ("volume_dice", "max")
    least: ClassVar[Mapping[str, float]] = {"bce_loss": 0, "dice_loss": 0}
    crop: ClassVar[str] = "body"
    prepare_version: ClassVar[int] = 1
    phantom_version: ClassVar[int] = 1
    config: BrainConfig

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        data, model = self.config.data, self.config.model
        if wrong := slices.check_size(data.size, data.views, len(model.features)):
            raise BadInput(wrong)
        if data.neighbours not in (1, 3, 5):
            raise BadInput(f"data.neighbours is {data.neighbours}; 1, 3 or 5 slices can be seen at once")
        if not data.spacing > 0:
            raise BadInput(f"data.spacing is {data.spacing}; a voxel needs a size above 0 mm")

        if not 0 < self.config.predict.threshold < 1:
            raise BadInput(f"predict.threshold is {self.config.predict.threshold}; a probability lies between 0 and 1")

    @property
    def _cut(self) -> float:
        """The logit of `predict.threshold`."""
        threshold = self.config.predict.threshold
        return math.log(threshold / (1 - threshold))

    # ------------------------------------------------------------ data: files → prepared arrays

    def records(self, root: Path) -> Sequence[Record]:
        return files.find_records(root)

    def inputs(self, path: Path) -> Sequence[Record]:
        return files.find_inputs(path)

    def decode(self, record: Record) -> Decoded:
        """Scan, head (what is not air: the cropper's guide) and mask in RAS at `data.spacing`."""
        path = record.files["image"]
        mask_path = record.files.get("mask")
        if not path.exists() and mask_path is not None:
            raise BadInput(f"{mask_path}: its scan {path.name} is missing.")
        image, scan = nifti.read_scan(path)
        grid = Grid.of(scan.shape, image.affine, self.config.data.spacing, nifti.millimetres(image))
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
        """Slices of every view as uint8: image, mask (rows, size, size); view (rows, 1)."""
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
        """brain_share: of the training slices' voxels; not where records are streamed: that would fetch them all."""
        if is_streamed(store):
            return {}
        brain = voxels = 0
        for record in training:
            mask = store.arrays["mask"].read(record)
            brain, voxels = brain + int(np.count_nonzero(mask)), voxels + mask.size
        return {"brain_share": brain / voxels}

    # ------------------------------------------------------------ data: prepared arrays → batches

    def samples(self, store: Store, records: Sequence[int], split: str) -> Samples:
        half = self.config.data.neighbours // 2
        return RowSamples(store, {"image": tuple(range(-half, half + 1)), "mask": (0,), "view": (0,)}, records)

    def on_device(self, batch: Tensors, statistics: Statistics, rng: Any | None) -> Tensors:
        """uint8 → image (B, neighbours, H, W) float in [0, 1] and mask (B, 1, H, W) float; augmented with `rng`."""
        out = dict(batch)
        out["image"] = batch["image"].float().div_(255)
        if "mask" in batch:
            out["mask"] = batch["mask"].float()
        if rng is not None:
            from runner_brainunet.augment import augment

            view = batch["view"].reshape(-1)
            out["image"], out["mask"] = augment(out["image"], out["mask"], view, self.config.augment, rng)
        return out

    # ------------------------------------------------------------ learning

    def model(self, precision: Precision) -> Any:
        from runner_brainunet.unet import UNet

        return UNet(self.config.data.neighbours, self.config.model.features, self.config.model.norm)

    def step(self, model: Any, batch: Tensors, progress: Progress) -> Step:
        from runner_brainunet.losses import bce_loss, dice_loss

        logits = model(batch["image"]).float()
        terms = {"bce_loss": bce_loss(logits, batch["mask"]), "dice_loss": dice_loss(logits, batch["mask"])}
        weights = self.config.loss
        return Step(weights.bce * terms["bce_loss"] + weights.dice * terms["dice_loss"], terms, logits)

    def uninformed(self) -> Mapping[str, float]:
        """Loss and terms where every voxel gets the probability that is best for all of them."""
        share = self.statistics.get("brain_share", 0)  # runs of version 0.1 have none
        if not 0 < share < 1:
            return {}
        from runner_brainunet.losses import of_constant

        return of_constant(share, self.config.loss.bce, self.config.loss.dice)

    def decision(self, prediction: Any) -> Any:
        return prediction > self._cut

    def metrics(self) -> Sequence[Metric]:
        """volume_dice, volume_iou: means over the records. With several views each voxel counts once per view."""
        from runner_core.engines.torch.metrics import Overlap

        return (Overlap(lambda logits, batch: (logits > self._cut, batch["mask"] > 0.5), "volume_"),)

    def plain_metrics(self, prediction: Any, batch: Arrays) -> Mapping[str, float]:
        dice, iou = [], []
        for record in np.unique(batch["record"]):
            of = batch["record"] == record
            found, true = prediction[of] > self._cut, batch["mask"][of] > 0.5
            dice.append(2 * (found & true).sum() / (found.sum() + true.sum()))
            iou.append((found & true).sum() / (found | true).sum())
        return {"volume_dice": float(np.mean(dice)), "volume_iou": float(np.mean(iou))}

    # ------------------------------------------------------------ whole records

    def predict(self, record: Record, infer: Infer) -> Array:
        """Brain mask (bool) on the scan's own 3-D grid."""
        decoded, box = self.pipeline.decode_cropped(Record(record.key, record.group, {"image": record.files["image"]}))
        prepared = self.prepare(decoded)
        layout = self._layout(decoded.arrays["image"].shape)
        head = layout.fuse(self._probability(prepared["image"], prepared["view"][:, 0], infer))
        probability = Grid.from_json(decoded.meta["grid"]).to_scanner(box.restore(head))
        return one_brain(probability > self.config.predict.threshold, self.config.predict.fill_holes)

    def _probability(self, rows: Array, view: Array, infer: Infer) -> Array:
        """Slices (rows, h, w) uint8 → probability (rows, h, w) float32; empty slices are not asked about."""
        out = np.zeros(rows.shape, np.float32)
        seen = np.flatnonzero(rows.any(axis=(1, 2)))
        stack = slices.windows(rows, self.config.data.neighbours)
        size = self.config.validate.batch_size or self.config.train.batch_size
        for first in range(0, len(seen), size):
            part = seen[first : first + size]
            images = stack[part]
            answers = [_sigmoid(infer({"image": images})["prediction"][:, 0])]
            if self.config.predict.flip:
                turned = slices.mirror(images, view[part])
                answer = _sigmoid(infer({"image": turned})["prediction"])
                # the middle slice of a sagittal window stays where it is: only the others change places
                answers.append(slices.mirror(answer, view[part])[:, 0])
            out[part] = np.mean(answers, axis=0)
        return out

    def write(self, record: Record, prediction: Array, out: Path) -> Sequence[Path]:
        """KEY_brainmask.nii.gz, and with `--brain` KEY_brain.nii.gz: the scan's grid and header."""
        image = nifti.open_image(record.files["image"])
        written = [nifti.write_like(image, prediction, out / f"{record.key}_brainmask.nii.gz")]
        if self.predict_options.brain:
            written.append(nifti.write_masked(image, prediction, out / f"{record.key}_brain.nii.gz"))
        return written

    def grid(self, file: Path) -> Json:
        image = nifti.open_image(file)
        return {"shape": list(image.shape[:3]), "affine": image.affine.tolist()}

    def remarks(self, record: Record, prediction: Array) -> Sequence[Finding]:
        spacing = nifti.spacing(nifti.open_image(record.files["image"]))
        return list(checks.predicted(prediction, spacing))

    def score(self, record: Record, prediction: Array) -> Mapping[str, float]:
        """dice, iou, hd95_mm, surface_dice_1mm of the whole volume in true spacing."""
        from runner_brainunet.scores import volume_scores

        image = nifti.open_image(record.files["image"])
        return volume_scores(prediction, self._truth(record, image), nifti.spacing(image))

    def baseline(self, record: Record, statistics: Statistics) -> Array:
        return otsu_brain(nifti.read_scan(record.files["image"])[1])

    def figure(self, record: Record, prediction: Array) -> Array:
        from runner_brainunet.figures import montage

        image, scan = nifti.read_scan(record.files["image"])
        ras = Grid.of(scan.shape, image.affine, self.config.data.spacing, nifti.millimetres(image))
        truth = ras.to_ras(self._truth(record, image)) if "mask" in record.files else None
        return montage(ras.to_ras(scan), ras.to_ras(prediction), truth, ras.spacing)

    def check(self, record: Record) -> Sequence[Finding]:
        return list(checks.findings(record.files["image"], record.files.get("mask")))

    def annotation(self, decoded: Decoded) -> Annotation | None:
        """Voxels of the network's grid: brain, and all others."""
        mask = decoded.arrays.get("mask")
        if mask is None:
            return None
        brain = int(np.count_nonzero(mask))
        return Annotation({"other": mask.size - brain, "brain": brain})

    def export(self, model: Any, folder: Path, statistics: Statistics) -> Sequence[Path]:
        from runner_brainunet.export import export

        return export(model, folder, self.config)

    # ------------------------------------------------------------ phantom

    def phantom(self, folder: Path, rng: np.random.Generator) -> None:
        from runner_brainunet.phantom import write_phantom

        write_phantom(folder, rng)


def _sigmoid(logits: Array) -> Array:
    return 0.5 * (1 + np.tanh(0.5 * logits.astype(np.float32)))
