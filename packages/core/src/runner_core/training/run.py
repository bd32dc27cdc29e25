"""One training run: loaders, the engine's trainer, checkpoints, health and signals around the loop."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from copy import copy
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from runner_core.base.errors import BadInput, NotSaved, OutOfSpace, Stopped, Unhealthy
from runner_core.base.memory import peak_host_memory
from runner_core.contract import Finding, HealthEvent, Json, State, Trainer, is_streamed
from runner_core.contract.setup import Data, Setup
from runner_core.data.cache.verification import Verification
from runner_core.health import Health, announce
from runner_core.health.reads import leaked_records
from runner_core.output.display import Display
from runner_core.output.runfolder import RunFolder
from runner_core.output.sinks import Sinks
from runner_core.training.cadence import Cadence
from runner_core.training.checkpoints import Checkpoints
from runner_core.training.fetching import BLOCK_FILE, Fetching, combined, kept_block
from runner_core.training.gpu import DeviceUsage
from runner_core.training.loaders import loaders, samples, steps_per_epoch
from runner_core.training.loop import Loop, LoopState
from runner_core.training.memory import MemoryPlan, plan
from runner_core.training.monitor import Monitor
from runner_core.training.restoring import refuse_nan, restoring
from runner_core.training.resume import fingerprint, other_plugins, refuse_other_length, refuse_other_settings
from runner_core.training.signals import Signals
from runner_core.training.snapshots import Snapshots, first_samples
from runner_core.training.team import AgreedSignals
from runner_core.training.timing import Timing

RECALLED = 4
"""Largest number of validation samples on which a saved network is compared; no more than a validation batch."""


def train(
    setup: Setup, data: Data, run_folder: RunFolder, sinks: Sinks, display: Display, resume: bool
) -> dict[str, Any]:
    """Train to the end, or resume from the newest whole checkpoint; return the run's summary.

    Raises Unhealthy and Stopped, each with the summary so far as its attribute `summary`. Raises BadInput if the run
    cannot be continued with these settings, if memory does not suffice, or if the data cannot be used or turn out to be
    damaged.
    """
    run = _Run(setup, data, run_folder, sinks, display)
    with run.signals:
        try:
            run.begin(resume)
            run.verify()
            run.loop.run()
            if damage := run.loop.signals.damage:
                raise BadInput(damage)
        except (Unhealthy, Stopped) as error:
            if run.loop.unsaved:
                error.args = (f"{error}\n{run.checkpoints.kept()}",)
            status = "unhealthy" if isinstance(error, Unhealthy) else "stopped"
            error.summary = run.end(status, str(error))  # type: ignore[union-attr]
            setup.team.leave()
            raise
        finally:
            run.close()
        setup.team.leave()
        return run.end("done", None)


class _Run:
    def __init__(self, setup: Setup, data: Data, folder: RunFolder, sinks: Sinks, display: Display) -> None:
        self.setup, self.data, self.sinks, self.display = setup, data, sinks, display
        self.folder, self.team = folder, setup.team
        self.snapshots: Snapshots | None = None
        self.signals = Signals()
        self.verification: Verification | None = getattr(data.store, "verification", None)
        self.started = time.monotonic()
        for text in _announcements(setup):
            display.say(text)
        if is_streamed(data.store):
            data.store.block = kept_block(folder.path / BLOCK_FILE, data.store.block)
            data.store.begin(folder.path)
        data.samples = samples(setup.project, data)
        config = setup.config
        cadence = Cadence.of(config, steps_per_epoch(config.train, data, self.team.count))
        self.trainer: Trainer = setup.engine.trainer(setup, data, cadence.steps)
        self.cadence = replace(cadence, block=self.trainer.block)
        if self.team.count > 1:
            display.say(f"{self.team.count} processes train together: {self.trainer.strategy}")
        self.memory = self._memory_plan()
        self.loaders = loaders(setup, data, self.trainer.block)
        try:
            self.versions = setup.engine.versions()
            self.checkpoints = Checkpoints(
                folder.checkpoints,
                setup.checkpoint_format,
                project=setup.name,
                keep=config.checkpoint.keep,
                plugins=setup.plugins.versions,
                versions=self.versions,
                say=display.say,
            )
            self.health = Health(setup.health_rules(), config.health.mode, self._report)
            self.fingerprint = fingerprint(config, data, setup.precision.compute)
            if any(other != self.fingerprint for other in self.team.every(self.fingerprint)):
                raise BadInput("the processes of this training do not all see the same settings and data: see --data")
            self.seconds_before = 0.0
            self.watching = DeviceUsage(setup.device)
            self.loop = self._loop(self._drawing())
        except BaseException:
            self.loaders.close()
            raise

    def _memory_plan(self) -> MemoryPlan | None:
        """Show the memory plan in one line; raise OutOfSpace if it does not fit."""
        mode = self.setup.config.health.memory
        if mode == "off":
            return None
        found = plan(self.setup, self.data, trainer=self.trainer, folder=self.folder.path)
        if mode == "refuse":
            found.refuse(self.team)
        for text in (found.line(), *found.remarks()):
            self.display.say(text)
        return found

    def _drawing(self) -> Callable[[int], None] | None:
        """Return a function that draws pictures of a few samples and set their cadence, or None if there are none."""
        project, config = self.setup.project, self.setup.config
        if not project.snapshot_samples:
            return None
        self.cadence = replace(self.cadence, snapshots_every=max(1, config.log.snapshots_every))
        samples, figures = self.data.samples, self.folder.figures
        self.snapshots = Snapshots(project, samples, config.train.seed, figures, self.sinks, self.display.say)
        return partial(self.snapshots.draw, self.trainer)

    def _recalling(self) -> Callable[[int], dict[str, Any] | None] | None:
        """Return a function that compares a saved network with the validated one, or None.

        It is None if health rules are off, or if each process holds a part of the network.
        """
        config = self.setup.config
        if config.health.mode == "off" or self.team.count > 1 or "validation" not in self.data.samples:
            return None
        count = min(RECALLED, config.validate.batch_size or config.train.batch_size)

        def recall(step: int) -> dict[str, Any] | None:
            apart = copy(self.setup)
            apart.project = copy(self.setup.project)  # loading sets its statistics to the checkpoint's
            arrays = first_samples(self.data.samples["validation"], count, config.train.seed)
            try:
                return self.trainer.recalled(apart, self.checkpoints.load(self.checkpoints.of(step)), arrays)
            except BadInput as error:
                return {"refused": str(error)}

        return recall

    def _fetching(self) -> Fetching | None:
        if not is_streamed(self.data.store):
            return None
        setting = self.setup.project.samples_setting
        more = f"more samples of each record ({setting})" if setting else "more samples of each record"
        advice = (
            f"What helps: {more}, room for more records (cache.max_gb), more requests at once (remote.connections), a "
            "faster link; smaller batches do not"
        )
        counters, every = self.loaders.training.counters, self.team.every
        return Fetching(lambda: combined(every(dict(counters()))), self.display.say, advice)

    def _loop(self, draw: Callable[[int], None] | None) -> Loop:
        training, validation = self.loaders.training, self.loaders.validation
        signals = self.signals if self.team.count == 1 else AgreedSignals(self.signals, self.team)
        return Loop(
            trainer=self.trainer,
            cadence=self.cadence,
            batches=lambda epoch, step: signals.between(training.batches(epoch, step)),
            validation=None if validation is None else lambda: signals.between(validation.batches(0)),
            processes=self.team.count,
            monitor=Monitor(*self.setup.project.monitor),
            patience=self.setup.config.train.patience,
            health=self.health,
            draw=draw,
            recall=self._recalling(),
            watching=self.watching,
            precision=self.setup.precision.compute,
            fetching=self._fetching(),
            save=self._save,
            sinks=self.sinks,
            display=self.display,
            signals=signals,
        )

    # ------------------------------------------------------------ beginning and end

    def verify(self) -> None:
        """Go on verifying the cache during training, in the first process of each machine."""
        machines = self.team.every(platform.node())
        if self.verification is not None and machines.index(platform.node()) == self.team.number:
            self.verification.begin(self._stop_for)

    def _stop_for(self, damage: str) -> None:
        self.signals.damaged(
            f"{damage}. This training may have used it, and so may the checkpoints that it saved: start it anew to be "
            "sure, or go on from the newest with --resume"
        )

    def begin(self, resume: bool) -> None:
        """Restore the newest checkpoint if there is one, otherwise log the start."""
        found = self.checkpoints.latest() if resume and self.team.first else None
        path, plugins = self.team.share((None, {}) if found is None else (str(found[0]), found[1].plugins))
        if path is not None:
            # with several processes, an error may only mean that another process is gone
            with restoring(Path(path)) if self.team.count == 1 else nullcontext():
                saved = self.checkpoints.load(Path(path))
                refuse_nan(saved, Path(path))
                self._restore(saved)
            for text in other_plugins(plugins, self.setup.plugins.versions):
                self.display.say(text)
        state = self.loop.state
        best = None if state.best is None else state.best["step"]
        if not self.team.share(not self.team.first or self.checkpoints.start(state.step, best)):
            assert state.best is not None
            self.display.say(f"WARNING: the best checkpoint, of step {state.best['step']}, is gone; it counts no more")
            self.loop.forget_best()
        if self.team.first:
            self.folder.truncate_log(state.step, state.validated)
        if path is None:
            self.sinks.event("start", 0, self._start_line())
            self.loop.begin(self._facts())
        else:
            self.display.say(f"going on from the checkpoint of step {self.loop.state.step}")
        self.display.start(self.cadence.steps, self.loop.state.step, self.setup.name)

    def _facts(self) -> dict[str, Json]:
        """Return facts about the data, for health rules."""
        if self.setup.config.health.mode == "off":
            return {}
        return {"leaked_records": leaked_records(self.data.samples, self.data.splits, self.data.store)}

    def _start_line(self) -> dict[str, Json]:
        return {
            "epoch": 0,
            "steps": self.cadence.steps,
            "steps_per_epoch": self.cadence.steps_per_epoch,
            "samples": {split: len(samples) for split, samples in self.data.samples.items()},
            "precision": self.setup.precision.compute,
            "timing": {"device": asdict(self.setup.device), "versions": self.versions},
        }

    def _restore(self, saved: State) -> None:
        values = saved.values
        refuse_other_settings(values["settings"], self.fingerprint)
        state = LoopState(**values["loop"])
        refuse_other_length(values["length"], self.cadence, self.setup.project, state.step)
        self.trainer.load_state(saved)
        timing = dict(values["timing"])
        self.seconds_before = timing.pop("wall_seconds")
        self.loop.restore(state, Timing(**timing))
        self.health.restore(state.memories, [_validation_event(facts) for facts in state.validations])

    def end(self, status: str, reason: str | None) -> dict[str, Any]:
        """Log the end and return the summary; a training whose end is in no checkpoint has failed."""
        if status == "done" and self.loop.unsaved:
            lost = f"the end of this training is not saved: {self.loop.unsaved}\n{self.checkpoints.kept()}"
            nothing = f"nothing of this training could be kept: {self.loop.unsaved}"
            status, reason = "failed", lost if self.checkpoints.any() else nothing
        summary = self._summary(status, reason)
        self.sinks.event("end", self.loop.state.step, {"epoch": self.loop.epoch, "status": status})
        return summary

    def close(self) -> None:
        self.display.stop()
        if self.verification is not None:
            self.verification.close()
        self.watching.close()
        self.loaders.close()

    # ------------------------------------------------------------ while training

    def _save(self, state: LoopState, best: bool) -> None:
        """Log the checkpoint, then write it.

        A kill in between leaves a log line that a resume drops. The other order would lose a line.
        """
        saved = self.trainer.state()
        metric = None if not state.best else state.best["value"]
        epoch = self.loop.epoch
        saved.values["loop"] = state.json()
        saved.values["length"] = {"steps_per_epoch": self.cadence.steps_per_epoch, "epochs": self.cadence.epochs}
        saved.values["settings"] = self.fingerprint
        saved.values["timing"] = {**asdict(self.loop.timing), "wall_seconds": self._seconds()}
        self.sinks.event("checkpoint", state.step, {"epoch": epoch, "best": best, "validated": state.validated})
        why = None
        if self.team.first:
            try:
                self.checkpoints.save(saved, state.step, epoch, metric, best)
            except (OutOfSpace, NotSaved) as error:
                why = str(error)
        if (why := self.team.share(why)) is not None:
            raise NotSaved(why)

    def _report(self, finding: Finding, step: int, epoch: int) -> None:
        announce(finding, step, epoch, self.display.say, self.sinks.event)

    def _seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def _summary(self, status: str, reason: str | None) -> dict[str, Any]:
        loop, state, best = self.loop, self.loop.state, self.loop.state.best or {}
        return {
            "status": status,
            "reason": reason,
            "epochs": loop.epoch,
            "steps": state.step,
            "stopped_early": loop.out_of_patience and state.step < self.cadence.steps,
            "metrics": best.get("metrics", {}),
            "best_step": best.get("step"),
            "samples_per_second": self.loop.timing.samples_per_second,
            "data_wait_share": self.loop.timing.data_wait_share,
            "peak_memory_bytes": {"host": peak_host_memory(), "device": self.trainer.peak_memory()},
            "wall_seconds": self._seconds(),
            "precision": {"asked": self.setup.precision.compute, "seen": state.precision_seen or {}},
            "split": self.data.described_split(),
            "device": asdict(self.setup.device),
            "devices": self.team.count,
            "strategy": self.trainer.strategy,
            "health": [asdict(finding) for finding in (*self.health.findings, *self.health.timed)],
            "unsaved": loop.unsaved,
            "unwritten": [] if self.snapshots is None else [str(path) for path in self.snapshots.unwritten],
            "memory_plan": None if self.memory is None else self.memory.json(),
            **({"streaming": loop.fetching.summary(state.bad)} if loop.fetching else {}),
            "versions": self.versions,
        }


def _announcements(setup: Setup) -> Iterator[str]:
    device, precision = setup.device, setup.precision
    if device.note:
        yield f"NOTE: {device.note}"
    count = f"{setup.team.count} × " if setup.team.count > 1 else ""
    yield f"device: {count}{device.name or device.kind}; precision: {precision.compute} ({precision.reason})"


def _validation_event(facts: Mapping[str, Any]) -> HealthEvent:
    values = {name: value for name, value in facts.items() if name not in ("step", "epoch")}
    return HealthEvent("validation", facts["step"], facts["epoch"], values)
