"""List what a training computes with besides plain eager float32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runner_core.config.values import flat, plain
from runner_core.contract import Json
from runner_core.contract.setup import Setup
from runner_core.training.kernels.verdict import listed


@dataclass(frozen=True)
class Option:
    """Something beyond plain eager float32, and the settings that do without it; {} if none can."""

    name: str
    off: Mapping[str, Json]
    opaque: bool = False
    """True if its single operations cannot be seen, so that only whole steps can be compared."""


def options(setup: Setup) -> list[Option]:
    """Return what this training computes with besides plain eager float32."""
    train, gpu = setup.config.train, setup.device.kind != "cpu"
    torch = setup.project.framework == "torch"
    found = []
    if train.compile == "on" or (train.compile == "auto" and gpu and not torch):
        found.append(Option(f"train.compile ({'inductor' if torch else 'XLA'})", {"train.compile": "off"}, opaque=True))
    if torch and train.channels_last == "on":
        found.append(Option("train.channels_last", {"train.channels_last": "off"}))
    now = flat(setup.config)
    for own in setup.project.learning().optimisations:
        if own.plain and any(now.get(name) != plain(value) for name, value in own.plain.items()):
            used = listed({name: now.get(name) for name in own.plain})
            found.append(Option(f"{setup.name}'s {own.name} ({used})", own.plain, opaque=True))
    if setup.precision.compute != "float32":  # the last: it costs most to do without
        found.append(Option(f"precision {setup.precision.compute}", {"precision.mode": "float32"}))
    if gpu:
        found.append(Option("cuDNN and cuBLAS", {}))
    return found
