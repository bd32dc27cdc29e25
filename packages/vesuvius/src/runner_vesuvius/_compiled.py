"""How the package's Numba kernels are compiled and kept."""

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
    """Machine code made at the first call, without the interpreter's lock, kept on disk for the next process.

    Cold, a kernel compiles at its first call for 0.3 to 2 s. Warm, it is read in a few ms; but Numba takes 0.6 s to
    import, and 0.7 s to set itself up for the first kernel of a process: import kernels where they are used.

    Code is kept beside the source, or in the user's own cache folder; where neither can be written to, every process
    compiles for itself. It is kept under the content of what it is made from (the function's file, the kernels and
    constants that it takes from elsewhere) and the processor: by itself, Numba goes on with an old machine code when
    only an imported kernel has changed. Processes may start at once, on machines that share a folder: files appear
    whole or not at all. But two *signatures* of one kernel, compiled at the same moment, could take each other's place:
    give each kernel one signature, by fixing dtypes (and contiguous, writable arrays) in the Python function around it.

    Errors of arithmetic are NumPy's (1 / 0 is inf); indices are not checked.
    """
    function.__qualname__ += f"-{_made_from(function)}"
    kernel = njit(nogil=True, error_model="numpy")(function)
    with suppress(RuntimeError):  # "no locator available": neither folder can be written to
        kernel.enable_caching()
    return kernel


def _made_from(function: Callable[..., Any]) -> str:
    """Of the module's names, all that there are so far count: what a kernel calls may use any of them."""
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
