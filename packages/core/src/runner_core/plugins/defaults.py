"""The core's own capabilities: ordinary hook implementations, which come last in the order.

Every import is inside a function, so that loading the plugins costs nothing and no framework is imported before an
engine is needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner_core.base.errors import BadInput
from runner_core.contract.hooks import hookimpl

if TYPE_CHECKING:
    from runner_core.config import RunConfig
    from runner_core.contract import (
        Cache,
        CheckpointFormat,
        Cropper,
        Device,
        Engine,
        HealthRule,
        Metric,
        Precision,
        Remedy,
        Sink,
    )
    from runner_core.contract.project import Project


@hookimpl
def runner_engine(project: Project, config: RunConfig) -> Engine | None:
    with _framework(project):
        if project.framework == "torch":
            from runner_core.engines.torch import TorchEngine

            return TorchEngine(project, config)
        from runner_core.engines.keras import KerasEngine

        return KerasEngine(project, config)


@hookimpl
def runner_cache(project: Project, config: RunConfig) -> Cache | None:
    from runner_core.data.cache import default_cache

    return default_cache(project, config)


@hookimpl
def runner_crop(project: Project, config: RunConfig) -> Cropper | None:
    from runner_core.data.crop import default_cropper

    return default_cropper(project, config)


@hookimpl
def runner_precision(project: Project, config: RunConfig, device: Device) -> Precision | None:
    from runner_core.engines.precision import default_precision

    return default_precision(project, config, device)


@hookimpl
def runner_checkpoint(project: Project, config: RunConfig) -> CheckpointFormat | None:
    with _framework(project):
        if project.framework == "torch":
            from runner_core.engines.torch.checkpoint import SafetensorsFormat

            return SafetensorsFormat()
        from runner_core.engines.keras.checkpoint import ArraysFormat

        return ArraysFormat()


@hookimpl
def runner_metrics(project: Project, config: RunConfig) -> Sequence[Metric]:
    from runner_core.engines.metrics import default_metrics

    return default_metrics(project, config)


@hookimpl
def runner_health(project: Project, config: RunConfig) -> Sequence[HealthRule]:
    from runner_core.health import default_rules

    return default_rules(project, config)


@hookimpl
def runner_sinks(project: Project, config: RunConfig, folder: Path) -> Sequence[Sink]:
    from runner_core.output.sinks.lines import JsonlSink, TextSink

    sinks: list[Sink] = [JsonlSink(folder / "log.jsonl"), TextSink(folder / "train.log")]
    if config.log.tensorboard:
        from runner_core.output.sinks.tensorboard import TensorBoardSink

        sinks.append(TensorBoardSink(folder / "tensorboard"))
    if config.log.wandb != "off":
        from runner_core.output.sinks.wandb import wandb_sink

        sinks.append(wandb_sink(project, config, folder))
    if config.log.mlflow is not None:
        from runner_core.output.sinks.mlflow import mlflow_sink

        sinks.append(mlflow_sink(project, config, folder))
    return sinks


@hookimpl
def runner_remedies(project: Project, report: Mapping[str, Any]) -> Sequence[Remedy]:
    from runner_core.plugins.remedies import default_remedies

    return default_remedies(project, report)


@contextmanager
def _framework(project: Project) -> Iterator[None]:
    """Import the project's framework inside this context.

    Raises BadInput if the framework is not installed or does not exist.
    """
    chosen = os.environ.get("KERAS_BACKEND", "tensorflow") if project.framework == "keras" else ""
    if chosen not in ("", "tensorflow", "jax"):
        raise BadInput(f"KERAS_BACKEND is {chosen}: set it to tensorflow (the default) or jax")
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "keras", "tensorflow", "jax"):
            raise
        raise BadInput(
            f"project {project.name} needs {error.name}, which is not installed: install its own package "
            f"(runner-{project.name}), or runner-core[{project.framework}]"
        ) from None
