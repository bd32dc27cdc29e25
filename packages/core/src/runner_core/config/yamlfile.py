"""YAML files that people write: settings and splits."""

from __future__ import annotations

import re
from collections.abc import Hashable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from runner_core.base.errors import BadInput
from runner_core.base.files import refuse_length, refuse_long_file

_Compiled: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NO_TEXT = re.compile(r"\\u[dD][89a-fA-F]")
"""A byte of a path that is not text, as safe_dump writes it; the compiled parser refuses it, the Python one reads
it."""
_DEEPEST = 50
"""Largest number of nested levels: the compiled parser would crash the process at some ten thousand."""
_MOST_ALIASED = 100_000
"""Largest number of values that aliases stand for: ten lines of aliases can stand for thousands of millions."""
_LARGEST, _LARGEST_LIST = 1 << 18, 1 << 26
"""Largest size in bytes of a settings file, which takes a second to read, and of a list of names."""
_LARGEST_SLOW = 1 << 14
"""Bytes of a settings file that the Python parser reads in a second."""
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F][0-9a-fA-F_]*|0b[01][01_]*)$")
_FLOAT = re.compile(
    r"([-+]?(([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+][0-9]+)?|\.(inf|Inf|INF))|\.(nan|NaN|NAN))$"
)


class _Checked:
    """A safe loader that refuses duplicate keys and values that do not match their tag.

    YAML forbids duplicate keys, but PyYAML silently takes the last one.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _error(f"the key {key.value!r} appears here twice", key)
                seen.add(key.value)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)  # type: ignore[misc]
        return mapping

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)  # type: ignore[misc]
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
            what = f"{str(node.value)[:60]!r} is no {node.tag.rpartition(':')[2]}"
            raise _error(what, node) from error


_PLAIN: Any = {
    first: [
        (tag, {"int": _INT, "float": _FLOAT}.get(tag.rpartition(":")[2], pattern))
        for tag, pattern in resolvers
        if not tag.endswith(":timestamp")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
"""Patterns of numbers, booleans and null without YAML 1.1's surprises: 1:30 is not 90, 010 is not 8, a date is text."""


@cache
def _loader(base: type, names: bool) -> Any:
    """Return the loader of a parser.

    With `names` every plain value is text, because a record may be named 007 or 2024-01-01.
    """
    return type("Loader", (_Checked, base), {"yaml_implicit_resolvers": {} if names else _PLAIN})


def read_yaml(path: Path, what: str, *, names: bool = False) -> Any:
    """Return the content of the file. Raises BadInput naming the file and the line when it cannot be read.

    `what` describes the file: "settings file". With `names` the file lists names, so that each value is text.
    """
    most = _LARGEST_LIST if names else _LARGEST
    try:
        text = refuse_long_file(path, most, f"a {what}").read_text(encoding="utf-8")
        # the Python parser locates errors better, but takes 10 s for the largest settings file
        base = yaml.SafeLoader if len(text) <= _LARGEST_SLOW or _NO_TEXT.search(text) else _Compiled
        if base is yaml.SafeLoader and not names:
            refuse_length(str(path), len(text), _LARGEST_SLOW, f"a {what} with a path that is not text")
        _refuse_bombs(text, base)
        return yaml.load(text, _loader(base, names))  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise BadInput(f"{path}: the {what} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: the {what} is not text in UTF-8 (byte {error.start})") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise BadInput(f"{path}{where}: not valid YAML: {_one_line(error)}") from error
    except yaml.reader.ReaderError as error:
        line = text.encode()[: error.position].count(b"\n") + 1
        raise BadInput(f"{path}, line {line}: not valid YAML: {error.reason}") from error


def _refuse_bombs(text: str, base: Any) -> None:
    """Raise MarkedYAMLError for a text that would take forever to build, or crash the process."""
    sizes: dict[str, int] = {}
    aliased = 0
    inside: list[tuple[str | None, int]] = [(None, 0)]
    for event in yaml.parse(text, Loader=base):
        anchor, size = getattr(event, "anchor", None), 0
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise _error(f"the alias *{event.anchor} refers to no complete value before it", event)
            size, anchor = sizes[event.anchor], None
            aliased += size
            if aliased > _MOST_ALIASED:
                raise _error(f"the aliases up to here expand to more than {_MOST_ALIASED:,} values", event)
        elif isinstance(event, yaml.CollectionStartEvent):
            inside.append((anchor, 1))
            if len(inside) > _DEEPEST:
                raise _error(f"more than {_DEEPEST} levels deep", event)
            continue
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = inside.pop()
        elif isinstance(event, yaml.ScalarEvent):
            size = 1
        inside[-1] = (inside[-1][0], inside[-1][1] + size)
        if anchor is not None:
            sizes[anchor] = size


def _error(what: str, at: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, what, at.start_mark)


def _one_line(error: yaml.MarkedYAMLError) -> str:
    return " ".join(text for text in (error.problem, error.context and f"({error.context})") if text)
