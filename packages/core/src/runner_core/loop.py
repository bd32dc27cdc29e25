"""The step loop: drives a `protocols.Trainer` from where a run stands to its end, for any framework.

What happens after a step, and in which order, is the run's log: train line, what losses cost, pictures of samples,
validation line, what is watched, health findings, checkpoint. Everything that is not a function of settings, data and
seed goes under "timing".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from signal import Signals as Signal
from time import perf_counter_ns
from typing import Any, Literal, Protocol

from runner_core._cadence import Cadence
from runner_core._errors import OutOfSpace, Stopped, Unhealthy
from runner_core._fetching import Fetching
from runner_core._nonfinite import not_finite
from runner_core._signals import Signals
from runner_core._timing import Timing
from runner_core._watching import Watching
from runner_core.health import Health
from runner_core.metrics import Monitor
from runner_core.protocols import Finding, HealthEvent, HostBatch, Json, Trainer
from runner_core.team import AgreedSignals

SHOW_EVERY = 250_000_000  # ns between two updates of the display


class Display(Protocol):
    def update(self, step: int, epoch: int, values: Mapping[str, Any]) -> None: ...

    def say(self, text: str) -> None: ...


class Sinks(Protocol):
    def event(self, kind: str, step: int, values: Mapping[str, Json]) -> None: ...

    def figure(self, name: str, step: int, png: Path) -> None: ...


Save = Callable[["LoopState", bool], None]
"""Saves a checkpoint of this loop state; the flag says whether it is the best. Raises OutOfSpace, Unhealthy."""


@dataclass
class LoopState:
    """Where a run stands; JSON, in every checkpoint.

    `validations` are the facts of all past ones: health rules are brought up to date with them.
    """

    step: int = 0
    validated: int = 0
    best: dict[str, Any] | None = None
    """step, value (of the monitored metric), metrics."""
    without_progress: int = 0
    precision_seen: dict[str, int] | None = None
    validations: list[dict[str, Any]] = field(default_factory=list)
    pulls: dict[str, list[float]] = field(default_factory=dict)
    """Gradient norms of loss terms that were measured since the last validation: how many, and the largest."""
    memories: dict[str, dict[str, Json]] = field(default_factory=dict)
    """What health rules count, by their names."""
    bad: int = 0
    """Samples that were taken of another record, since theirs could not be fetched."""
    findings: list[dict[str, Any]] = field(default_factory=list)
    """Of the health rules, for the summary."""

    def json(self) -> dict[str, Json]:
        return asdict(self)


class Loop:
    """One run of training. `batches(epoch, first_step)` and `validation()` give batches; None: no validation.
    `draw(step)` draws what the network makes of a few samples; None: nothing is drawn. `recall(step)` gives facts of
    the checkpoint of that step, whose network was validated as it is; None: they are not asked for. `processes` take
    the same steps together, with as many samples each."""

    def __init__(
        self,
        *,
        trainer: Trainer,
        cadence: Cadence,
        batches: Callable[[int, int], Iterator[HostBatch]],
        validation: Callable[[], Iterator[HostBatch]] | None,
        monitor: Monitor,
        patience: int | None,
        health: Health,
        draw: Callable[[int], None] | None,
        recall: Callable[[int], Mapping[str, Any] | None] | None,
        watching: Watching,
        precision: str,
        fetching: Fetching | None,
        save: Save,
        sinks: Sinks,
        display: Display,
        signals: Signals | AgreedSignals,
        processes: int = 1,
    ) -> None:
        self.trainer = trainer
        self.cadence = cadence
        self.batches = batches
        self.validation = validation
        self.monitor = monitor
        self.patience = patience
        self.health = health
        self.draw = draw
        self.recall = recall
        self.watching = watching
        self.precision = precision
        self.fetching = fetching
        self.save = save
        self.sinks = sinks
        self.display = display
        self.signals = signals
        self.processes = processes
        self.restore(LoopState(), Timing())
        self.unsaved: str | None = None  # why the newest checkpoint could not be saved
        self._shown: dict[str, Any] = {}

    @property
    def epoch(self) -> int:
        """Finished epochs."""
        return self.state.step // self.cadence.steps_per_epoch

    @property
    def finished(self) -> bool:
        return self.state.step >= self.cadence.steps or self.out_of_patience

    @property
    def out_of_patience(self) -> bool:
        return self.patience is not None and self.state.without_progress >= self.patience

    def restore(self, state: LoopState, timing: Timing) -> None:
        """Stand where a checkpoint stood."""
        self.state, self.timing, self._logged, self._best_before = state, timing, replace(timing), state.best
        self.health.findings = [Finding(**finding) for finding in state.findings]

    def forget_best(self) -> None:
        """Its checkpoint is gone: the next validation's is the best."""
        self.state.best = self._best_before = None

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Before the first step of a new run: what is watched and drawn from the beginning. `facts`: of the data, for
        health rules; where one ends the run, nothing was trained."""
        error = self._observe("start", facts)
        if error is not None:
            raise error
        self.watch()
        if self.draw is not None:
            self.draw(0)

    def run(self) -> None:
        """Train to the end. Raises Unhealthy and Stopped after saving; BadInput from the trainer or the data."""
        if self._owes_validation():  # a signal came before it
            self._finish_step([])
        while not self.finished:
            batches = self.batches(*divmod(self.state.step, self.cadence.steps_per_epoch))
            try:
                self._steps(batches)
            finally:
                _close(batches)
        facts = self.state.validations[-1] if self.state.validations else {}
        error = self._observe("end", facts)
        if error is not None:
            raise error

    def _steps(self, batches: Iterator[HostBatch]) -> None:
        """The rest of one epoch. Between events a step costs two clock readings and a few comparisons."""
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
        """Whatever is due at this step."""
        errors = self._log() if self.cadence.logs(self.state.step) else []
        if self.signals.hung_up:
            self.signals.hung_up = False
            self.display.say("the terminal is gone (SIGHUP); training goes on")
        if self.draw is not None and self.cadence.draws(self.state.step):
            self.draw(self.state.step)
        self._finish_step(errors)
        rates = {name: getattr(self.timing, name) for name in ("samples_per_second", "data_wait_share")}
        self.display.update(self.state.step, self.epoch, {**self._shown, **rates})

    def _finish_step(self, errors: list[Unhealthy]) -> None:
        """Validation and checkpoint where they are due, then the end where something asks for it."""
        improved = False
        self.watching.pause()
        if self._owes_validation() and not self.signals.pending:
            improved = self._validate(errors)
        signal = self.signals.pending
        if improved or errors or signal or self.finished or self.cadence.saves(self.state.step):
            self._save(improved)
            if not signal:  # whoever sent it may not wait
                self._recall(errors)
        if errors:
            raise Unhealthy("\n".join(str(error) for error in errors))
        if signal and not (self.finished and not self._owes_validation()):
            kept = self.unsaved or f"the checkpoint of step {self.state.step} is saved; --resume goes on from there"
            raise Stopped(signal, f"stopped by {Signal(signal).name} after step {self.state.step}: {kept}")
        self.watching.go_on()

    def _log(self) -> list[Unhealthy]:
        """The train line: means since the last one, and how the time was spent."""
        begun = perf_counter_ns()
        values = self.trainer.read_log()
        waited = perf_counter_ns() - begun
        self.timing.compute += waited  # the device was computing meanwhile
        self.timing.total += waited
        self._tell_notes()
        seen, losses, facts = (values.pop(name, None) for name in ("precision_seen", "losses", "facts"))
        facts = {"pulls": {}, **(facts or {})}
        step, term = values.pop("nonfinite_step", None), values.pop("nonfinite_term", "loss")
        if step is not None:
            raise Unhealthy(not_finite(step, term))
        if seen is not None:
            self._first_step(seen)
        window = self.timing.since(self._logged)
        self._logged = replace(self.timing)
        self._shown = values
        self._event("train", {**values, "timing": window.shown()})
        if self.fetching is not None:
            self.state.bad += self.fetching.collect()
            self._event("data", self.fetching.event(self.state.bad, window))
        if losses is not None:
            self._event("losses", losses)
            for name, norm in losses["gradient_norm"].items():
                count, largest = self.state.pulls.get(name, (0, 0.0))
                if math.isfinite(norm):  # a gradient that overflowed in half precision is not one of nothing
                    self.state.pulls[name] = [count + 1, max(largest, norm)]
                    count, largest = facts["pulls"].get(name, (0, 0.0))
                    facts["pulls"][name] = [count + 1, max(largest, norm)]
        timed = {"seconds": window.total / 1e9, "data_wait_share": window.data_wait_share, **self.watching.facts()}
        error = self._observe("log", {**values, **facts, **timed})
        return [] if error is None else [error]

    def _first_step(self, seen: dict[str, int]) -> None:
        """Tell, once a run, in which precision the layers were seen to compute. A wrong one raises Unhealthy with
        nothing saved, so that the run cannot be resumed past this."""
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
        return self.validation is not None and self.cadence.validates(step) and self.state.validated < step

    def _validate(self, errors: list[Unhealthy]) -> bool:
        """Did the monitored metric improve? Health findings go into `errors`. A signal leaves the validation owed."""
        assert self.validation is not None
        begun = perf_counter_ns()
        if self.fetching is not None:
            self.state.bad += self.fetching.collect()
        batches = self.validation()
        try:
            facts = self.trainer.validate(self._until_signal(batches))
        except _Interrupted:
            return False
        finally:
            _close(batches)
            if self.fetching is not None:  # what validation fetched is not what training needs
                self.fetching.forget()
        self._tell_notes()
        state = self.state
        state.validated = state.step
        seen, state.pulls = {**facts, "weights": self._checksum(), "pulls": state.pulls}, {}
        state.validations.append({"step": state.step, "epoch": self.epoch, **seen})
        metrics = {name: value for name, value in facts.items() if not name.startswith("decision_")}
        value = self.monitor.value(metrics)
        improved = self.monitor.better(value, None if state.best is None else state.best["value"])
        state.without_progress = 0 if improved else state.without_progress + 1
        seconds = round((perf_counter_ns() - begun) / 1e9, 6)
        self._event("validation", {**metrics, "best": improved, "timing": {"seconds": seconds}})
        self.watch()
        error = self._observe("validation", seen)
        if error is not None:
            errors.append(error)
        if improved:
            self._best_before = state.best
            state.best = {"step": state.step, "value": value, "metrics": metrics}
        return improved

    def _checksum(self) -> int | None:
        """Of the weights, where any rule may ask for it."""
        return self.trainer.checksum() if self.health.rules else None

    def watch(self) -> None:
        """Into the log: what the project watches of its network, as a validation sees it."""
        arrays = self.trainer.watch()
        if arrays:
            self._event("watch", {"arrays": {name: array.tolist() for name, array in arrays.items()}})

    def _until_signal(self, batches: Iterator[HostBatch]) -> Iterator[HostBatch]:
        for batch in batches:
            if self.signals.pending:
                batch.release()
                raise _Interrupted
            yield batch

    def _save(self, improved: bool) -> None:
        """Save a checkpoint. When there is no room for it the run goes on, with the last good one kept."""
        state = self.state
        if self.validation is None:  # nothing can be compared: the last is the best
            improved, state.best = True, {"step": state.step, "value": None, "metrics": {}}
        state.findings = [asdict(finding) for finding in self.health.findings]
        state.memories = self.health.memories()
        if self.fetching is not None:
            state.bad += self.fetching.collect()
        try:
            self.save(state, improved)
        except OutOfSpace as error:
            self.unsaved = str(error)
            self.display.say(f"WARNING: {error}. The last good checkpoint is kept; training goes on")
            if improved:  # the best is what can be loaded
                state.best = self._best_before
        else:
            self.unsaved = None
            self._best_before = state.best

    def _recall(self, errors: list[Unhealthy]) -> None:
        """Once in each start, of the first checkpoint of a network as it was validated: is it what comes back?"""
        if self.recall is None or self.unsaved or self.state.validated != self.state.step:
            return
        facts, self.recall = self.recall(self.state.step), None
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
    """A signal came during validation."""


def _close(batches: Any) -> None:
    close = getattr(batches, "close", None)
    if close is not None:
        close()
