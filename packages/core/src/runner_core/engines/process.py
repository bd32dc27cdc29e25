"""Leave the process of the caller as it was: environment variables, random generators, settings of frameworks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any


@contextmanager
def undisturbed() -> Iterator[Callable[[str], None]]:
    """Restore the process at the end; call the function that is yielded before a framework (torch, keras) is used.

    Signal handlers, threads and worker processes end with the work itself.
    """
    before = dict(os.environ)
    with ExitStack() as stack:
        stack.callback(_restore, before)

        def framework(name: str) -> None:
            own = process_of(name)
            stack.callback(own.write, own.read())

        yield framework


@contextmanager
def unheard(descriptor: int) -> Iterator[None]:
    """Suppress what a library by itself writes into standard output (1) or standard error (2)."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    kept, nowhere = os.dup(descriptor), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    try:
        yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)
        os.close(nowhere)


def process_of(framework: str) -> Any:
    """Return the module that reads and writes a framework's state of this process; it imports the framework."""
    return import_module(f"runner_core.engines.{framework}.process")


def _restore(before: Mapping[str, str]) -> None:
    for name in {*os.environ} - {*before}:
        del os.environ[name]
    os.environ.update(before)
