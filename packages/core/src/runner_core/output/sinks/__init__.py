"""Trackers: log.jsonl and train.log always; TensorBoard, Weights & Biases and MLflow if the settings ask for them.

A tracker that fails is dropped with one warning; none stops training.

lines        log.jsonl and train.log
tensorboard  event files
tracker      shared by services: a run that continues on resume, settings, scalars, summary, status; a sink that may
             be slow, in its own thread
wandb        Weights & Biases
mlflow       MLflow
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from runner_core.base.secrets import hold_no_secrets
from runner_core.contract import Json, Sink


class Late(Exception):
    """Raised if lines cannot be written into `path` now; the sink keeps them and tries again at its next event."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path


class Sinks:
    """Passes events on to every sink; never raises."""

    def __init__(self, sinks: Sequence[Sink], say: Callable[[str], None] = print) -> None:
        self._sinks = list(sinks)
        self._say = say
        self._late: set[Sink] = set()
        self.unwritten: list[Path] = []
        """Files that lack lines; filled by `close`."""

    def event(self, kind: str, step: int, values: Mapping[str, Json]) -> None:
        """Pass an event to every sink.

        `kind` is start, train, data, losses, validation, watch, checkpoint, health, speed or end. Values that vary from
        run to run (times, memory) belong in `values["timing"]`.
        """
        clean = hold_no_secrets(values)
        self._each(lambda sink: sink.event(kind, step, clean))

    def figure(self, name: str, step: int, png: Path) -> None:
        self._each(lambda sink: sink.figure(name, step, png))

    def close(self) -> None:
        self._late.clear()  # report lines that are lost for good, even after a report of the delay
        self._each(lambda sink: sink.close(), self.unwritten)

    def _each(self, call: Callable[[Sink], None], late: list[Path] | None = None) -> None:
        """Call `call` for each sink, and collect the files of late sinks in `late`."""
        for sink in tuple(self._sinks):
            try:
                call(sink)
            except Late as error:
                if late is not None:
                    late.append(error.path)
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
    """Return the numbers of an event as curves, including those of `timing`: {"train/loss": 0.1, …}.

    For the gradients of losses: {"losses/gradient_norm/dice": 0.1, …}.
    """
    found = {**values, **(values.get("timing") or {})}
    if kind == "losses":
        found = {f"gradient_norm/{name}": norm for name, norm in values["gradient_norm"].items()}
    return {f"{kind}/{k}": float(v) for k, v in found.items() if isinstance(v, (int, float)) and k != "epoch"}
