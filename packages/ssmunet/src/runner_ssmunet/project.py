"""ssmunet: what runner calls. Imports no torch at its top."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
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
from runner_core.samples import TileSamples

from runner_ssmunet import axis, baseline, checks, cores, health, labels, outputs, preprocess, scores, statistics, whole
from runner_ssmunet.config import PRESETS, SSMConfig
from runner_ssmunet.limits import fault
from runner_ssmunet.optimisations import OPTIMISATIONS
from runner_ssmunet.outputs import Segmented


class SSMUNet(Project):
    """Tissue classes of infrared images of tissue cores, pixel by pixel."""

    name: ClassVar[str] = "ssmunet"
    framework: ClassVar[Literal["torch", "keras"]] = "torch"
    Config: ClassVar[type[RunConfig]] = SSMConfig
    presets: ClassVar[Mapping[str, Callable[[], RunConfig]]] = PRESETS
    monitor: ClassVar[tuple[str, Literal["max", "min"]]] = ("miou", "max")
    least: ClassVar[Mapping[str, float]] = {"cross_entropy": 0, "dice_loss": 0}
    crop: ClassVar[str] = "foreground"
    shown: ClassVar[tuple[str, ...]] = scores.SHOWN
    optimisations: ClassVar[tuple[Optimisation, ...]] = OPTIMISATIONS
    prepare_version: ClassVar[int] = 1
    phantom_version: ClassVar[int] = 1
    config: SSMConfig

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._left_out: Sequence[Record] = ()
        if wrong := fault(self.config):
            raise BadInput(wrong)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the network's outputs."""
        return labels.output_names(self.config.data.classes, self.config.data.ignore)

    @cached_property
    def frozen(self) -> Any:
        """The exported network of `model.features`, whose features stand for the spectra; None without."""
        if self.config.model.features is None:
            return None
        from runner_ssmunet.frozen import FrozenFeatures

        return FrozenFeatures(self.config.model.features)

    # ------------------------------------------------------------ data: files → prepared arrays

    def records(self, root: Path) -> Sequence[Record]:
        """Cores with labels; `check_set` warns of those without, which only `predict` takes."""
        records, self._left_out = cores.labelled(cores.find_cores(root, self.config.data.group_by))
        return records

    def inputs(self, path: Path) -> Sequence[Record]:
        return cores.find_inputs(path)

    def decode(self, record: Record) -> Decoded:
        """Spectra (H, W, C) as the file has them, tissue (the cropper's guide) and labels."""
        path, data = record.files["core"], self.config.data
        core = cores.read_core(path)
        tissue = preprocess.tissue_mask(core, data.tissue, str(path))
        arrays: Arrays = {"spectra": core.spectra, "tissue": tissue.astype(np.uint8)}
        if "labels" in record.files:
            arrays["label"] = cores.stored_labels(core, path, data.classes, data.ignore, needed=True)
        kept = axis.plan(core.wavenumbers, data, str(path)).wavenumbers
        meta = {"core": record.key, "measured": core.wavenumbers.tolist(), "wavenumbers": kept.tolist()}
        return Decoded(arrays, (1.0, 1.0), "tissue", meta)

    def prepare(self, decoded: Decoded) -> Arrays:
        """spectra (H, W, L) float16, or features (H, W, F) with `model.features`; tissue and label (H, W) uint8."""
        arrays: Arrays = {n: array for n, array in decoded.arrays.items() if n != "spectra"}
        spectra = self._spectra(decoded)
        if self.frozen is None:
            return {"spectra": spectra, **arrays}
        self.frozen.require(np.array(decoded.meta["wavenumbers"]), self.config.data)
        return {"features": self.frozen(spectra, decoded.arrays["tissue"] > 0), **arrays}

    def _spectra(self, decoded: Decoded) -> Array:
        meta, tissue = decoded.meta, decoded.arrays["tissue"] > 0
        measured = np.array(meta["measured"])
        return preprocess.prepare(decoded.arrays["spectra"], measured, tissue, self.config.data, meta["core"])[0]

    def prepare_settings(self) -> Mapping[str, Json]:
        data = self.config.data
        settings = {name: getattr(data, name) for name in (*preprocess.SETTINGS, "classes", "ignore")}
        return settings | ({} if self.frozen is None else {"features": self.frozen.digest})

    def fit(self, store: Store, training: Sequence[int]) -> Statistics:
        """z-scores, class weights, what each label covers, and the logistic regression beside the network."""
        data = self.config.data
        shares = {"label_shares": health.label_shares(store, training)}
        if self.frozen is not None:
            from runner_core.cache.stored import PreparedStore

            arrays = {**store.arrays, "spectra": store.arrays["features"]}
            view = PreparedStore(store.keys, store.meta, arrays, store.identity)
            return statistics.fit(view, training, data.classes, data.ignore) | shares | self.frozen.statistics
        learned = statistics.fit(store, training, data.classes, data.ignore)
        return learned | shares | {"baseline": baseline.fit_store(store, training, learned, data.ignore)}

    # ------------------------------------------------------------ data: prepared arrays → batches

    def samples(self, store: Store, records: Sequence[int], split: str) -> Samples:
        """Patches on a grid: of training, those with an annotated pixel (`data.unlabelled`: all)."""
        data = self.config.data
        pixels = "spectra" if self.frozen is None else "features"
        everything = data.ignore is None or (data.unlabelled and split == "train")
        step = max(1, round(data.patch * (1 - data.overlap))) if split == "train" else data.patch
        keep = None if everything else "label"
        sides = (data.patch, data.patch)
        return TileSamples(store, (pixels, "tissue", "label"), sides, records, stride=(step, step), keep=keep)

    def on_device(self, batch: Tensors, statistics: Statistics, rng: Any | None) -> Tensors:
        """spectra (B, H, W, L) float32, z-scored, 0 where there is no tissue, or features (B, H, W, F); tissue
        (B, H, W) bool; target (B, H, W) int64, −1 where nobody annotated."""
        from runner_ssmunet.batches import on_device

        return on_device(batch, statistics, self.config, rng)

    # ------------------------------------------------------------ learning

    def model(self, precision: Precision) -> Any:
        options = asdict(self.config.model)
        folder = options.pop("features")
        if folder is not None:
            from runner_ssmunet.export import frozen_network

            return frozen_network(folder, len(self.outputs), options["embed"], options["base"])
        from runner_ssmunet.network import SSMUNetwork

        return SSMUNetwork(self.statistics["wavenumbers"].tolist(), len(self.outputs), **options)

    def step(self, model: Any, batch: Tensors, progress: Progress) -> Step:
        import torch

        from runner_ssmunet.losses import dice_loss, weighted_cross_entropy

        loss, target = self.config.loss, batch["target"]
        if "features" in batch:
            logits = model.from_features(batch["features"], batch["tissue"]).float()
        else:
            logits = model(batch["spectra"], batch["tissue"]).float()
        weights = None
        if loss.class_weights == "balanced":
            weights = torch.as_tensor(self.statistics["class_weights"], dtype=torch.float32, device=logits.device)
        terms = {
            "cross_entropy": weighted_cross_entropy(logits, target, weights),
            "dice_loss": dice_loss(logits, target),
        }
        return Step(loss.cross_entropy * terms["cross_entropy"] + loss.dice * terms["dice_loss"], terms, logits)

    def uninformed(self) -> Mapping[str, float]:
        """Of the cross-entropy (ln K where `loss.class_weights` balances K classes); Dice depends on the batch."""
        found = self.statistics
        weights = found["class_weights"] if self.config.loss.class_weights == "balanced" else None
        return {"cross_entropy": statistics.uninformed(found["class_counts"], weights)}

    def ignored(self, batch: Tensors) -> Any | None:
        """(B, 1, H, W): pixels that nobody annotated."""
        return None if self.config.data.ignore is None else batch["target"][:, None] < 0

    def parameter_groups(self, model: Any) -> Any:
        """Apart what `mamba.Mamba` marks, its decay rates and skips: `train.weight_decay` would change its dynamics."""
        learned = [p for p in model.parameters() if p.requires_grad]
        exempt = [p for p in learned if hasattr(p, "_no_weight_decay")]
        groups = [{"params": [p for p in learned if not hasattr(p, "_no_weight_decay")]}]
        return [*groups, {"params": exempt, "weight_decay": 0.0}] if exempt else groups

    def infer(self, model: Any, batch: Tensors) -> Tensors:
        """Spectra → features and attention; features → probabilities."""
        from runner_ssmunet.batches import described

        if "spectra" in batch:
            return described(model, batch)
        return {"prediction": model.classify(batch["features"]).float().softmax(1)}

    def decision(self, prediction: Any) -> Any:
        return prediction.argmax(1)

    def metrics(self) -> Sequence[Metric]:
        """miou, macro_f1, accuracy; iou_CLASS and recall_CLASS: of the annotated pixels."""
        from runner_core.engines.torch.metrics import Confusion

        return (Confusion(self.outputs, lambda logits, batch: (logits.argmax(1), batch["target"])),)

    def plain_metrics(self, prediction: Any, batch: Arrays) -> Mapping[str, float]:
        counts = scores.confusion(prediction.argmax(1), batch["target"], len(self.outputs))
        found = scores.summary(counts, self.outputs)
        del found["pixels"]
        recall = scores.per_class(counts)["recall"].tolist()
        return found | {f"recall_{name}": value for name, value in zip(self.outputs, recall, strict=True)}

    def watch(self, model: Any) -> Mapping[str, Array]:
        """Lower and upper edge (cm⁻¹) of each filter: (F, 2)."""
        return {"bands": model.stack.filters.bands().detach().cpu().numpy()}

    def pictures(self, watched: Sequence[tuple[int, Mapping[str, Array]]]) -> Mapping[str, Array]:
        from runner_ssmunet.figures import filter_chart
        from runner_ssmunet.filters import NAMED_BANDS

        if not watched:
            return {}
        bands = [(step, arrays["bands"]) for step, arrays in watched]
        return {"filters": filter_chart(bands, self.statistics["wavenumbers"], NAMED_BANDS)}

    # ------------------------------------------------------------ whole records

    def predict(self, record: Record, infer: Infer) -> Segmented:
        """Every core's features are computed once; the U-Net goes over them in overlapping patches."""
        decoded, box = self._unlabelled(record)
        spectra, tissue = self._spectra(decoded), decoded.arrays["tissue"] > 0
        size = self.config.validate.batch_size or self.config.train.batch_size
        patch, overlap = self.config.data.patch, self.config.predict.overlap
        probabilities, attention = whole.segment(spectra, tissue, infer, len(self.outputs), patch, overlap, size)
        return self._segmented(probabilities, tissue, attention, box)

    def _unlabelled(self, record: Record) -> tuple[Decoded, Any]:
        """The record cut to its tissue, labels left alone. Raises BadInput where its axis is not the network's."""
        files = {role: file for role, file in record.files.items() if role != "labels"}
        decoded, box = self.pipeline.decode_cropped(Record(record.key, record.group, files))
        wanted, found = self.statistics["wavenumbers"], np.array(decoded.meta["wavenumbers"])
        if difference := statistics.axes_differ(wanted, found):
            own = statistics.extent(np.array(decoded.meta["measured"]))
            raise BadInput(
                f"{record.files['core']}: other wavenumbers than the network was trained on: it has {own}, prepared "
                f"{statistics.extent(found)}, the network {statistics.extent(wanted)}"
                + (f" ({difference})" if len(wanted) == len(found) else "")
                + ". Resample the file onto the axis of the training cores, or train anew with data.step "
                f"({statistics.spacing(wanted):.3g} cm⁻¹, say): such a network reads cores of any instrument."
            )
        return decoded, box

    def _segmented(self, probabilities: Array, tissue: Array, attention: Array, box: Any) -> Segmented:
        data = self.config.data
        full = box.restore(probabilities.transpose(1, 2, 0)).transpose(2, 0, 1)
        meaning = labels.output_labels(data.classes, data.ignore)
        return outputs.segmented(full, box.restore(tissue), meaning, attention)

    def baseline(self, record: Record, statistics: Statistics) -> Segmented | None:
        """Logistic regression on each pixel's spectrum; none with frozen features."""
        if "baseline" not in statistics:
            return None
        decoded, box = self._unlabelled(record)
        tissue = decoded.arrays["tissue"] > 0
        pixels = (self._spectra(decoded)[tissue] - statistics["mean"]) / statistics["std"]
        probabilities = np.zeros((len(self.outputs), *tissue.shape), np.float32)
        probabilities[:, tissue] = baseline.predict(pixels, statistics["baseline"]).T
        return self._segmented(probabilities, tissue, np.empty(0), box)

    def write(self, record: Record, prediction: Segmented, out: Path) -> Sequence[Path]:
        """KEY_classes.png and KEY_classes.npz: the core's own grid."""
        return outputs.write(prediction, record.key, out, self.outputs, self.statistics["wavenumbers"])

    def grid(self, file: Path) -> Json:
        shape = outputs.shape(file)
        return shape if shape is not None or file.suffix != ".npz" else list(cores.read_core(file).spectra.shape[:2])

    def _truth(self, record: Record) -> Array | None:
        """Stored labels (H, W) of the core's own grid, where it has any."""
        if "labels" not in record.files:
            return None
        path, data = record.files["core"], self.config.data
        return cores.stored_labels(cores.read_outline(path), path, data.classes, data.ignore, needed=True)

    def remarks(self, record: Record, prediction: Segmented) -> Sequence[Finding]:
        truth = self._truth(record)
        return list(outputs.remarks(prediction, None if truth is None else truth > 0))

    def score(self, record: Record, prediction: Segmented) -> Mapping[str, float]:
        """miou and macro_f1 over the classes that the core's annotation has, accuracy, pixels, iou_CLASS, confusion."""
        truth = self._truth(record)
        if truth is None:
            return {}
        ignore = self.config.data.ignore
        found = np.where(prediction.tissue, labels.targets(prediction.classes, ignore), -1)
        counts = scores.confusion(found, labels.targets(truth, ignore), len(self.outputs))
        return scores.core_scores(counts, self.outputs)

    def pooled(self, scores_of: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
        return scores.pooled(scores_of, self.outputs)

    def tables(self, scores_of: Sequence[Mapping[str, float]], baseline: Sequence[Mapping[str, float]]) -> list[Table]:
        return scores.tables(scores_of, baseline, self.outputs)

    def figure(self, record: Record, prediction: Segmented) -> Array:
        from runner_ssmunet.figures import core_picture
        from runner_ssmunet.filters import NAMED_BANDS

        core = cores.read_core(record.files["core"])
        names = dict(enumerate(self.config.data.classes, start=1))
        wavenumbers = self.statistics["wavenumbers"]
        return core_picture(core, prediction, self._truth(record), names, wavenumbers, NAMED_BANDS)

    def check(self, record: Record) -> Sequence[Finding]:
        path, data = record.files["core"], self.config.data
        core = cores.read_core(path)
        tissue = preprocess.tissue_mask(core, data.tissue, str(path))
        return list(checks.findings(core, tissue, path, data))

    def annotation(self, decoded: Decoded) -> Annotation | None:
        """Pixels of each class; those that nobody annotated are ignored, or a class too."""
        data = self.config.data
        if "label" not in decoded.arrays:
            return None
        return labels.annotation(decoded.arrays["label"], data.classes, data.ignore)

    def check_set(self, records: Sequence[Record]) -> Sequence[Finding]:
        return [*checks.left_out(self._left_out), *checks.set_findings(records, self.config.data)]

    def export(self, model: Any, folder: Path, statistics: Statistics) -> Sequence[Path]:
        from runner_ssmunet.export import export

        return export(model, folder, self.config, statistics)

    # ------------------------------------------------------------ phantom

    def phantom(self, folder: Path, rng: np.random.Generator) -> None:
        from runner_ssmunet.phantom import write_phantom

        write_phantom(folder, rng)
