"""The Triton kernels without a GPU: their arithmetic in Triton's interpreter, and that they compile for GPUs.

The interpreter is chosen by an environment variable when Triton is imported, so it has a process of its own: this file
run as a script, on the cases below.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from runner_ssmunet.scan import selective_scan

pytest.importorskip("triton")

CASES = [
    (1, 1, 1, 1, "float32"), (2, 2, 3, 4, "float32"), (0, 7, 4, 4, "float32"),
    (1, 33, 32, 16, "float32"),  # a program for each block of channels; states kept every 16 steps, the last for one
    (1, 26, 33, 17, "float32"),  # one for three blocks, E < 2 N; the last of one channel; N no power of two; every 24
    (1, 17, 5, 4, "bfloat16"), (1, 17, 5, 4, "float16"),
]  # fmt: skip


def shared() -> ModuleType:
    """test_scan.py, whose inputs and whose check the cases take."""
    spec = importlib.util.spec_from_file_location("scan_cases", Path(__file__).with_name("test_scan.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def interpret() -> None:
    """Every case in Triton's interpreter; prints {case: what went wrong}."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:  # NumPy ≥ 2.4 makes no int of an array of one number
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
    scan = shared()
    arguments = {str(case): scan.inputs(*case[:4], getattr(torch, case[4]), **scan.EVERY_OPTION) for case in CASES}
    arguments["plain"] = scan.inputs(2, 11, 5, 3)
    arguments["plain"]["delta"] = arguments["plain"]["delta"].detach().abs().requires_grad_()
    arguments["extreme"] = scan.extreme(length=20, channels=3)
    arguments["views"] = views(scan.inputs(2, 10, 18, 5, **scan.EVERY_OPTION))
    wrong = {}
    for name, of in arguments.items():
        try:
            scan.check(of, "triton")
        except Exception as error:
            wrong[name] = f"{type(error).__name__}: {error}"
        else:
            wrong[name] = ""
    same = [scan.results(arguments["views"], "triton")["B"] for _ in range(2)]
    wrong["same bits twice"] = "" if torch.equal(*same) else "other bits"
    print(json.dumps(wrong))


def views(of: dict[str, Any]) -> dict[str, Any]:
    """x and z halves of one tensor, B and C slices of another, Δ with the steps outermost in memory."""
    x, z = torch.cat([of["x"], of["z"]], -1).detach().chunk(2, -1)
    B, C = torch.cat([of["B"], of["C"]], -1).detach().split(5, -1)
    delta = of["delta"].detach().transpose(0, 1).contiguous().transpose(0, 1)
    parts = {"x": x, "z": z, "B": B, "C": C, "delta": delta}
    return {**of, **{name: part.requires_grad_() for name, part in parts.items()}}


@pytest.mark.slow
def test_they_are_the_definition_in_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    wrong = json.loads(done.stdout.splitlines()[-1])
    assert len(wrong) == len(CASES) + 4
    assert not any(wrong.values()), wrong


def test_without_the_interpreter_they_want_a_gpu() -> None:
    with pytest.raises(ValueError, match="x is on cpu: Triton's kernels run on a GPU"):
        selective_scan(**shared().inputs(1, 2, 3, 4), how="triton")


def compiled(kernel: Any, capability: int, dtype: str, without: tuple[str, ...], **chosen: Any) -> Any:
    """The kernel for GPUs of this compute capability, of tensors of `dtype`, some of which are None."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    weights = {"A", "D", "bias", "kept", "dA", "dB", "dC", "dD", "dbias"}
    tensors = {"x", "delta", "B", "C", "z", "y", "dy", "dx", "ddelta", "dz"}
    warps = chosen.pop("num_warps")
    signature, constants = {}, {}
    for i, name in enumerate(kernel.arg_names):
        if name in without:
            signature[name], constants[(i,)] = "constexpr", None
        elif name in chosen:
            signature[name], constants[(i,)] = "constexpr", chosen[name]
        else:
            signature[name] = "*fp32" if name in weights else f"*{dtype}" if name in tensors else "i32"
    target = GPUTarget("cuda", capability, 32)
    source = ASTSource(kernel, signature, constants)
    return triton.compile(source, target=target, options={"num_warps": warps})


SPILLED = {"scan_forward": 0, "scan_backward": 192}
"""Most bytes that a thread spills; docs/how-it-works/gpu-paths.md has the table."""


def used(kernel: Any, folder: Path) -> dict[str, int]:
    """What a program takes: registers of a thread, bytes that it spills, bytes of shared memory."""
    import triton

    file = folder / "kernel.cubin"
    file.write_bytes(kernel.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    text = subprocess.run([tool, "-res-usage", file], capture_output=True, text=True, check=True).stdout
    found = {name: int(number) for name, number in re.findall(r"([A-Z]+):(\d+)", text)}
    return {"registers": found["REG"], "spilled": found["STACK"] + found["LOCAL"], "shared": kernel.metadata.shared}


def both(capability: int, dtype: str, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Both kernels with 16 states."""
    from runner_ssmunet.scan import triton as launch
    from runner_ssmunet.scan.triton_kernels import scan_backward, scan_forward

    common = {"SOFTPLUS": "bias" not in without, **launch._block(16)}
    parts = {"STEPS": launch.STEPS, "PARTS": launch._every(16) // launch.STEPS}
    return {
        "scan_forward": compiled(scan_forward, capability, dtype, without, EVERY=launch._every(16), **common),
        "scan_backward": compiled(scan_backward, capability, dtype, without, SHARED=False, **parts, **common),
    }


@pytest.mark.parametrize(
    ("capability", "dtype", "without"),
    [(80, "fp32", ("D", "z", "bias", "dD", "dz", "dbias")), (90, "bf16", ()), (100, "bf16", ())],
)
def test_they_compile_for_gpus(capability, dtype, without, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ahead of time, to PTX and through NVIDIA's assembler, on a machine that has none of these GPUs."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for name, kernel in both(capability, dtype, without).items():
        text = kernel.asm["ptx"]
        assert f".target sm_{capability}" in text
        assert f".entry {name}" in text
        assert not re.search(r"\b(atom|red)\.", text)  # sums have an order
        found = used(kernel, tmp_path)
        assert found["spilled"] <= SPILLED[name], found
        assert found["shared"] <= 1024, found


if __name__ == "__main__":
    interpret()
