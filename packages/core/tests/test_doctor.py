"""The doctor: what it finds, and that it imports no framework."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from runner_core import doctor


def test_it_imports_no_framework_and_needs_no_gpu(tmp_path: Path) -> None:
    code = (
        "import sys; from runner_core.doctor import doctor; code = doctor([]);"
        "assert not {'torch', 'tensorflow', 'keras'} & set(sys.modules); raise SystemExit(code)"
    )
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    for word in ("CPU", "RAM", "GPU", "torch", "tensorflow", "not installed"):
        assert word in done.stdout


def fake_smi(folder: Path, answer: str, code: int = 0) -> None:
    script = folder / "nvidia-smi"
    script.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\nexit {code}\n", encoding="utf-8")
    script.chmod(0o755)


def test_gpus_are_read_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    fake_smi(tmp_path, "NVIDIA H200, 143771, 570.1\nNVIDIA H200, 143771, 570.1")
    gpus = doctor.find_gpus()
    assert [g.name for g in gpus] == ["NVIDIA H200"] * 2
    assert gpus[0].memory_gb == pytest.approx(150.75, abs=0.1)
    fake_smi(tmp_path, "NVIDIA-SMI has failed", code=9)
    assert doctor.find_gpus() == []


def test_a_gpu_with_a_cpu_build_of_torch_is_pointed_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda package: "2.10.0+cpu" if package == "torch" else None)
    advice = list(doctor.advice([doctor.Gpu("X", 80, "1")], tmp_path, 1e9))
    assert any("without CUDA" in line for line in advice)


def test_a_slow_or_unwritable_cache_is_pointed_out(tmp_path: Path) -> None:
    assert any("only 10 MB/s" in line for line in doctor.advice([], tmp_path, 10e6))
    assert doctor.disk_speed(Path("/proc/nothing")) is None
    assert any("cannot be written" in line for line in doctor.advice([], Path("/proc/x"), None))
