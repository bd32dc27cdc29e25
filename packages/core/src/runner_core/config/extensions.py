"""Settings of extensions: sections beside those of the core and the project, one for each extension that declares some.

They are fields of the run's settings like all others, so that flags, files, bounds and saved runs treat them alike.
"""

from __future__ import annotations

import dataclasses
import keyword
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from runner_core.base.errors import BadInput
from runner_core.config import RunConfig
from runner_core.config.bounds import refuse_out_of_bounds


def section_name(extension: str) -> str:
    """Return the name of an extension's section.

    >>> section_name("zarr-cache")
    'zarr_cache'
    """
    return extension.replace("-", "_")


def refuse_unusable(kind: Any, extension: str) -> None:
    """Raise BadInput if `kind`, the extension's `Config`, cannot be a section of settings."""
    name = section_name(extension)
    if not name.isidentifier() or keyword.iskeyword(name):
        raise BadInput(
            f"extension {extension!r}: its settings would be called {name!r}, which cannot be a section: rename it"
        )
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise BadInput(f"extension {extension!r}: its Config holds its settings, so it must be a dataclass")
    try:
        refuse_out_of_bounds(kind(), f"{name}.")
    except BadInput as error:
        raise BadInput(f"extension {extension!r}: the default of a {error}") from error
    except Exception as error:
        raise BadInput(
            f"extension {extension!r}: its Config cannot be made without arguments, so a field lacks a default or has "
            f"an unknown type: {type(error).__name__}: {error}"
        ) from error


def with_sections(config: RunConfig, kinds: Mapping[str, type]) -> RunConfig:
    """Return `config` with a section of defaults for each of `kinds` (section → dataclass)."""
    if not kinds:
        return config
    kind: Any = type(config)
    extended = _extended(kind, tuple(kinds.items()))
    return extended(**{field.name: getattr(config, field.name) for field in dataclasses.fields(config)})


def faults(config: RunConfig) -> Iterable[str]:
    """Yield the faults of the project's settings, then those of the extensions'."""
    yield from config.faults()
    for name in config.extensions:
        yield from getattr(getattr(config, name), "faults", tuple)()


@cache
def _extended(base: Any, kinds: tuple[tuple[str, type], ...]) -> type[Any]:
    """Return a class of settings with further sections; the same one each time."""
    fields = [(name, kind, dataclasses.field(default_factory=kind)) for name, kind in kinds]
    members = {"extensions": dict(kinds), "__reduce__": lambda self: (_blank, (base, kinds), vars(self))}
    return dataclasses.make_dataclass(base.__name__, fields, bases=(base,), namespace=members)


def _blank(base: Any, kinds: tuple[tuple[str, type], ...]) -> RunConfig:
    """Return settings without values: pickle, which cannot find the class by its name, fills them in."""
    blank: RunConfig = object.__new__(_extended(base, kinds))
    return blank
