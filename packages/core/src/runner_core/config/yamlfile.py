"""YAML files that people write: settings and splits."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from runner_core._errors import BadInput


class _Loader(yaml.SafeLoader):
    """Safe, and a key that stands twice is an error: YAML forbids it, PyYAML takes the last one in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(None, None, f"the key {key.value!r} stands here twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, what: str) -> Any:
    """What the file holds; BadInput naming it, and the line, when it cannot be read. `what`: "settings file"."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise BadInput(f"{path}: the {what} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: the {what} is not text in UTF-8 (byte {error.start})") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise BadInput(f"{path}{where}: not valid YAML: {_one_line(error)}") from error
    except yaml.YAMLError as error:
        raise BadInput(f"{path}: not valid YAML: {str(error).splitlines()[0]}") from error


def _one_line(error: yaml.MarkedYAMLError) -> str:
    return " ".join(text for text in (error.problem, error.context and f"({error.context})") if text)
