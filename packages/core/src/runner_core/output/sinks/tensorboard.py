"""Logs to TensorBoard event files."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from runner_core.base.calling import adds_extra
from runner_core.base.errors import BadInput
from runner_core.contract import Json
from runner_core.output.sinks import numbers


class TensorBoardSink:
    """Writes scalars and pictures as TensorBoard event files, with the `tensorboard` package alone.

    Raises BadInput if that is missing. The folder is made at the first event.
    """

    def __init__(self, folder: Path) -> None:
        tensorboard_without_tensorflow()
        try:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            raise BadInput(
                f"log.tensorboard needs the package tensorboard: `{adds_extra('tensorboard')}`, or switch it off"
            ) from None
        self._folder, self._kind = str(folder), EventFileWriter
        self._writer: Any = None

    def event(self, kind: str, step: int, values: Mapping[str, Json]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        found = numbers(kind, values)
        self._add(step, [Summary.Value(tag=name, simple_value=value) for name, value in found.items()])

    def figure(self, name: str, step: int, png: Path) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._add(step, [Summary.Value(tag=name, image=Summary.Image(encoded_image_string=png.read_bytes()))])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _add(self, step: int, values: list[Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        if values:
            self._writer = self._writer or self._kind(self._folder)
            self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
            self._writer.flush()


def tensorboard_without_tensorflow() -> None:
    """Keep tensorboard from importing TensorFlow; call this before tensorboard is imported (MONAI imports it too).

    It then takes its own stub for files, instead of importing all of TensorFlow, which costs seconds and 0.7 GB.
    """
    name = "tensorboard.compat.notf"  # the module that tensorboard looks for
    sys.modules.setdefault(name, ModuleType(name))
