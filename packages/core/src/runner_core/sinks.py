"""Trackers: log.jsonl and train.log always, TensorBoard when asked. One that fails is dropped with one warning."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from runner_core._errors import BadInput
from runner_core.protocols import Json, Sink
from runner_core.runfolder import to_json


class Sinks:
    """Passes events on to every sink; never raises."""

    def __init__(self, sinks: Sequence[Sink], say: Callable[[str], None] = print) -> None:
        self._sinks = list(sinks)
        self._say = say
        self._late: set[Sink] = set()

    def event(self, kind: str, step: int, values: Mapping[str, Json]) -> None:
        """`kind`: start, train, validation, checkpoint, health, end. What varies from run to run (times, memory)
        belongs in `values["timing"]`."""
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
                    f"warning: the tracker {type(sink).__name__} failed and is switched off for this run: "
                    f"{type(error).__name__}: {error}"
                )


class Late(Exception):
    """Lines could not be written now; the sink keeps them and tries again at its next event."""


class _Lines:
    """A file that grows by whole lines, written one by one: a killed process loses none, a full disk delays them.

    It is opened at the first line, for a resumed run's log is cut back before that.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: io.FileIO | None = None
        self._waiting = b""
        """Whole lines that are not in the file yet."""

    def write(self, line: str) -> None:
        """Raises Late when the disk does not take the line."""
        self._waiting += line.encode() + b"\n"
        try:
            if self._file is None:
                self._file = self._open()
            self._empty(self._file)
        except OSError as error:
            raise Late(
                f"{self._path} cannot be written: {error.strerror or error}; its lines are kept in memory until it can"
            ) from error

    def _open(self) -> io.FileIO:
        """At the file's end; what a kill left there half-written gets a line of its own."""
        file = self._path.open("a+b", buffering=0)
        if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
            self._waiting = b"\n" + self._waiting
        return file

    def _empty(self, file: io.FileIO) -> None:
        """Write what is waiting; when that fails, the file ends with its last whole line."""
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
            raise Late(f"{lines} lines never came into {self._path}: {error.strerror or error}") from error
        finally:
            if self._file is not None:
                self._file.close()


class JsonlSink(_Lines):
    """One JSON object a line: {"event", "step", …values…}. Only what is under "timing" differs between equal runs."""

    def event(self, kind: str, step: int, values: Mapping[str, Json]) -> None:
        line = {"event": kind, "step": step, **values}
        self.write(json.dumps(to_json(line), ensure_ascii=False, allow_nan=False))

    def figure(self, name: str, step: int, png: Path) -> None:
        self.event("figure", step, {"name": name, "file": png.name})


class TextSink(_Lines):
    """The same for people: a line with the time, the event and its numbers."""

    def event(self, kind: str, step: int, values: Mapping[str, Json]) -> None:
        numbers = {**{k: v for k, v in values.items() if k != "timing"}, **(values.get("timing") or {})}
        text = "  ".join(f"{k} {_short(v)}" for k, v in numbers.items())
        self.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {kind:<10} step {step}  {text}")

    def figure(self, name: str, step: int, png: Path) -> None:
        self.event("figure", step, {"name": name, "file": png.name})


class TensorBoardSink:
    """Scalars and pictures as TensorBoard event files, written with the `tensorboard` package alone."""

    def __init__(self, folder: Path) -> None:
        tensorboard_without_tensorflow()
        try:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            raise BadInput(
                "log.tensorboard needs the package tensorboard: install runner-core[tensorboard], or switch it off"
            ) from None
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(folder))

    def event(self, kind: str, step: int, values: Mapping[str, Json]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        numbers = {**values, **(values.get("timing") or {})}
        found = {k: float(v) for k, v in numbers.items() if isinstance(v, (int, float)) and k != "epoch"}
        self._add(step, [Summary.Value(tag=f"{kind}/{name}", simple_value=v) for name, v in found.items()])

    def figure(self, name: str, step: int, png: Path) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._add(step, [Summary.Value(tag=name, image=Summary.Image(encoded_image_string=png.read_bytes()))])

    def close(self) -> None:
        self._writer.close()

    def _add(self, step: int, values: list[Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        if values:
            self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
            self._writer.flush()


def tensorboard_without_tensorflow() -> None:
    """Before tensorboard is imported (MONAI imports it too): it then takes its own stub for files, instead of
    importing all of TensorFlow where that is installed, which costs seconds and 0.7 GB."""
    name = "tensorboard.compat.notf"  # the module that tensorboard looks for
    sys.modules.setdefault(name, ModuleType(name))


def _short(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
