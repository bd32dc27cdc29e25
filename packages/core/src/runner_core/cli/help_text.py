"""The text of a command's `--help`: bounds beside types, the common settings first."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro
from typing_extensions import Doc

from runner_core.config import RunConfig
from runner_core.config.bounds import Bounds, bounds_of

COMMON = {
    "train": ("epochs", "steps_per_epoch", "batch_size", "learning_rate", "workers", "seed", "device", "devices"),
    "cache": ("mode", "dir"),
    "precision": ("mode",),
    "validate": ("every", "records"),
    "checkpoint": ("every", "keep"),
    "log": ("tensorboard", "wandb", "mlflow"),
}
"""Settings that a training's `--help` shows, by section, beside all of `data` and of extensions. `--help-all`: all."""
FOR_USE = {
    "data": ("manifest", "pattern"),
    "precision": ("mode",),
    "train": ("device", "threads"),
}
"""The same for commands that use a trained network, beside all of `predict`; most others would change the network."""
FOR_PHANTOM = {"data": ("phantom",)}
"""The same for `phantom`, on which no other setting has an effect; few projects have this one."""


def common(settings: RunConfig, wanted: Mapping[str, Collection[str]], whole: Collection[str]) -> tuple[Any, int]:
    """Return an object with the wanted settings alone, for tyro to show, and the number of those left out.

    `wanted` names settings by section, `whole` the sections of which all settings are wanted. The object is None if
    there is none.
    """
    shown, left_out = list[tuple[str, Any, Any]](), 0
    for section in dataclasses.fields(settings):
        values = getattr(settings, section.name)
        fields = dataclasses.fields(values)
        kept = [f for f in fields if section.name in whole or f.name in wanted.get(section.name, ())]
        left_out += len(fields) - len(kept)
        if kept:
            hints = get_type_hints(type(values), include_extras=True)
            kind = dataclasses.make_dataclass(type(values).__name__, [(f.name, hints[f.name]) for f in kept])
            part = kind(*(getattr(values, f.name) for f in kept))
            shown.append((section.name, kind, dataclasses.field(default_factory=partial(dataclasses.replace, part))))
    return dataclasses.make_dataclass("Settings", shown)() if shown else None, left_out


def complete_help(kind: type) -> None:
    """Let `--help` show the bounds of numbers beside their type (`INT ≥1`), and each field's text as one paragraph.

    tyro reads annotations, and bounds must not need tyro, which takes long to import: they are joined here. tyro alone
    would keep the line breaks that a text has in its source.
    """
    hints, about = get_type_hints(kind, include_extras=True), texts(kind)
    for field in dataclasses.fields(kind):
        hint, more = hints[field.name], list[Any]()
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            complete_help(hint)
            continue
        if (bounds := next(bounds_of(hint), None)) and "metavar" not in repr(hint):
            more.append(tyro.conf.arg(metavar=_metavar(hint, bounds)))
        if field.name in about and not any(isinstance(extra, Doc) for extra in get_args(hint)):
            more.append(Doc(about[field.name]))
        if more:
            kind.__annotations__[field.name] = Annotated[(hint, *more)]


def texts(kind: type) -> dict[str, str]:
    """Return the text below each field, without line breaks; empty if the source is not there."""
    found: dict[str, str] = {}
    for cls in filter(dataclasses.is_dataclass, reversed(kind.__mro__)):
        with suppress(OSError, TypeError, SyntaxError, ValueError):
            (source,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
            for field, after in pairwise(getattr(source, "body", ())):
                match field, after:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        found[name] = " ".join(text.split())
    return found


def _metavar(hint: Any, bounds: Bounds) -> str:
    number = "FLOAT" if "float" in repr(hint) else "INT"
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (list, tuple):
        items = get_args(hint)
        number = f"{number} …" if len(items) == 1 or items[-1] is Ellipsis else " ".join([number] * len(items))
    optional = type(None) in get_args(hint)
    return f"{'{None}|' if optional else ''}{number} {bounds.short()}"
