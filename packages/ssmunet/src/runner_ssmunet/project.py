"""The class that runner calls. Imports no torch at its top."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import (
    Annotation,
    Array,
    Arrays,
    BadInput,
    Box,
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
    PairFiles,
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
    Table,
    Tensors,
    TileSamples,
    mirrors_and_turns,
)

from runner_ssmunet import (
    baseline,
    calls,
    checks,
    classes,
    files,
    labels,
    outputs,
    preprocess,
    readers,
    scores,
    statistics,
    whole,
)
from runner_ssmunet.bands import on_axis
from runner_ssmunet.classes import Classes
from runner_ssmunet.config import PRESETS, SSMConfig
from runner_ssmunet.optimisations import OPTIMISATIONS
from runner_ssmunet.outputs import Segmented, SpectraPredictOptions
from runner_ssmunet.readers.blocks import release, space
from runner_ssmunet.steps.operations import applied
from runner_ssmunet.steps.pipeline import Pipeline, Place, after, fitted_alone, opened, operations_of, saved


class SSMUNet(Project):
    """Tissue classes of infrared images of tissue cores, pixel by pixel."""

    name = "ssmunet"
    framework = "torch"
    Config = SSMConfig
    presets = PRESETS
    monitor = ("miou", "max")
    limits = (
        "For research, not for diagnosis. Spectra must come from the same kind of instrument and tissue, and be "
        "prepared in the same way, as those that it was trained on."
    )
    directions = dict.fromkeys(("cross_entropy",), "min")
    dataset = DataSet(
        prepare_version=3,
        phantom_version=3,
        crop="foreground",
        labels=files.LABEL_ROLES,
        # any implementation of `model.scan` runs any trained network: it depends on the machine
        settings=("data.manifest", "data.pattern", "data.units", "model.scan", *calls.SETTINGS),
        pairs=PairFiles(readers.could_be, readers.sidecars.stem, labelled=False),
    )
    predict_options = SpectraPredictOptions()
    config: SSMConfig

    _without_labels: Sequence[Record] = ()
    _found: Classes | None = None

    @property
    def classes(self) -> Classes:
        """Names and colours: from the settings, else from the network's training, else from the data."""
        if self.config.data.classes:
            return Classes(self.config.data.classes, source="data.classes")
        return self._trained or self._found or Classes()

    @property
    def _trained(self) -> Classes | None:
        """The classes that the network was trained with. They are stored in its statistics."""
        stored = self.statistics.get("classes")
        if stored is None:
            return None
        return Classes(tuple(stored["names"]), {int(k): tuple(c) for k, c in stored["colours"]}, "the training data")

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the network's outputs."""
        return labels.output_names(self.classes.names, self.config.data.ignore)

    @cached_property
    def frozen(self) -> Any:
        """The exported network of `model.features`, whose features replace the spectra; None without."""
        if self.config.model.features is None:
            return None
        from runner_ssmunet.frozen import FrozenFeatures

        return FrozenFeatures(self.config.model.features)

    @cached_property
    def pipeline(self) -> Pipeline:
        """The steps of `preprocess.steps`, with the spectra of their files.

        Those of a trained network, or of the frozen one of `model.features`, are its own.
        """
        kept = self.statistics.get("preprocess")
        if kept is None and self.frozen is not None:
            kept = self.frozen.statistics.get("preprocess")
        return opened(self.config.preprocess, kept)

    # ------------------------------------------------------------ data: files → prepared arrays

    def records(self, root: Path) -> Sequence[Record]:
        """Return the cores with labels. `checks().records` warns of cores without, which only `predict` takes.

        Also finds the names of the classes, unless the settings have them. Raises BadInput if the data name other
        classes than those that the network was trained with.
        """
        records, self._without_labels = files.labelled(
            files.find_records(root, self.config.data.group_by, self.config.data)
        )
        data = self.config.data
        if self._trained is None:
            self._refuse_spectra(records)
            if not data.classes:
                self._found = classes.find(root, records, data.ignore)
            classes.refuse_short(self.classes, records, data.ignore)
            calls.sides(self.config.calls, self.outputs)
        elif not data.classes and (found := classes.named(root, records, data.ignore)):
            classes.refuse_others(self._trained, found)
        return records

    def _refuse_spectra(self, records: Sequence[Record]) -> None:
        """Raise BadInput for a file of spectra that cannot be used, once and not for every core."""
        if self.frozen is not None:
            self.frozen.refuse_other_files(self.config.preprocess)
        for record in records if self.pipeline.files else ():
            path = record.files["core"]
            try:
                measured = files.read_outline(path).wavenumbers
                axis = preprocess.usable_axis(measured, self.config.data, str(path))
            except BadInput:  # it is reported with the other faulty cores
                continue
            self.pipeline.refuse_files(Place(measured, axis, str(path)))
            return

    def inputs(self, path: Path) -> Sequence[Record]:
        outputs.refuse(self.predict_options)
        return files.find_inputs(path, self.config.data)

    def write_input(self, arrays: Arrays, spacing: tuple[float, ...] | None, folder: Path) -> Path:
        return files.write_arrays(arrays, self.statistics["wavenumbers"], folder)

    def decode(self, record: Record) -> Decoded:
        """Return spectra (H, W, C) as the file has them, tissue (the cropper's guide) and labels."""
        path, data = record.files["core"], self.config.data
        core = files.read_core(path, record.files.get("labels"), data.units)
        kept = preprocess.usable_axis(core.wavenumbers, data, str(path)).wavenumbers
        tissue = preprocess.tissue_mask(core, data.tissue, str(path))
        arrays: Arrays = {"spectra": core.spectra, "tissue": tissue.astype(np.uint8)}
        if "labels" in record.files:
            label = files.stored_labels(core, path, self.classes, data.ignore, needed=True)
            arrays["label"] = label
            if (label[~tissue] > 0).any():  # it stays in the grid: scores count it
                arrays["guide"] = arrays["tissue"] | (label > 0)
        meta = {"core": record.key, "measured": core.wavenumbers.tolist(), "wavenumbers": kept.tolist()}
        return Decoded(arrays, (1.0, 1.0), "guide" if "guide" in arrays else "tissue", meta)

    def prepare(self, decoded: Decoded) -> Arrays:
        """Return spectra (H, W, L) or features (H, W, F) float16; tissue and label (H, W) uint8.

        There are features with `model.features`.
        """
        arrays: Arrays = {n: array for n, array in decoded.arrays.items() if n not in ("spectra", "guide")}
        spectra = self._spectra(decoded)
        if self.frozen is None:
            return {"spectra": spectra, **arrays}
        self.frozen.require(np.array(decoded.meta["wavenumbers"]), self.config.data, self.config.preprocess)
        return {"features": self.frozen(spectra, decoded.arrays["tissue"] > 0), **arrays}

    def _spectra(self, decoded: Decoded) -> Array:
        meta, tissue = decoded.meta, decoded.arrays["tissue"] > 0
        measured = np.array(meta["measured"])
        steps = self._steps(measured, meta["core"]) if self.config.preprocess.steps else None
        return preprocess.prepare(decoded.arrays["spectra"], measured, tissue, self.config.data, meta["core"], steps)[0]

    def _steps(self, measured: Array, name: str) -> preprocess.Steps:
        """Return the cached steps of `preprocess.steps`, for a core's axis."""
        return lambda pixels, axis: self.pipeline.on_pixels(pixels, Place(measured, axis, name))

    def prepare_settings(self) -> Mapping[str, Json]:
        data = self.config.data
        settings = preprocess.settings_of(data) | {"ignore": data.ignore, "classes": self.classes.names}
        if data.units != "auto":
            settings["units"] = data.units
        if self.config.preprocess.steps:
            settings["preprocess"] = dict(self.pipeline.key)
        return settings | ({} if self.frozen is None else {"features": self.frozen.digest})

    def fit(self, store: Store, training: Sequence[int]) -> Statistics:
        """Return z-scores, class weights, the area of each label, and the logistic regression for comparison."""
        data, names = self.config.data, self.classes.names
        colours = [[label, list(colour)] for label, colour in (self.classes.colours or {}).items()]
        further = {
            "label_shares": statistics.label_shares(store, training),
            "classes": {"names": list(names), "colours": colours},
        }
        if self.frozen is not None:
            from runner_core import PreparedStore

            arrays = {**store.arrays, "spectra": store.arrays["features"]}
            view = PreparedStore(store.keys, store.meta, arrays, store.identity)
            learned = statistics.fit(view, training, names, data.ignore, self.config.loss.most_weight)
            return learned | further | self.frozen.statistics
        if self.config.preprocess.steps:
            operations = self.pipeline.fit(store, training, data)
            further["preprocess"] = saved(self.pipeline, operations)
            store = after(store, operations)
        learned = statistics.fit(store, training, names, data.ignore, self.config.loss.most_weight)
        return learned | further | {"baseline": baseline.fit_store(store, training, learned, data.ignore)}

    # ------------------------------------------------------------ data: prepared arrays → batches

    def samples(self, store: Store, records: Sequence[int], split: str) -> Samples:
        """Return patches on a grid; in training those with an annotated tissue pixel, or all (`data.unlabelled`)."""
        data = self.config.data
        pixels = "spectra" if self.frozen is None else "features"
        everything = data.ignore is None or (data.unlabelled and split == "train")

        def learned(record: int) -> Array:
            return labels.learned(store.arrays["label"].read(record), store.arrays["tissue"].read(record) > 0, 0) >= 0

        step = max(1, round(data.patch * (1 - data.overlap))) if split == "train" else data.patch
        keep = None if everything else learned if split == "train" else "label"
        sides = (data.patch, data.patch)
        return TileSamples(store, (pixels, "tissue", "label"), sides, records, stride=(step, step), keep=keep)

    def on_device(self, batch: Tensors, statistics: Statistics, rng: Any | None) -> Tensors:
        """Return the inputs of the network, and in training and validation the labels.

        - spectra (B, H, W, L) float32, z-scored, 0 off the tissue; or features (B, H, W, F)
        - tissue (B, H, W) bool
        - target (B, H, W) int64, for learning: −1 if nobody annotated the pixel or it is no tissue
        - truth, for scores: like target, with the annotation off the tissue
        """
        from runner_ssmunet.batches import on_device

        return on_device(batch, statistics, self.config, rng)

    # ------------------------------------------------------------ learning

    def model(self, precision: Precision) -> Any:
        from runner_ssmunet.scan.choice import refuse_unavailable

        refuse_unavailable(self.config.model.scan, self.config.train.device, self.config.train.deterministic)
        options = asdict(self.config.model)
        folder = options.pop("features")
        if folder is not None:
            from runner_ssmunet.export import frozen_network

            return frozen_network(folder, len(self.outputs), options["embed"], options["base"], options["scan"])
        from runner_ssmunet.network import SSMUNetwork

        return SSMUNetwork(self.statistics["wavenumbers"].tolist(), len(self.outputs), **options)

    def step(self, model: Any, batch: Tensors, progress: Progress) -> Step:
        from runner_ssmunet.objective import objective

        return objective(self._logits(model, batch), batch["target"], self.config.loss, self.statistics)

    def _logits(self, model: Any, batch: Tensors) -> Any:
        if "features" in batch:
            return model.from_features(batch["features"], batch["tissue"]).float()
        return model(batch["spectra"], batch["tissue"]).float()

    def _chance_losses(self) -> Mapping[str, float]:
        """Cross-entropy by chance (ln K if `loss.class_weights` balances K classes); Dice depends on the batch."""
        found = self.statistics
        weights = found["class_weights"] if self.config.loss.class_weights == "balanced" else None
        return {"cross_entropy": statistics.chance_losses(found["class_counts"], weights)}

    def _parameter_groups(self, model: Any) -> Any:
        """Put the parameters that `mamba.Mamba` marks into a group without weight decay.

        These are its decay rates and skips: `train.weight_decay` would change its dynamics.
        """
        learned = [p for p in model.parameters() if p.requires_grad]
        exempt = [p for p in learned if hasattr(p, "_no_weight_decay")]
        groups = [{"params": [p for p in learned if not hasattr(p, "_no_weight_decay")]}]
        return [*groups, {"params": exempt, "weight_decay": 0.0}] if exempt else groups

    def infer(self, model: Any, batch: Tensors) -> Tensors:
        """Turn spectra into features and attention, or features into probabilities."""
        from runner_ssmunet.batches import described

        if "scaled" in batch:  # z-scored spectra of tissue pixels, from `interpret`
            spectra = batch["scaled"]
            return described(model, {"spectra": spectra, "tissue": spectra.new_ones(spectra.shape[:-1]) > 0})
        if "spectra" in batch:
            return described(model, batch)
        return {"prediction": model.classify(batch["features"]).float().softmax(1)}

    def metrics(self) -> Sequence[Metric]:
        """Return miou, macro_f1, accuracy, iou_CLASS and recall_CLASS of the annotated pixels.

        Annotated pixels off the tissue count as missed, as in `score`.
        """
        import torch
        from runner_core import Confusion

        def read(logits: Any, batch: Tensors) -> tuple[Any, Any]:
            return torch.where(batch["tissue"], logits.argmax(1), -1), batch["truth"]

        return (Confusion(self.outputs, read),)

    def _plain_metrics(self, prediction: Any, batch: Arrays) -> Mapping[str, float]:
        found = np.where(batch["tissue"], prediction.argmax(1), -1)
        counts = scores.confusion(found, batch["truth"], len(self.outputs))
        values = scores.summary(counts, self.outputs)
        del values["pixels"]
        recall = scores.per_class(counts)["recall"].tolist()
        return values | {f"recall_{name}": value for name, value in zip(self.outputs, recall, strict=True)}

    def _filters(self, watched: Sequence[tuple[int, Mapping[str, Array]]]) -> Mapping[str, Array]:
        from runner_ssmunet.figures import filter_chart
        from runner_ssmunet.filters import NAMED_BANDS

        if not watched:
            return {}
        bands = [(step, arrays["bands"]) for step, arrays in watched]
        return {"filters": filter_chart(bands, self.statistics["wavenumbers"], NAMED_BANDS)}

    def learning(self) -> Learning:
        return Learning(optimisations=OPTIMISATIONS, parameter_groups=self._parameter_groups)

    def health(self) -> Health:
        """Unannotated pixels and pixels off the tissue are ignored: (B, 1, H, W)."""
        return Health(
            lower_bounds={"cross_entropy": 0, "dice_loss": 0},
            chance_losses=self._chance_losses,
            ignored=lambda batch: batch["target"][:, None] < 0,
            decision=lambda logits: logits.argmax(1),
        )

    # ------------------------------------------------------------ whole records

    def _soft(self, cropped: Cropped, infer: Infer) -> Arrays:
        """Compute every core's features once; the U-Net then goes over them in overlapping patches.

        Returns probabilities (K, H, W), 0 off the tissue, and the attention of each wavenumber (L,).
        """
        spectra, tissue = self.prepared_spectra(cropped), self._tissue(cropped)
        size = self.config.validate.batch_size or self.config.train.batch_size
        patch, overlap = self.config.data.patch, self.config.predict.overlap
        probabilities, attention = whole.predict(
            spectra, tissue, infer, len(self.outputs), patch, overlap, size, space, release
        )
        return {"probabilities": probabilities, "attention": attention.astype(np.float32)}

    def prepared_spectra(self, cropped: Cropped) -> Array:
        """Return a core's spectra (H, W, L) as they are cached, before fitted steps and z-scores."""
        self._refuse_other_axis(cropped)
        # with frozen features, the prepared arrays hold those
        return cropped.prepared["spectra"] if self.frozen is None else self._spectra(cropped.decoded)

    def _tissue(self, cropped: Cropped) -> Array:
        """Return the tissue (H, W) of the prepared arrays, which a view turns, or of a core with frozen features."""
        return (cropped.prepared if self.frozen is None else cropped.decoded.arrays)["tissue"] > 0

    def model_input(self, cropped: Cropped) -> tuple[Array, Array]:
        """Return a core's z-scored spectra (H, W, L) float32, 0 off the tissue, and its tissue (H, W) bool."""
        spectra, tissue = self.prepared_spectra(cropped), self._tissue(cropped)
        scaled = np.zeros(spectra.shape, np.float32)
        own = applied(spectra[tissue], operations_of(self.statistics))
        scaled[tissue] = (own - self.statistics["mean"]) / self.statistics["std"]
        return scaled, tissue

    def _decide(self, cropped: Cropped, soft: Arrays) -> Segmented:
        tissue = cropped.decoded.arrays["tissue"] > 0
        return self._segmented(soft["probabilities"], tissue, soft["attention"], cropped.box)

    def _labels(self, record: Record, cropped: Cropped) -> Array | None:
        """Return the numbers of the outputs (int64), −1 off the tissue and where nobody annotated."""
        truth = self._truth(record)
        if truth is None:
            return None
        tissue = cropped.decoded.arrays["tissue"] > 0
        return np.asarray(labels.learned(cropped.box.crop(truth), tissue, self.config.data.ignore))

    def combining(self) -> Combining:
        """Return probabilities; with frozen features there are no views, as prepared arrays then hold no spectra."""
        pixels = {"spectra": (0, 1), "tissue": (0, 1)}
        return Combining(
            kind="probabilities",
            soft=self._soft,
            decide=self._decide,
            classes=self.outputs,
            labels=self._labels,
            write_map=lambda cropped, values, stem: outputs.write_map(cropped.box.restore(values), stem),
            views=mirrors_and_turns(pixels, {"probabilities": (1, 2)}) if self.frozen is None else (),
        )

    def _refuse_other_axis(self, cropped: Cropped) -> None:
        """Raise BadInput if the record's axis is not the network's."""
        meta, path = cropped.decoded.meta, cropped.record.files["core"]
        wanted, found = self.statistics["wavenumbers"], np.array(meta["wavenumbers"])
        if difference := statistics.axes_differ(wanted, found):
            own = statistics.extent(np.array(meta["measured"]))
            raise BadInput(
                f"{path}: other wavenumbers than the network was trained on: it has {own}, prepared "
                f"{statistics.extent(found)}, the network {statistics.extent(wanted)}"
                + (f" ({difference})" if len(wanted) == len(found) else "")
                + ". Resample the file onto the axis of the training cores, or train anew with data.step "
                f"({statistics.spacing(wanted):.3g} cm⁻¹, say): such a network reads cores of any instrument."
            )

    def _segmented(self, probabilities: Array, tissue: Array, attention: Array, box: Box) -> Segmented:
        data = self.config.data
        full = box.restore(probabilities.transpose(1, 2, 0)).transpose(2, 0, 1)
        meaning = labels.output_labels(self.classes.names, data.ignore)
        return outputs.segmented(full, box.restore(tissue), meaning, attention)

    def baseline(self, cropped: Cropped) -> Segmented | None:
        """Predict by logistic regression on each pixel's spectrum; None with frozen features."""
        if "baseline" not in self.statistics:
            return None
        self._refuse_other_axis(cropped)
        tissue = cropped.decoded.arrays["tissue"] > 0
        own = applied(self._spectra(cropped.decoded)[tissue], operations_of(self.statistics))
        pixels = (own - self.statistics["mean"]) / self.statistics["std"]
        probabilities = np.zeros((len(self.outputs), *tissue.shape), np.float32)
        probabilities[:, tissue] = baseline.baseline(pixels, self.statistics["baseline"]).T
        return self._segmented(probabilities, tissue, np.empty(0), cropped.box)

    def write(self, record: Record, prediction: Segmented, out: Path) -> Sequence[Path]:
        """Write KEY_classes.png and KEY_classes.npz on the core's own grid; the options add OME-TIFF and GeoJSON."""
        wavenumbers, options = self.statistics["wavenumbers"], self.predict_options
        written = outputs.write(prediction, record.key, out, self.outputs, wavenumbers, self.classes.colours)
        labels = classes.labels_of(self.classes.names, self.classes.colours)
        return [*written, *outputs.write_more(prediction, record.key, out, self.outputs, labels, options)]

    def _grid(self, file: Path) -> Json:
        shape = outputs.shape(file)
        return shape if shape is not None or file.suffix != ".npz" else list(files.read_core(file).spectra.shape[:2])

    def _truth(self, record: Record) -> Array | None:
        """Return the stored labels (H, W) on the core's own grid, or None."""
        if "labels" not in record.files:
            return None
        path, data = record.files["core"], self.config.data
        return files.stored_labels(
            files.read_outline(path, record.files["labels"]), path, self.classes, data.ignore, needed=True
        )

    def _remarks(self, record: Record, prediction: Segmented) -> Iterator[Finding]:
        truth = self._truth(record)
        return outputs.remarks(prediction, None if truth is None else truth > 0)

    def score(self, record: Record, prediction: Segmented) -> Mapping[str, float]:
        """Return miou and macro_f1 over the core's annotated classes, accuracy, pixels, iou_CLASS and confusion."""
        truth = self._truth(record)
        if truth is None:
            return {}
        ignore = self.config.data.ignore
        found = np.where(prediction.tissue, labels.targets(prediction.classes, ignore), -1)
        truth = labels.scored(truth, prediction.tissue, ignore)
        counts = scores.confusion(found, truth, len(self.outputs))
        called = calls.core_scores(self.config.calls, self.outputs, prediction.probabilities, prediction.tissue, truth)
        return {**scores.core_scores(counts, self.outputs), **called}

    def _figure(self, record: Record, prediction: Segmented) -> Array:
        from runner_ssmunet.figures import figure
        from runner_ssmunet.filters import NAMED_BANDS

        core = files.read_core(record.files["core"], units=self.config.data.units)
        wavenumbers = self.statistics["wavenumbers"]
        return figure(core, prediction, self._truth(record), self.classes, wavenumbers, NAMED_BANDS)

    def _layers(self, record: Record, prediction: Segmented | None) -> Sequence[Layer]:
        from runner_ssmunet.figures import layers

        core = files.read_core(record.files["core"], units=self.config.data.units)
        return layers(core, prediction, self._truth(record), self.classes)

    def _check(self, record: Record) -> Iterator[Finding]:
        path, data = record.files["core"], self.config.data
        core = files.read_core(path, record.files.get("labels"), data.units)
        preprocess.usable_axis(core.wavenumbers, data, str(path))
        tissue = preprocess.tissue_mask(core, data.tissue, str(path))
        return checks.findings(core, tissue, path, data, self.classes)

    def _annotation(self, decoded: Decoded) -> Annotation | None:
        """Count the pixels of each class on the tissue; unannotated ones are ignored, or a class too."""
        arrays = decoded.arrays
        if "label" not in arrays:
            return None
        return labels.annotation(arrays["label"], arrays["tissue"] > 0, self.classes.names, self.config.data.ignore)

    def export(self, model: Any, folder: Path) -> Sequence[Path]:
        from runner_ssmunet.export import export

        return export(model, folder, self.config, self.classes, self.statistics)

    def standalone(self) -> Standalone:
        from runner_ssmunet.standalone import standalone

        views = [view.name for view in self.combining().views]
        return standalone(self.config, self.classes, self.statistics, views)

    def checks(self) -> Checks:
        return Checks(
            record=self._check,
            records=self._check_set,
            prediction=self._remarks,
            annotation=self._annotation,
            plain_metrics=self._plain_metrics,
            grid=self._grid,
            pictures=self._before_and_after,
        )

    def _before_and_after(self, decoded: Decoded) -> Mapping[str, Array]:
        """Draw a few tissue spectra of a core before and after its preparation."""
        from runner_ssmunet.figures import before_and_after

        arrays, meta = preprocess.window(decoded.arrays), decoded.meta
        tissue, measured = arrays["tissue"] > 0, np.array(decoded.meta["measured"])
        if not tissue.any():
            return {}
        axis = preprocess.usable_axis(measured, self.config.data, meta["core"])
        before = on_axis(arrays["spectra"][tissue], axis)
        prepared = self._spectra(Decoded(arrays, decoded.spacing, "tissue", meta))
        later = self.pipeline.later
        operations = []
        if later:
            held = {"spectra": prepared, "tissue": arrays["tissue"]}
            operations = fitted_alone(self.pipeline, held, meta, self.config.data)
        after = applied(prepared[tissue], operations)
        note = f"; {', '.join(later)}: fitted to this core alone for the picture" if later else ""
        return {f"spectra before and after preparation{note}": before_and_after(before, after, axis.wavenumbers)}

    def _check_set(self, records: Sequence[Record]) -> Iterator[Finding]:
        yield from checks.left_out(self._without_labels, self.config.data)
        yield from checks.set_findings(records, self.config.data, self.classes)

    def judging(self) -> Judging:
        return Judging(
            pooled=partial(scores.pooled, names=self.outputs),
            tables=partial(scores.tables, names=self.outputs),
            grouped=self._grouped,
            shown=scores.SHOWN,
        )

    def _grouped(self, groups: Sequence[str], rows: Sequence[Mapping[str, float]]) -> Sequence[Table]:
        """Return the confusion with intervals over patients, and calls of cores and patients."""
        kind = self.config.data.group_by
        called = calls.tables(self.config.calls, groups, rows, kind)
        return [calls.confusion_table(groups, rows, self.outputs, kind), *called] if len(set(groups)) > 1 else [*called]

    def _snapshots(self, model: Any, batch: Tensors) -> Mapping[str, Array]:
        from runner_ssmunet.figures import overlay

        tissue = batch["tissue"].cpu().numpy()
        meaning = np.concatenate([labels.output_labels(self.classes.names, self.config.data.ignore), [0]])  # −1: none
        found = meaning[np.where(tissue, self._logits(model, batch).argmax(1).cpu().numpy(), -1)]
        truth = meaning[batch["target"].cpu().numpy()]
        pixels = batch["features"] if "features" in batch else batch["spectra"]
        grey = pixels.float().mean(-1).cpu().numpy()
        return {f"sample {n + 1}": overlay(grey[n], found[n], truth[n], self.classes) for n in range(len(found))}

    def pictures(self) -> Pictures:
        """Watch the lower and upper edge (cm⁻¹) of each filter: (F, 2)."""
        return Pictures(
            figure=self._figure,
            labels=classes.labels_of(self.classes.names, self.classes.colours),
            layers=self._layers,
            snapshots=self._snapshots,
            snapshot_samples=2,
            watch=lambda model: {"bands": model.stack.filters.bands().detach().cpu().numpy()},
            draw_watched=self._filters,
        )

    # ------------------------------------------------------------ phantom

    def phantom(self, folder: Path, rng: np.random.Generator) -> None:
        from runner_ssmunet.phantom import write_phantom

        write_phantom(folder, rng)
