"""Parts of a training, for a project's own tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from runner_core.base.errors import BadInput
from runner_core.config import RunConfig
from runner_core.config.values import overlay_named
from runner_core.contract import Cropped, Store
from runner_core.contract.project import Project
from runner_core.contract.records import AnyRecord, Prepared
from runner_core.data.cache import default_cache
from runner_core.data.crop import default_cropper
from runner_core.data.pipeline import CroppedRecord, RecordPipeline

Config = TypeVar("Config", bound=RunConfig)


def changed(config: Config, settings: Mapping[str, Any]) -> Config:
    """Return a copy of `config` with `settings`, which are given by dotted name.

    >>> changed(RunConfig(), {"train.batch_size": 8}).train.batch_size
    8
    """
    return overlay_named(config, settings, "the test")


def refusal(kind: type[Project], config: RunConfig) -> str | None:
    """Return the message with which the project refuses these settings; None if it takes them."""
    try:
        kind(config)
    except BadInput as error:
        return str(error)
    return None


def cropped(project: Project, record: AnyRecord) -> Cropped:
    """Return the record as `predict` and `baseline` get it. `crop.mode` chooses the cropper."""
    return CroppedRecord(_pipeline(project), record)


def prepared(project: Project, record: AnyRecord) -> Prepared:
    """Return the record as the cache stores it, with its labels. `crop.mode` chooses the cropper."""
    return _pipeline(project)(record)


def _pipeline(project: Project) -> RecordPipeline:
    return RecordPipeline(project, default_cropper(project, project.config))


def open_store(project: Project, records: Sequence[AnyRecord]) -> Store:
    """Return the prepared arrays of the records from the cache that the settings choose; build it if it is missing."""
    return default_cache(project, project.config).open(_pipeline(project), records, lambda text: None)
