"""Remember verdicts about the same network, options, versions and device."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from runner_core.base.writing import replace_json
from runner_core.config.values import flat, plain
from runner_core.contract import Json
from runner_core.contract.setup import Data, Setup
from runner_core.data.cache.folder import cache_root
from runner_core.data.cache.identity import digest_json
from runner_core.training.kernels.options import options
from runner_core.training.kernels.verdict import Verdict

_FORMAT = 2
"""Raised when another way of comparing may find something else: what earlier ones found is not remembered then."""
_LIBRARIES = ("numba", "triton", "mamba-ssm", "causal-conv1d", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
_SEEN = ("batch_size", "accumulate", "optimizer", "clip", "ema", "deterministic", "device", "threads", "compile",
         "channels_last", "steps_per_execution")  # fmt: skip
"""Settings of `train` that choose kernels; the learning rate and the seed do not."""


def remembered(setup: Setup, data: Data) -> Verdict | None:
    """Return what was found before about the same network, options, versions and device; None if nothing was."""
    with suppress(OSError, ValueError, TypeError):
        return replace(Verdict(**json.loads(_file(setup, data).read_text(encoding="utf-8"))), remembered=True)
    return None


def remember(setup: Setup, data: Data, found: Verdict) -> None:
    """Keep what was found for the next start; a folder that cannot be written keeps nothing."""
    with suppress(OSError):
        file = _file(setup, data)
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_json(file, asdict(found))


def _file(setup: Setup, data: Data) -> Path:
    train = plain(setup.config.train)
    settings = {name: value for name, value in flat(setup.config).items() if name.split(".")[0] in _sections(setup)}
    own = {
        "format": _FORMAT,
        "project": setup.name,
        "sources": _sources(setup),
        "settings": settings,
        "train": {name: train[name] for name in _SEEN},
        "precision": asdict(setup.precision),
        "options": [option.name for option in options(setup)],
        "versions": versions(setup),
        "device": [setup.device.kind, setup.device.name],
        "arrays": {name: [str(array.dtype), array.shapes[0]] for name, array in data.store.arrays.items()},
    }
    return (
        cache_root(setup.config.cache.dir) / "kernels" / f"{digest_json(json.loads(json.dumps(own, default=str)))}.json"
    )


def _sections(setup: Setup) -> set[str]:
    """Return the sections of settings that describe the data, the network and the loss."""
    ours = {"cache", "remote", "train", "validate", "checkpoint", "health", "log", "predict"}
    return {name.split(".")[0] for name in flat(setup.config)} - ours - set(setup.config.extensions)


def _sources(setup: Setup) -> Json:
    """Return a digest of the files of the project's package, where the network is written."""
    package = sys.modules[type(setup.project).__module__.partition(".")[0]]
    if (written := getattr(package, "__file__", None)) is None:  # in a notebook
        raise OSError(f"{package.__name__} has no file: what its network is cannot be remembered")
    place = Path(written)
    files = sorted(place.parent.rglob("*.py")) if place.name == "__init__.py" else [place]
    return digest_json({str(file.relative_to(place.parent)): file.read_bytes().hex() for file in files})


def versions(setup: Setup) -> dict[str, str]:
    """Return the versions of what may hold a wrong kernel, by name."""
    found = dict(setup.engine.versions())
    for name in ("runner-core", *_LIBRARIES):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
