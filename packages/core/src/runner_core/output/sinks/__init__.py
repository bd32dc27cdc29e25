"""Trackers: log.jsonl and train.log always; TensorBoard, Weights & Biases and MLflow if the settings ask for them.

A tracker that fails is dropped with one warning; none stops training. Here are those of the two files, and `Sinks`, all
trackers of a run together.

tensorboard  event files
tracker      shared by services: a run that continues on resume, settings, scalars, summary, status; a sink that may
             be slow, in its own thread
wandb        Weights & Biases
mlflow       MLflow
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner_core.base.secrets import hold_no_secrets
from runner_core.base.writing import flush, to_json
from runner_core.contract import Json, Sink


class _Lines:
    """A file that grows by whole lines, written one by one: a killed process loses none, a full disk delays them.

    It is opened at the first line, because a resumed run's log is cut back before that.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: io.FileIO | None = None
        self._waiting = b""
        """Whole lines that are not in the file yet."""

    def write(self, line: str, flushed: bool = False) -> None:
        """Write a line. Raises Late when the disk does not take it.

        With `flushed`, this line and those before it survive a loss of power.
        """
        self._waiting += line.encode(errors="backslashreplace") + b"\n"
        try:
            if self._file is None:
                self._file = self._open()
            self._empty(self._file)
            if flushed:
                os.fsync(self._file.fileno())  # of this file, wherever its name is by now
                flush(self._path.parent)
        except OSError as error:
            text = (
                f"{self._path} cannot be written: {error.strerror or error}; its lines are kept in memory until it can"
            )
            raise Late(self._path, text) from error

    def _open(self) -> io.FileIO:
        """Open the file at its end; a half-written line left by a kill is ended first."""
        file = self._path.open("a+b", buffering=0)
        if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
            self._waiting = b"\n" + self._waiting
        return file

    def _empty(self, file: io.FileIO) -> None:
        """Write the waiting lines; if that fails, the file ends with its last whole line."""
        begin, written = os.fstat(file.fileno()).st_size, 0
        try:
            while written < len(self._waiting):
                written += file.write(self._waiting[written:]) or 0
        except OSError:
            written = self._waiting.rfind(b"\n", 0, written) + 1
            file.truncate(begin + written)
            raise
        finally:
            self._waiting = self._waiting[written:]

    def close(self) -> None:
        try:
            if self._waiting:
                self._file = self._file or self._open()
                self._empty(self._file)
        except OSError as error:
            lines = self._waiting.count(b"\n")
            text = f"{lines} lines never came into {self._path}: {error.strerror or error}"
            raise Late(self._path, text) from error
        finally:
            if self._file is not None:
                self._file.close()


class JsonlSink(_Lines):
    """Writes one JSON object per line: {"event", "step", …values…}. Equal runs differ only under "timing"."""

    def event(self, kind: str, step: int, values: Mapping[str, Json]) -> None:
        line = {"event": kind, "step": step, **values}
        text = json.dumps(to_json(line), ensure_ascii=False, allow_nan=False)
        self.write(text, flushed=kind == "checkpoint")  # the log must have everything that a checkpoint resumes from

    def figure(self, name: str, step: int, png: Path) -> None:
        self.event("figure", step, {"name": name, "file": png.name})


class TextSink(_Lines):
    """Writes lines for people: the time, the event and its numbers, without arrays."""

    def event(self, kind: str, step: int, values: Mapping[str, Json]) -> None:
        if kind == "watch":
            return
        numbers = {**{k: v for k, v in values.items() if k != "timing"}, **(values.get("timing") or {})}
        text = "  ".join(f"{k} {_short(v)}" for k, v in numbers.items())
        self.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {kind:<10} step {step}  {text}")

    def figure(self, name: str, step: int, png: Path) -> None:
        self.event("figure", step, {"name": name, "file": png.name})


def _nothing() -> None:
    """Stands for a method that a sink need not have."""


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_short(part)}" for name, part in value.items())
    return f"{value:.5g}" if isinstance(value, float) else str(value)


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

    def resumed(self) -> None:
        """Say that a run goes on from a checkpoint. No log has a line of it: it must equal an uninterrupted run's."""
        self._each(lambda sink: getattr(sink, "resumed", _nothing)())

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
