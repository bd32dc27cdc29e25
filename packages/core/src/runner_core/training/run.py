"""A training run: loaders, the engine's trainer, checkpoints, health and signals around the loop."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runner_core.base.errors import BadInput, Stopped, Unhealthy
from runner_core.base.resources import peak_host_memory
from runner_core.contract import Finding, Json, is_streamed
from runner_core.contract.setup import Data, Setup
from runner_core.data.cache.verification import Verification
from runner_core.health import Health, announce
from runner_core.health.reads import leaked_records
from runner_core.output.display import Display
from runner_core.output.runfolder import RunFolder
from runner_core.output.sinks import Sinks
from runner_core.training.assembly import assemble
from runner_core.training.checkpoints import restoring
from runner_core.training.extending import Newest, newest, set_apart
from runner_core.training.keeping import Keeper, other_plugins
from runner_core.training.kernels.verdict import Verdict
from runner_core.training.loop import Loop
from runner_core.training.seen import History
from runner_core.training.signals import Signals
from runner_core.training.snapshots import Snapshots
from runner_core.training.start import describe, save_start, summary_of
from runner_core.training.timing import BLOCK_FILE, kept_block


def train(
    setup: Setup,
    data: Data,
    run_folder: RunFolder,
    sinks: Sinks,
    display: Display,
    resume: bool,
    verdict: Verdict | None = None,
    signals: Signals | None = None,
    *,
    leaves: bool = True,
) -> dict[str, Any]:
    """Train to the end, or resume from the newest whole checkpoint; return the run's summary.

    `verdict` is what was found about the kernels (`training.kernels`). `signals` keeps a signal that came when no step
    was left, for the caller to deliver. Several processes are no team afterwards, unless the training came to its end
    and `leaves` is False.

    Raises Unhealthy and Stopped, each with the summary so far as its attribute `summary`. Raises BadInput if the run
    cannot be continued with these settings, if memory does not suffice, or if the data cannot be used or turn out to be
    damaged.
    """
    signals = signals or Signals(answers=setup.team.first)
    run = _Run(setup, data, run_folder, sinks, display, verdict or Verdict(), signals)
    with run.signals:
        try:
            run.begin(resume)
            run.verify()
            run.loop.run()
            if damage := run.loop.signals.damage:
                raise BadInput(damage)
        except (Unhealthy, Stopped) as error:
            run.loop.settle(ends=True)
            if run.loop.unsaved:
                error.args = (f"{error}\n{run.keeper.checkpoints.kept()}",)
            status = "unhealthy" if isinstance(error, Unhealthy) else "stopped"
            error.summary = run.end(status, str(error))  # type: ignore[union-attr]
            setup.team.leave()
            raise
        finally:
            run.close()
        if leaves:
            setup.team.leave()
        return run.end("done", None)


class _Run:
    """One start of a run: begins or resumes it, and ends it with a summary; the `loop` between trains."""

    def __init__(
        self, setup: Setup, data: Data, folder: RunFolder, sinks: Sinks, display: Display, verdict: Verdict,
        signals: Signals,
    ) -> None:  # fmt: skip
        begun = time.monotonic()
        self.setup, self.data, self.folder, self.team, self.verdict = setup, data, folder, setup.team, verdict
        self.sinks, self.display, self.signals = sinks, display, signals
        self.verification: Verification | None = getattr(data.store, "verification", None)
        for text in _announcements(setup):
            display.say(text)
        if is_streamed(data.store):
            data.store.block = kept_block(folder.path / BLOCK_FILE, data.store.block)
        self.parts = assemble(setup, data, folder.path, display.say)
        try:
            self._started_from()
            self.keeper = Keeper(self.parts, folder.checkpoints, sinks, display.say, begun)
            self.health = Health(setup.health_rules(), setup.config.health.mode, self._report)
            self.loop = Loop(self.parts, self.keeper, self.health, self._snapshots(), sinks, display, self.signals)
        except BaseException:
            self.parts.loaders.close()
            raise

    def _started_from(self) -> None:
        """Say how the weights fit that a new run starts from, and record it in the run."""
        start = self.setup.start
        if start is None or start.restored:
            return
        for line in describe(start):
            self.display.say(line)
        if self.team.first:
            save_start(self.folder.path, start, History.before(self.folder.path))

    def _snapshots(self) -> Snapshots | None:
        if self.parts.cadence.snapshots_every is None:
            return None
        project, seed = self.setup.project, self.setup.config.train.seed
        alone = self.team.count == 1
        return Snapshots(project, self.data.samples, seed, self.folder.figures, self.sinks, self.display.say, alone)

    # ------------------------------------------------------------ beginning and end

    def verify(self) -> None:
        """Go on verifying the cache during training, in the first process of each machine."""
        machines = self.team.every(platform.node())
        if self.verification is not None and machines.index(platform.node()) == self.team.number:
            self.verification.begin(self._stop_for)

    def _stop_for(self, damage: str) -> None:
        self.signals.damaged(
            f"{damage}. This training and the checkpoints that it saved may have used it: start again to be "
            "sure, or continue from the newest with --resume"
        )

    def begin(self, resume: bool) -> None:
        """Restore the newest checkpoint if there is one, otherwise log the start."""
        found = self._newest() if resume and self.team.first else None
        path, plugins, moves = self.team.share(
            (None, {}, False) if found is None else (str(found.path), found.manifest.plugins, found.epochs is not None)
        )
        if path is not None:
            # with several processes, an error may only mean that another process is gone
            with restoring(Path(path)) if self.team.count == 1 else nullcontext():
                self.loop.restore(*self.keeper.restore(Path(path)))
            if moves:
                self._set_apart(found)
            for text in other_plugins(plugins, self.setup.plugins.versions):
                self.display.say(text)
        state = self.loop.state
        best = None if state.best is None else state.best["step"]
        if not self.team.share(not self.team.first or self.keeper.checkpoints.start(state.step, best)):
            assert state.best is not None
            step = state.best["step"]
            self.display.say(
                f"WARNING: the best checkpoint, of step {step}, is gone; the next validation sets a new one"
            )
            self.loop.forget_best()
        if self.team.first:
            self.folder.truncate_log(state.step, state.validated)
        if path is None:
            self.sinks.event("start", 0, self._start_line())
            for finding in self.verdict.findings():
                self.health.tell(finding, 0, 0)
            self.loop.begin(self._facts())
        else:
            self.sinks.resumed()
            self.display.say(f"going on from the checkpoint of step {self.loop.state.step}")
        self.display.start(self.parts.cadence.steps, self.loop.state.step, self.setup.name)

    def _newest(self) -> Newest | None:
        """Return the checkpoint to resume from."""
        return newest(self.keeper.checkpoints, self.folder, self.setup.project, self.parts.cadence)

    def _set_apart(self, found: Newest | None) -> None:
        """Keep the shorter run in a folder of its own, once every process has accepted the longer one."""
        self.team.every(True)
        if found is not None and found.epochs is not None:
            step = found.manifest.step
            kept = set_apart(self.keeper.checkpoints, self.folder, found.epochs, step)
            self.display.say(
                f"the learning rate of {found.epochs} epochs fell later: going on from before, at step {step}. "
                f"The run of {found.epochs} epochs is kept in {kept}"
            )
        self.team.every(True)

    def _facts(self) -> dict[str, Json]:
        """Return facts about the data, for health rules."""
        if self.setup.config.health.mode == "off":
            return {}
        return {"leaked_records": leaked_records(self.data.samples, self.data.splits, self.data.store)}

    def _start_line(self) -> dict[str, Json]:
        return {
            "epoch": 0,
            "steps": self.parts.cadence.steps,
            "steps_per_epoch": self.parts.cadence.steps_per_epoch,
            "samples": {split: len(samples) for split, samples in self.data.samples.items()},
            "precision": self.setup.precision.compute,
            **({} if self.setup.start is None else {"weights": summary_of(self.setup.start)}),
            "timing": {"device": asdict(self.setup.device), "versions": self.keeper.versions},
        }

    def end(self, status: str, reason: str | None) -> dict[str, Any]:
        """Log the end and return the summary; a training whose end is in no checkpoint has failed."""
        if status == "done" and self.loop.unsaved:
            lost = f"the end of this training is not saved: {self.loop.unsaved}\n{self.keeper.checkpoints.kept()}"
            nothing = f"nothing of this training could be kept: {self.loop.unsaved}"
            status, reason = "failed", lost if self.keeper.checkpoints.any() else nothing
        summary = self._summary(status, reason)
        self.sinks.event("end", self.loop.state.step, {"epoch": self.loop.epoch, "status": status})
        return summary

    def close(self) -> None:
        with ExitStack() as closing:  # one that fails keeps none of the others open
            closing.callback(self.parts.loaders.close)
            closing.callback(self.keeper.close)
            closing.callback(self.loop.watching.close)
            if self.verification is not None:
                closing.callback(self.verification.close)
            closing.callback(self.display.stop)

    def _report(self, finding: Finding, step: int, epoch: int) -> None:
        announce(finding, step, epoch, self.display.say, self.sinks.event)

    def _summary(self, status: str, reason: str | None) -> dict[str, Any]:
        loop, state, best = self.loop, self.loop.state, self.loop.state.best or {}
        return {
            "status": status,
            "reason": reason,
            "epochs": loop.epoch,
            "steps": state.step,
            "stopped_early": loop.out_of_patience and state.step < self.parts.cadence.steps,
            "metrics": best.get("metrics", {}),
            "best_step": best.get("step"),
            "samples_per_second": self.loop.timing.samples_per_second,
            "data_wait_share": self.loop.timing.data_wait_share,
            "peak_memory_bytes": {"host": peak_host_memory(), "device": self.parts.trainer.peak_memory()},
            "wall_seconds": self.keeper.seconds(),
            "energy": self.keeper.energy(),
            "precision": {"asked": self.setup.precision.compute, "seen": state.precision_seen or {}},
            **({} if self.setup.start is None else {"start": summary_of(self.setup.start)}),
            "kernels": asdict(self.verdict),
            "split": self.data.described_split(),
            "device": asdict(self.setup.device),
            "devices": self.team.count * self.team.devices,
            "strategy": self.parts.trainer.strategy,
            "health": [asdict(finding) for finding in (*self.health.findings, *self.health.timed)],
            "unsaved": loop.unsaved,
            "unwritten": [] if loop.snapshots is None else [str(path) for path in loop.snapshots.unwritten],
            "memory_plan": None if self.parts.memory is None else self.parts.memory.json(),
            **({"streaming": loop.fetching.summary(state.bad)} if loop.fetching else {}),
            "versions": self.keeper.versions,
        }


def _announcements(setup: Setup) -> Iterator[str]:
    device, precision = setup.device, setup.precision
    if device.note:
        yield f"NOTE: {device.note}"
    devices = setup.team.count * setup.team.devices
    count = f"{devices} × " if devices > 1 else ""
    yield f"device: {count}{device.name or device.kind}; precision: {precision.compute} ({precision.reason})"
