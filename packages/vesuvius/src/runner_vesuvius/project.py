"""vesuvius: what runner calls. Imports neither torch nor MONAI at its top."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from runner_core import BadInput
from runner_core._text import times
from runner_core.config import RunConfig
from runner_core.project import Annotation, Decoded, Project, Record, Statistics
from runner_core.protocols import (
    Array,
    Arrays,
    Box,
    Finding,
    Infer,
    Json,
    Metric,
    Optimisation,
    Precision,
    Progress,
    Samples,
    Step,
    Store,
    Tensors,
)
from runner_core.samples import PatchSamples

from runner_vesuvius import checks, files, outputs, scores, statistics, targets, volumes
from runner_vesuvius.config import PRESETS, ScrollConfig
from runner_vesuvius.health import RATIO, SurfaceRatio
from runner_vesuvius.labels import BACKGROUND, IGNORE, SURFACE
from runner_vesuvius.limits import fault
from runner_vesuvius.optimisations import OPTIMISATIONS
from runner_vesuvius.outputs import Detected


@dataclass
class ScrollPredictOptions:
    probability: bool = False
    """Also write the probabilities, KEY_probability.tif: 0 to 255 for 0 to 1."""


class Vesuvius(Project):
    """Surfaces of papyrus in CT of rolled scrolls."""

    name: ClassVar[str] = "vesuvius"
    framework: ClassVar[Literal["torch", "keras"]] = "torch"
    Config: ClassVar[type[RunConfig]] = ScrollConfig
    PredictOptions: ClassVar[type] = ScrollPredictOptions
    presets: ClassVar[Mapping[str, Callable[[], RunConfig]]] = PRESETS
    monitor: ClassVar[tuple[str, Literal["max", "min"]]] = ("proxy", "max")
    least: ClassVar[Mapping[str, float]] = {
        f"{name}_loss": 0 for name in ("bce", "dice", "skeleton_recall", "cldice", "surface_distance", "topology")
    }
    splittable: ClassVar[bool] = True
    recompute: ClassVar[str] = "model.checkpointing"
    shown: ClassVar[tuple[str, ...]] = scores.SHOWN
    optimisations: ClassVar[tuple[Optimisation, ...]] = OPTIMISATIONS
    prepare_version: ClassVar[int] = 1
    phantom_version: ClassVar[int] = 1
    config: ScrollConfig

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        if wrong := fault(self.config):
            raise BadInput(wrong)

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
        """image and label, (D, H, W) uint8."""
        arrays: Arrays = {"image": volumes.read_image(record.files["image"])}
        if "label" in record.files:
            arrays["label"] = volumes.read_truth(record.files, arrays["image"].shape)
            if (arrays["label"] == IGNORE).all():
                raise BadInput(
                    f"{record.files['label']}: every voxel is 2 (ignore): nothing can be learned from it, nor scored. "
                    "Leave the volume out."
                )
        return Decoded(arrays, (1.0, 1.0, 1.0), "image")

    def prepare(self, decoded: Decoded) -> Arrays:
        """image, target, distance (D, H, W) uint8, surface and valid (n, 3) int32, as `targets.prepare` says, and
        histogram (2, 256) uint32; only the image of a record without labels."""
        image, label = decoded.arrays["image"], decoded.arrays.get("label")
        if label is None:
            return {"image": image}
        made = targets.prepare(label, self.config.data.tube)
        return {"image": image, **made, "histogram": checks.histogram(image, label)[:2].astype(np.uint32)}

    def prepare_settings(self) -> Mapping[str, Json]:
        return {"tube": self.config.data.tube}

    def fit(self, store: Store, training: Sequence[int]) -> Statistics:
        return statistics.fit(store, training)

    # ------------------------------------------------------------ data: prepared arrays → batches

    def samples(self, store: Store, records: Sequence[int], split: str) -> Samples:
        """Patches around surface voxels, and around any that are labelled; distances only where a loss reads them."""
        from runner_vesuvius.batches import stored

        data = self.config.data
        self._refuse_small(store, records)
        count = data.patches if split == "train" else data.validation_patches
        around = {"surface": data.surface_share, "valid": 1 - data.surface_share}
        fields = ("image", "target", *(["distance"] if "distance" in stored(self.config.loss) else []))
        return PatchSamples(store, fields, data.patch, records, count, around=around)

    def _refuse_small(self, store: Store, records: Sequence[int]) -> None:
        patch = self.config.data.patch
        for record in records:
            shape = store.arrays["image"].shapes[record]
            if any(n < side for n, side in zip(shape, patch, strict=True)):
                raise BadInput(
                    f"{store.keys[record]}: {times(shape)} voxels, smaller than the patch of "
                    f"{times(patch)}. Set data.patch to sides that fit, or leave the volume out."
                )

    def on_device(self, batch: Tensors, statistics: Statistics, rng: Any | None) -> Tensors:
        """image (B, 1, D, H, W) float32, normalised; with labels surface float32 and known bool, and what the losses
        read of tube, medial and distance, all of that shape (`batches.on_device`). Augmented with `rng`."""
        from runner_vesuvius.batches import on_device

        return on_device(batch, statistics, self.config, rng)

    # ------------------------------------------------------------ learning

    def model(self, precision: Precision) -> Any:
        from runner_vesuvius.unet import SurfaceUNet

        return SurfaceUNet(**asdict(self.config.model))

    def step(self, model: Any, batch: Tensors, progress: Progress) -> Step:
        from runner_vesuvius.objective import objective

        logits = model(batch["image"])
        if self.config.loss.targets == "step":
            from runner_vesuvius.batches import needed
            from runner_vesuvius.instep import computed

            batch = {**batch, **computed(batch, needed(self.config.loss), self.config.data.tube)}
        return objective(logits, batch, self.config.loss, progress, model.training)

    def uninformed(self) -> Mapping[str, float]:
        """Where every logit is 0, which the default losses together want of a network that looks at nothing, whatever a
        patch holds."""
        return {"bce_loss": math.log(2), "skeleton_recall_loss": 0.5} if self.config.loss.positive == 1 else {}

    def ignored(self, batch: Tensors) -> Any | None:
        """(B, 1, D, H, W): voxels labelled 2."""
        return ~batch["known"]

    def infer(self, model: Any, batch: Tensors) -> Tensors:
        return {"prediction": model(batch["image"])[0].float().sigmoid()}

    def decision(self, prediction: Any) -> Any:
        return prediction > self._cut

    def metrics(self) -> Sequence[Metric]:
        """proxy and its parts (`proxy.Proxy`), surface_ratio: of the annotated voxels of all patches together."""
        from runner_vesuvius.proxy import Proxy

        return Proxy(self._cut), SurfaceRatio(self._cut)

    def plain_metrics(self, prediction: Any, batch: Arrays) -> Mapping[str, float]:
        from runner_vesuvius.proxy import plain

        found = np.count_nonzero((prediction > self._cut) & batch["known"])
        true = np.count_nonzero(batch["surface"])
        return plain(prediction, batch, self._cut) | {RATIO: found / true if true else math.nan}

    # ------------------------------------------------------------ whole records

    def predict(self, record: Record, infer: Infer) -> Detected:
        """Windows over the volume, then what `predict` says of components and cavities."""
        from runner_vesuvius.postprocess import surface
        from runner_vesuvius.windows import predict_volume

        image, box = self._unlabelled(record)
        settings, size = self.config.predict, self.config.validate.batch_size or self.config.train.batch_size
        probability = box.restore(predict_volume(image, infer, self.config.data.patch, settings.overlap, size))
        return Detected(surface(probability, settings), probability)

    def _unlabelled(self, record: Record) -> tuple[Array, Box]:
        """The image as it was for training, and where it lies in the record's grid."""
        alone = Record(record.key, record.group, {"image": record.files["image"]})
        decoded, box = self.pipeline.decode_cropped(alone)
        return decoded.arrays["image"], box

    def baseline(self, record: Record, statistics: Statistics) -> Detected:
        """Every voxel that is as bright as the best threshold on the training volumes, and the same post-processing."""
        from runner_vesuvius.postprocess import tidied

        image, box = self._unlabelled(record)
        return Detected(tidied(box.restore(image >= statistics["threshold"]), self.config.predict), None)

    def write(self, record: Record, prediction: Detected, out: Path) -> Sequence[Path]:
        """KEY.tif, the submission's format (uint8, 0 and 1, LZW), and with `--probability` KEY_probability.tif."""
        return outputs.write(prediction, record.key, out, self.predict_options.probability)

    def grid(self, file: Path) -> Json:
        return list(volumes.outline(file)[0])

    def remarks(self, record: Record, prediction: Detected) -> Sequence[Finding]:
        return [*checks.remarks(record), *outputs.remarks(prediction)]

    def score(self, record: Record, prediction: Detected) -> Mapping[str, float]:
        """The challenge's score, its parts and theirs, and Dice (`scores.volume_scores`)."""
        if "label" not in record.files:
            return {}
        return scores.volume_scores(prediction.mask, volumes.read_truth(record.files, prediction.mask.shape))

    def figure(self, record: Record, prediction: Detected) -> Array:
        from runner_vesuvius.figures import montage

        image = volumes.read_image(record.files["image"])
        return montage(
            image, prediction.mask, volumes.read_truth(record.files, image.shape) if "label" in record.files else None
        )

    def check(self, record: Record) -> Sequence[Finding]:
        return list(checks.findings(record, self.config.data.patch))

    def annotation(self, decoded: Decoded) -> Annotation | None:
        """Voxels of background and surface; what is not annotated is ignored."""
        label = decoded.arrays.get("label")
        if label is None:
            return None
        values = (BACKGROUND, SURFACE, IGNORE)
        background, surface, ignored = (int(np.count_nonzero(label == value)) for value in values)
        return Annotation({"background": background, "surface": surface}, ignored)

    def check_set(self, records: Sequence[Record]) -> Sequence[Finding]:
        return list(checks.set_findings(records))

    def export(self, model: Any, folder: Path, statistics: Statistics) -> Sequence[Path]:
        from runner_vesuvius.export import export

        return export(model, folder, self.config, statistics)

    # ------------------------------------------------------------ phantom

    def phantom(self, folder: Path, rng: np.random.Generator) -> None:
        from runner_vesuvius.phantom import write_phantom

        write_phantom(folder, rng)
