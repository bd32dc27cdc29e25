"""Trackers: log.jsonl and train.log always; TensorBoard, Weights & Biases and MLflow when asked.

One that fails is dropped with one warning, and none stops training.

lines        log.jsonl and train.log
tensorboard  event files
background   a sink that may be slow, in a thread of its own
tracker      what services have in common: a run that is continued on resume, settings, scalars, summary, status
wandb        Weights & Biases
mlflow       MLflow
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from runner_core.protocols import Json, Sink


class Late(Exception):
    """Lines could not be written now; the sink keeps them and tries again at its next event."""


class Sinks:
    """Passes events on to every sink; never raises."""

    def __init__(self, sinks: Sequence[Sink], say: Callable[[str], None] = print) -> None:
        self._sinks = list(sinks)
        self._say = say
        self._late: set[Sink] = set()

    def event(self, kind: str, step: int, values: Mapping[str, Json]) -> None:
        """`kind`: start, train, data, losses, validation, watch, checkpoint, health, speed, end. What varies from run
        to run (times, memory) belongs in `values["timing"]`."""
        self._each(lambda sink: sink.event(kind, step, values))

    def figure(self, name: str, step: int, png: Path) -> None:
        self._each(lambda sink: sink.figure(name, step, png))

    def close(self) -> None:
        self._late.clear()  # what is lost for good is said although the delay was
        self._each(lambda sink: sink.close())

    def _each(self, call: Callable[[Sink], None]) -> None:
        for sink in tuple(self._sinks):
            try:
                call(sink)
            except Late as error:
                if sink not in self._late:
                    self._late.add(sink)
                    self._say(f"warning: {error}")
            except Exception as error:
                self._sinks.remove(sink)
                self._say(
                    f"warning: the tracker {_name(sink)} failed and is switched off for this run: "
                    f"{type(error).__name__}: {error}"
                )


def _name(sink: Sink) -> str:
    return getattr(sink, "name", type(sink).__name__)


def numbers(kind: str, values: Mapping[str, Json]) -> dict[str, float]:
    """The numbers of an event as curves: {"train/loss": 0.1, …}, those of `timing` among them; of what losses cost,
    {"losses/gradient_norm/dice": 0.1, "losses/milliseconds/dice": 2.0, …}."""
    found = {**values, **(values.get("timing") or {})}
    if kind == "losses":
        found = {f"{what}/{name}": v for what in ("gradient_norm", "milliseconds") for name, v in found[what].items()}
    return {f"{kind}/{k}": float(v) for k, v in found.items() if isinstance(v, (int, float)) and k != "epoch"}
