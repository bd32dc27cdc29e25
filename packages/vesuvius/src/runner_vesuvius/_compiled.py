"""Compilation of the package's Numba kernels, and their cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import llvmlite.binding
import numpy as np
from numba import njit
from numba.core.dispatcher import Dispatcher


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function at its first call, without the interpreter's lock, and keep the code on disk.

    A cold kernel compiles in 0.3 to 2 s. A warm one is read in a few ms, but Numba takes 0.6 s to import and 0.7 s to
    set itself up for the first kernel of a process: import kernels where they are used.

    Code is kept beside the source, or in the user's cache folder; if neither can be written to, every process compiles
    for itself. Its key is the content that it is made from (the function's file, and the kernels and constants imported
    from elsewhere) and the processor. Numba alone would keep old machine code when only an imported kernel has changed.
    Processes may start at once, on machines that share a folder: files appear whole or not at all. But two *signatures*
    of one kernel, compiled at the same moment, could replace each other: give each kernel one signature, by fixing
    dtypes (and contiguous, writable arrays) in the Python function around it.

    Errors of arithmetic are NumPy's (1 / 0 is inf); indices are not checked.
    """
    function.__qualname__ += f"-{_made_from(function)}"
    kernel = njit(nogil=True, error_model="numpy")(function)
    with suppress(RuntimeError):  # "no locator available": neither folder can be written to
        kernel.enable_caching()
    return kernel


def _made_from(function: Callable[..., Any]) -> str:
    """Return the content that a kernel is made from.

    All names that the module has so far count, because a kernel's callees may use any of them.
    """
    digest = hashlib.sha256(Path(function.__code__.co_filename).read_bytes())
    digest.update(llvmlite.binding.get_host_cpu_name().encode())
    for name, value in sorted(function.__globals__.items()):
        if isinstance(value, Dispatcher):
            digest.update(value.py_func.__qualname__.encode())
        elif isinstance(value, np.ndarray):
            digest.update(value.tobytes())
        elif isinstance(value, int | float | tuple | np.generic):
            digest.update(f"{name}={value!r}".encode())
    return digest.hexdigest()[:12]
