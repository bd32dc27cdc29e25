"""The power is lost at any moment: what was promised by then is there afterwards, and nothing torn passes for whole.

`RUNNER_CRASH_STATES=5000 pytest …/test_power_loss.py` looks at so many states of each kind (docs/reliability.md).
"""

from __future__ import annotations

import importlib
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash
from runner_core.base import writing
from runner_core.base.errors import BadInput

sys.path.insert(0, str(Path(__file__).parent / "crash"))
import power
from disk import Disk
from scenarios import SCENARIOS, WEEKLY, Scenario

MARKS = dict.fromkeys(WEEKLY, pytest.mark.weekly) | dict.fromkeys(("run", "cache"), pytest.mark.slow)
STATES = {"run": 600, "cache": 200, "stream": 200, "roomy stream": 200}
"""In a test; 1,000 in all, and 200 once a week."""
FLUSHES = (
    "training.checkpoints.flush_all",
    "training.checkpoints.move",
    "training.checkpoints.replace_text",
    "training.timing.write_once",
    "data.stream.bad.append_line",
    "output.sinks.flush",
    "base.writing.flush",
)
"""Functions that flush, as their callers name them; of the others only their own flushes are forgotten."""


def forgetful(function: Callable[..., None]) -> Callable[..., None]:
    """Return the same function, with calls of `flush` that do nothing."""

    def call(*args: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(writing, "flush", lambda path: None)
            function(*args)

    return (lambda path: None) if function is writing.flush else call


def recorded(name: str, place: Path) -> tuple[Scenario, Disk]:
    """A scenario, and what it did in an empty folder."""
    scenario, folder = SCENARIOS[name](), place / "recorded"
    scenario.prepare(place)
    folder.mkdir()
    with Disk(folder) as disk:
        scenario.work(folder, disk.mark)
    return scenario, disk


def check_state(scenario: Scenario, disk: Disk, seed: str, place: Path) -> str:
    """Lose the power at a moment drawn by `seed`, and check what is left; a digest of it."""
    rng = random.Random(seed)
    count = rng.randint(0, len(disk.log))
    tree, folder = power.crash(disk, count, rng), place / "state"
    power.write(tree, folder)
    promised = [op.label for op in disk.log[:count] if op.kind == "mark"]
    try:
        with Disk(folder):  # whose fsync costs nothing
            scenario.check(folder, promised)
    except Exception as error:
        error.add_note(f"seed {seed!r}: the power was lost after {count} of {len(disk.log)} operations")
        raise
    shutil.rmtree(folder)
    return xxhash.xxh3_128_hexdigest(repr((promised, tree)).encode())


def check_states(scenario: Scenario, disk: Disk, seed: str, count: int, place: Path) -> int:
    """Check so many states; how many of them are different."""
    return len({check_state(scenario, disk, f"{seed} {number}", place) for number in range(count)})


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=MARKS.get(name, pytest.mark.weekly if name in WEEKLY else ())) for name in SCENARIOS],
)
def test_what_was_promised_outlasts_a_loss_of_power(name: str, tmp_path: Path) -> None:
    scenario, disk = recorded(name, tmp_path)
    count = int(os.environ.get("RUNNER_CRASH_STATES", STATES[name]))
    different = check_states(scenario, disk, name, count, tmp_path)
    print(f"{name}: {len(disk.log)} operations, {count} states, {different} different")
    assert different > count / 3


@pytest.mark.parametrize("forgotten", FLUSHES)
def test_the_model_finds_a_flush_that_is_forgotten(
    forgotten: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        module, _, name = f"runner_core.{forgotten}".rpartition(".")
        patch.setattr(f"runner_core.{forgotten}", forgetful(getattr(importlib.import_module(module), name)))
        scenario, disk = recorded("run", tmp_path)
    with pytest.raises((AssertionError, BadInput, ValueError)) as found:
        check_states(scenario, disk, "forgotten", 400, tmp_path)
    assert "the power was lost after" in found.value.__notes__[0]
