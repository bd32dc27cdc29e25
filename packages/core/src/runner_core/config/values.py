"""Strict conversion between plain values (from YAML) and typed settings.

An unknown key or a wrong type is refused by name. Knows the types that settings are made of: nested dataclasses, str,
int, float, bool, Path, Literal, Optional, tuples, lists, and dicts with text keys.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from runner_core.base.errors import BadInput, did_you_mean

Config = TypeVar("Config")

REMOVED = {
    "model.weights": "`train --from FILE` starts from weights, for every project",
    "predict.flip": "`predict.views` names the views that predictions are averaged over, left-right or none",
    "predict.no_flip": "`--predict.views none` averages over no other views",
    "predict.part_sheets": "cutting bridges changed the score of networks' predictions by 0.001 or less: leave it out",
    "loss.measure_every": "every run logs the gradient norms of its loss terms, and `profile` times them: leave it out",
}
"""Settings that projects had before 0.1.0, with the answer to those who set them."""


def overlay(base: Config, values: Mapping[str, Any], where: str, path: str = "") -> Config:
    """Return a copy of the dataclass `base` with `values` in place of its own; all other fields keep their values.

    `where` names the source (a file) and `path` the section, for messages. Raises BadInput.
    """
    assert dataclasses.is_dataclass(base)
    assert not isinstance(base, type)
    hints = get_type_hints(type(base))
    changes: dict[str, Any] = {}
    for key, value in values.items():
        if key not in hints:
            if gone := REMOVED.get(_dotted(path, key)):
                raise BadInput(f"{where}: the setting {_dotted(path, key)!r} is gone: {gone}")
            known = [f.name for f in dataclasses.fields(base)]
            raise BadInput(
                f"{where}: there is no setting {_dotted(path, key)!r}{did_you_mean(str(key), known)}\n"
                f"{'settings of ' + path if path else 'sections'}: {', '.join(known)}"
            )
        changes[key] = _convert(value, hints[key], getattr(base, key), where, _dotted(path, key))
    try:
        return dataclasses.replace(base, **changes)
    except ValueError as error:  # from a project's __post_init__
        raise BadInput(f"{where}: {path or 'settings'}: {error}") from error


def overlay_named(base: Config, values: Mapping[str, Any], where: str) -> Config:
    """Return a copy of `base` with `values`, which are given by dotted name.

    >>> from runner_core.config import RunConfig
    >>> overlay_named(RunConfig(), {"train.batch_size": 8, "cache.mode": "off"}, "these").train.batch_size
    8
    """
    return overlay(base, nested(values), where)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values given by dotted name as nested sections.

    >>> nested({"train.workers": 2, "train.prefetch": 4})
    {'train': {'workers': 2, 'prefetch': 4}}
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        *sections, key = name.split(".")
        place = found
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
    return found


def plain(value: Any) -> Any:
    """Return settings as YAML and JSON can hold them: dicts, lists, text, numbers, booleans and None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value


def flag_words(name: str, value: Any) -> list[str]:
    """Return the words that set a setting or an option.

    >>> flag_words("train.seed", 3), flag_words("model.norm", False)
    (['--train.seed', '3'], ['--model.no-norm'])
    """
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        section, dot, last = flag.rpartition(".")
        return [f"--{flag}" if value else f"--{section}{dot}no-{last}"]
    if isinstance(value, (list, tuple)):
        return [f"--{flag}", *map(str, value)]
    return [f"--{flag}", str(value)]


def refuse_removed(config: object, names: Iterable[str]) -> None:
    """Raise BadInput for a name of a setting that projects had before and `config` does not have."""
    gone = removed(flat(config))
    for name in names:
        if name in gone:
            raise BadInput(f"the setting {name!r} is gone: {REMOVED[name]}")


def removed(known: Container[str]) -> list[str]:
    """Return the settings that projects had before 0.1.0 and that are not among those `known` now."""
    return [name for name in REMOVED if name not in known]


def flat(config: object) -> dict[str, Any]:
    """Return settings by dotted name, as plain values.

    >>> from runner_core.config import RunConfig
    >>> flat(RunConfig())["train.batch_size"]
    32
    """
    return dict(flat_items(plain(config)))


def flat_items(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings with their dotted names."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat_items(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _dotted(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _convert(value: Any, wanted: Any, current: Any, where: str, path: str) -> Any:
    """Return `value` as type `wanted`; `current` is the value it replaces (the base of a nested section)."""
    origin = get_origin(wanted)
    if dataclasses.is_dataclass(wanted):
        return _convert_section(value, wanted, current, where, path)
    if origin in (Union, types.UnionType):
        return _convert_union(value, get_args(wanted), current, where, path)
    if origin is Literal:
        return _convert_choice(value, get_args(wanted), where, path)
    if origin in (tuple, list):
        return _convert_sequence(value, origin, get_args(wanted), where, path)
    if origin is dict:
        return _convert_mapping(value, get_args(wanted)[1], where, path)
    return _convert_scalar(value, wanted, where, path)


def _convert_section(value: Any, wanted: Any, current: Any, where: str, path: str) -> Any:
    if value is None:  # a section with nothing under it
        return current
    if not isinstance(value, Mapping):
        raise _wrong(where, path, "a section with settings below it", value)
    return overlay(current if current is not None else wanted(), value, where, path)


def _convert_mapping(value: Any, item: Any, where: str, path: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong(where, path, "names with values", value)
    return {str(k): _convert(v, item, None, where, _dotted(path, k)) for k, v in value.items()}


def _convert_scalar(value: Any, wanted: Any, where: str, path: str) -> Any:
    if wanted is Any:
        return value
    if wanted is float:
        # YAML 1.1 reads 1e-3 (no dot) as text
        if isinstance(value, (int, float, str)) and not isinstance(value, bool):
            try:
                return float(value)
            except ValueError:
                pass
        raise _wrong(where, path, "a number", value)
    if wanted is Path and isinstance(value, str):
        return Path(value).expanduser()
    if isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool)):
        return value
    names = {int: "a whole number", bool: "true or false", str: "text", Path: "a path", type(None): "nothing (null)"}
    raise _wrong(where, path, names.get(wanted, str(wanted)), value)


def _convert_choice(value: Any, choices: tuple[Any, ...], where: str, path: str) -> Any:
    # YAML 1.1 reads on, off, yes and no as booleans: `train.compile: off` means the word
    if isinstance(value, bool) and value not in [c for c in choices if isinstance(c, bool)]:
        value = next((word for word in (("on", "yes") if value else ("off", "no")) if word in choices), value)
    if not any(value == c and type(value) is type(c) for c in choices):
        hint = did_you_mean(str(value), [str(c) for c in choices])
        raise _wrong(where, path, f"one of {', '.join(map(str, choices))}", value, hint)
    return value


def _convert_sequence(value: Any, origin: type, items: tuple[Any, ...], where: str, path: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise _wrong(where, path, "a list", value)
    if origin is tuple and not (len(items) == 2 and items[1] is Ellipsis):
        if len(value) != len(items):
            raise _wrong(where, path, f"a list of {len(items)}", value)
        wanted = items
    else:
        wanted = (items[0],) * len(value)
    return origin(
        _convert(v, w, None, where, f"{path}[{i}]") for i, (v, w) in enumerate(zip(value, wanted, strict=True))
    )


def _convert_union(value: Any, options: tuple[Any, ...], current: Any, where: str, path: str) -> Any:
    if value is None and type(None) in options:
        return None
    messages = []
    for option in options:
        if option is type(None):
            continue
        try:
            return _convert(value, option, current, where, path)
        except BadInput as error:
            messages.append(error)
    raise messages[0]


def _wrong(where: str, path: str, wanted: str, value: Any, hint: str = "") -> BadInput:
    shown = repr(value)
    return BadInput(f"{where}: {path} must be {wanted}, not {shown[:200]}{'…' if len(shown) > 200 else ''}{hint}")
