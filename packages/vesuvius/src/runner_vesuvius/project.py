"""The class that runner calls; neither torch nor MONAI is imported at its top."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import (
    Annotation,
    AnyRecord,
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
    Json,
    Judging,
    Layer,
    Learning,
    Location,
    Metric,
    PairFiles,
    PatchSamples,
    Pictures,
    Precision,
    Progress,
    Project,
    Record,
    Samples,
    Standalone,
    Statistics,
    Step,
    Store,
    Tensors,
    Url,
    shape_text,
)

from runner_vesuvius import checks, combine, files, lazy, outputs, scores, statistics, submission, targets, volumes
from runner_vesuvius.config import PRESETS, ScrollConfig, ScrollPredictOptions
from runner_vesuvius.health import RATIO, SurfaceRatio
from runner_vesuvius.labels import BACKGROUND, IGNORE, SURFACE
from runner_vesuvius.optimisations import OPTIMISATIONS
from runner_vesuvius.outputs import Detected
from runner_vesuvius.samples import ScaledPatches


class Vesuvius(Project):
    """Detection of papyrus surfaces in CT of rolled scrolls."""

    name = "vesuvius"
    framework = "torch"
    Config = ScrollConfig
    presets = PRESETS
    monitor = ("proxy", "max")
    limits = (
        "The network knows scrolls scanned with the resolution and energy of its training volumes. Where sheets "
        "touch, a surface may bridge two of them: look at the slices before you trust a sheet."
    )
    bfloat16_on_cpu = True
    directions = dict.fromkeys(("euler",), "max")
    dataset = DataSet(
        prepare_version=2,
        labels=("label", "annotated", "label_at", "annotated_at"),
        settings=("data.manifest", "data.pattern"),
        places=("data.first_stage",),
        pairs=PairFiles(files.is_volume, files.stem),
    )
    predict_options = ScrollPredictOptions()
    config: ScrollConfig

    def __init__(self, config: ScrollConfig) -> None:
        super().__init__(config)
        self._predicted: list[str] = []
        self._scrolls: dict[str, str] = {}

    @property
    def _cut(self) -> float:
        """Logit of `predict.threshold`."""
        threshold = self.config.predict.threshold
        return math.log(threshold / (1 - threshold))

    # ------------------------------------------------------------ data: files → prepared arrays

    def records(self, root: Path) -> Sequence[Record]:
        found = files.find_records(root, self.config.data)
        self._scrolls = {record.key: record.group for record in found}
        return self._with_first(found)

    def _with_first(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return the records with the files of their first stage, if there is one."""
        if (folder := self.config.data.first_stage) is None:
            return records
        from runner_vesuvius.first_stage import with_first

        return with_first(records, folder)

    def inputs(self, path: Location) -> Sequence[AnyRecord]:
        if isinstance(path, Url):
            return [files.url_record(path)]
        found = files.find_inputs(path, self.config.data)
        if self.predict_options.probability:
            outputs.refuse_overlap(path, {record.key for record in found})
        if self.predict_options.zip:
            submission.refuse_repeats(path, found)
        return self._with_first(found)

    def write_input(self, arrays: Arrays, spacing: tuple[float, ...] | None, folder: Path) -> Path:
        """Write the volume (Z, Y, X); its voxels have no size."""
        if {*arrays} != {"image"}:
            raise BadInput(f"{', '.join(arrays)}: a volume is one array, (Z, Y, X)")
        np.save(folder / "array.npy", arrays["image"], allow_pickle=False)
        return folder / "array.npy"

    def decode(self, record: Record) -> Decoded:
        """Read image and label, (D, H, W) uint8; of a labelled volume that memory cannot hold, one piece (`check`)."""
        if lazy.by_chunks(self.config, record):
            return Decoded(lazy.piece(self.config, record)[0], (1.0, 1.0, 1.0), "image")
        if "image" not in record.files:
            raise BadInput(f"{record.key}: a volume at a URL is neither scored nor predicted whole: `predict` its URL")
        volumes.refuse_large(record.files)
        arrays: Arrays = {"image": volumes.read_image(record.files["image"])}
        if "label" in record.files:
            checks.refuse_constant(record.files["image"], arrays["image"])
            arrays["label"] = volumes.read_truth(record.files, arrays["image"].shape)
            if (arrays["label"] == IGNORE).all():
                raise BadInput(
                    f"{record.files['label']}: every voxel is 2 (ignore): nothing can be learned from it, nor scored. "
                    "Leave the volume out."
                )
        if (folder := self.config.data.first_stage) is not None:
            from runner_vesuvius.first_stage import FIRST, probabilities

            arrays[FIRST] = probabilities(record, folder, arrays["image"].shape)
        return Decoded(arrays, (1.0, 1.0, 1.0), "image")

    def prepare(self, decoded: Decoded) -> Arrays:
        """Return image, the targets of `targets.prepare`, and histogram (3, 256) uint32.

        The targets are target and distance (D, H, W) uint8, surface and valid (n, 3) int32. A record without labels has
        the image only, and with `data.first_stage` its probabilities, `first` (D, H, W) uint8.
        """
        image, label = decoded.arrays["image"], decoded.arrays.get("label")
        stored = {"image": image} | ({"first": first} if (first := decoded.arrays.get("first")) is not None else {})
        if label is None:
            return stored
        prepared = targets.prepare(label, self.config.data.tube)
        return {**stored, **prepared, "histogram": statistics.histogram(image, label).astype(np.uint32)}

    def prepare_settings(self) -> Mapping[str, Json]:
        return {"tube": self.config.data.tube}

    def fit(self, store: Store, training: Sequence[int]) -> Statistics:
        scrolls = self._scrolls if self.config.data.normalise == "scroll" else None
        self.statistics = statistics.fit(store, training, scrolls)  # `samples` reads the scrolls' scales
        return self.statistics

    # ------------------------------------------------------------ data: prepared arrays → batches

    def samples(self, store: Store, records: Sequence[int], split: str) -> Samples:
        """Return patches around surface voxels and around any labelled voxels; distances only if a loss reads them."""
        from runner_vesuvius.batches import stored

        data = self.config.data
        self._refuse_small(store, records)
        count = data.patches if split == "train" else data.validation_patches
        around = {"surface": data.surface_share, "valid": 1 - data.surface_share}
        fields = (*self.volumes_seen, "target", *(["distance"] if "distance" in stored(self.config.loss) else []))
        if data.normalise == "set":
            return PatchSamples(store, fields, data.patch, records, count, around=around)
        counts = store.arrays["histogram"]
        scales = {n: self.scale_of(store.keys[n], counts.read(n).astype(np.int64).sum(0)) for n in records}
        return ScaledPatches(store, fields, data.patch, records, count, around=around, scales=scales)

    def scale_of(self, key: str, counts: Array, scroll: str = "") -> Array:
        """Return mean and standard deviation (2,) for a volume; `counts` are its voxels by intensity."""
        if self.config.data.normalise == "fixed":
            return np.asarray(self.config.data.intensities[2:], np.float32)
        return statistics.scale_of(counts, scroll or self._scrolls.get(key, key), self.statistics)

    @property
    def volumes_seen(self) -> tuple[str, ...]:
        """Names of the stored volumes that the network sees."""
        return ("image",) if self.config.data.first_stage is None else ("image", "first")

    def _refuse_small(self, store: Store, records: Sequence[int]) -> None:
        patch = self.config.data.patch
        for record in records:
            shape = store.arrays["image"].shapes[record]
            if any(n < side for n, side in zip(shape, patch, strict=True)):
                raise BadInput(
                    f"{store.keys[record]}: {shape_text(shape)} voxels, smaller than the patch of "
                    f"{shape_text(patch)}. {checks.PATCH_REMEDY}"
                )

    def on_device(self, batch: Tensors, statistics: Statistics, rng: Any | None) -> Tensors:
        """Return the normalised image (B, 1, D, H, W) float32, augmented if `rng` is given.

        With labels it also returns surface (float32), known (bool) and, if the losses read them, tube, medial and
        distance, all of that shape (`batches.on_device`).
        """
        from runner_vesuvius.batches import on_device

        return on_device(batch, statistics, self.config, rng)

    # ------------------------------------------------------------ learning

    def model(self, precision: Precision) -> Any:
        from runner_vesuvius import network

        name, arguments = self.config.model.arguments(len(self.volumes_seen))
        return getattr(network, name)(**arguments)

    def step(self, model: Any, batch: Tensors, progress: Progress) -> Step:
        from runner_vesuvius.objective import objective

        logits = model(batch["image"])
        if self.config.loss.targets == "step":
            from runner_vesuvius.batches import needed
            from runner_vesuvius.instep import computed

            batch = {**batch, **computed(batch, needed(self.config.loss), self.config.data.tube)}
        return objective(logits, batch, self.config.loss, progress, model.training)

    def _chance_losses(self) -> Mapping[str, float]:
        """Return the losses if every logit is 0.

        The default losses together drive a network that looks at nothing to that, whatever a patch holds.
        """
        return {"bce_loss": math.log(2), "skeleton_recall_loss": 0.5} if self.config.loss.positive == 1 else {}

    def infer(self, model: Any, batch: Tensors) -> Tensors:
        return {"prediction": model(batch["image"])[0].float().sigmoid()}

    def metrics(self) -> Sequence[Metric]:
        """Return proxy with its parts (`proxy.Proxy`), and surface_ratio over the annotated voxels of all patches."""
        from runner_vesuvius.proxy import Proxy

        return Proxy(self._cut), SurfaceRatio(self._cut)

    def _plain_metrics(self, prediction: Any, batch: Arrays) -> Mapping[str, float]:
        from runner_vesuvius.proxy import plain

        found = np.count_nonzero((prediction > self._cut) & batch["known"])
        true = np.count_nonzero(batch["surface"])
        return plain(prediction, batch, self._cut) | {RATIO: found / true if true else math.nan}

    def _adapt(self, model: Any, weights: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a first stage's weights for a network that also sees its probabilities."""
        from runner_vesuvius.network import widened

        return widened(model, weights)

    def learning(self) -> Learning:
        return Learning(
            splittable=True, adapt_weights=self._adapt, recompute="model.checkpointing", optimisations=OPTIMISATIONS
        )

    def health(self) -> Health:
        """Voxels labelled 2 are ignored: (B, 1, D, H, W)."""
        terms = ("bce", "dice", "skeleton_recall", "cldice", "surface_distance", "topology")
        return Health(
            lower_bounds={f"{name}_loss": 0 for name in terms},
            chance_losses=self._chance_losses,
            ignored=lambda batch: ~batch["known"],
            decision=lambda logits: logits > self._cut,
        )

    # ------------------------------------------------------------ whole records

    def combining(self) -> Combining:
        return combine.combining(self)

    def baseline(self, cropped: Cropped) -> Detected | None:
        """Apply the best threshold on the training volumes, with the same post-processing; None if it is unknown."""
        from runner_vesuvius.baseline import baseline

        if "threshold" not in self.statistics:  # a run made of another program's weights
            return None
        image = cropped.decoded.arrays["image"]
        return baseline(image, cropped.box, self.statistics["threshold"], self.config.predict)

    def write(self, record: Record, prediction: Detected, out: Path) -> Sequence[Path]:
        """Write KEY.tif, the submission's format (uint8, 0 and 1, LZW), and any KEY_probability.tif."""
        self._predicted.append(record.key)
        return outputs.write(prediction, record.key, out, self.predict_options.probability)

    def _zip(self, written: Sequence[Path], out: Path) -> Sequence[Path]:
        """Write submission.zip beside the files, which stay."""
        masks = {f"{key}.tif" for key in self._predicted}
        return [submission.write([path for path in written if path.name in masks], out / submission.NAME), *written]

    def score(self, record: Record, prediction: Detected) -> Mapping[str, float]:
        """Return the challenge's score, its parts and their parts, and Dice (`scores.volume_scores`)."""
        if "label" not in record.files:
            return {}
        return scores.volume_scores(prediction.mask, volumes.read_truth(record.files, prediction.mask.shape))

    def _figure(self, record: Record, prediction: Detected) -> Array:
        from runner_vesuvius.figures import figure

        image = volumes.read_image(record.files["image"])
        return figure(
            image, prediction.mask, volumes.read_truth(record.files, image.shape) if "label" in record.files else None
        )

    def _layers(self, record: Record, prediction: Detected | None) -> Sequence[Layer]:
        from runner_vesuvius.figures import layers

        image = volumes.read_image(record.files["image"])
        truth = volumes.read_truth(record.files, image.shape) if "label" in record.files else None
        return layers(image, prediction, truth)

    def _snapshots(self, model: Any, batch: Tensors) -> Mapping[str, Array]:
        from runner_vesuvius.batches import unscaled
        from runner_vesuvius.figures import figure

        found = (model(batch["image"])[0].float() > self._cut).cpu().numpy()
        grey = unscaled(batch, self.statistics).cpu().numpy()
        surface, known = (batch[name].cpu().numpy() > 0 for name in ("surface", "known"))
        truth = np.where(known, np.where(surface, SURFACE, BACKGROUND), IGNORE)
        images = grey.round().clip(0, 255).astype(np.uint8)
        return {f"sample {n + 1}": figure(images[n, 0], found[n, 0], truth[n, 0]) for n in range(len(found))}

    def _annotation(self, decoded: Decoded) -> Annotation | None:
        """Count the voxels of background and surface; voxels that nobody annotated are ignored."""
        label = decoded.arrays.get("label")
        if label is None:
            return None
        values = (BACKGROUND, SURFACE, IGNORE)
        background, surface, ignored = (int(np.count_nonzero(label == value)) for value in values)
        return Annotation({"background": background, "surface": surface}, ignored)

    def export(self, model: Any, folder: Path) -> Sequence[Path]:
        from runner_vesuvius.export import export

        return export(model, folder, self.config, self.statistics)

    def standalone(self) -> Standalone:
        from runner_vesuvius.standalone import standalone

        return standalone(self.config, [view.name for view in self.combining().views])

    def checks(self) -> Checks:
        return Checks(
            record=self._findings,
            records=partial(
                checks.set_findings, large=partial(lazy.by_chunks, self.config), patch=self.config.data.patch
            ),
            prediction=self._remarks,
            annotation=self._annotation,
            plain_metrics=self._plain_metrics,
            grid=lambda file: list(volumes.outline(file)[0]),
        )

    def _findings(self, record: Record) -> Iterator[Finding]:
        if not lazy.by_chunks(self.config, record):
            return checks.findings(record)
        arrays, pair, region = lazy.piece(self.config, record)
        return checks.piece_findings(
            lazy.places(record), arrays, pair.image.shape, self.config.data.patch, pair.census, region
        )

    def _remarks(self, record: Record, prediction: Detected) -> Iterator[Finding]:
        yield from checks.remarks(record)
        yield from outputs.remarks(prediction, self.config.predict)
        if self.config.data.normalise == "scroll" and record.group not in self.statistics["scrolls"]:
            text = f"no volume of scroll {record.group} was trained on: it is normalised by its own voxels"
            yield Finding("scale", "note", text)

    def judging(self) -> Judging:
        return Judging(shown=scores.SHOWN, collect=self._zip if self.predict_options.zip else None)

    def pictures(self) -> Pictures:
        from runner_vesuvius.figures import LABELS

        return Pictures(
            figure=self._figure, labels=LABELS, layers=self._layers, snapshots=self._snapshots, snapshot_samples=2
        )

    # ------------------------------------------------------------ phantom

    def phantom(self, folder: Path, rng: np.random.Generator) -> None:
        from runner_vesuvius.phantom import write_phantom

        write_phantom(folder, rng)
