"""The step loop: takes the steps of a training, of any framework, from where it stands to its end.

The run's log fixes what happens after a step, and in which order: train line, gradient norms, pictures of samples,
validation line, watched arrays, health findings, checkpoint. Everything that is not a function of settings, data and
seed is logged under "timing".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from signal import Signals as Signal
from time import perf_counter_ns
from typing import Any, Literal

from runner_core.base.errors import BadInput, NotSaved, OutOfSpace, Stopped, Unhealthy, did_you_mean
from runner_core.base.text import duration
from runner_core.contract import Finding, HealthEvent, HostBatch, Json, is_streamed
from runner_core.engines.steplog import not_finite
from runner_core.health import Health
from runner_core.output.display import Display
from runner_core.output.progress import arrow
from runner_core.output.sinks import Sinks
from runner_core.training.assembly import Parts
from runner_core.training.keeping import Keeper, LoopState
from runner_core.training.signals import DAMAGED, AgreedSignals, Signals
from runner_core.training.snapshots import Snapshots
from runner_core.training.timing import DeviceUsage, Fetching, Timing


@dataclass(frozen=True)
class Monitor:
    """The validation metric that chooses the best checkpoint, and its direction."""

    name: str
    mode: Literal["max", "min"]
    directions: Mapping[str, str] = field(default_factory=dict)
    """Directions of other metrics: `Project.directions`."""

    def value(self, metrics: Mapping[str, float]) -> float:
        """Return the metric's value; raise BadInput if validation does not return this metric."""
        if self.name not in metrics:
            raise BadInput(
                f"the monitored metric {self.name!r} is not among those of validation: "
                f"{', '.join(metrics)}{did_you_mean(self.name, metrics)}"
            )
        return metrics[self.name]

    def better(self, value: float, best: float | None) -> bool:
        """Return True if `value` is strictly better than `best`; NaN is better only than None (nothing yet)."""
        if best is None or math.isnan(best):
            return best is None or not math.isnan(value)
        return value > best if self.mode == "max" else value < best

    def line(self, metrics: Mapping[str, float], seconds: float, improved: bool, best: Mapping[str, Any] | None) -> str:
        """Return a validation for the screen: this metric with the best so far, then the others.

        Where an arrow stands, it points to better values. `best` is what was the best before.
        """
        known = {**self.directions, self.name: self.mode}
        shown = [
            " ".join(filter(None, (name, arrow(name, known), f"{metrics[name]:.4g}")))
            for name in sorted(metrics, key=lambda name: name != self.name)
        ]
        if improved:
            shown[0] += " (best so far)"
        elif best is not None:
            shown[0] += f" (best: {best['value']:.4g}, step {best['step']})"
        more = [f"and {len(shown) - _MOST_SHOWN} more"] if len(shown) > _MOST_SHOWN else []
        took = f"in {duration(seconds)}" if seconds >= 60 else f"in {seconds:.1f} s"
        return "  ".join([*shown[:_MOST_SHOWN], *more, took])


_MOST_SHOWN = 6
"""Metrics in a validation's line on the screen: some projects have four for each class."""
SHOW_EVERY = 500_000_000
"""Nanoseconds between two updates of the display, which wait for the device to show the loss of the last steps."""


class Loop:
    """The steps of one training, and what happens between them.

    Args:
        parts: What takes the steps.
        keeper: Saves and restores the state.
        health: The health rules.
        snapshots: Draws what the network makes of a few samples; None for a project that draws nothing.
        sinks: Receive events.
        display: Shows progress.
        signals: Signals that may end the run.
    """

    def __init__(
        self,
        parts: Parts,
        keeper: Keeper,
        health: Health,
        snapshots: Snapshots | None,
        sinks: Sinks,
        display: Display,
        signals: Signals,
    ) -> None:
        setup = parts.setup
        self.trainer, self.cadence, self.loaders = parts.trainer, parts.cadence, parts.loaders
        self.keeper, self.health, self.snapshots = keeper, health, snapshots
        self.sinks, self.display = sinks, display
        self.team, self.processes = setup.team, setup.team.count
        self.signals = signals if self.processes == 1 else AgreedSignals(signals, setup.team)
        self.monitor = Monitor(*setup.project.monitor, setup.project.directions)
        self.patience = setup.config.train.patience
        self.precision = setup.precision.compute
        self.fetching = Fetching.of(parts, display.say) if is_streamed(parts.data.store) else None
        self.watching = DeviceUsage(setup.device)
        self.unsaved: str | None = None  # why the newest checkpoint could not be saved
        self._recalls = keeper.recalls
        self._being_saved: tuple[int, bool] | None = None  # step of a checkpoint, and whether it is the best
        self._loss: float | None = None  # that the display shows
        self._loss_read = 0
        self._validation_seconds = 0.0  # of the last validation
        self.restore(LoopState(), Timing())

    @property
    def epoch(self) -> int:
        """Number of finished epochs."""
        return self.state.step // self.cadence.steps_per_epoch

    @property
    def finished(self) -> bool:
        return self.state.step >= self.cadence.steps or self.out_of_patience

    @property
    def out_of_patience(self) -> bool:
        return self.patience is not None and self.state.without_progress >= self.patience

    def restore(self, state: LoopState, timing: Timing) -> None:
        """Continue from the state in a checkpoint."""
        self.state, self.timing, self._logged, self._best_before = state, timing, replace(timing), state.best
        self._saved = state.step or None  # step of the newest existing checkpoint
        self.health.restore(state.memories, [_validation_event(facts) for facts in state.validations])
        self.health.findings = [Finding(**finding) for finding in state.findings]

    def forget_best(self) -> None:
        """Forget the best validation, because its checkpoint is gone; the next one becomes the best."""
        self.state.best = self._best_before = None

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Log and draw the state before the first step of a new run.

        `facts` describe the data, for health rules. If a rule ends the run here, nothing was trained.
        """
        for fault in self.trainer.faults:
            self.health.tell(fault, self.state.step, self.epoch)
        error = self._observe("start", facts)
        if error is not None:
            raise error
        self.watch()
        if self.snapshots is not None:
            self.snapshots.draw(self.trainer, 0)

    def run(self) -> None:
        """Train to the end.

        Raises Unhealthy and Stopped after saving, and BadInput from the trainer or the data.
        """
        if self._owes_validation():  # a signal came before it
            self._finish_step([])
        while not self.finished:
            epoch, first = divmod(self.state.step, self.cadence.steps_per_epoch)
            batches = self.signals.between(self.loaders.training.batches(epoch, first))
            try:
                self._steps(batches)
            finally:
                _close(batches)
        facts = self.state.validations[-1] if self.state.validations else {}
        error = self._observe("end", facts)
        if error is not None:
            raise error

    def _steps(self, batches: Iterator[HostBatch]) -> None:
        """Take the remaining steps of one epoch.

        Between events a step costs two clock readings and a few comparisons.
        """
        state, timing, signals, trainer = self.state, self.timing, self.signals, self.trainer
        processes = self.processes
        event = self.cadence.next_event(state.step)
        mark = begun = perf_counter_ns()
        show = begun + SHOW_EVERY
        for batch in batches:
            ready = perf_counter_ns()
            if trainer.idle():  # a device with work queued does not wait for the batch
                timing.wait += ready - mark
            timing.samples += batch.count * processes
            trainer.train_step(batch, state.step)
            state.step += 1
            mark = perf_counter_ns()
            timing.compute += mark - ready
            if state.step == event or ((signals.pending or mark > show) and self.cadence.ends_block(state.step)):
                timing.total += mark - begun
                self._after_step()
                if self.finished:
                    return
                event = self.cadence.next_event(state.step)
                mark = begun = perf_counter_ns()
                show = begun + SHOW_EVERY

    # ------------------------------------------------------------ after a step

    def _after_step(self) -> None:
        """Do everything that is due at this step."""
        self.team.stepping(False)  # what follows may take the first process long
        errors = self._log() if self.cadence.logs(self.state.step) else []
        if self.signals.hung_up:
            self.signals.hung_up = False
            self.display.say("the terminal is gone (SIGHUP); training goes on")
        if self.snapshots is not None and self.cadence.draws(self.state.step):
            self.snapshots.draw(self.trainer, self.state.step)
        self._finish_step(errors)
        if self.display.due(self.state.step):
            self._show()

    def _show(self) -> None:
        """Show the loss, the pace, and the time to the end.

        The loss is the mean since the last train line. With several processes it is that of the last train line,
        because all must take part when losses are read, and only the first has a display.
        """
        reads = self.processes == 1 and not self.finished  # the timing at the end is saved already
        if reads and perf_counter_ns() - self._loss_read > SHOW_EVERY:
            self._read_loss()
        values = {name: getattr(self.timing, name) for name in ("samples_per_second", "data_wait_share")}
        values["loss"] = self._loss
        later = self.cadence.validations_after(self.state.step) * self._validation_seconds
        self.display.update(self.state.step, self.epoch, values, later)

    def _read_loss(self) -> None:
        begun = perf_counter_ns()
        losses = self.trainer.losses()
        self._loss_read = perf_counter_ns()
        waited = self._loss_read - begun
        self.timing.compute += waited  # the device was computing meanwhile
        self.timing.total += waited
        if losses:
            self._loss = sum(losses) / len(losses)  # fmean raises where infinite losses have both signs

    def _finish_step(self, errors: list[Unhealthy]) -> None:
        """Validate and save if due, then end the run if something asks for it."""
        improved = False
        self.watching.pause()
        if self._owes_validation() and not self.signals.pending:
            self.settle()
            improved = self._validate(errors)
        signal = self.signals.pending
        if signal == DAMAGED:
            raise BadInput(self.signals.damage)
        if improved or errors or signal or self.finished or self.cadence.saves(self.state.step):
            self._save(improved, ends=bool(errors or signal or self.finished))
            if not signal:  # the sender may not wait
                self._recall(errors)
        if errors:
            raise Unhealthy("\n".join(str(error) for error in errors))
        if signal and not (self.finished and not self._owes_validation()):
            kept = self.unsaved or f"the checkpoint of step {self.state.step} is saved; --resume goes on from there"
            raise Stopped(signal, f"stopped by {Signal(signal).name} after step {self.state.step}: {kept}")
        self.watching.go_on()

    def _log(self) -> list[Unhealthy]:
        """Log the train line: means since the last one, and how the time was spent."""
        begun = perf_counter_ns()
        values = self.trainer.read_log()
        waited = perf_counter_ns() - begun
        self.timing.compute += waited  # the device was computing meanwhile
        self.timing.total += waited
        self._tell_notes()
        if "left_out" in values:
            self.health.tell(Finding("exchange", "note", values.pop("left_out")), self.state.step, self.epoch)
        seen, facts = values.pop("precision_seen", None), values.pop("facts", None) or {}
        step, term = values.pop("nonfinite_step", None), values.pop("nonfinite_term", "loss")
        if step is not None:
            raise Unhealthy(not_finite(step, term))
        if seen is not None:
            self._first_step(seen)
        window = self.timing.since(self._logged)
        self._logged = replace(self.timing)
        self._loss = values.get("loss")
        gpu = self.watching.facts()
        self._event("train", {**values, "timing": window.shown() | {name: round(v, 3) for name, v in gpu.items()}})
        if self.fetching is not None:
            self.state.bad += self.fetching.collect()
            self._event("data", self.fetching.event(self.state.bad, window))
        if norms := facts.get("gradient_norms"):
            self._event("losses", {"gradient_norm": {name: largest for name, (_, largest) in norms.items()}})
            self.state.add_gradient_norms(norms)
        timed = {"seconds": window.total / 1e9, "data_wait_share": window.data_wait_share, **gpu}
        error = self._observe("log", {**values, **facts, **timed})
        return [] if error is None else [error]

    def _first_step(self, seen: dict[str, int]) -> None:
        """Report, once per run, the precision in which the layers were seen to compute.

        A wrong precision raises Unhealthy before anything is saved, so that the run cannot be resumed past this point.
        """
        if self.state.precision_seen is not None:
            return
        self.state.precision_seen = seen
        self._event("precision", {"asked": self.precision, "seen": seen})
        facts = {"precision_asked": self.precision, "precision_seen": seen, "weights": self._checksum()}
        error = self._observe("first_step", facts)
        if error is not None:
            raise error

    # ------------------------------------------------------------ validation and checkpoints

    def _owes_validation(self) -> bool:
        step = self.state.step
        return self.loaders.validation is not None and self.cadence.validates(step) and self.state.validated < step

    def _validate(self, errors: list[Unhealthy]) -> bool:
        """Validate, and return True if the monitored metric improved.

        Health findings are appended to `errors`. After a signal, the validation is done on resume.
        """
        assert self.loaders.validation is not None
        begun = perf_counter_ns()
        if self.fetching is not None:
            self.state.bad += self.fetching.collect()
        batches = self.signals.between(self.loaders.validation.batches(0))
        try:
            with self.display.aside("validation", self.loaders.validation.steps_per_epoch) as advance:
                facts = self.trainer.validate(self._until_signal(batches, advance))
        except _Interrupted:
            return False
        finally:
            _close(batches)
            if self.fetching is not None:  # what validation fetched is not what training needs
                self.fetching.forget()
        self._tell_notes()
        state = self.state
        state.validated = state.step
        seen = {**facts, "weights": self._checksum(), "gradient_norms": state.gradient_norms}
        state.gradient_norms = {}
        state.validations.append({"step": state.step, "epoch": self.epoch, **seen})
        metrics = {name: value for name, value in facts.items() if not name.startswith("decision_")}
        value = self.monitor.value(metrics)
        improved = self.monitor.better(value, None if state.best is None else state.best["value"])
        state.without_progress = 0 if improved else state.without_progress + 1
        seconds = round((perf_counter_ns() - begun) / 1e9, 6)
        self._validation_seconds = seconds
        self._event("validation", {**metrics, "best": improved, "timing": {"seconds": seconds}})
        line = self.monitor.line(metrics, seconds, improved, state.best)
        self.display.print(f"validation after epoch {self.epoch}  {line}")  # train.log has the event
        self.watch()
        error = self._observe("validation", seen)
        if error is not None:
            errors.append(error)
        if improved:
            self._best_before = state.best
            state.best = {"step": state.step, "value": value, "metrics": metrics}
        return improved

    def _checksum(self) -> int | None:
        """Return the checksum of the weights, or None if no health rule is active."""
        return self.trainer.checksum() if self.health.rules else None

    def watch(self) -> None:
        """Log the arrays that the project watches in its network, in the state that a validation sees."""
        arrays = self.trainer.watch()
        if arrays:
            self._event("watch", {"arrays": {name: array.tolist() for name, array in arrays.items()}})

    def _until_signal(self, batches: Iterator[HostBatch], advance: Callable[[], None]) -> Iterator[HostBatch]:
        for batch in batches:
            if self.signals.pending:
                batch.release()
                raise _Interrupted
            yield batch
            advance()

    def _save(self, improved: bool, ends: bool) -> None:
        """Save a checkpoint, which a thread writes while training goes on; wait for it if the run `ends` here."""
        self.settle()
        state = self.state
        if self.loaders.validation is None:  # nothing can be compared: the last is the best
            improved, state.best = True, {"step": state.step, "value": None, "metrics": {}}
        state.findings = [asdict(finding) for finding in self.health.findings]
        state.memories = self.health.memories()
        if self.fetching is not None:
            state.bad += self.fetching.collect()
        self.keeper.save(state, self.timing, improved)
        self._being_saved = state.step, improved
        if ends:
            self.settle(ends=True)

    def settle(self, ends: bool = False) -> None:
        """Wait for the checkpoint that is being written, if there is one.

        If it cannot be written, the run goes on, unless it `ends` here, and the previous checkpoint is kept.
        """
        if self._being_saved is None:
            return
        (step, improved), self._being_saved = self._being_saved, None
        state = self.state
        try:
            self.keeper.settle()
        except (OutOfSpace, NotSaved) as error:
            self.unsaved = str(error)
            there = self._saved is not None
            kept = f"The checkpoint of step {self._saved} is kept" if there else "There is no earlier checkpoint"
            text = f"{error}. {kept}" + ("" if ends else "; training goes on")
            self.health.tell(Finding("checkpoint not saved", "warning", text, timed=True), state.step, self.epoch)
            if improved:  # the best checkpoint is the one that can be loaded
                state.best = self._best_before
        else:
            self.unsaved, self._saved = None, step
            self._best_before = state.best

    def _recall(self, errors: list[Unhealthy]) -> None:
        """Check, once per start, that the first checkpoint of a validated network gives back the same results."""
        if not self._recalls or self.state.validated != self.state.step:
            return
        self.settle()
        if self.unsaved:
            return
        self._recalls = False
        facts = self.keeper.recalled(self.state.step)
        if self.fetching is not None:  # what was fetched for it is not what training needs
            self.fetching.forget()
        error = None if facts is None else self._observe("checkpoint", facts)
        if error is not None:
            errors.append(error)

    # ------------------------------------------------------------ telling

    def _event(self, kind: str, values: Mapping[str, Json]) -> None:
        self.sinks.event(kind, self.state.step, {"epoch": self.epoch, **values})

    def _tell_notes(self) -> None:
        for note in self.trainer.notes():
            self.health.tell(Finding("memory", "note", note), self.state.step, self.epoch)

    def _observe(
        self, moment: Literal["start", "first_step", "log", "validation", "checkpoint", "end"], facts: Mapping[str, Any]
    ) -> Unhealthy | None:
        return self.health.observe(HealthEvent(moment, self.state.step, self.epoch, facts))


class _Interrupted(Exception):
    """Validation was interrupted by a signal."""


def _close(batches: Any) -> None:
    close = getattr(batches, "close", None)
    if close is not None:
        close()


def _validation_event(facts: Mapping[str, Any]) -> HealthEvent:
    values = {name: value for name, value in facts.items() if name not in ("step", "epoch")}
    return HealthEvent("validation", facts["step"], facts["epoch"], values)
