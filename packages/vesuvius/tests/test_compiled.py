"""Kernels are kept under what they are made from, and work where nothing can be kept."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from numba.core import caching
from runner_vesuvius._compiled import compiled


def module(path: Path, source: str) -> ModuleType:
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = loaded
    spec.loader.exec_module(loaded)
    return loaded


HELPER = "from runner_vesuvius._compiled import compiled\nADD = {add}\n@compiled\ndef plus(x):\n    return x + ADD\n"
USER = (
    "from runner_vesuvius._compiled import compiled\nfrom helper_of_test import ADD, plus\n"
    "@compiled\ndef twice(x):\n    return 2 * plus(x) + ADD\n"
)


def test_a_changed_helper_in_another_file_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # it too goes by a source's size and time
    for name in ("helper_of_test", "user_of_test"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for add in (1, 5):
        os.utime(module(tmp_path / "helper_of_test.py", HELPER.format(add=add)).__file__, (0, 0))
        user = module(tmp_path / "user_of_test.py", USER)
        os.utime(user.__file__, (0, 0))  # Numba's own mark of a source: its size and time
        assert user.twice(10) == 2 * (10 + add) + add
    assert list(tmp_path.rglob("*.nbi")), "nothing was kept"


def test_a_kernel_is_compiled_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """An install and a home that are read-only: Numba finds no place for its cache."""
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])

    def twice(x):
        return 2 * x

    assert compiled(twice)(21) == 42


def test_processes_that_start_at_once(tmp_path: Path) -> None:
    (tmp_path / "helper_of_test.py").write_text(HELPER.format(add=3))
    command = [sys.executable, "-c", "from helper_of_test import plus; print(plus(4))"]
    started = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=120)[0].strip() for process in started] == ["7"] * 2
