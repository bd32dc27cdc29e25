"""Prove before the first step that the kernels which will train compute what plain operations compute.

The training's own network takes its own first batch, forward and backward, as it will be trained, and once more by
plain operations in float32 (`engines.kernels` compares). What disagrees is found out by switching one option off at a
time. The networks are made for this alone, so nothing of it reaches the training. The result is remembered in the cache
folder for the same network, options, versions and device.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from runner_core.base.writing import replace_json
from runner_core.config.values import flat, overlay_named, plain
from runner_core.contract import Arrays, Finding, Json, is_streamed
from runner_core.contract.kernels import Disagreement, Observed, Way
from runner_core.contract.setup import Data, Setup
from runner_core.data.cache.folder import cache_root
from runner_core.data.cache.identity import digest_json
from runner_core.data.loader import Loader
from runner_core.engines.kernels import EPS, blamed_layer, ratios, wrong_updates
from runner_core.engines.memory import micro_batch

RULE = "kernels"
_FEW = 2
"""Samples on a CPU, where nothing is compiled for the batch's shape: more would only take longer."""
_ROUNDED = 2
"""How often the step is computed with rounding."""
_NAMED = 3
"""Number of disagreements that a message names."""
_LIBRARIES = ("numba", "triton", "mamba-ssm", "causal-conv1d", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
_SEEN = ("batch_size", "accumulate", "optimizer", "clip", "ema", "deterministic", "device", "threads", "compile",
         "channels_last", "steps_per_execution")  # fmt: skip
"""Settings of `train` that choose kernels; the learning rate and the seed do not."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Option:
    """Something beyond plain eager float32, and the settings that do without it; {} if none can."""

    name: str
    off: Mapping[str, Json]
    opaque: bool = False
    """True if its single operations cannot be seen, so that only whole steps can be compared."""


@dataclass
class Verdict:
    """What was found about the kernels of a training.

    `status`: unused (plain float32, or not asked for), right, wrong, or unchecked (`note` says why).
    """

    status: str = "unused"
    options: list[str] = field(default_factory=list)
    blamed: list[str] = field(default_factory=list)
    """Options without which the step is right."""
    layer: str = ""
    wrong: list[str] = field(default_factory=list)
    """The largest disagreements."""
    off: dict[str, Json] = field(default_factory=dict)
    """Settings that do without what is wrong; {} if no setting can."""
    versions: dict[str, str] = field(default_factory=dict)
    note: str = ""
    compared: int = 0
    """Tensors that were compared."""
    margin: float = 0.0
    """Largest error, as a share of what rounding explains."""
    seconds: float = 0.0
    remembered: bool = False
    switched: bool = False
    """True if the training goes on with `off`."""

    @property
    def text(self) -> str:
        used = ", ".join(self.options)
        if self.status == "right":
            once = "as found before" if self.remembered else f"{self.seconds:.0f} s"
            return f"kernels: the step's gradients agree with plain float32 ({used}; {once})"
        if self.status == "unchecked":
            return f"kernels: not compared with plain float32 ({used}): {self.note}"
        versions = ", ".join(f"{name} {found}" for name, found in self.versions.items() if "threads" not in name)
        culprit = " and ".join(self.blamed) or "a kernel of the framework"
        told = f"{culprit} computes {self.layer or 'the step'} wrongly ({'; '.join(self.wrong)}; {versions})"
        if self.switched:
            return f"{told}. Switched off for this run: {_listed(self.off)}"
        if self.off:
            return f"{told}. Switch it off: {_listed(self.off)}"
        return f"{told}. No setting does without it: install another version"

    def findings(self) -> Iterator[Finding]:
        """Yield what a run says of it."""
        if self.status == "wrong":
            yield Finding(RULE, "warning", self.text)


def _listed(settings: Mapping[str, Json]) -> str:
    return ", ".join(
        f"{name} {str(value).lower() if isinstance(value, bool) else value}" for name, value in settings.items()
    )


# ---------------------------------------------------------------- what a training uses


def options(setup: Setup) -> list[Option]:
    """Return what this training computes with besides plain eager float32."""
    train, gpu = setup.config.train, setup.device.kind != "cpu"
    torch = setup.project.framework == "torch"
    found = []
    if train.compile == "on" or (train.compile == "auto" and gpu and not torch):
        found.append(Option(f"train.compile ({'inductor' if torch else 'XLA'})", {"train.compile": "off"}, opaque=True))
    if torch and train.channels_last == "on":
        found.append(Option("train.channels_last", {"train.channels_last": "off"}))
    now = flat(setup.config)
    for own in setup.project.learning().optimisations:
        if own.plain and any(now.get(name) != plain(value) for name, value in own.plain.items()):
            used = _listed({name: now.get(name) for name in own.plain})
            found.append(Option(f"{setup.name}'s {own.name} ({used})", own.plain, opaque=True))
    if setup.precision.compute != "float32":  # the last: it costs most to do without
        found.append(Option(f"precision {setup.precision.compute}", {"precision.mode": "float32"}))
    if gpu:
        found.append(Option("cuDNN and cuBLAS", {}))
    return found


def prove(setup: Setup, data: Data, say: Say) -> Verdict:
    """Compare the training's kernels before its first step, as `train.kernels` says; called by every process.

    If something is wrong and can be switched off, `check` changes the settings of `setup` in place. What no setting
    does without is a warning: a comparison that is too strict must not keep anybody from training.
    """
    mode = setup.config.train.kernels
    if mode == "off":
        return Verdict()
    team = setup.team
    found = Verdict(**team.share(asdict(_found(setup, data, say)) if team.first else None))
    if found.status == "wrong" and found.off and mode == "check":
        switch_off(setup, found.off)
        found.switched = True
    if found.status != "unused" and team.first:
        say(f"{found.text} (train.kernels warn: train with it)" if found.switched else found.text)
    return found


def _found(setup: Setup, data: Data, say: Say) -> Verdict:
    used = options(setup)
    if not used:
        return Verdict()
    names = [option.name for option in used]
    if (known := remembered(setup, data)) is not None:
        return known
    if setup.team.count > 1:
        note = f"`runner {setup.name} verify-kernels` compares them on one device; the result is remembered"
        return Verdict("unchecked", names, note=note)
    say(f"comparing kernels with plain float32: {', '.join(names)}")
    return verify(setup, data, used)


def switch_off(setup: Setup, off: Mapping[str, Json]) -> None:
    """Change settings in place: the project, the engine and the run hold this very object."""
    for name, value in off.items():
        *sections, last = name.split(".")
        place: Any = setup.config
        for section in sections:
            place = getattr(place, section)
        setattr(place, last, value)
    setup.__dict__.pop("precision", None)


# ---------------------------------------------------------------- the comparison


def verify(setup: Setup, data: Data, used: Sequence[Option] | None = None) -> Verdict:
    """Compare the step that `setup` trains with plain float32, and remember the result."""
    begun, used = time.monotonic(), options(setup) if used is None else used
    found = Verdict("right", [option.name for option in used], versions=_versions(setup))
    try:
        proof = Proof(setup, data, used)
        wrong = proof.wrong({})
        found.compared, found.margin = proof.compared, proof.margin
        if wrong:
            found.status = "wrong"
            proof.blame(found, wrong)
    except Exception as error:  # whatever fails here must not stop a training that may be right
        first = (str(error).strip().splitlines() or ["no reason given"])[0]
        found.status, found.note = "unchecked", f"{type(error).__name__}: {first}"
    found.seconds = time.monotonic() - begun
    if found.status != "unchecked":
        with suppress(OSError):
            file = _file(setup, data)
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_json(file, asdict(found))
    return found


class Proof:
    """Computes the first step of a training under several settings, and compares each with plain float32."""

    def __init__(self, setup: Setup, data: Data, used: Sequence[Option]) -> None:
        self.setup, self.used = setup, used
        samples = setup.project.samples(data.store, data.used("train"), "train")
        self.data = replace(data, samples={"train": samples})
        self._off = {name: value for option in used for name, value in option.off.items()}
        self._compiles = any("train.compile" in option.off for option in used)
        self._arrays = first_batch(setup, self.data, None if self._compiles or setup.device.kind != "cpu" else _FEW)
        self._rounded: dict[str, list[Observed]] = {}
        self.compared, self.margin = 0, 0.0
        """Tensors compared, and the largest error as a share of its bound, of the run's own settings."""

    def wrong(self, settings: Mapping[str, Json], layers: bool = False) -> list[Disagreement]:
        """Return what disagrees in the step under the run's settings with `settings` over them; [] if nothing does."""
        compute = self._setup(settings).precision.compute
        trainer = self._trainer(settings)
        found = trainer.observe(self._arrays, Way(shadow=True, layers=layers))
        judged = [*ratios(self.reference, self._noise(compute), found, EPS[compute])]
        wrong = found.wrong + sorted((one for one, ratio in judged if ratio > 1), key=lambda one: -one.times)
        self.compared += len(judged)
        self.margin = max([self.margin, *(ratio for _, ratio in judged)])
        if not wrong:
            updated, plain_one = trainer.update(found.gradients), self._trainer(self._off)
            plain_one.observe(self._arrays, Way(plain=True))
            right = plain_one.update(found.gradients, updated.before)
            wrong = wrong_updates(right, updated, self.setup.config.train.ema or 0.0)
        if not wrong and compute != "float32" and any(option.opaque for option in self._left(settings)):
            # steps that round to 16 bits are compared less sharply: the same kernels in float32 show more
            return self.wrong({**settings, "precision.mode": "float32"}, layers)
        return wrong

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
            found.layer = blamed_layer(
                self.reference, wrong if self._compiles else self.wrong({}, layers=True) or wrong
            )

    @cached_property
    def reference(self) -> Observed:
        """The step as plain operations compute it in float32, with the output of each layer."""
        return self._trainer(self._off).observe(self._arrays, Way(plain=True, layers=not self._compiles))

    def _noise(self, compute: str) -> list[Observed]:
        """Return the plain step with the rounding of a dtype, several times."""
        if compute not in self._rounded:
            own = {name: value for name, value in self._off.items() if name != "precision.mode" or compute == "float32"}
            ways = [Way(plain=True, rounding=number, layers=not self._compiles) for number in range(_ROUNDED)]
            self._rounded[compute] = [self._trainer(own).observe(self._arrays, way) for way in ways]
        return self._rounded[compute]

    def _left(self, settings: Mapping[str, Json]) -> list[Option]:
        """Return the options that `settings` do not switch off."""
        return [o for o in self.used if o.off and not all(settings.get(n) == v for n, v in o.off.items())]

    def _setup(self, settings: Mapping[str, Json]) -> Setup:
        config = overlay_named(self.setup.config, settings, "the settings that are compared")
        project = type(self.setup.project)(config)
        return Setup(project, config, self.setup.preset, self.setup.source, self.setup.plugins, start=self.setup.start)

    def _trainer(self, settings: Mapping[str, Json]) -> Any:
        setup = self._setup(settings)
        setup.project.statistics = self.data.statistics
        return setup.engine.trainer(setup, replace(self.data), 100)


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


# ---------------------------------------------------------------- what was found before


def remembered(setup: Setup, data: Data) -> Verdict | None:
    """Return what was found before about the same network, options, versions and device; None if nothing was."""
    with suppress(OSError, ValueError, TypeError):
        return replace(Verdict(**json.loads(_file(setup, data).read_text(encoding="utf-8"))), remembered=True)
    return None


def _file(setup: Setup, data: Data) -> Path:
    train = plain(setup.config.train)
    settings = {name: value for name, value in flat(setup.config).items() if name.split(".")[0] in _sections(setup)}
    own = {
        "project": setup.name,
        "sources": _sources(setup),
        "settings": settings,
        "train": {name: train[name] for name in _SEEN},
        "precision": asdict(setup.precision),
        "options": [option.name for option in options(setup)],
        "versions": _versions(setup),
        "device": [setup.device.kind, setup.device.name],
        "arrays": {name: [str(array.dtype), array.shapes[0]] for name, array in data.store.arrays.items()},
    }
    return (
        cache_root(setup.config.cache.dir) / "kernels" / f"{digest_json(json.loads(json.dumps(own, default=str)))}.json"
    )


def _sections(setup: Setup) -> set[str]:
    """Return the sections of settings that describe the data, the network and the loss."""
    ours = {"cache", "remote", "train", "validate", "checkpoint", "health", "log", "predict"}
    return {name.split(".")[0] for name in flat(setup.config)} - ours - set(setup.config.extensions)


def _sources(setup: Setup) -> Json:
    """Return a digest of the files of the project's package, where the network is written."""
    package = sys.modules[type(setup.project).__module__.partition(".")[0]]
    if (written := getattr(package, "__file__", None)) is None:  # in a notebook
        raise OSError(f"{package.__name__} has no file: what its network is cannot be remembered")
    place = Path(written)
    files = sorted(place.parent.rglob("*.py")) if place.name == "__init__.py" else [place]
    return digest_json({str(file.relative_to(place.parent)): file.read_bytes().hex() for file in files})


def _versions(setup: Setup) -> dict[str, str]:
    found = dict(setup.engine.versions())
    for name in ("runner-core", *_LIBRARIES):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
