"""The core's own capabilities: ordinary hook implementations, which come last in the order.

Imports are inside functions, so that loading the plugins costs nothing and no framework is imported before an engine is
needed. The remedies at the end are settings that a profile suggests, with an estimate of the time they save if there is
one. The estimates follow from the profile's own numbers, by the time that would remain of each part; `tune` measures.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runner_core.base.errors import BadInput
from runner_core.base.interpreter import without_collecting
from runner_core.config import RunConfig
from runner_core.contract import (
    Cache,
    CheckpointFormat,
    Cropper,
    Device,
    Engine,
    HealthRule,
    Json,
    Metric,
    Precision,
    Remedy,
    Sink,
)
from runner_core.contract.hooks import hookimpl
from runner_core.contract.phases import (
    AUGMENT,
    BACKWARD,
    BANDWIDTH,
    COMPUTE,
    DATA,
    FORWARD,
    LATENCY,
    LOSS,
    METRICS,
    MOVE,
    OPTIMIZER,
    WAIT,
)
from runner_core.contract.project import Project
from runner_core.contract.records import AnyRecord
from runner_core.plugins.discovery import how_to_install


@hookimpl
def runner_engine(project: Project, config: RunConfig) -> Engine | None:
    with _framework(project):
        if project.framework == "torch":
            from runner_core.engines.torch import TorchEngine

            return TorchEngine(project, config)
        from runner_core.engines.for_torch import refuse_for_keras

        refuse_for_keras(project, config.train)  # importing TensorFlow takes seconds
        from runner_core.engines.keras import KerasEngine

        return KerasEngine(project, config)


@hookimpl
def runner_cache(project: Project, config: RunConfig, records: Sequence[AnyRecord]) -> Cache | None:
    from runner_core.data.cache import default_cache

    return default_cache(project, config, records)


@hookimpl
def runner_crop(project: Project, config: RunConfig) -> Cropper | None:
    from runner_core.data.crop import default_cropper

    return default_cropper(project, config)


@hookimpl
def runner_precision(project: Project, config: RunConfig, device: Device) -> Precision | None:
    from runner_core.engines.device import default_precision

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
    from runner_core.engines.validation import default_metrics

    return default_metrics(project, config)


@hookimpl
def runner_health(project: Project, config: RunConfig) -> Sequence[HealthRule]:
    from runner_core.health import default_rules

    return default_rules(project, config)


@hookimpl
def runner_sinks(project: Project, config: RunConfig, folder: Path) -> Sequence[Sink]:
    from runner_core.output.sinks import JsonlSink, TextSink

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
        with without_collecting():
            yield
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "keras", "tensorflow", "jax"):
            raise
        raise BadInput(
            f"project {project.name} needs {error.name}, which is not installed; "
            f"{how_to_install(project.name) or 'install the package of the project again, with all that it needs'}"
        ) from None


_WORTH = 0.02
"""Estimated share of the time below which a remedy is not offered."""
_FASTER = 1.5
"""Speed-up of matrix products in another precision from which on that precision is offered."""
_SHORT = 0.02
"""Seconds of a step below which the work around it counts."""
_NETWORK = (AUGMENT, FORWARD, LOSS, BACKWARD)


def default_remedies(project: Project, report: Mapping[str, Any]) -> list[Remedy]:
    """Return the remedies, the most promising first; the gain of some is unknown before they are tried."""
    found = [remedy for part in (_data, _computation, _batch, _between) for remedy in part(project, report)]
    worth = [remedy for remedy in found if remedy.saves is None or remedy.saves >= _WORTH]
    return sorted(worth, key=lambda remedy: -(remedy.saves or 0.0))


def _data(project: Project, report: Mapping[str, Any]) -> Iterator[Remedy]:
    """Yield remedies for a training that waits for its batches."""
    train, cache = project.config.train, project.config.cache
    parts, seconds = report["parts"], report["seconds"]
    wait = parts[WAIT] / seconds
    if wait < 2 * _WORTH:
        return
    reason = f"{wait:.0%} of the time goes into waiting for data"
    cpu = report["use"]["cpu"]
    if report["device"]["kind"] == "cpu":  # workers take cores from the network
        free = max(0.0, cpu["usable"] - cpu["cores"] - cpu["others"])
    else:
        free = max(0.0, cpu["usable"] - 1.0)
    if train.workers == 0 and free >= 0.5:
        count = max(1, min(4, round(free)))
        yield Remedy(
            "workers", {"train.workers": count}, f"{reason}, and {free:.1f} cores are idle", wait * min(1.0, free)
        )
    elif train.workers and free >= 0.5:
        more = min(train.workers + max(1, int(free)), 2 * train.workers)
        saves = wait * (1 - train.workers / more)
        yield Remedy("more workers", {"train.workers": more}, f"{reason}, and {free:.1f} cores are idle", saves)
    if train.workers:
        why = f"{reason}: a longer queue of batches evens out slow ones"
        yield Remedy("look-ahead", {"train.prefetch": max(4, 2 * train.prefetch)}, why)
    if cache.mode == "blosc2":
        yield Remedy("memory map", {"cache.mode": "memmap"}, f"{reason}, and the cache is decompressed at each use")
    if cache.mode == "off":
        yield Remedy(
            "cache", {"cache.mode": "auto"}, f"{reason}, and records are prepared again for each use", 0.9 * wait
        )
    if cache.mode in ("auto", "memmap"):
        yield Remedy(
            "in memory", {"cache.mode": "memory"}, f"{reason}: memory is faster than a disk that was not read yet"
        )


def _computation(project: Project, report: Mapping[str, Any]) -> Iterator[Remedy]:
    """Yield remedies for a device that computes most of the time, or waits for the next operation."""
    train, parts, seconds = project.config.train, report["parts"], report["seconds"]
    gpu, limit = report["device"]["kind"] != "cpu", report["bound"]
    network = sum(parts[part] for part in _NETWORK) / seconds
    brought = (parts[WAIT] + parts[MOVE]) / seconds
    cache = project.config.cache.mode
    if gpu and brought > _WORTH and cache != "device" and project.learning().augment is None:
        why = f"{brought:.0%} of the time goes into moving batches: keep the set on the GPU if it fits"
        yield Remedy("set on the GPU", {"cache.mode": "device"}, why, brought)
    yield from _precision(report, network)
    slower = report["engine"] == "keras" and not gpu  # XLA on a CPU
    if train.compile != "on" and limit in (LATENCY, BANDWIDTH) and not slower:
        lines = report["roofline"] or {}
        saves = None
        if lines and limit == BANDWIDTH:  # fused operations read memory once
            saves = 0.5 * min(network, lines[BANDWIDTH] / seconds)
        why = "many operations are small or only move memory: compiled, they are computed together"
        yield Remedy("compile", {"train.compile": "on"}, why, saves)
    if report["engine"] == "torch" and train.channels_last != "on" and limit in (COMPUTE, BANDWIDTH):
        why = "convolutions depend on the order of their axes in memory"
        yield Remedy("channels last", {"train.channels_last": "on"}, why)
    single = report["engine"] == "keras" and train.steps_per_execution == 1
    if single and limit == LATENCY and blocks_may_help(report["step"]):
        why = f"a step takes {1000 * report['step']:.3g} ms, and the host starts each one separately"
        yield Remedy("steps at once", {"train.steps_per_execution": 8}, why)


def blocks_may_help(step: float) -> bool:
    """Return whether a step of so many seconds is short enough for the work around it to count."""
    return step <= _SHORT


def _precision(report: Mapping[str, Any], network: float) -> Iterator[Remedy]:
    """Yield bfloat16 if matrix products were measured to be faster in it."""
    rates, now, lines = report["limits"]["flops"], report["precision"], report["roofline"]
    if now in ("bfloat16", "float16") or "bfloat16" not in rates or now not in rates:
        return
    ratio = rates["bfloat16"] / rates[now]
    if ratio < _FASTER or report["bound"] == DATA:
        return
    products = min(network, lines[COMPUTE] / report["seconds"]) if lines else network
    why = f"matrix products take 1/{ratio:.2g} of the time in bfloat16 here; other operations may take longer"
    yield Remedy("bfloat16", {"precision.mode": "bfloat16"}, why, products * (1 - 1 / ratio))


def _batch(project: Project, report: Mapping[str, Any]) -> Iterator[Remedy]:
    """Yield remedies for a step that takes equally long whatever its batch size."""
    train, parts, seconds = project.config.train, report["parts"], report["seconds"]
    if train.accumulate > 1:
        why = f"a batch is computed in {train.accumulate} parts, one after another: a single part is faster if it fits"
        yield Remedy("no accumulation", {"train.accumulate": 1}, why)
    update = parts[OPTIMIZER] / seconds
    double: dict[str, Json] = {"train.batch_size": 2 * train.batch_size}
    if train.steps_per_epoch is not None:  # an epoch stays as long
        double["train.steps_per_epoch"] = max(1, train.steps_per_epoch // 2)
    if report["bound"] == LATENCY:
        lines = report["roofline"] or {}
        fixed = sum(parts[part] for part in _NETWORK) / seconds * 0.5 if lines or report["host"] else 0.0
        why = "a step takes about as long with more samples in it; this changes the training: fewer, larger steps"
        yield Remedy(f"batch size {2 * train.batch_size}", double, why, fixed + update / 2, same=False)
    elif update > 0.2:
        why = f"{update:.0%} of the time is the optimizer's update at any batch size; this changes the training"
        yield Remedy(f"batch size {2 * train.batch_size}", double, why, update / 2, same=False)


def _between(project: Project, report: Mapping[str, Any]) -> Iterator[Remedy]:
    """Yield remedies for work between steps that takes much of the time."""
    config = project.config
    often = {
        "validate.every": config.validate.every,
        "log.every": config.log.every,
        "checkpoint.every": config.checkpoint.every,
    }
    for name, event in report["events"].items():
        share = event["seconds"] / event["every"] / report["seconds"]
        if share > (0.2 if name == METRICS else 0.05):
            setting = event["setting"]
            why = f"{name} takes {share:.0%} of the time: {event['seconds']:.3g} s every {event['every']:,.0f} steps"
            now = often.get(setting) or round(event["every"])
            yield Remedy(f"{name} less often", {setting: 4 * now}, why, 0.75 * share)
