"""What processes that train together exchange in a step: how much, when, and that the training stays the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent / "together_toy"))
import exchange_toy as exchange  # noqa: E402
from exchange_toy import STEPS, WEIGHTS, together, toy  # noqa: E402
from runner_core.engines.torch import parallel  # noqa: E402


def start(folder: Path, count: int, *more: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    words = [[sys.executable, exchange.__file__, folder, str(number), str(count), *more] for number in range(count)]
    processes = [subprocess.Popen(w, env=environment, stderr=subprocess.PIPE, text=True) for w in words]
    said = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * count, "\n".join(said)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all that two processes did (`exchange_toy.main`), and runs of a single one beside them."""
    folder = tmp_path_factory.mktemp("exchange")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    toy.run(exchange.settings(1), folder / "one", project=exchange.Steady)
    toy.run(exchange.settings(1), folder / "one-forgetful", project=exchange.Forgetful)
    torch.set_num_threads(threads)
    start(folder, 2)
    return folder


@pytest.mark.parametrize("run", exchange.RUNS)
def test_whenever_gradients_are_exchanged_two_processes_learn_what_one_does(run: str, done: Path) -> None:
    together.assert_close_runs(done / "one", done / run)


def test_gradients_are_exchanged_once_a_step(done: Path) -> None:
    first, second = (json.loads((done / f"traffic-{number}.json").read_text()) for number in range(2))
    assert first == second
    assert first["ddp-step"] == {"all-reduce": STEPS * WEIGHTS}
    assert first["ddp-micro_batch"] == {"all-reduce": (2 * STEPS - 1) * WEIGHTS}, "the first step is computed apart"
    assert first["ddp-find"] == {"all-reduce": STEPS * (WEIGHTS + 4)}, "and a weight of ours that no step uses"
    fewer, more = (first[f"fsdp-{when}"]["reduce-scatter"] for when in ("step", "micro_batch"))
    assert 2 * fewer == more


def test_a_step_that_leaves_out_a_weight_is_told_by_all_and_the_run_goes_on(done: Path) -> None:
    said = [(done / f"forgetful-{number}").read_text() for number in range(2)]
    assert all(
        f"process {number} has no gradient of mask in this step" in text and "--exchange.unused find" in text
        for number, text in enumerate(said)
    )
    assert toy.final_state(done / "forgetful")[0]["loop"]["step"] == STEPS
    together.assert_close_runs(done / "one-forgetful", done / "forgetful")


def test_the_weights_that_a_loss_reaches() -> None:
    used, unused = torch.nn.Linear(2, 2), torch.nn.Parameter(torch.ones(1))
    assert parallel._reached(used(torch.ones(1, 2)).sum()) == {id(p) for p in used.parameters()}
    assert id(unused) not in parallel._reached((used.weight * used.weight).sum() + used.bias.detach().sum())
