"""Compute the first step of a training as it is trained and by plain operations, and find what disagrees where."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from runner_core.config.values import overlay_named
from runner_core.contract import Arrays, Json, is_streamed
from runner_core.contract.kernels import Disagreement, Observed, Updated, Way
from runner_core.contract.setup import Data, Setup
from runner_core.data.loader import Loader
from runner_core.engines.kernels import EPS, blamed_layer, ratios, wrong_updates
from runner_core.engines.memory import micro_batch
from runner_core.training.kernels.options import Option
from runner_core.training.kernels.verdict import Verdict

_FEW = 2
"""Samples on a CPU, where nothing is compiled for the batch's shape: more would only take longer."""
_ROUNDED = 2
"""Number of times that the step is computed with rounding."""
_REPEATED = 2
"""Number of times that a tensor must disagree again, each time with other weights. Rounding may carry one number across
the kink of a ReLU or an absolute value: its gradient then changes at once, and by chance. A wrong kernel is wrong each
time."""
_NAMED = 3
"""Number of disagreements that a message names."""


class Proof:
    """Computes the first step of a training under several settings, and compares each with plain float32."""

    def __init__(self, setup: Setup, data: Data, used: Sequence[Option]) -> None:
        self.setup, self.used = setup, used
        samples = setup.project.samples(data.store, data.used("train"), "train")
        self.data = replace(data, samples={"train": samples})
        self._off = {name: value for option in used for name, value in option.off.items()}
        self._compiles = any("train.compile" in option.off for option in used)
        self._arrays = first_batch(setup, self.data, None if self._compiles or setup.device.kind != "cpu" else _FEW)
        self._plainly: dict[tuple[int, bool], Observed] = {}
        self._rounded: dict[tuple[str, int, bool], list[Observed]] = {}
        self._trainers: dict[str, Any] = {}
        self._own = _named({})
        """Name of the settings that are compared with plain float32."""
        self._keeps_all = setup.device.kind == "cpu"
        """Whether all networks stay, so that nothing is compiled again; elsewhere two: memory may hold no more."""
        self.compared, self.margin = 0, 0.0
        """Tensors compared, and the largest error as a share of its bound, of the run's own settings."""

    def wrong(self, settings: Mapping[str, Json], layers: bool = False) -> list[Disagreement]:
        """Return what disagrees in the step under the run's settings with `settings` over them; [] if nothing does."""
        compute = self._setup(settings).precision.compute
        wrong, gradients = self._wrong_step(settings, compute, layers)
        if not wrong:
            updated = self._update(settings, gradients)
            right = self._update(self._off, gradients, updated.before)
            wrong = wrong_updates(right, updated, self.setup.config.train.ema or 0.0)
        if not wrong and compute != "float32" and any(option.opaque for option in self._left(settings)):
            # steps that round to 16 bits are compared less sharply: the same kernels in float32 show more
            wrong, _ = self._wrong_step({**settings, "precision.mode": "float32"}, "float32", layers, shadow=False)
        return wrong

    def _wrong_step(
        self, settings: Mapping[str, Json], compute: str, layers: bool, shadow: bool = True
    ) -> tuple[list[Disagreement], Arrays]:
        """Return what disagrees in gradients and before, and the gradients."""
        self._own = _named(settings)
        if self._own not in self._trainers and any("train.compile" in option.off for option in self._left(settings)):
            self._observe(settings, Way(weights=_REPEATED + 1))  # compiled code that captured these is wrong below
        found = self._observe(settings, Way(shadow=shadow, layers=layers))
        judged = self._judged(found, compute, layers)
        for number in range(1, _REPEATED + 1):
            if found.wrong or not any(1 < ratio < math.inf for _, ratio in judged):
                break
            other = self._observe(settings, Way(layers=layers, weights=number))
            again = {(one.kind, one.name): ratio for one, ratio in self._judged(other, compute, layers, number)}
            judged = [(one, min(ratio, again.get((one.kind, one.name), ratio))) for one, ratio in judged]
        self.compared += len(judged)
        self.margin = max([self.margin, *(ratio for _, ratio in judged)])
        wrong = sorted((one for one, ratio in judged if ratio > 1), key=lambda one: -one.times)
        return found.wrong + wrong, found.gradients

    def _judged(
        self, found: Observed, compute: str, layers: bool, weights: int = 0
    ) -> list[tuple[Disagreement, float]]:
        plain, noisy = self._plain(weights, layers), self._noise(compute, weights, layers)
        return [*ratios(plain, noisy, found, EPS[compute])]

    def blame(self, found: Verdict, wrong: Sequence[Disagreement]) -> None:
        """Say in `found` what is wrong where, and without which options it is right."""
        found.wrong = [one.text for one in wrong[:_NAMED]]
        switches = [option for option in self.used if option.off]
        blamed = next(([option] for option in switches if not self.wrong(option.off)), [])
        if not blamed and len(switches) > 1 and not self.wrong(self._off):
            blamed = switches  # several are wrong, each by itself
        found.blamed = [option.name for option in blamed or self.used if bool(option.off) == bool(blamed)]
        found.off = {name: value for option in blamed for name, value in option.off.items()}
        operations = [one for one in wrong if one.kind == "operation"]
        if operations:
            found.layer = operations[0].name
        else:
            found.layer = blamed_layer(self._plain(), wrong if self._compiles else self.wrong({}, layers=True) or wrong)

    def _plain(self, weights: int = 0, layers: bool = False) -> Observed:
        """Return the step as plain operations compute it in float32."""
        if (key := (weights, layers)) not in self._plainly:
            self._plainly[key] = self._observe(self._off, Way(plain=True, layers=layers, weights=weights))
        return self._plainly[key]

    def _noise(self, compute: str, weights: int, layers: bool) -> list[Observed]:
        """Return the plain step with the rounding of a dtype, several times."""
        if (key := (compute, weights, layers)) not in self._rounded:
            own = {name: value for name, value in self._off.items() if name != "precision.mode" or compute == "float32"}
            ways = [Way(plain=True, rounding=number, layers=layers, weights=weights) for number in range(_ROUNDED)]
            self._rounded[key] = [self._observe(own, way) for way in ways]
        return self._rounded[key]

    def _left(self, settings: Mapping[str, Json]) -> list[Option]:
        """Return the options that `settings` do not switch off."""
        return [o for o in self.used if o.off and not all(settings.get(n) == v for n, v in o.off.items())]

    def _setup(self, settings: Mapping[str, Json]) -> Setup:
        config = overlay_named(self.setup.config, settings, "the settings that are compared")
        project = type(self.setup.project)(config)
        return Setup(project, config, self.setup.preset, self.setup.source, self.setup.plugins, start=self.setup.start)

    def _observe(self, settings: Mapping[str, Json], way: Way) -> Observed:
        found: Observed = self._trainer(settings).observe(self._arrays, way)
        return found

    def _update(self, settings: Mapping[str, Json], gradients: Arrays, before: Arrays | None = None) -> Updated:
        """Return the weights after some updates; the trainer that made them is not used again."""
        trainer = self._trainer(settings)
        del self._trainers[_named(settings)]
        updated: Updated = trainer.update(gradients, before)
        return updated

    def _trainer(self, settings: Mapping[str, Json]) -> Any:
        """Return the trainer for some settings; what it has compiled serves for other weights, too."""
        if (trainer := self._trainers.get(_named(settings))) is None:
            if not self._keeps_all:
                self._trainers = {name: one for name, one in self._trainers.items() if name == self._own}
            setup = self._setup(settings)
            setup.project.statistics = self.data.statistics
            trainer = self._trainers[_named(settings)] = setup.engine.trainer(setup, replace(self.data), 100)
        return trainer


def _named(settings: Mapping[str, Json]) -> str:
    return json.dumps(dict(settings), sort_keys=True)


def first_batch(setup: Setup, data: Data, most: int | None) -> Arrays:
    """Return the training's first micro-batch, or its first `most` samples; of streamed data it fetches their records.

    The training finds those on the disk, and nothing else of this: no thread, counter or replaced record.
    """
    train = setup.config.train
    size = min(train.batch_size, len(data.samples["train"]))
    size = min(size, micro_batch(setup.project, train))
    loader = Loader(
        data.samples["train"],
        batch_size=size if most is None else min(size, most),
        steps_per_epoch=1,
        seed=train.seed,
        shuffle=True,
        prefetch=0,
        augment=setup.project.learning().augment,
        allocate=np.empty,
    )
    try:
        batch = next(iter(loader.batches(0)))
        return {name: array.copy() for name, array in batch.arrays.items()}
    finally:
        loader.close()
        if is_streamed(data.store):
            data.store.counters()
            data.store.close()
