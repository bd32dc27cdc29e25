"""The class that runner calls; neither torch nor timm is imported at its top."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
from runner_core import (
    AnyRecord,
    Array,
    Arrays,
    Checks,
    Combining,
    Cropped,
    DataSet,
    Decoded,
    GuessedTable,
    Health,
    Infer,
    Json,
    Judging,
    Learning,
    Location,
    Metric,
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
    View,
    mirrors_and_turns,
)

from runner_dinocell import checks, dropped, fields, files, judgement, outputs, schedules, statistics, whole, windows
from runner_dinocell.config import PRESETS, CellConfig
from runner_dinocell.optimisations import OPTIMISATIONS
from runner_dinocell.whole import Embedded, own_cells, side


def _guess(folder: Path) -> GuessedTable:
    from runner_dinocell.guess import guess

    return guess(folder)


class DinoCell(Project):
    """Self-supervised pretraining of vision transformers on Cell Painting."""

    name = "dinocell"
    framework = "torch"
    Config = CellConfig
    presets = PRESETS
    monitor = ("rank", "max")
    limits = (
        "Embeddings compare fields with the same stains, magnification and cell line as the training set. They may "
        "hold plate and position effects: compare with controls on the same plate."
    )
    directions = dict.fromkeys(("dino", "ibot", "koleo"), "min")
    dataset = DataSet(
        remote=True,
        settings=("data.manifest", "data.pattern", "data.label", "data.cells", "data.nuclei"),
        samples_setting="data.windows",
        guess=_guess,
    )
    config: CellConfig

    _places: tuple[str, ...] = ()
    """Channels of the data set, if a field may lack some."""
    _labels: Mapping[str, str | None] = MappingProxyType({})
    """Labels of the data set's fields, by their keys."""
    _centres = ""
    """Checksum of the data set's centres of cells, if a table has them."""

    @property
    def _channels(self) -> tuple[str, ...]:
        """Channels that the network was made for; none before the data are known."""
        return tuple(self.statistics.get("channels", ()))

    @property
    def _cells(self) -> str | None:
        """Return `data.cells`; for other data than a network's own, whose windows lay around cells: find."""
        return self.config.data.cells or ("find" if self.statistics.get("cells") else None)

    # ------------------------------------------------------------ data: files → prepared arrays

    def records(self, root: Location) -> Sequence[fields.Field]:
        found = files.find_records(root, self.config, self._channels)
        own = found if isinstance(found, list) else found[:1]  # else all are alike, and millions are not made for this
        self._places = next((field.channels for field in own if field.partial), ())
        self._centres = _digest(field.centres for field in own if field.centres is not None)
        if self.config.metadata.told:
            self._labels = {field.key: field.label for field in found}
        return found

    def inputs(self, path: Location) -> Sequence[fields.Field]:
        return files.find_inputs(path, self.config, self._channels)

    def write_input(self, arrays: Arrays, spacing: tuple[float, ...] | None, folder: Path) -> Path:
        return files.write_arrays(arrays, self._channels, folder)

    def decode(self, record: Record) -> Decoded:
        return fields.decode(record)

    def prepare(self, decoded: Decoded) -> Arrays:
        missing = [decoded.meta["channels"].index(name) for name in decoded.meta.get("missing", ())]
        arrays = windows.prepare(decoded.arrays["image"], self.config.data.percentiles, missing)
        return arrays | ({"cells": fields.cells(decoded, self.config.data, self._cells)} if self._cells else {})

    def prepare_settings(self) -> Mapping[str, Json]:
        settings = {"percentiles": list(self.config.data.percentiles), "channels": list(self.config.data.channels)}
        if self._cells:
            settings["cells"] = [self._cells, self.config.data.nuclei, self.config.data.most_cells, self._centres]
        return settings | ({"places": list(self._places)} if self._places else {})

    def fit(self, store: Store, training: Sequence[int]) -> Statistics:
        found = statistics.fit(store, training, self.config)
        if self.config.metadata.told:
            from runner_dinocell.metadata import classes

            found |= classes(store.keys, self._labels, training, self.config.metadata)
        if self.config.distil.network:
            found["distil_width"] = self._larger(len(found["channels"]))["embed_dim"]
        return found

    def _larger(self, channels: int) -> Mapping[str, Any]:
        """Return timm's arguments of the network to distil from."""
        from runner_dinocell.distil import described

        assert self.config.distil.network is not None
        return described(self.config.distil.network, self.config.model.patch, channels)

    # ------------------------------------------------------------ data: prepared arrays → batches

    def samples(self, store: Store, records: Sequence[int], split: str) -> Samples:
        from runner_dinocell.samples import CellSamples

        return CellSamples(store, records, self.config, split)

    def on_device(self, batch: Tensors, statistics: Statistics, rng: Any | None) -> Tensors:
        """Return globals (B, 2, C, G, G) and locals (B, L, C, S, S) float32.

        Without `rng` the result also has image (B, C, G, G), the whole window; in inference it has the image alone
        (`batches.on_device`).
        """
        from runner_dinocell.batches import on_device

        levels = statistics.get("levels")
        out = on_device(batch, self.config, rng, levels)
        if "draws" not in batch or not self.config.metadata.told:
            return out
        from runner_dinocell.metadata import targets

        return out | targets(batch, statistics, self.config.metadata)

    # ------------------------------------------------------------ learning

    def model(self, precision: Precision) -> Any:
        from runner_dinocell.network import DinoNet

        return DinoNet(self.config, len(self._channels), self.statistics)

    def _initialise(self, model: Any) -> None:
        """Load the network to distil from, for a training."""
        if model.distil is not None:
            model.distil.open(self.config.distil.network, self._larger(len(self._channels)))

    def _adapt_weights(self, model: Any, weights: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return official DINOv2 weights under this network's names and in its shapes.

        A run's teacher is also the first one that Gram anchoring compares with.
        """
        from runner_dinocell.weights import adapt

        found = adapt(model, weights)
        if model.anchor is None:
            return found
        given, begin = found or weights, "teacher.backbone."
        anchor = {f"anchor.{name.removeprefix(begin)}": w for name, w in given.items() if name.startswith(begin)}
        return {**given, **anchor}

    def step(self, model: Any, batch: Tensors, progress: Progress) -> Step:
        from runner_dinocell.objective import objective

        return objective(model, batch, self.config, progress)

    def infer(self, model: Any, batch: Tensors) -> Tensors:
        return {"embedding": model.embed(batch["image"])}

    def metrics(self) -> Sequence[Metric]:
        from runner_dinocell.rank import RankMe

        return (RankMe(),)

    def _plain_metrics(self, prediction: Any, batch: Arrays) -> Mapping[str, float]:
        from runner_dinocell.rank import rank_me

        return {"rank": rank_me(prediction)}

    def _snapshots(self, model: Any, batch: Tensors) -> Mapping[str, Array]:
        """Draw the attention of the CLS token in four windows."""
        from runner_dinocell.attention import attention_maps
        from runner_dinocell.snapshot import snapshot

        maps = attention_maps(model, batch["image"])
        return {"attention": snapshot(batch["image"].cpu().numpy(), maps.cpu().numpy(), self._channels)}

    def learning(self) -> Learning:
        """Return how it learns. A batch may not be cut: Sinkhorn-Knopp, centres and KoLeo look at the whole batch."""
        return Learning(
            optimisations=OPTIMISATIONS,
            initialise=self._initialise,
            adapt_weights=self._adapt_weights,
            parameter_groups=self._parameter_groups,
            schedule=partial(schedules.learning_rate, self.config),
            adjust=self._adjust,
            after_step=self._after_step,
            clip_units=self._clip_units if self.config.train.exact else None,
            shard_units=self._shard_units,
        )

    def _parameter_groups(self, model: Any) -> Any:
        from runner_dinocell.optim import parameter_groups

        others = [heads for heads in (model.metadata, model.distil) if heads is not None]
        return parameter_groups(model.student, self.config, others)

    def _adjust(self, groups: Any, progress: Progress) -> None:
        from runner_dinocell.optim import adjust

        adjust(groups, self.config, progress)

    def _after_step(self, model: Any, progress: Progress) -> None:
        from runner_dinocell import gram, teacher

        teacher.follow(model.teacher, model.student, schedules.momentum(self.config, progress))
        if gram.renewed(self.config.gram, progress):
            teacher.follow(model.anchor, model.teacher.backbone, 0.0)

    def _clip_units(self, model: Any) -> Sequence[Any]:
        """Return the student's backbone and heads, whose gradients DINOv2 clips one by one."""
        return list(model.student.children())

    def _shard_units(self, model: Any) -> Sequence[Any]:
        from runner_dinocell.network import shard_units

        return shard_units(model)

    def health(self) -> Health:
        return Health(lower_bounds={"dino": 0, "ibot": 0})

    # ------------------------------------------------------------ whole fields

    def _soft(self, cropped: Cropped, infer: Infer) -> Arrays:
        """Embed windows that cover the field: (rows, columns, D) float32."""
        settings = self.config.predict
        size = self.config.validate.batch_size or self.config.train.batch_size
        record, prepared = cropped.record, cropped.prepared
        prepared = prepared | {"levels": self._levels(record, prepared["levels"])}
        window = side(self.config)

        def embed(prepared: Arrays) -> Array:
            return whole.predict(prepared, infer, window, settings.stride, size, record.key)

        vectors = embed(prepared)
        if len(own_cells(prepared)):
            soft = {"cells": vectors}
        else:
            rows = len(np.unique(windows.corners(prepared["image"].shape[1:], window, settings.stride)[:, 0]))
            soft = {"windows": vectors.reshape(rows, -1, vectors.shape[-1])}
        if settings.drop_channels and isinstance(record, fields.Field):
            soft["dropped"] = dropped.embedded(prepared, record.channels, self._channels, embed)
        return soft

    def _decide(self, cropped: Cropped, soft: Arrays) -> Embedded:
        """Return the windows' embeddings with their places."""
        prepared, windows = cropped.prepared, soft["cells"] if "cells" in soft else soft["windows"]
        corners = whole.places(prepared, side(self.config), self.config.predict.stride)
        cells = own_cells(prepared) if "cells" in prepared else None
        return Embedded(windows.reshape(-1, windows.shape[-1]), corners, soft.get("dropped"), cells)

    def combining(self) -> Combining:
        """Return the embeddings, whose views are averaged; networks of an ensemble read the same channels."""
        return Combining(
            "embeddings",
            self._soft,
            self._decide,
            must_match={"channels": list(self._channels)},
            labels=self._label,
            carrier=lambda record: (
                f"{record.whole_plate}/{record.well}" if isinstance(record, fields.Field) else record.key
            ),
            views=tuple(
                replace(view, apply=partial(_seen, view))
                for view in mirrors_and_turns({"image": (1, 2), "numbers": (0, 1)}, {"windows": (0, 1)})
            ),
        )

    def _label(self, record: Record, cropped: Cropped) -> Array | None:
        """Return the field's label, such as its compound, as an array of one text."""
        label = record.label if isinstance(record, fields.Field) else None
        return None if label is None else np.array(label)

    def _levels(self, record: Record, own: Array) -> Array:
        """Return the grey values of each channel that become 0 and 1.

        They are the set's if `data.scale` is set, except for stains that training did not see: those keep the field's
        own.
        """
        if "levels" not in self.statistics or not isinstance(record, fields.Field):
            return own
        known = dict(zip(self._channels, np.asarray(self.statistics["levels"]), strict=True))
        pairs = zip(record.channels, own, strict=True)
        return np.asarray(windows.usable(np.stack([known.get(name, mine) for name, mine in pairs]), own))

    def baseline(self, cropped: Cropped) -> Array:
        """Return statistics of the field's pixels, on its own scale whatever `data.scale` is for the network.

        With scikit-image, features like CellProfiler's follow.
        """
        from runner_dinocell import classical
        from runner_dinocell.baseline import baseline

        image, levels = cropped.prepared["image"], cropped.prepared["levels"]
        pixels = baseline(image, levels)
        if not classical.available():
            return pixels
        nuclei = cropped.decoded.meta["channels"].index(
            fields.nuclei_channel(cropped.decoded.meta["channels"], self.config.data.nuclei)
        )
        return np.concatenate([pixels, classical.classical(image, levels, nuclei)])

    def _scored(self, splits: Mapping[str, Sequence[AnyRecord]]) -> Sequence[AnyRecord]:
        """Return at most `predict.fields` fields each of training and validation.

        The training fields teach the probe.
        """
        most = self.config.predict.fields
        return [record for name in ("train", "validation") for record in judgement.chosen(splits.get(name, ()), most)]

    def write(self, record: Record, prediction: Embedded, out: Path) -> Sequence[Path]:
        assert isinstance(record, fields.Field)
        return outputs.write(outputs.rows(record, prediction, self.config.predict.unit, self._made()), record.key, out)

    def _made(self) -> Mapping[str, Json]:
        """Return how embeddings were made, for the table's metadata."""
        return {
            "channels": list(self._channels),
            "window": side(self.config),
            "stride": self.config.predict.stride,
            "percentiles": list(self.config.data.percentiles),
            "scale": "set" if "levels" in self.statistics else "field",
        } | ({"cells": self._cells} if self._cells else {})

    def export(self, model: Any, folder: Path) -> Sequence[Path]:
        from runner_dinocell.export import export

        return export(model, folder, self.config, self._channels, self.statistics.get("levels"))

    def standalone(self) -> Standalone:
        from runner_dinocell.standalone import standalone

        return standalone(self.config, self.statistics, self._cells)

    def checks(self) -> Checks:
        return Checks(
            record=partial(checks.findings, settings=self.config.data),
            records=partial(checks.set_findings, config=self.config.data),
            prediction=lambda record, prediction: checks.of_prediction(record, prediction, self._channels),
            plain_metrics=self._plain_metrics,
        )

    def judging(self) -> Judging:
        return Judging(
            scored=self._scored,
            judge=partial(judgement.judge, settings=self.config.predict, channels=self._channels),
            as_arrays=whole.as_arrays,
            from_arrays=whole.from_arrays,
            untrained=True,
            collect=outputs.collect,
        )

    def pictures(self) -> Pictures:
        return Pictures(image=self._image, snapshots=self._snapshots, snapshot_samples=4)

    def _image(self, decoded: Decoded) -> Array:
        """Draw a field with each channel in its colour, between its own percentiles."""
        from runner_dinocell.snapshot import composite

        image, percentiles = decoded.arrays["image"], self.config.data.percentiles
        low, high = np.percentile(image, percentiles, axis=(1, 2), keepdims=True)
        return composite(np.clip((image - low) / np.maximum(high - low, 1), 0, 1).astype(np.float32))

    # ------------------------------------------------------------ phantom

    def phantom(self, folder: Path, rng: np.random.Generator) -> None:
        from runner_dinocell.phantom import write_phantom

        write_phantom(folder, rng)


def _digest(contents: Iterable[bytes]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for content in contents:
        found.update(len(content).to_bytes(8, "little") + content)
    return found.hexdigest()


def _seen(view: View, cropped: Cropped) -> Arrays:
    """Return a field's arrays as a view shows them; cells move with the pixels, and keep their order."""
    prepared = cropped.prepared
    cells = own_cells(prepared)
    if not len(cells):
        return view.apply(cropped)
    height, width = prepared["image"].shape[1:]
    numbers = np.arange(height * width).reshape(height, width)
    seen = dict(view.apply(SimpleNamespace(prepared=prepared | {"numbers": numbers})))
    numbers = seen.pop("numbers")
    place = np.empty(numbers.size, np.int64)
    place[numbers.ravel()] = np.arange(numbers.size)
    moved = prepared["cells"].copy()
    moved[: len(cells), 1:] = np.stack(np.divmod(place[cells[:, 1] * width + cells[:, 2]], numbers.shape[1]), 1)
    return seen | {"cells": moved}
