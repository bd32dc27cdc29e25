"""An accelerator for tests on a machine without one: `pretend.start()` compiles it and tells PyTorch of it.

PyTorch then has the device "pretend" in this process for good, and takes it for the machine's accelerator
(`torch.accelerator`). pretend.cpp says how it behaves.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

MEMORY = 1 << 34
"""Bytes that the device says it has."""


def missing() -> str:
    """Return why it cannot be compiled here, or ""."""
    headers = Path(sysconfig.get_path("include"), "Python.h").is_file()
    return "" if shutil.which("c++") and headers else "needs a C++ compiler and Python's headers"


@cache
def start() -> Any:
    """Return the extension: `waits()`, `limit(bytes)`, `peak()`, `unsafe_frees()`, `unfinished()`."""
    import torch

    found = importlib.util.spec_from_file_location("runner_pretend", _compiled())
    native = importlib.util.module_from_spec(found)
    found.loader.exec_module(native)
    torch.utils.rename_privateuse1_backend("pretend")
    torch._register_device_module("pretend", _module(native))
    torch.utils.generate_methods_for_privateuse1_backend()
    return native


def end(text: str) -> None:
    """Print the text and end this process at once.

    A thread of autograd's may still be in Python; a process that exits meanwhile is aborted.
    """
    print(text, flush=True)
    os._exit(0)


def _compiled() -> Path:
    """Return the extension's file, compiled unless this source was compiled before for this torch and Python."""
    import torch
    from torch.utils import cpp_extension

    source = Path(__file__).with_name("pretend.cpp")
    made_for = f"{torch.__version__} {sys.version}".encode()
    known = hashlib.sha256(source.read_bytes() + made_for).hexdigest()[:16]
    file = Path(tempfile.gettempdir(), f"runner-pretend-{os.getuid()}-{known}.so")
    if file.exists():
        return file
    libraries = Path(torch.__file__).parent / "lib"
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made = Path(folder, file.name)
        subprocess.run(
            [
                *("c++", "-shared", "-fPIC", "-std=c++17", "-O0", "-w", "-DTORCH_EXTENSION_NAME=runner_pretend"),
                f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
                *(f"-isystem{path}" for path in [*cpp_extension.include_paths(), sysconfig.get_path("include")]),
                *(source, f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lc10", "-ltorch_cpu", "-ltorch_python"),
                *("-o", made),
            ],
            check=True,
        )
        made.replace(file)
    return file


def _module(native: Any) -> ModuleType:
    """Return `torch.pretend`, with the functions that `torch.cuda` and `torch.xpu` have."""
    import torch

    found: Any = ModuleType("torch.pretend")
    generator = native.default_generator()
    found.device_count = lambda: 1
    found.is_available = found.is_initialized = lambda: True
    found.current_device = lambda: 0
    found.set_device = lambda device: None
    found.device = lambda device: nullcontext()
    found._is_in_bad_fork = lambda: False
    found.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    found.is_bf16_supported = lambda: True
    found.manual_seed_all = found.manual_seed = generator.manual_seed
    found.get_rng_state = lambda device=None: generator.get_state()
    found.set_rng_state = lambda state, device=None: generator.set_state(state)
    found.get_rng_state_all = lambda: [generator.get_state()]
    found.set_rng_state_all = lambda states: generator.set_state(states[0])
    found.synchronize = torch.accelerator.synchronize
    found.empty_cache = lambda: None
    found.memory_allocated = found.memory_reserved = lambda device=None: native.allocated()
    found.max_memory_allocated = lambda device=None: native.peak()
    found.reset_peak_memory_stats = lambda device=None: native.forget_peak()
    found.mem_get_info = lambda device=None: (MEMORY - native.allocated() - 1_000_000, MEMORY)
    found.get_device_properties = lambda device=None: SimpleNamespace(name="a pretended GPU", total_memory=MEMORY)
    return found
