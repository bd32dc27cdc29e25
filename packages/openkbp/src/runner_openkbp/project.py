"""openkbp: what runner calls. Imports neither TensorFlow nor Keras at its top."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from runner_core._errors import BadInput
from runner_core.config import RunConfig
from runner_core.project import Annotation, Decoded, Project, Record, Statistics, Table
from runner_core.protocols import (
    Array,
    Arrays,
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
from runner_core.samples import RowSamples

from runner_openkbp.config import PRESETS, DosePredictOptions, OpenKBPConfig, wrong_settings
from runner_openkbp.optimisations import OPTIMISATIONS


class OpenKBP(Project):
    """Dose prediction for head-and-neck radiotherapy with the OpenKBP challenge's 3-D U-Net."""

    name: ClassVar[str] = "openkbp"
    framework: ClassVar[Literal["torch", "keras"]] = "keras"
    Config: ClassVar[type[RunConfig]] = OpenKBPConfig
    PredictOptions: ClassVar[type] = DosePredictOptions
    presets: ClassVar[Mapping[str, Callable[[], RunConfig]]] = PRESETS
    monitor: ClassVar[tuple[str, Literal["max", "min"]]] = ("dose_error_gy", "min")
    least: ClassVar[Mapping[str, float]] = {"mae": 0, "mae_coarse": 0, "dvh": 0}
    recompute: ClassVar[str] = "model.recompute"
    shown: ClassVar[tuple[str, ...]] = ("dose_score", "dvh_score")
    optimisations: ClassVar[tuple[Optimisation, ...]] = OPTIMISATIONS
    prepare_version: ClassVar[int] = 2
    phantom_version: ClassVar[int] = 1
    config: OpenKBPConfig

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        if wrong := wrong_settings(self.config):
            raise BadInput(wrong)
        self._asked: set[Path] = set()
        """CT files of the patients that `predict` was given."""

    # ------------------------------------------------------------ data: files → prepared arrays

    def records(self, root: Path) -> Sequence[Record]:
        from runner_openkbp import patients

        return patients.find_patients(root)

    def inputs(self, path: Path) -> Sequence[Record]:
        from runner_openkbp import outputs, patients

        records = patients.find_inputs(path)
        self._asked |= {record.files["ct"].resolve() for record in records}
        outputs.refuse(self.predict_options, self._asked)
        return records

    def decode(self, record: Record) -> Decoded:
        """ct int16, masks uint16 (bits in the order of `rois.ROIS`) and, where there is one, dose uint16 on 128³."""
        from runner_openkbp import packing, patients

        return packing.pack(patients.read_patient(record))

    def prepare(self, decoded: Decoded) -> Arrays:
        """One row: ct, masks, dose (1, S, S, S) and dose_step (1, 1), Gy per unit of the stored dose."""
        from runner_openkbp import packing

        return packing.prepare(decoded, self.config.data.size)

    def prepare_settings(self) -> Mapping[str, Json]:
        return {"size": self.config.data.size}

    def fit(self, store: Store, training: Sequence[int]) -> Statistics:
        """mean_dose: (32, 32, 32) float32, Gy, the mean of the training patients' doses; the trivial prediction.
        constant_error: mean absolute error (Gy) of the best dose that is the same everywhere."""
        from runner_openkbp.baseline import constant_error, mean_dose

        error = constant_error(store, training, self.config.loss.masked)
        return {"mean_dose": mean_dose(store, training), "constant_error": error}

    # ------------------------------------------------------------ data: prepared arrays → batches

    def samples(self, store: Store, records: Sequence[int], split: str) -> Samples:
        from runner_openkbp.unpacked import FIELDS, UnpackedSamples

        if self.config.data.unpack == "host":
            return UnpackedSamples(store, records)
        return RowSamples(store, dict.fromkeys(FIELDS, (0,)), records)

    def on_device(self, batch: Tensors, statistics: Statistics, rng: Any | None) -> Tensors:
        """Stored arrays → image (B, S, S, S, 11), mask (B, S, S, S, 1) and dose in Gy (B, S, S, S, 1)."""
        from runner_openkbp.batch import decode, images

        out = decode(batch)
        if rng is not None:
            from runner_openkbp.augment import augment

            out = augment(out, self.config.augment, rng)
        return images(out, self.config.data.ct_offset, self.config.data.ct_window)

    # ------------------------------------------------------------ learning

    def model(self, precision: Precision) -> Any:
        from runner_openkbp.unet import dose_network

        return dose_network(self.config.data.size, self.config.model)

    def step(self, model: Any, batch: Tensors, progress: Progress) -> Step:
        from runner_openkbp.losses import dose_losses

        doses = _doses(model(batch["image"]))
        loss, terms = dose_losses(doses, batch, self.config.loss)
        return Step(loss, terms, doses[-1])

    def uninformed(self) -> Mapping[str, float]:
        """Of the mean absolute error, where every voxel gets the same dose."""
        if "constant_error" not in self.statistics:  # runs of version 0.1 have none
            return {}
        return dict.fromkeys(("mae", "mae_coarse"), float(self.statistics["constant_error"]))

    def ignored(self, batch: Tensors) -> Any | None:
        """(B, S, S, S, 1): with `loss.masked`, where no dose can be, nor an organ whose histogram is looked at."""
        from keras import ops

        if not self.config.loss.masked:
            return None
        seen = batch["mask"] > 0
        if self.config.loss.dvh:
            seen = ops.logical_or(seen, ops.any(batch["image"][..., 1:] > 0, axis=-1, keepdims=True))
        return ops.logical_not(seen)

    def infer(self, model: Any, batch: Tensors) -> Tensors:
        """{"prediction": dose in Gy (B, S, S, S, 1) float32}."""
        return {"prediction": _doses(model(batch["image"]))[-1]}

    def optimizer(self, groups: Any) -> Any:
        """Adam with the challenge's betas; the engine sets the learning rate of each step."""
        import keras

        return keras.optimizers.Adam(self.config.train.learning_rate, beta_1=0.5, beta_2=0.999)

    def metrics(self) -> Sequence[Metric]:
        from runner_core.engines.keras.metrics import Function

        from runner_openkbp.metrics import dose_error

        return (Function("dose_error_gy", dose_error),)

    def plain_metrics(self, prediction: Any, batch: Arrays) -> Mapping[str, float]:
        patients = zip(prediction, batch["dose"], batch["mask"] > 0, strict=True)
        return {"dose_error_gy": float(np.mean([np.abs(dose - found)[here].mean() for found, dose, here in patients]))}

    # ------------------------------------------------------------ whole records

    def predict(self, record: Record, infer: Infer) -> Array:
        """Dose (128, 128, 128) float32 in Gy, 0 outside the possible-dose mask."""
        from runner_openkbp import outputs
        from runner_openkbp.rois import POSSIBLE, SIDE, unpack
        from runner_openkbp.upsample import upsample

        outputs.refuse(self.predict_options, self._asked)  # once more: `inputs` saw one path at a time
        files = {role: path for role, path in record.files.items() if role != "dose"}
        decoded, _ = self.pipeline.decode_cropped(Record(record.key, record.group, files))
        prepared = self.prepare(decoded)
        dose = self._averaged({name: prepared[name][None] for name in ("ct", "masks")}, infer)
        return np.where(unpack(decoded.arrays["masks"], POSSIBLE), upsample(dose, SIDE), np.float32(0))

    def _averaged(self, batch: Arrays, infer: Infer) -> Array:
        """Dose (S, S, S) of one patient; with `predict.flip` the mean with the mirrored patient's, mirrored back."""
        from runner_openkbp.mirror import mirrored

        dose = infer(batch)["prediction"][0, ..., 0]
        if not self.config.predict.flip:
            return dose
        turned = infer(mirrored(batch))["prediction"][0, ..., 0]
        return (dose + turned[:, ::-1]) / 2

    def write(self, record: Record, prediction: Array, out: Path) -> Sequence[Path]:
        """pt_N.csv in the challenge's format; as the options say, also NIfTI, DICOM RTDOSE and a picture."""
        from runner_openkbp import outputs

        return outputs.write(record, prediction, out, self.predict_options)

    def remarks(self, record: Record, prediction: Array) -> Sequence[Finding]:
        from runner_openkbp import patients, remarks

        patient = patients.read_patient(record)
        on_patient = remarks.on_patient(record, patient)
        return [*on_patient, *remarks.on_dose(patient, prediction), *remarks.on_files(self.predict_options)]

    def score(self, record: Record, prediction: Array) -> Mapping[str, float]:
        """dose_score, dvh_score (Gy), then prediction − reference for each of the challenge's 23 DVH metrics (Gy)."""
        from runner_openkbp import patients, scores

        return scores.patient_scores(patients.read_patient(record), prediction)

    def pooled(self, scores: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
        from runner_openkbp.scores import pooled

        return pooled(scores)

    def tables(self, scores: Sequence[Mapping[str, float]], baseline: Sequence[Mapping[str, float]]) -> Sequence[Table]:
        from runner_openkbp.scores import roi_table

        return (roi_table(scores, baseline),)

    def baseline(self, record: Record, statistics: Statistics) -> Array:
        from runner_openkbp import patients
        from runner_openkbp.baseline import trivial_dose

        return trivial_dose(statistics["mean_dose"], patients.read_patient(record).masks)

    def figure(self, record: Record, prediction: Array) -> Array:
        from runner_openkbp import patients
        from runner_openkbp.figures import dose_figure

        return dose_figure(patients.read_patient(record), prediction, record.key)

    def check(self, record: Record) -> Sequence[Finding]:
        from runner_openkbp import checks

        return list(checks.findings(record))

    def annotation(self, decoded: Decoded) -> Annotation | None:
        """Voxels of each region of interest, of those that the loss looks at."""
        from runner_openkbp.rois import POSSIBLE, annotation, unpack

        loss, masks = self.config.loss, decoded.arrays["masks"]
        seen = masks > 0 if loss.dvh else unpack(masks, POSSIBLE)
        return annotation(masks, seen if loss.masked else None)

    def export(self, model: Any, folder: Path, statistics: Statistics) -> Sequence[Path]:
        """model.keras, and model.json with all that is needed to use it."""
        from runner_openkbp import export

        return export.write(model, self.config, folder)

    # ------------------------------------------------------------ phantom

    def phantom(self, folder: Path, rng: np.random.Generator) -> None:
        from runner_openkbp.phantom import write_phantom

        write_phantom(folder, rng)


def _doses(output: Any) -> list[Any]:
    """Of each network: a cascade has two."""
    return list(output) if isinstance(output, (list, tuple)) else [output]
