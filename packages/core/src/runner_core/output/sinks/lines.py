"""Sinks for the files log.jsonl and train.log."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner_core.base.writing import flush, to_json
from runner_core.contract import Json
from runner_core.output.sinks import Late


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
                flush(self._path)
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


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_short(part)}" for name, part in value.items())
    return f"{value:.5g}" if isinstance(value, float) else str(value)
