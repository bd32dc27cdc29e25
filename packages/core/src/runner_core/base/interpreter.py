"""Spare Python what a framework costs at the start and the end of a process: searching and taking down its modules."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without_collecting() -> Iterator[None]:
    """Import modules inside: the garbage collector, which would search the growing heap for nothing, waits."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def leave(call: Callable[[], object]) -> None:
    """Call the function, and end the process with what it returns as the exit code, as `sys.exit` would.

    Threads are waited for, functions of `atexit` are called, and output is flushed. But the modules are not taken down:
    with PyTorch that takes 0.4 s, longer than many commands. Python ends as usual if a profiler or a debugger watches,
    or if the output cannot be written.
    """
    code: Any
    try:
        code = call()
    except SystemExit as error:
        code = error.code
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    if sys.gettrace() or sys.getprofile():
        sys.exit(code)
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            if stream is not None:  # it was closed before Python started
                stream.flush()
    except (OSError, ValueError):
        sys.exit(code)
    os._exit(code if isinstance(code, int) else int(code is not None))
