"""The page of the hooks says of each what one must know, and its examples are plugins."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from runner_core import RunConfig, State
from runner_core.cli.new import write_project
from runner_core.contract import Device, HealthEvent, hooks
from runner_core.plugins.manager import Plugins

Runner = Callable[..., subprocess.CompletedProcess[str]]
PROJECT = Path(__file__).parent / "toy" / "project"
HOOKS = {name: function for name, function in vars(hooks).items() if name.startswith("runner_")}
hooks = pytest.mark.parametrize("name", HOOKS)


def printed(name: str) -> str:
    """The code of a hook's example, as the page prints it."""
    (code,) = re.findall(r"```python\n(.*?)```", inspect.getdoc(HOOKS[name]) or "", re.DOTALL)
    return textwrap.dedent(code)


def example(name: str) -> ModuleType:
    """The module that a hook's example is, with nothing in it but what the page prints."""
    module = ModuleType(f"example_of_{name}")
    exec(compile(printed(name), f"<example of {name}>", "exec"), vars(module))
    return module


@hooks
def test_purpose_arguments_return_and_default_are_told(name: str) -> None:
    text = inspect.getdoc(HOOKS[name]) or ""
    first = bool(HOOKS[name].runner_spec["firstresult"])
    assert ("*First result*" in text, "*All*" in text) == (first, not first)
    assert re.findall(r"^    (\w+): ", text, re.MULTILINE) == list(inspect.signature(HOOKS[name]).parameters)
    assert "\nReturns:\n" in text
    assert "\nIn the core: " in text


@hooks
def test_an_example_registers(name: str) -> None:
    Plugins().register(example(name), "example", kind="extension")


@pytest.mark.torch
@pytest.mark.parametrize("name", [name for name in HOOKS if name != "runner_project"])
def test_an_example_is_an_extension_that_a_training_uses(name: str, runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(printed(name), encoding="utf-8")
    info = tmp_path / "example-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: example\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[runner.extensions]\nexample = example\n", encoding="utf-8")
    installed, scratch = (PROJECT, tmp_path), tmp_path / "scratch"
    few = "--train.epochs", "2", "--train.steps-per-epoch", "3", "--train.schedule", "constant"
    for words in (("train", "--run-dir", "run", *few), ("evaluate", "run")):
        done = runner("toy", *words, installed=installed, SLURM_TMPDIR=str(scratch))
        assert done.returncode == 0, done.stderr
        assert words[0] == "evaluate" or "with extension example" in done.stdout
        assert "dropped" not in done.stdout + done.stderr
    if name == "runner_cache":
        assert list(scratch.rglob("meta.json")), "the cache lies on the node's own disk"
    if name == "runner_checkpoint":
        assert list((tmp_path / "run").rglob("tensors.npz"))
        done = runner("toy", "train", "--resume", "run", "--train.epochs", "3", installed=installed)
        assert done.returncode == 0, done.stderr
    if name == "runner_metrics":
        assert "foreground" in json.loads((tmp_path / "run" / "summary.json").read_text())["metrics"]
    if name == "runner_sinks":
        assert "loss" in (tmp_path / "run" / "best.txt").read_text()


@pytest.mark.torch
def test_example_of_a_project_is_what_runner_new_writes(
    tmp_path: Path, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = write_project("cells", "torch", tmp_path)
    (package / "src" / "runner_cells" / "__init__.py").write_text(printed("runner_project"), encoding="utf-8")
    monkeypatch.syspath_prepend(str(package / "src"))
    try:
        assert import_module("runner_cells").runner_project().name == "cells"
    finally:  # other tests write a project of that name, which is refused where there is one
        for name in [name for name in sys.modules if name.partition(".")[0] == "runner_cells"]:
            del sys.modules[name]


@pytest.mark.torch
def test_example_of_an_engine_is_used_for_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = ModuleType("xpu_engine")
    vars(theirs)["XpuEngine"] = lambda project, config: ("xpu", project, config)
    monkeypatch.setitem(sys.modules, "xpu_engine", theirs)
    config, project = RunConfig(), SimpleNamespace(framework="torch")
    engine = example("runner_engine").runner_engine
    assert engine(project, config) is None
    config.train.device = "xpu:1"
    assert engine(project, config) == ("xpu", project, config)


def test_example_of_a_precision_keeps_the_head_where_the_device_has_bfloat16() -> None:
    policy = example("runner_precision").runner_precision
    brains, config = SimpleNamespace(name="brainunet"), RunConfig()
    assert policy(brains, config, Device("cpu")) is None
    assert policy(brains, config, Device("cuda", bfloat16=True)).keep_float32 == ("head",)


def test_example_of_a_fix_is_offered_where_data_are_waited_for() -> None:
    fixes = example("runner_remedies").runner_remedies
    project = SimpleNamespace(config=RunConfig())
    project.config.train.workers = 0
    (fix,) = fixes(project, {"bound": "data"})
    assert fix.settings == {"train.workers": 2}
    assert not fixes(project, {"bound": "compute"})


def test_example_of_a_cropper_halves() -> None:
    box = example("runner_crop").runner_crop().box(np.zeros((4, 5, 6)), (1.0, 1.0, 1.0))
    assert box.crop(np.zeros((4, 5, 6))).shape == (4, 5, 3)


@pytest.mark.torch
def test_example_of_a_checkpoint_reads_what_it_wrote(tmp_path: Path) -> None:
    import torch

    files = example("runner_checkpoint").runner_checkpoint(SimpleNamespace(framework="torch"))
    tensors = {"model.w": torch.arange(4.0), "optimizer.step": torch.tensor(3)}
    files.write(tmp_path, State({"step": 3}, tensors))
    state = files.read(tmp_path)
    assert state.values == {"step": 3}
    assert all(torch.equal(state.tensors[name], tensor) for name, tensor in tensors.items())


def test_example_of_a_rule_warns_when_the_loss_rises() -> None:
    (rule,) = example("runner_health").runner_health()
    told: Callable[[float], Any] = lambda loss: rule.observe(HealthEvent("validation", 1, 0, {"loss": loss}))  # noqa: E731
    assert told(0.1) is None
    assert told(0.5) is None
    assert "5" in told(5.0).message


def test_example_of_a_sink_keeps_the_best(tmp_path: Path) -> None:
    (sink,) = example("runner_sinks").runner_sinks(tmp_path)
    sink.event("validation", 7, {"loss": 0.25, "best": True})
    sink.event("validation", 9, {"loss": 0.35, "best": False})
    assert (tmp_path / "best.txt").read_text() == "step 7: loss 0.25\n"
