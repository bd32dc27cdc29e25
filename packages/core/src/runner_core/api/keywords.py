"""The keywords of a call from Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def keywords(kind: Any, given: Mapping[str, Any]) -> Any:
    """Return the `Keywords` of a call of the command with the options `kind`; None stands for a default."""
    from runner_core.cli.keywords import Keywords

    return Keywords.of(kind, {name: value for name, value in given.items() if value is not None})
