"""The doctor: what it finds, and that it imports no framework."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from runner_core.cli import doctor


def test_it_imports_no_framework_and_needs_no_gpu(tmp_path: Path) -> None:
    code = (
        "import sys; from runner_core.cli.doctor import doctor; code = doctor([]);"
        "assert not {'torch', 'tensorflow', 'keras'} & set(sys.modules); raise SystemExit(code)"
    )
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    for word in ("CPU", "RAM", "GPU", "torch", "tensorflow"):
        assert word in done.stdout


def test_what_is_missing_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_PACKAGES", ("numpy", "no-such-package"))
    (_, numpy), (_, missing) = doctor.version_rows()
    assert (numpy[0].isdigit(), missing) == (True, "not installed")


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


def test_each_framework_is_asked_what_it_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = {"numpy": "print('talk'); print('[\"X\"]')", "pytest": "1 / 0", "filelock": "", "nowhere": "print('[]')"}
    monkeypatch.setattr(doctor, "_SEEN", codes)
    assert doctor.seen_gpus() == {"numpy": ["X"], "pytest": [], "filelock": []}


@pytest.mark.everywhere
def test_a_framework_that_sees_no_gpu_is_pointed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The GPU is hidden from all frameworks, and the installed ones are really asked."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fake_smi(tmp_path, "NVIDIA H200, 143771, 570.1")
    assert doctor.doctor([]) == 0
    said = capsys.readouterr().out
    for name in ("torch", "tensorflow"):
        told = f"WARNING: there is a GPU, but {name} does not see it and will train on the CPU: CUDA_VISIBLE_DEVICES"
        assert (told in said) == (find_spec(name) is not None)


def test_what_each_framework_sees_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "_version", lambda package: "2.10.0+cpu" if package == "torch" else "1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus = [doctor.Gpu("X", 80, "1")]
    told = list(doctor.advice(gpus, {"torch": [], "tensorflow": []}, tmp_path, 1e9))
    assert any("torch does not see it" in line and "without CUDA" in line for line in told)
    assert any("tensorflow does not see it" in line and "tensorflow[and-cuda]" in line for line in told)
    assert not any("WARNING" in line for line in doctor.advice(gpus, {"torch": ["X"]}, tmp_path, 1e9))


def test_a_slow_or_unwritable_cache_is_pointed_out(tmp_path: Path) -> None:
    assert any("only 10 MB/s" in line for line in doctor.advice([], {}, tmp_path, 10e6))
    assert doctor.disk_speed(Path("/proc/nothing")) is None
    assert any("cannot be written" in line for line in doctor.advice([], {}, Path("/proc/x"), None))


@pytest.mark.parametrize(
    ("version", "build", "missing"),
    [
        ("2.10.0+cu128", "", []),
        ("2.10.0+cpu", "", []),
        ("2.10.0+rocm7.0", "ROCm", ["known faults"]),
        ("2.10.0+xpu", "XPU", ["known faults", "Triton"]),
    ],
)
def test_what_only_cuda_has_is_said_for_other_builds(
    version: str, build: str, missing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_version", lambda package: version)
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    assert doctor.other_build() == build
    lines = list(doctor.cuda_only(build))
    assert len(lines) == bool(build)
    assert all(word in lines[0] for word in missing)
    assert "Triton" in missing or "Triton" not in "".join(lines)


def test_apple_gpus_lack_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda package: "2.10.0")
    monkeypatch.setattr(doctor.sys, "platform", "darwin")
    monkeypatch.setattr(doctor.platform, "machine", lambda: "arm64")
    assert doctor.other_build() == "MPS"
    assert "float64 sums" in next(doctor.cuda_only("MPS"))
