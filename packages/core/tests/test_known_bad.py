"""The table of versions that compute wrongly: its rows, who meets them, and what a training does about it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from runner_core.cli import doctor, main
from runner_core.engines import known_bad as module
from runner_core.engines.known_bad import KnownBad, Run, known_bad, table


@pytest.mark.parametrize("row", table(), ids=lambda row: row.issue.partition("github.com/")[2])
def test_each_row_names_an_upstream_issue_and_what_to_do(row: KnownBad) -> None:
    assert re.fullmatch(r"https://github\.com/[\w-]+/[\w-]+/(issues|pull)/\d+", row.issue)
    assert row.what
    assert row.remedy
    assert row.packages
    for versions in row.packages.values():
        SpecifierSet(versions)
    assert row.device in ("", "cpu", "cuda")
    assert {*row.compute} <= {"float32", "tf32", "bfloat16", "float16"}


def installed(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    known = {name.replace("_", "-"): version for name, version in versions.items()}
    monkeypatch.setattr(module, "_installed", known.get)


def met(run: Run | None) -> set[str]:
    return {row.issue.rpartition("/")[2] for row in known_bad(run)}


def test_a_run_meets_what_its_versions_and_settings_have(monkeypatch: pytest.MonkeyPatch) -> None:
    conv = frozenset({"Conv3d", "Linear"})
    plain = Run(device="cuda", compute="bfloat16", capability=9, layers=conv)
    compiled = Run(device="cuda", compute="float32", compile=True, capability=9, layers=conv)
    installed(monkeypatch, torch="2.10.0+cu128", cudnn="9.10.2")
    assert met(plain) == {"166122"}
    assert met(replace(plain, channels_last=True)) == met(replace(plain, compute="float32")) == set()
    assert met(replace(plain, loaded={"cudnn": "9.15.1"})) == set()
    assert met(compiled) == {"190796", "193061"}
    assert met(Run(device="cpu", compute="float32", compile=True)) == set()
    installed(monkeypatch, torch="2.12.1")
    assert met(compiled) == {"193061"}
    installed(monkeypatch, torch="2.8.0", cudnn="9.10.2.21")
    assert met(plain) == {"163539"}
    assert met(Run(device="cuda", compute="bfloat16", layers=frozenset({"Conv2d"}))) == set()
    assert met(Run(device="cuda", compute="float16", layers=conv, loaded={"cudnn": "9.15.1"})) == set(), (
        "the loaded one"
    )
    installed(monkeypatch, torch="2.9.1", cudnn="9.13.0")
    assert met(plain) == {"166122"}
    installed(monkeypatch, mamba_ssm="2.2.4")
    blackwell = Run(device="cuda", compute="float32", capability=10)
    assert met(blackwell) == set(), "it is not in use"
    monkeypatch.setitem(__import__("sys").modules, "mamba_ssm", module)
    assert met(blackwell) == {"997"}
    assert met(Run(device="cuda", compute="float32", capability=9)) == set()


@pytest.mark.torch
def test_the_table_has_the_wrong_products_of_this_processor_and_no_others() -> None:
    torch = pytest.importorskip("torch")
    row = next(row for row in table() if row.issue.endswith("/oneDNN/pull/4209"))
    for dtype in (torch.bfloat16, torch.float16):
        a, wide = torch.randn(64, 1000).to(dtype), torch.randn(1000, 17).to(dtype)
        right = a.double() @ wide[:, :1].double()
        wrong = float((a @ wide[:, :1] - right).norm() / right.norm()) > 0.1
        run = Run(device="cpu", compute=str(dtype).removeprefix("torch."), layers=frozenset({"Linear"}))
        named = row in known_bad(run)
        if dtype == torch.bfloat16 or module.cpu_flags() >= {"avx512_fp16"}:
            assert named == wrong, dtype
        else:
            assert named >= wrong, "one row for both, though float16 needs a newer processor"
        assert row not in known_bad(replace(run, layers=frozenset({"Conv3d"}))), "it has no such products"
    assert row not in known_bad(replace(run, compute="float32"))
    assert row not in known_bad(replace(run, device="cuda"))


def test_doctor_names_the_faults_of_this_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, torch="2.10.0", cudnn="9.10.2")
    monkeypatch.setattr(module, "cpu_flags", frozenset)
    said = list(doctor.faults(on_gpu=True))
    assert len(said) == 3
    assert re.search(r"torch 2\.10\.0; .*/190796\): .*\[only with train\.compile is on\]", said[0])
    assert re.search(r"/166122\): .*or ConvTranspose3d, train\.channels_last off\]", said[2])
    assert list(doctor.faults(on_gpu=False)) == []
    monkeypatch.setattr(module, "cpu_flags", lambda: frozenset({"avx512_bf16"}))
    (said,) = doctor.faults(on_gpu=False)
    where = r"\[only with a training on the CPU, precision bfloat16 or float16, Linear\]"
    assert re.search(rf"/oneDNN/pull/4209\): .*{where}", said)
    installed(monkeypatch, torch="2.11.0")
    assert list(doctor.faults(on_gpu=False)) == []


@pytest.mark.torch
@pytest.mark.parametrize("compiles", [False, True])
def test_a_training_switches_off_what_it_can_and_says_the_rest(compiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from runner_core.contract import Precision
    from runner_core.engines.torch.faults import faults
    from torch._inductor import config

    fault: dict[str, Any] = {
        "issue": "https://github.com/a/b/issues/1",
        "remedy": "do so",
        "packages": {"torch": ">=2"},
    }
    rows = (
        KnownBad(what="wrong sums", layers=("Linear",), **fault),
        KnownBad(what="wrong products", layers=("Conv3d",), **fault),
        KnownBad(what="wrong gradients", compile=True, mended=True, **fault),
        KnownBad(what="wrong columns", compute=("bfloat16",), compared=True, **fault),
    )
    installed(monkeypatch, torch="2.10.0")
    monkeypatch.setattr(module, "table", lambda: rows)
    if hasattr(config.triton, "mix_order_reduction"):
        with config.patch({"triton.mix_order_reduction": True}):  # monkeypatch would remove it in the end
            found = list(faults(torch.nn.Linear(2, 2), Precision("float32"), compiles, torch.device("cpu")))
            assert config.triton.mix_order_reduction == (not compiles)
    else:
        found = list(faults(torch.nn.Linear(2, 2), Precision("float32"), False, torch.device("cpu")))
        compiles = False
    where = "(torch 2.10.0; https://github.com/a/b/issues/1): do so"
    expected = [("warning", f"wrong sums {where}"), ("note", f"wrong gradients {where}")]
    assert [(finding.level, finding.message) for finding in found] == expected[: 1 + compiles]
    half = faults(torch.nn.Identity(), Precision("bfloat16"), False, torch.device("cpu"), compared=compiles)
    assert [finding.level for finding in half] == ["note" if compiles else "warning"]


@pytest.mark.torch
def test_a_run_shows_the_faults_that_it_meets(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    row = KnownBad(what="wrong sums", issue="https://x", remedy="do so", packages={"runner-core": ">=0"})
    monkeypatch.setattr(module, "table", lambda: (row,))
    assert main(["toy", "train", "--run-dir", "run", "--epochs", "1", "--train.steps-per-epoch", "2"]) == 0
    assert "WARNING: known fault: wrong sums (runner-core " in capsys.readouterr().out
    summary = json.loads((here / "run" / "summary.json").read_text("utf-8"))
    assert "known fault" in [finding["rule"] for finding in summary["health"]]
