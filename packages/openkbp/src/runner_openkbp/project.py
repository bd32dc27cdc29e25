"""The class that runner calls; neither TensorFlow nor Keras is imported at its top."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import (
    Annotation,
    Array,
    Arrays,
    Checks,
    Combining,
    Cropped,
    DataSet,
    Decoded,
    Finding,
    GuessedTable,
    Health,
    Infer,
    Json,
    Judging,
    Layer,
    Learning,
    Metric,
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

from runner_openkbp.config import PRESETS, DosePredictOptions, OpenKBPConfig
from runner_openkbp.optimisations import OPTIMISATIONS


def _guess(folder: Path) -> GuessedTable:
    from runner_openkbp.guess import guess

    return guess(folder)


class OpenKBP(Project):
    """Dose prediction for head-and-neck radiotherapy with the OpenKBP challenge's 3-D U-Net."""

    name = "openkbp"
    framework = "keras"
    Config = OpenKBPConfig
    presets = PRESETS
    monitor = ("dose_error_gy", "min")
    limits = (
        "Research only: no prediction may be used to treat a patient. The network knows head-and-neck plans with "
        "targets of 70, 63 and 56 Gy, and no other site, prescription or technique."
    )
    directions = dict.fromkeys(("dvh",), "min")
    dataset = DataSet(
        prepare_version=2,
        labels=("dose",),
        settings=("data.manifest", "data.pattern", "data.names", "data.phantom"),
        guess=_guess,
    )
    predict_options = DosePredictOptions()
    config: OpenKBPConfig

    _asked: frozenset[Path] = frozenset()
    """CT files of the patients that `predict` was given."""

    # ------------------------------------------------------------ data: files → prepared arrays

    def records(self, root: Path) -> Sequence[Record]:
        from runner_openkbp import files

        return files.find_records(root, self.config.data)

    def inputs(self, path: Path) -> Sequence[Record]:
        from runner_openkbp import clinic, files, outputs

        clinic.read_goals(self.config.predict.goals)  # refused before anything is predicted
        records = files.find_inputs(path, self.config.data)
        self._asked |= {record.files["ct"].resolve() for record in records}
        outputs.refuse(self.predict_options, self._asked)
        return records

    def write_input(self, arrays: Arrays, spacing: tuple[float, ...] | None, folder: Path) -> Path:
        from runner_openkbp import files

        return files.write_arrays(arrays, spacing, folder)

    def decode(self, record: Record) -> Decoded:
        """Read a patient: ct int16, masks uint16 and, if there is one, dose uint16, all on 128³.

        The bits of `masks` are in the order of `rois.MASKS`.
        """
        from runner_openkbp import files, packing

        return packing.pack(files.read_patient(record))

    def prepare(self, decoded: Decoded) -> Arrays:
        """Return one row: ct, masks, dose (1, S, S, S) and dose_step (1, 1), Gy per unit of the stored dose."""
        from runner_openkbp import packing

        return packing.prepare(decoded, self.config.data.size)

    def prepare_settings(self) -> Mapping[str, Json]:
        return {"size": self.config.data.size}

    def fit(self, store: Store, training: Sequence[int]) -> Statistics:
        """Return the trivial prediction and the error of a constant dose, both computed from the training patients.

        - mean_dose: (32, 32, 32) float32, Gy, the mean of the doses.
        - constant_error: mean absolute error (Gy) of the best constant dose.
        """
        from runner_openkbp.statistics import fit

        return fit(store, training, self.config.loss.masked)

    # ------------------------------------------------------------ data: prepared arrays → batches

    def samples(self, store: Store, records: Sequence[int], split: str) -> Samples:
        from runner_openkbp.samples import FIELDS, MaskedPatches, UnpackedPatches, UnpackedSamples

        data, host = self.config.data, self.config.data.unpack == "host"
        if data.patch and split == "train":
            return (UnpackedPatches if host else MaskedPatches)(store, data.patch, records)
        if host:
            return UnpackedSamples(store, records)
        return RowSamples(store, dict.fromkeys(FIELDS, (0,)), records)

    def on_device(self, batch: Tensors, statistics: Statistics, rng: Any | None) -> Tensors:
        """Return image (B, S, S, S, 11 or 12), mask (B, S, S, S, 1) and dose in Gy (B, S, S, S, 1)."""
        from runner_openkbp.batches import on_device

        return on_device(batch, self.config, rng)

    # ------------------------------------------------------------ learning

    def model(self, precision: Precision) -> Any:
        from runner_openkbp.network import dose_network
        from runner_openkbp.residual import residual_network

        if self.config.model.network == "residual":
            return residual_network(self.config.model)
        return dose_network(self.config.data.size, self.config.model)

    def step(self, model: Any, batch: Tensors, progress: Progress) -> Step:
        from runner_openkbp.objective import objective

        return objective(_doses(model(batch["image"])), batch, self.config.loss)

    def _chance_losses(self) -> Mapping[str, float]:
        """Return the mean absolute error of predicting one dose for every voxel."""
        if "constant_error" not in self.statistics:  # runs of version 0.1 have none
            return {}
        return dict.fromkeys(("mae", "mae_coarse"), float(self.statistics["constant_error"]))

    def _ignored(self, batch: Tensors) -> Any | None:
        """Return a mask (B, S, S, S, 1), true at voxels that the loss ignores; None without `loss.masked`.

        The loss looks at voxels that can receive dose and, with `loss.dvh`, at voxels of organs and targets.
        """
        from keras import ops

        if not self.config.loss.masked:
            return None
        seen = batch["mask"] > 0
        if self.config.loss.dvh:
            seen = ops.logical_or(seen, ops.any(batch["image"][..., 1:] > 0, axis=-1, keepdims=True))
        return ops.logical_not(seen)

    def infer(self, model: Any, batch: Tensors) -> Tensors:
        """Return {"prediction": dose in Gy (B, S, S, S, 1) float32}."""
        return {"prediction": _doses(model(batch["image"]))[-1]}

    def _optimizer(self, groups: Any) -> Any:
        """Return Adam with the challenge's betas, and decoupled weight decay if `train.weight_decay` is set.

        The engine sets the learning rate of each step.
        """
        import keras

        train = self.config.train
        decay = train.weight_decay or None
        return keras.optimizers.Adam(train.learning_rate, beta_1=0.5, beta_2=0.999, weight_decay=decay)

    def metrics(self) -> Sequence[Metric]:
        from runner_core import KerasFunctionMetric

        from runner_openkbp.metrics import dose_error

        return (KerasFunctionMetric("dose_error_gy", dose_error),)

    def _plain_metrics(self, prediction: Any, batch: Arrays) -> Mapping[str, float]:
        from runner_openkbp.scores import dose_score

        patients = zip(batch["dose"], prediction, batch["mask"] > 0, strict=True)
        return {"dose_error_gy": float(np.mean([dose_score(*patient) for patient in patients]))}

    def learning(self) -> Learning:
        return Learning(recompute="model.recompute", optimisations=OPTIMISATIONS, optimizer=self._optimizer)

    def health(self) -> Health:
        return Health(
            lower_bounds={"mae": 0, "mae_coarse": 0, "regions": 0, "dvh": 0},
            chance_losses=self._chance_losses,
            ignored=self._ignored,
        )

    # ------------------------------------------------------------ whole records

    def _soft(self, cropped: Cropped, infer: Infer) -> Arrays:
        """Return the dose (128, 128, 128) float32 in Gy, everywhere."""
        from runner_openkbp import outputs, whole

        outputs.refuse(self.predict_options, self._asked)  # once more: `inputs` saw one path at a time
        model = self.config.model
        unit = model.unit if model.network == "residual" else None
        return {"dose": whole.predict(cropped.prepared, infer, unit)}

    def combining(self) -> Combining:
        """Return the dose of `_soft`; `decide` leaves none outside the possible-dose mask."""
        from runner_openkbp import outputs, whole

        def inside(cropped: Cropped, dose: Array) -> Array:
            return whole.inside(cropped.decoded.arrays["masks"], dose)

        def write_members(cropped: Cropped, members: Sequence[Arrays], stem: Path) -> Sequence[Path]:
            doses = [inside(cropped, output["dose"]) for output in members]
            masks, voxel_mm = cropped.decoded.arrays["masks"], np.array(cropped.decoded.meta["voxel_mm"])
            return outputs.write_members(doses, masks, voxel_mm, stem)

        return Combining(
            kind="values",
            soft=self._soft,
            decide=lambda cropped, soft: inside(cropped, soft["dose"]),
            unit="Gy",
            labels=self._labels,
            regions=self._regions,
            write_map=lambda cropped, dose, stem: outputs.write_map(
                inside(cropped, dose), np.array(cropped.decoded.meta["voxel_mm"]), stem, self.predict_options
            ),
            write_members=write_members,
            views=(View("left-right", _mirrored, lambda soft: {"dose": soft["dose"][:, ::-1]}),),
        )

    def _labels(self, record: Record, cropped: Cropped) -> Array | None:
        """Return the true dose (128, 128, 128) in Gy, NaN outside the possible-dose mask."""
        from runner_openkbp import files
        from runner_openkbp.rois import POSSIBLE, unpack

        patient = files.read_patient(record)
        if patient.dose is None:
            return None
        return np.where(unpack(patient.masks, POSSIBLE), patient.dose, np.float32(np.nan))

    def _regions(self, record: Record, cropped: Cropped) -> Iterator[tuple[str, Array]]:
        """Yield the masks of the regions of interest that the patient has."""
        from runner_openkbp.rois import ROIS, unpack

        masks = cropped.decoded.arrays["masks"]
        yield from ((roi, mask) for roi in ROIS if (mask := unpack(masks, roi)).any())

    def write(self, record: Record, prediction: Array, out: Path) -> Sequence[Path]:
        """Write pt_N.csv in the challenge's format; the options add NIfTI, DICOM RTDOSE and a picture."""
        from runner_openkbp import clinic, outputs

        return outputs.write(
            record, prediction, out, self.predict_options, clinic.read_goals(self.config.predict.goals)
        )

    def _remarks(self, record: Record, prediction: Array) -> Iterator[Finding]:
        from runner_openkbp import clinic, files, outputs

        goals = clinic.read_goals(self.config.predict.goals)
        return outputs.remarks(record, files.read_patient(record), prediction, self.predict_options, goals)

    def score(self, record: Record, prediction: Array) -> Mapping[str, float]:
        """Return dose_score, dvh_score (Gy) and, for each of the 23 DVH metrics, prediction − reference (Gy)."""
        from runner_openkbp import files, scores

        return scores.patient_scores(files.read_patient(record), prediction, gamma=self.config.predict.gamma)

    def baseline(self, cropped: Cropped) -> Array:
        from runner_openkbp import files
        from runner_openkbp.baseline import baseline

        return baseline(self.statistics["mean_dose"], files.read_patient(cropped.record).masks)

    def _figure(self, record: Record, prediction: Array) -> Array:
        from runner_openkbp import files
        from runner_openkbp.figures import figure

        return figure(files.read_patient(record), prediction, record.key)

    def _layers(self, record: Record, prediction: Array | None) -> Sequence[Layer]:
        from runner_openkbp import files
        from runner_openkbp.figures import layers

        return layers(files.read_patient(record), prediction)

    def _snapshots(self, model: Any, batch: Tensors) -> Mapping[str, Array]:
        from keras import ops

        from runner_openkbp.figures import snapshot

        found = ops.convert_to_numpy(ops.cast(_doses(model(batch["image"]))[-1] * batch["mask"], "float32"))[..., 0]
        image, dose = (ops.convert_to_numpy(ops.cast(batch[name], "float32")) for name in ("image", "dose"))
        return {f"sample {n + 1}": snapshot(image[n, ..., 0], found[n], dose[n, ..., 0]) for n in range(len(found))}

    def _annotation(self, decoded: Decoded) -> Annotation | None:
        """Count the voxels of each region of interest that the loss looks at."""
        from runner_openkbp.rois import POSSIBLE, annotation, unpack

        loss, masks = self.config.loss, decoded.arrays["masks"]
        seen = masks > 0 if loss.dvh else unpack(masks, POSSIBLE)
        return annotation(masks, seen if loss.masked else None)

    def export(self, model: Any, folder: Path) -> Sequence[Path]:
        """Write model.keras, and model.json with everything that is needed to use it."""
        from runner_openkbp.export import export

        return export(model, folder, self.config)

    def standalone(self) -> Standalone:
        from runner_openkbp.standalone import standalone

        return standalone(self.config)

    def checks(self) -> Checks:
        from runner_openkbp import checks

        return Checks(
            record=checks.findings,
            prediction=self._remarks,
            annotation=self._annotation,
            plain_metrics=self._plain_metrics,
        )

    def judging(self) -> Judging:
        from runner_openkbp.scores import GAMMA, SHOWN, pooled, roi_table

        return Judging(
            pooled=pooled,
            tables=lambda scores, baseline: (roi_table(scores, baseline),),
            shown=(*SHOWN, *GAMMA) if self.config.predict.gamma else SHOWN,
        )

    def pictures(self) -> Pictures:
        return Pictures(figure=self._figure, layers=self._layers, snapshots=self._snapshots, snapshot_samples=2)

    # ------------------------------------------------------------ phantom

    def phantom(self, folder: Path, rng: np.random.Generator) -> None:
        from runner_openkbp.phantom import write_phantom

        write_phantom(folder, rng, self.config.data.phantom)


def _mirrored(cropped: Cropped) -> Arrays:
    """Return the prepared arrays of the mirrored patient."""
    from runner_openkbp.whole import mirrored

    rows = mirrored({name: cropped.prepared[name][None] for name in ("ct", "masks")})
    return cropped.prepared | {name: row[0] for name, row in rows.items()}


def _doses(output: Any) -> list[Any]:
    """Return the dose of each network as a list: a cascade has two."""
    return list(output) if isinstance(output, (list, tuple)) else [output]
