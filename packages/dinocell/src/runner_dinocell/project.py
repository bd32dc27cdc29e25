"""dinocell: what runner calls. Imports neither torch nor timm at its top."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from runner_core import BadInput
from runner_core.config import RunConfig
from runner_core.location import Location, location
from runner_core.project import AnyRecord, Decoded, Judgement, Predicted, Project, Record, Statistics
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

from runner_dinocell import checks, fields, files, judgement, outputs, pixelstats, statistics
from runner_dinocell.config import PRESETS, CellConfig
from runner_dinocell.embed import Embedded, embed, side
from runner_dinocell.limits import fault
from runner_dinocell.optimisations import OPTIMISATIONS


class DinoCell(Project):
    """Self-supervised vision transformers of Cell Painting."""

    name: ClassVar[str] = "dinocell"
    framework: ClassVar[Literal["torch", "keras"]] = "torch"
    Config: ClassVar[type[RunConfig]] = CellConfig
    presets: ClassVar[Mapping[str, Callable[[], RunConfig]]] = PRESETS
    monitor: ClassVar[tuple[str, Literal["max", "min"]]] = ("rank", "max")
    least: ClassVar[Mapping[str, float]] = {"dino": 0, "ibot": 0}
    splittable: ClassVar[bool] = False  # Sinkhorn-Knopp, centres and KoLeo look at the whole batch
    remote: ClassVar[bool] = True
    untrained: ClassVar[bool] = True
    of_data: ClassVar[tuple[str, ...]] = ("data.manifest", "data.pattern", "data.label")
    samples_setting: ClassVar[str] = "data.windows"
    snapshot_samples: ClassVar[int] = 4
    optimisations: ClassVar[tuple[Optimisation, ...]] = OPTIMISATIONS
    prepare_version: ClassVar[int] = 1
    phantom_version: ClassVar[int] = 1
    config: CellConfig

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        if wrong := fault(self.config):
            raise BadInput(wrong)
        self.config.data.manifest = _in_full(self.config.data.manifest)
        self._last: tuple[Record, Arrays] | None = None
        self._left_out: list[str] = []

    @property
    def _channels(self) -> tuple[str, ...]:
        """Those that the network was made for; none before the data are known."""
        return tuple(self.statistics.get("channels", ()))

    # ------------------------------------------------------------ data: files → prepared arrays

    def records(self, root: Location) -> Sequence[fields.Field]:
        self._left_out = []
        return files.find_records(root, self.config, self._channels, say=self._left_out.append)

    def inputs(self, path: Location) -> Sequence[fields.Field]:
        return files.find_inputs(path, self.config, self._channels)

    def decode(self, record: Record) -> Decoded:
        return fields.decode(record)

    def prepare(self, decoded: Decoded) -> Arrays:
        return fields.prepare(decoded.arrays["image"], self.config.data.percentiles)

    def prepare_settings(self) -> Mapping[str, Json]:
        return {"percentiles": list(self.config.data.percentiles), "channels": list(self.config.data.channels)}

    def fit(self, store: Store, training: Sequence[int]) -> Statistics:
        return statistics.fit(store, training, self.config)

    # ------------------------------------------------------------ data: prepared arrays → batches

    def samples(self, store: Store, records: Sequence[int], split: str) -> Samples:
        from runner_dinocell.samples import CellSamples

        return CellSamples(store, records, self.config, split)

    def on_device(self, batch: Tensors, statistics: Statistics, rng: Any | None) -> Tensors:
        """globals (B, 2, C, G, G) and locals (B, L, C, S, S) float32; without `rng` also image (B, C, G, G), the whole
        window, and that alone in inference (`augment.on_device`)."""
        from runner_dinocell.augment import on_device

        levels = statistics.get("levels")
        return on_device(batch, self.config, rng, levels)

    # ------------------------------------------------------------ learning

    def model(self, precision: Precision) -> Any:
        from runner_dinocell.network import DinoNet

        return DinoNet(self.config, len(self._channels))

    def initialise(self, model: Any) -> None:
        """Official DINOv2 weights, where `model.weights` names them."""
        if self.config.model.weights is not None:
            from runner_dinocell.weights import start_from

            start_from(model, self.config.model.weights)

    def step(self, model: Any, batch: Tensors, progress: Progress) -> Step:
        from runner_dinocell.objective import objective

        return objective(model, batch, self.config, progress)

    def parameter_groups(self, model: Any) -> Any:
        from runner_dinocell.optim import parameter_groups

        return parameter_groups(model.student, self.config)

    def schedule(self, progress: Progress) -> float:
        from runner_dinocell.schedules import learning_rate

        return learning_rate(self.config, progress)

    def adjust(self, groups: Any, progress: Progress) -> None:
        from runner_dinocell.optim import adjust

        adjust(groups, self.config, progress)

    def after_step(self, model: Any, progress: Progress) -> None:
        from runner_dinocell import schedules, teacher

        teacher.follow(model.teacher, model.student, schedules.momentum(self.config, progress))

    def shard_units(self, model: Any) -> Sequence[Any]:
        from runner_dinocell.network import shard_units

        return shard_units(model)

    def infer(self, model: Any, batch: Tensors) -> Tensors:
        return {"embedding": model.embed(batch["image"])}

    def metrics(self) -> Sequence[Metric]:
        from runner_dinocell.rank import RankMe

        return (RankMe(),)

    def plain_metrics(self, prediction: Any, batch: Arrays) -> Mapping[str, float]:
        from runner_dinocell.rank import rank_me

        return {"rank": rank_me(prediction)}

    def snapshots(self, model: Any, batch: Tensors) -> Mapping[str, Array]:
        """What the CLS token looks at in four windows."""
        from runner_dinocell.attention import attention_maps
        from runner_dinocell.snapshot import snapshot

        maps = attention_maps(model, batch["image"])
        return {"attention": snapshot(batch["image"].cpu().numpy(), maps.cpu().numpy(), self._channels)}

    # ------------------------------------------------------------ whole fields

    def predict(self, record: Record, infer: Infer) -> Embedded:
        """Embeddings of windows that cover the field."""
        settings = self.config.predict
        size = self.config.validate.batch_size or self.config.train.batch_size
        return embed(self._prepared(record), infer, side(self.config), settings.stride, size, record.key)

    def _prepared(self, record: Record) -> Arrays:
        """As it was for training. The last one is kept: the network, the one before training and the baseline each ask
        for a record in turn."""
        if self._last is None or self._last[0] is not record:
            self._last = record, self.prepare(self.pipeline.decode_cropped(record)[0])
        return self._last[1]

    def baseline(self, record: Record, statistics: Statistics) -> Array:
        """Statistics of the field's pixels."""
        prepared = self._prepared(record)
        return pixelstats.describe(prepared["image"], statistics.get("levels", prepared["levels"]))

    def scored(self, sides: Mapping[str, Sequence[AnyRecord]]) -> Sequence[AnyRecord]:
        """Of training and validation `predict.fields` each at most: those that were trained on teach the probe."""
        most = self.config.predict.fields
        return [record for side in ("train", "validation") for record in judgement.chosen(sides.get(side, ()), most)]

    def judge(self, predicted: Sequence[Predicted]) -> Judgement | None:
        return judgement.judge(predicted, self.config.predict.neighbours)

    def write(self, record: Record, prediction: Embedded, out: Path) -> Sequence[Path]:
        assert isinstance(record, fields.Field)
        return outputs.write(outputs.rows(record, prediction, self.config.predict.unit, self._made()), record.key, out)

    def _made(self) -> Mapping[str, Json]:
        """How embeddings were made, for the table's metadata."""
        return {
            "channels": list(self._channels),
            "window": side(self.config),
            "stride": self.config.predict.stride,
            "percentiles": list(self.config.data.percentiles),
            "scale": self.config.data.scale,
        }

    def collect(self, written: Sequence[Path], out: Path) -> Sequence[Path]:
        """One table of all fields."""
        return outputs.collect(written, out)

    def check(self, record: Record) -> Sequence[Finding]:
        return list(checks.findings(record, self.config.data.window))

    def check_set(self, records: Sequence[AnyRecord]) -> Sequence[Finding]:
        return [*(Finding("names", "warning", text) for text in self._left_out), *checks.set_findings(records)]

    def export(self, model: Any, folder: Path, statistics: Statistics) -> Sequence[Path]:
        from runner_dinocell.export import export

        return export(model, folder, self.config, self._channels, statistics.get("levels"))

    # ------------------------------------------------------------ phantom

    def phantom(self, folder: Path, rng: np.random.Generator) -> None:
        from runner_dinocell.phantom import write_phantom

        write_phantom(folder, rng)


def _in_full(manifest: str | None) -> str | None:
    """A manifest on this machine by its whole path: a run may be used from another folder."""
    place = location(manifest) if manifest else None
    return str(place.absolute()) if isinstance(place, Path) else manifest
