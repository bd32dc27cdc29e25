"""Versions of frameworks and CUDA libraries that are known to compute wrongly or slowly (known_bad.yaml)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from runner_core.engines.device import cpu_flags

_CUDNN = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu11")


@dataclass(frozen=True, kw_only=True)
class KnownBad:
    """A row of the table: what is wrong, where upstream says so, what to do, and when it is met."""

    what: str
    issue: str
    remedy: str
    packages: Mapping[str, str]
    device: str = ""
    cpu: tuple[str, ...] = ()
    capability: int = 0
    compute: tuple[str, ...] = ()
    compile: bool = False
    layers: tuple[str, ...] = ()
    channels_last: bool | None = None
    modules: tuple[str, ...] = ()
    mended: bool = False
    compared: bool = False

    @property
    def text(self) -> str:
        return f"{self.what} ({self._versions()}; {self.issue}): {self.remedy}"

    def _versions(self) -> str:
        return ", ".join(f"{name} {_installed(name)}" for name in self.packages)

    def meets(self, run: Run | None) -> bool:
        """Return whether the installed versions have this fault, and, if a run is given, whether it meets it."""
        loaded = {} if run is None else run.loaded
        if not all(_matches(loaded.get(name) or _installed(name), wanted) for name, wanted in self.packages.items()):
            return False
        if not cpu_flags().issuperset(self.cpu):
            return False
        return run is None or (
            self.device in ("", run.device)
            and run.capability >= self.capability
            and run.compile >= self.compile
            and (not self.compute or run.compute in self.compute)
            and (not self.layers or not run.layers.isdisjoint(self.layers))
            and self.channels_last in (None, run.channels_last)
            and (not self.modules or any(name in sys.modules for name in self.modules))
        )


@dataclass(frozen=True, kw_only=True)
class Run:
    """Device, precision and layers of a training. `layers` names its layers' classes, and those that they derive from.

    `loaded` has versions of libraries that are in use, where they may differ from the installed distributions: cudnn.
    """

    device: str
    compute: str
    compile: bool = False
    capability: int = 0
    layers: frozenset[str] = frozenset()
    channels_last: bool = False
    loaded: Mapping[str, str] = field(default_factory=dict)


def known_bad(run: Run | None = None) -> Iterator[KnownBad]:
    """Yield the faults that the installed versions have: those that `run` meets, or all that any run could."""
    return (row for row in table() if row.meets(run))


@cache
def table() -> tuple[KnownBad, ...]:
    """Return all rows of known_bad.yaml."""
    import yaml

    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    return tuple(KnownBad(**{name: _tuple(value) for name, value in row.items()}) for row in yaml.safe_load(text))


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _matches(found: str | None, wanted: str) -> bool:
    from packaging.specifiers import SpecifierSet

    return found is not None and SpecifierSet(wanted).contains(found, prereleases=True)


def _installed(package: str) -> str | None:
    """Return the version of a distribution, None if it is not installed; cudnn has several."""
    if package == "cudnn":
        return next(filter(None, map(_installed, _CUDNN)), None)
    try:
        return version(package)
    except PackageNotFoundError:
        return None
