"""The examples in docstrings give what they say."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest
from workspace import ROOT

SOURCES = sorted(
    path
    for path in ROOT.glob("packages/*/src/*/**/*.py")
    if "template" not in path.parts and ">>> " in path.read_text(encoding="utf-8")
)


def module(path: Path) -> str:
    """The dotted name of a source file."""
    parts = path.relative_to(ROOT).with_suffix("").parts[3:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("name", [module(path) for path in SOURCES])
def test_examples_in_docstrings(name: str) -> None:
    failed, tried = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS)
    assert tried
    assert not failed
