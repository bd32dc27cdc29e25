"""Keep the state of a training in checkpoints, and take it up again if settings and records are the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import xxhash

from runner_core.base.background import Background
from runner_core.base.calling import runner
from runner_core.base.errors import BadInput, NotSaved, OutOfSpace, RunnerError
from runner_core.config import RunConfig
from runner_core.config.values import flat, removed
from runner_core.contract import Json
from runner_core.contract.project import Project
from runner_core.contract.run import DividedFormat
from runner_core.contract.setup import SHARDED, Data
from runner_core.contract.team import ALONE
from runner_core.data.blocks import Chosen
from runner_core.engines.energy import EnergyMeter
from runner_core.engines.schedule import independent_of_length
from runner_core.output.sinks import Sinks
from runner_core.training.assembly import Parts
from runner_core.training.cadence import Cadence
from runner_core.training.checkpoints import Checkpoints, refuse_nan, refuse_unshared
from runner_core.training.snapshots import first_samples
from runner_core.training.timing import Timing

FREE_SECTIONS = ("cache", "remote", "validate", "checkpoint", "health", "log", "predict")
FREE_SETTINGS = (
    "train.epochs",  # see `refuse_other_length`
    "train.workers",
    "train.prefetch",
    "train.patience",
    "train.device",
    "train.devices",  # see `fingerprint`
    "train.patience_seconds",
    "train.strategy",
    "train.threads",
    "train.deterministic",
    "train.compile",
    "train.channels_last",
    "train.kernels",
    "exchange.gradients",
    "exchange.unused",
    "exchange.shard_devices",
    "exchange.features",
    "precision.mode",  # what it comes to is compared: "computing in"
)

_NAMES = {
    "train.batch_size": "train.batch_size times train.devices",
    "computing in": "computing in (set precision.mode to the run's)",
}


def fingerprint(config: RunConfig, data: Data, precision: str) -> dict[str, Json]:
    """Return what a continued run must share with its start.

    These are the settings by dotted name, the dtype that layers compute in, and digests of each split's records and of
    the data: the records' content and their preparation. The batch size is counted over all devices. Extensions may be
    switched off, so their settings are not among them.
    """
    free = (*FREE_SECTIONS, *config.extensions)
    settings = {
        name: value
        for name, value in flat(config).items()
        if name.partition(".")[0] not in free and name not in FREE_SETTINGS
    }
    if config.train.schedule != "wsd":
        del settings["train.decay"]
    settings["train.batch_size"] = config.train.batch_size * config.train.devices
    settings["validate.records"] = config.validate.records  # they choose the best checkpoint
    records = {f"records of {split}": _digest(data, numbers) for split, numbers in data.splits.items()}
    return settings | {"computing in": precision} | records | {"data and its preparation": data.store.identity}


def refuse_other_settings(
    saved: Mapping[str, Json], now: Mapping[str, Json], defaults: Mapping[str, Json] | None = None
) -> None:
    """Raise BadInput that lists every difference, except settings that no project has any more.

    A setting that came after the run was started may have its default: `defaults` holds those of all settings.
    """
    known = defaults or {}
    added = {name for name in now if name not in saved and name in known and now[name] == known[name]}
    gone = {*removed(now), *FREE_SETTINGS, *added}
    changed = [
        f"  - {_NAMES.get(name, name)}: {_shown(saved, name)} in the run, {_shown(now, name)} now"
        for name in [*saved, *(n for n in now if n not in saved)]
        if saved.get(name) != now.get(name) and name not in gone
    ]
    if changed:
        raise BadInput(
            "the run cannot continue with settings or data other than those it was started with:\n"
            + "\n".join(changed)
            + "\nresume it as it was, or start a new run (`train --from RUN` begins with this run's weights)"
        )


def refuse_other_length(saved: Mapping[str, int], cadence: Cadence, project: Project, step: int) -> None:
    """Raise BadInput if the run's length has changed in a way that changes its training.

    `saved` holds steps_per_epoch and epochs of the checkpoint. More epochs are fine if the learning rate does not
    depend on them: past the warm-up, and constant or before the decay of wsd.
    """
    if saved["steps_per_epoch"] != cadence.steps_per_epoch:
        raise BadInput(
            f"the run's epochs have {saved['steps_per_epoch']} steps, now they would have {cadence.steps_per_epoch}: "
            "the number of samples or train.steps_per_epoch changed; start a new run"
        )
    if step > saved["epochs"] * saved["steps_per_epoch"]:
        raise BadInput(f"the checkpoint belongs to step {step:,}, which this run does not have, so it was changed")
    if saved["epochs"] == cadence.epochs:
        return
    lengths = [epochs * cadence.steps_per_epoch for epochs in (saved["epochs"], cadence.epochs)]
    own = project.learning().schedule is not None
    if own or step > cadence.steps or not independent_of_length(project.config.train, step, lengths):
        raise BadInput(
            f"train.epochs was {saved['epochs']} in the run and is {cadence.epochs} now. You may only add epochs, and "
            "only where the learning rate does not depend on them (train.schedule constant, or wsd before its decay; "
            "after the warm-up; no schedule of the project's own). Resume with its own epochs, or start a new run "
            f"from its weights: {runner()} {project.name} train --from RUN --train.epochs N"
        )


def _digest(data: Data, numbers: Sequence[int]) -> str:
    digest, between, keys = xxhash.xxh3_64(), "", iter(Chosen(data.store.keys, numbers))
    while some := list(islice(keys, 1 << 12)):
        digest.update((between + "\n".join(some)).encode(errors="backslashreplace"))
        between = "\n"
    return digest.hexdigest()


def _shown(settings: Mapping[str, Json], name: str) -> str:
    return repr(settings[name]) if name in settings else "unset"


def other_plugins(saved: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return notes about plugins that differ from those of the training."""
    return [
        f"NOTE: plugin {name} was {saved.get(name, 'not there')} when the checkpoint was written and is "
        f"{now.get(name, 'not there')} now"
        for name in sorted({*saved, *now})
        if saved.get(name) != now.get(name)
    ]


RECALLED = 4
"""Largest number of validation samples on which a saved network is compared; no more than a validation batch."""


@dataclass
class LoopState:
    """The state of a run, stored as JSON in every checkpoint.

    `validations` holds the facts of all past validations. Health rules replay them after a resume.
    """

    step: int = 0
    validated: int = 0
    best: dict[str, Any] | None = None
    """The step, value (of the monitored metric) and metrics of the best validation."""
    without_progress: int = 0
    precision_seen: dict[str, int] | None = None
    validations: list[dict[str, Any]] = field(default_factory=list)
    gradient_norms: dict[str, list[float]] = field(default_factory=dict)
    """Gradient norms of loss terms since the last validation: their number and the largest."""
    memories: dict[str, dict[str, Json]] = field(default_factory=dict)
    """State of the health rules, by rule name."""
    bad: int = 0
    """Number of samples taken from another record because their own could not be fetched."""
    findings: list[dict[str, Any]] = field(default_factory=list)
    """Findings of the health rules, for the summary."""

    def json(self) -> dict[str, Json]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Json]) -> LoopState:
        """Return the state of a checkpoint; before 0.1.0, `gradient_norms` was called `pulls`."""
        return cls(**{"gradient_norms" if name == "pulls" else name: value for name, value in values.items()})

    def add_gradient_norms(self, norms: Mapping[str, Sequence[float]]) -> None:
        """Add how often each term's gradient was measured, and the largest norm."""
        for name, (count, largest) in norms.items():
            before, other = self.gradient_norms.get(name, (0, 0.0))
            self.gradient_norms[name] = [before + count, max(other, largest)]


_PATIENCE = 30.0
"""Seconds for a checkpoint to which other processes add their parts, when the training ends with an error."""


class Keeper:
    """Saves the state of a run into checkpoints below `folder`, and restores it from them.

    `begun` is when this process started the run (monotonic clock); `say` receives messages as plain text.

    Raises BadInput if processes that train together see different settings or data.
    """

    def __init__(self, parts: Parts, folder: Path, sinks: Sinks, say: Callable[[str], None], begun: float) -> None:
        setup, data = parts.setup, parts.data
        self._parts, self._team, self._sinks = parts, setup.team, sinks
        self._begun, self._seconds_before, self._energy = begun, 0.0, EnergyMeter(setup.device)
        self.versions = setup.engine.versions()
        self.checkpoints = Checkpoints(
            folder,
            setup.checkpoint_format,
            project=setup.name,
            keep=setup.config.checkpoint.keep,
            plugins=setup.plugins.versions,
            versions=self.versions,
            say=say,
        )
        self.checkpoints.kept_before = parts.cadence.before_decay
        self._background = Background("checkpoint")
        self._divided = parts.trainer.strategy in SHARDED and isinstance(setup.checkpoint_format, DividedFormat)
        if self._divided:
            refuse_unshared(folder, self._team)
        self._exchange = self._team.aside() if self._divided else ALONE
        self._fingerprint = fingerprint(setup.config, data, setup.precision.compute)
        if setup.start is not None:
            self._fingerprint["weights at the start"] = setup.start.digest
        if any(other != self._fingerprint for other in self._team.every(self._fingerprint)):
            raise BadInput("the processes of this training do not all see the same settings and data: check --data")
        # without health rules nobody asks, and of several processes each may hold a part of the network
        self.recalls = (
            setup.config.health.mode != "off" and self._team.count == 1 and parts.loaders.validation is not None
        )
        """True if `recalled` may be called."""

    def seconds(self) -> float:
        """Return the seconds of the run until now, those before a resume included."""
        return self._seconds_before + time.monotonic() - self._begun

    def energy(self) -> dict[str, Json]:
        """Return the energy of the run until now (kWh), how it is known, and its cost if a price is set.

        Other processes are taken to need as much as this one, and its other GPUs as much as the first.
        """
        taken, price = self._energy.taken(), self._parts.setup.config.log.price_per_kwh
        kwh = (taken.total + (self._team.devices - 1) * taken.kwh.get("gpu", 0.0)) * self._team.count
        several = {} if self._team.count == 1 else {"processes": f"estimated ({self._team.count} times the first one)"}
        if self._team.devices > 1 and "gpu" in taken.kwh:
            several["gpus"] = f"estimated ({self._team.devices} times the first one)"
        cost = {} if price is None else {"price_per_kwh": price, "cost": kwh * price}
        return {"kwh": kwh, "how": {**taken.how, **several}, **cost}

    def save(self, state: LoopState, timing: Timing, best: bool) -> None:
        """Log the checkpoint, then write it, or begin to: `settle` says whether it was written.

        A kill in between leaves a log line that a resume drops. The other order would lose a line.
        """
        trainer, cadence = self._parts.trainer, self._parts.cadence
        waits = not self._parts.setup.config.checkpoint.background or not hasattr(trainer, "hold")
        saved = trainer.state() if waits and not self._divided else trainer.hold(self._divided)
        metric = None if not state.best else state.best["value"]
        epoch = state.step // cadence.steps_per_epoch
        saved.values["loop"] = state.json()
        saved.values["length"] = {"steps_per_epoch": cadence.steps_per_epoch, "epochs": cadence.epochs}
        saved.values["settings"] = self._fingerprint
        energy = dict(self._energy.taken().kwh)
        saved.values["timing"] = {**asdict(timing), "wall_seconds": self.seconds(), "kwh": energy}
        self._sinks.event("checkpoint", state.step, {"epoch": epoch, "best": best, "validated": state.validated})
        if self._team.first or self._divided:
            self._background.begin(
                partial(self.checkpoints.save, saved, state.step, epoch, metric, best, self._exchange)
            )
            if waits:
                self._background.join()

    def settle(self) -> None:
        """Wait until the checkpoint is written. Raises NotSaved in all processes if it could not be."""
        why = None
        try:
            self._background.wait()
        except (OutOfSpace, NotSaved) as error:
            why = str(error)
        if (why := self._team.share(why)) is not None:
            raise NotSaved(why)

    def close(self) -> None:
        """Wait for a checkpoint that is being written, but not for ever for other processes, which may be gone."""
        with suppress(RunnerError):
            self._background.wait(None if self._team.count == 1 else _PATIENCE)

    def restore(self, path: Path) -> tuple[LoopState, Timing]:
        """Give the trainer the state of a checkpoint; return the loop's.

        Raises BadInput for a run of other settings, data or length.
        """
        verified = not self._team.first  # by the first one, which found it
        saved = self.checkpoints.load(path, rows=self._parts.trainer.strategy in SHARDED, verified=verified)
        refuse_nan(saved, path)
        defaults = flat(type(self._parts.setup.config)())
        refuse_other_settings(saved.values["settings"], self._fingerprint, defaults)
        state = LoopState.from_json(saved.values["loop"])
        refuse_other_length(saved.values["length"], self._parts.cadence, self._parts.setup.project, state.step)
        self._parts.trainer.load_state(saved)
        timing = dict(saved.values["timing"])
        self._seconds_before, self._energy.before = timing.pop("wall_seconds"), timing.pop("kwh", {})
        return state, Timing(**timing)

    def recalled(self, step: int) -> dict[str, Any] | None:
        """Compare the saved network of `step` with the one in training; return facts for health rules."""
        setup, samples = self._parts.setup, self._parts.data.samples["validation"]
        config = setup.config
        apart = copy(setup)
        apart.project = copy(setup.project)  # loading sets its statistics to the checkpoint's
        count = min(RECALLED, config.validate.batch_size or config.train.batch_size)
        arrays = first_samples(samples, count, config.train.seed)
        try:
            return self._parts.trainer.recalled(apart, self.checkpoints.load(self.checkpoints.of(step)), arrays)
        except BadInput as error:
            return {"refused": str(error)}
