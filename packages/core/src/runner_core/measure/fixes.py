"""The core's remedies: what a profile speaks for, each with an estimate of what it saves where there is one.

Estimates follow from the profile's own numbers, by what would be left of each part; `tune` measures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner_core.engines.phases import AUGMENT, BACKWARD, FORWARD, LOSS, MOVE, OPTIMIZER, WAIT
from runner_core.measure.between import METRICS
from runner_core.measure.bound import BANDWIDTH, COMPUTE, DATA, LATENCY
from runner_core.project import Project, overrides
from runner_core.protocols import Fix, Json

_WORTH = 0.02
"""Estimated share of the time below which a remedy is not offered."""
_FASTER = 1.5
"""How much faster matrix products must be in another precision."""
_SHORT = 0.02
"""Seconds of a step, below which what surrounds it counts."""
_NETWORK = (AUGMENT, FORWARD, LOSS, BACKWARD)


def default_fixes(project: Project, report: Mapping[str, Any]) -> list[Fix]:
    """Those that promise most first; of some nobody knows before they are tried."""
    found = [fix for part in (_data, _computation, _batch, _between) for fix in part(project, report)]
    worth = [fix for fix in found if fix.saves is None or fix.saves >= _WORTH]
    return sorted(worth, key=lambda fix: -(fix.saves or 0.0))


def _data(project: Project, report: Mapping[str, Any]) -> Iterator[Fix]:
    """Where training waits for its batches."""
    train, cache = project.config.train, project.config.cache
    parts, seconds = report["parts"], report["seconds"]
    wait = parts[WAIT] / seconds
    if wait < 2 * _WORTH:
        return
    told = f"{wait:.0%} of the time is waiting for data"
    cpu = report["use"]["cpu"]
    if report["device"]["kind"] == "cpu":  # workers take cores that the network computes with
        free = max(0.0, cpu["usable"] - cpu["cores"] - cpu["others"])
    else:
        free = max(0.0, cpu["usable"] - 1.0)
    if train.workers == 0 and free >= 0.5:
        count = max(1, min(4, round(free)))
        yield Fix("workers", {"train.workers": count}, f"{told}, and {free:.1f} cores are idle", wait * min(1.0, free))
    elif train.workers and free >= 0.5:
        more = min(train.workers + max(1, int(free)), 2 * train.workers)
        saves = wait * (1 - train.workers / more)
        yield Fix("more workers", {"train.workers": more}, f"{told}, and {free:.1f} cores are idle", saves)
    if train.workers:
        why = f"{told}: more batches ready even out those that take long"
        yield Fix("look-ahead", {"train.prefetch": max(4, 2 * train.prefetch)}, why)
    if cache.mode == "blosc2":
        yield Fix("memory map", {"cache.mode": "memmap"}, f"{told}, and the cache is decompressed at each use")
    if cache.mode == "off":
        yield Fix("cache", {"cache.mode": "auto"}, f"{told}, and records are prepared anew for each use", 0.9 * wait)
    if cache.mode in ("auto", "memmap"):
        yield Fix(
            "in memory", {"cache.mode": "memory"}, f"{told}: memory answers faster than a disk that was not read yet"
        )


def _computation(project: Project, report: Mapping[str, Any]) -> Iterator[Fix]:
    """Where the device computes, or waits for the next operation."""
    train, parts, seconds = project.config.train, report["parts"], report["seconds"]
    gpu, limit = report["device"]["kind"] != "cpu", report["bound"]
    network = sum(parts[part] for part in _NETWORK) / seconds
    brought = (parts[WAIT] + parts[MOVE]) / seconds
    cache = project.config.cache.mode
    if gpu and brought > _WORTH and cache != "device" and not overrides(project, "augment"):
        why = f"{brought:.0%} of the time is bringing batches: the GPU can hold the set, where it fits"
        yield Fix("set on the GPU", {"cache.mode": "device"}, why, brought)
    yield from _precision(report, network)
    slower = report["engine"] == "keras" and not gpu  # XLA on a CPU
    if train.compile != "on" and limit in (LATENCY, BANDWIDTH) and not slower:
        lines = report["roofline"] or {}
        saves = None
        if lines and limit == BANDWIDTH:  # what follows an operation is computed with it, and memory read once
            saves = 0.5 * min(network, lines[BANDWIDTH] / seconds)
        why = "many operations are small or only move memory: compiled, they are computed together"
        yield Fix("compile", {"train.compile": "on"}, why, saves)
    if report["engine"] == "torch" and train.channels_last == "auto" and limit in (COMPUTE, BANDWIDTH):
        on = gpu and "channels_last" in project.faster_with
        why = "convolutions depend on the order of their axes in memory"
        yield Fix("channels last", {"train.channels_last": "off" if on else "on"}, why)
    single = report["engine"] == "keras" and train.steps_per_execution == 1
    if single and limit == LATENCY and blocks_may_help(report["step"]):
        why = f"a step takes {1000 * report['step']:.3g} ms, of which the host begins each anew"
        yield Fix("steps at once", {"train.steps_per_execution": 8}, why)


def blocks_may_help(step: float) -> bool:
    """Is a step of so many seconds short enough for what surrounds it to count?"""
    return step <= _SHORT


def _precision(report: Mapping[str, Any], network: float) -> Iterator[Fix]:
    """bfloat16 where matrix products were measured to be faster in it."""
    rates, now, lines = report["limits"]["flops"], report["precision"], report["roofline"]
    if now in ("bfloat16", "float16") or "bfloat16" not in rates or now not in rates:
        return
    ratio = rates["bfloat16"] / rates[now]
    if ratio < _FASTER or report["bound"] == DATA:
        return
    products = min(network, lines[COMPUTE] / report["seconds"]) if lines else network
    why = f"matrix products take 1/{ratio:.2g} of the time in bfloat16 here; other operations may take longer"
    yield Fix("bfloat16", {"precision.mode": "bfloat16"}, why, products * (1 - 1 / ratio))


def _batch(project: Project, report: Mapping[str, Any]) -> Iterator[Fix]:
    """Where a step takes as long whatever is in it."""
    train, parts, seconds = project.config.train, report["parts"], report["seconds"]
    if train.accumulate > 1:
        why = f"a batch is computed in {train.accumulate} parts, which take turns: one is faster where it fits"
        yield Fix("no accumulation", {"train.accumulate": 1}, why)
    update = parts[OPTIMIZER] / seconds
    double: dict[str, Json] = {"train.batch_size": 2 * train.batch_size}
    if train.steps_per_epoch is not None:  # an epoch stays as long
        double["train.steps_per_epoch"] = max(1, train.steps_per_epoch // 2)
    if report["bound"] == LATENCY:
        lines = report["roofline"] or {}
        fixed = sum(parts[part] for part in _NETWORK) / seconds * 0.5 if lines or report["host"] else 0.0
        why = "a step takes about as long with more samples in it; it is another training: fewer, larger steps"
        yield Fix(f"batch size {2 * train.batch_size}", double, why, fixed + update / 2, same=False)
    elif update > 0.2:
        why = f"{update:.0%} of the time is the optimizer's update, whatever the batch; it is another training"
        yield Fix(f"batch size {2 * train.batch_size}", double, why, update / 2, same=False)


def _between(project: Project, report: Mapping[str, Any]) -> Iterator[Fix]:
    """What happens between steps, where it takes much."""
    config = project.config
    often = {
        "validate.every": config.validate.every,
        "log.every": config.log.every,
        "checkpoint.every": config.checkpoint.every,
        "log.snapshots_every": config.log.snapshots_every,
    }
    for name, event in report["events"].items():
        share = event["seconds"] / event["every"] / report["seconds"]
        if share > (0.2 if name == METRICS else 0.05):
            setting = event["setting"]
            why = f"{name} takes {share:.0%} of the time: {event['seconds']:.3g} s every {event['every']:,.0f} steps"
            yield Fix(f"{name} less often", {setting: 4 * often[setting]}, why, 0.75 * share)
