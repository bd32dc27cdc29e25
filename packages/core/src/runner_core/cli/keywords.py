"""The keywords of a Python call, in place of a command line: the same options, aliases, settings and refusals."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from runner_core.base.errors import BadInput, did_you_mean
from runner_core.base.location import location
from runner_core.cli.options import Options
from runner_core.cli.parsing import ALIASES, LATEST, Peek
from runner_core.config import RunConfig
from runner_core.config.values import flat_items, overlay_named, refuse_removed

SHORT = {short.strip("-").replace("-", "_"): name.strip("-").replace("-", "_") for short, name in ALIASES.items()}
"""Keyword → the setting that it is short for: the command line's aliases."""

_OF_THE_SCREEN = ("debug", "json")
"""Options that say what is printed: a call returns its results and raises its errors."""


@dataclass(frozen=True)
class Keywords:
    """A command's options, and everything else that a call names: settings, and `predict`'s own options."""

    options: Options
    others: Mapping[str, Any]

    @classmethod
    def of(cls, kind: type[Options], given: Mapping[str, Any]) -> Keywords:
        """Divide the keywords of a call; one that is None is left out. Raises BadInput for a wrong value."""
        fields = {f.name: str(f.type) for f in dataclasses.fields(kind) if f.name not in _OF_THE_SCREEN}
        own = {name: _option(name, fields[name], value) for name, value in given.items() if name in fields}
        others = {name: value for name, value in given.items() if name not in fields}
        named = {name: value for name, value in own.items() if value is not None}
        return cls(kind(**named), _spelled_out(others))

    def peek(self) -> Peek:
        """Return the options that decide the defaults of the settings."""
        get = {**vars(self.options)}.get
        data, run = get("data"), get("run")
        return Peek(
            preset=get("preset"),
            config=get("config"),
            data=None if data is None else location(data),
            resume=get("resume"),
            start=get("from_"),
            run_dir=get("run_dir"),
            out=get("out"),
            extension=get("extension", ()),
            no_extension=get("no_extension", ()),
            help=False,
            with_=get("with_", ()),
            run=run,
            arguments=(),
        )

    def parse(self, settings: RunConfig, extra: Any) -> tuple[Any, RunConfig, Any]:
        """Return the options, `settings` with those of the call, and `extra` (predict's own options) likewise."""
        own = {field.name for field in dataclasses.fields(extra)} if extra is not None else set()
        refuse_removed(settings, self.others)
        sections = {field.name for field in dataclasses.fields(settings)}
        for name in self.others:
            if name not in own and name.partition(".")[0] not in sections:
                hint = did_you_mean(name, [*SHORT, *own, *(field.name for field in dataclasses.fields(self.options))])
                raise BadInput(
                    f"there is no keyword {name!r}{hint}; settings have dotted names, as in "
                    "**{'train.epochs': 5}, and `runner PROJECT config` prints them all"
                )
        chosen = {name: value for name, value in self.others.items() if name not in own}
        found = overlay_named(settings, chosen, "the keywords")
        if extra is not None:
            extra = overlay_named(extra, {n: v for n, v in self.others.items() if n in own}, "the keywords")
        return self.options, found, extra


def _spelled_out(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their dotted names. Raises BadInput if one is given twice, with two values."""
    found: dict[str, Any] = {}
    for name, value in flat_items(given):
        full, plain = SHORT.get(name, name), plain_value(value)
        if full in found and found[full] != plain:
            raise BadInput(
                f"{full} is given twice, as {found[full]!r} and as {plain!r} ({name}): leave one of them out"
            )
        found[full] = plain
    return found


def plain_value(value: Any) -> Any:
    """Return a NumPy number as Python's, and a path as text."""
    if isinstance(value, np.generic):
        return value.item()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _option(name: str, kind: str, value: Any) -> Any:
    """Return an option's value as the command line would give it."""
    if name == "resume":
        return LATEST if value is True else None if value is False or value is None else os.fspath(value)
    if value is None:
        return None
    if name == "with_":
        runs = (value,) if isinstance(value, (str, os.PathLike)) else value
        return tuple(Path(run).expanduser() for run in runs)
    if name in ("extension", "no_extension"):
        return (value,) if isinstance(value, str) else tuple(value)
    if "Path" in kind or "Place" in kind:
        if not isinstance(value, (str, os.PathLike)):
            raise BadInput(f"{name} must be a path, not {value!r}")
        return Path(value).expanduser() if "Path" in kind else str(value)
    return plain_value(value)
