"""The page of the hooks says of each what one must know, and its examples are plugins."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import runner_core
from runner_core import hookspecs
from runner_core.plugins import Plugins
from runner_core.protocols import HealthEvent, State

HOOKS = {name: function for name, function in vars(hookspecs).items() if name.startswith("runner_")}
hooks = pytest.mark.parametrize("name", HOOKS)


def example(name: str) -> SimpleNamespace:
    """What the example of a hook defines, as a plugin's module would have it."""
    (code,) = re.findall(r"```python\n(.*?)```", inspect.getdoc(HOOKS[name]) or "", re.DOTALL)
    module: dict[str, Any] = {word: getattr(runner_core, word) for word in runner_core.__all__}
    module |= {"json": json, "np": np, "State": State, "Brains": object}
    exec(textwrap.dedent(code), module)
    return SimpleNamespace(**{word: value for word, value in module.items() if word.startswith("runner_")})


@hooks
def test_purpose_arguments_return_and_default_are_told(name: str) -> None:
    text = inspect.getdoc(HOOKS[name]) or ""
    first = bool(HOOKS[name].runner_spec["firstresult"])
    assert ("*First result*" in text, "*All*" in text) == (first, not first)
    assert re.findall(r"^    (\w+): ", text, re.MULTILINE) == list(inspect.signature(HOOKS[name]).parameters)
    assert "\nReturns:\n" in text
    assert "\nIn the core: " in text


@hooks
def test_examples_register(name: str) -> None:
    Plugins().register(example(name), "example", kind="extension")


def test_example_of_a_cropper_halves() -> None:
    box = example("runner_crop").runner_crop().box(np.zeros((4, 5, 6)), (1.0, 1.0, 1.0))
    assert box.crop(np.zeros((4, 5, 6))).shape == (4, 5, 3)


def test_example_of_a_checkpoint_reads_what_it_wrote(tmp_path: Path) -> None:
    files = example("runner_checkpoint").runner_checkpoint()
    files.write(tmp_path, State({"step": 3}, {"model.w": np.arange(4.0)}))
    state = files.read(tmp_path)
    assert state.values == {"step": 3}
    np.testing.assert_array_equal(state.tensors["model.w"], np.arange(4.0))


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
