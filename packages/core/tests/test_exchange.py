"""What processes that train together exchange in a step: how much, when, and that the training stays the same."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent / "together_toy"))
import exchange_toy as exchange  # noqa: E402
from exchange_toy import STEPS, WEIGHTS, together, toy  # noqa: E402
from runner_core.base.errors import BadInput  # noqa: E402
from runner_core.contract import Precision  # noqa: E402
from runner_core.engines import for_torch  # noqa: E402
from runner_core.engines.torch import ddp, fsdp, parallel  # noqa: E402
from runner_core.engines.torch.checkpoint import INDEX  # noqa: E402


def start(folder: Path, count: int, *more: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    words = [[sys.executable, exchange.__file__, folder, str(number), str(count), *more] for number in range(count)]
    processes = [subprocess.Popen(w, env=environment, stderr=subprocess.PIPE, text=True) for w in words]
    said = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * count, "\n".join(said)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what two processes did (`exchange_toy.main`), and runs of a single one beside them."""
    folder = tmp_path_factory.mktemp("exchange")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    toy.run(exchange.settings(1), folder / "one", project=exchange.Steady)
    for kind in (exchange.Forgetful, exchange.Partly):
        toy.run(exchange.settings(1), folder / f"one-{kind.__name__}", project=kind)
    torch.set_num_threads(threads)
    start(folder, 2)
    return folder


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what two processes did (`exchange_toy.more`)."""
    folder = tmp_path_factory.mktemp("more")
    start(folder, 2, "more")
    return folder


MARKS = 2 * 8 * 5
"""Bytes of two numbers for each tensor of weights: whether it was used, and left out."""


def test_two_processes_learn_what_one_does_and_exchange_gradients_once_a_step(done: Path) -> None:
    together.assert_close_runs(done / "one", done / "ddp-step")
    first, second = (json.loads((done / f"traffic-{number}.json").read_text()) for number in range(2))
    assert first == second == {"ddp-step": {"all-reduce": STEPS * WEIGHTS + (STEPS - 1) * MARKS}}


@pytest.mark.slow
@pytest.mark.parametrize("run", exchange.RUNS)
def test_whenever_gradients_are_exchanged_two_processes_learn_what_one_does(run: str, done: Path, more: Path) -> None:
    together.assert_close_runs(done / "one", more / run)


@pytest.mark.slow
def test_gradients_are_exchanged_when_the_settings_say(more: Path) -> None:
    first, second = (json.loads((more / f"traffic-{number}.json").read_text()) for number in range(2))
    assert first == second
    ours = (2 * STEPS - 2) * (WEIGHTS + MARKS)
    assert first["ddp-micro_batch"] == {"all-reduce": WEIGHTS + ours}, "the first step is computed apart"
    assert first["ddp-find"] == {"all-reduce": STEPS * (WEIGHTS + 4)}, "and a weight of ours that no step uses"
    fewer, most = (first[f"fsdp-{when}"]["reduce-scatter"] for when in ("step", "micro_batch"))
    assert 2 * fewer == most
    kept = [json.loads((more / f"kept-{number}.json").read_text()) for number in range(2)]
    assert [one["step"] for one in kept] == [WEIGHTS] * 2, "gradients that wait are whole in each process"
    assert sum(one["micro_batch"] for one in kept) == WEIGHTS


@pytest.mark.slow
def test_gathered_features_get_their_own_gradients_alone_and_the_same(more: Path) -> None:
    """Bit for bit, also with gloo; in a ring, one of n sends (n - 1) / n of the features in place of twice that."""
    traffic = json.loads((more / "traffic-0.json").read_text())
    scattered, summed = traffic["features-scatter"], traffic["features-all"]
    features = STEPS * 8 * together.FEATURES * 8
    assert scattered["all-gather"] == summed["all-gather"] == scattered["reduce-scatter"] == features
    assert summed["all-reduce"] - scattered["all-reduce"] == features
    assert "reduce-scatter" not in summed
    toy.assert_equal_runs(more / "features-scatter", more / "features-all")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Layers", "Norms"])
def test_weights_gathered_in_bfloat16_are_those_that_autocast_computes_with(kind: str, more: Path) -> None:
    """Bit for bit, from half the bytes; weights and optimizer stay in float32."""
    traffic = json.loads((more / "traffic-0.json").read_text())
    first, second = traffic[f"{kind}-float32"], traffic[f"{kind}-bfloat16"]
    assert first["reduce-scatter"] == second["reduce-scatter"]
    if kind == "Layers":
        assert first["all-gather"] == 2 * second["all-gather"]
    else:
        assert second["all-gather"] < first["all-gather"] < 2 * second["all-gather"], "the norm's weights stay"
    (_, tensors), (_, others) = (toy.final_state(more / f"{kind}-{gather}") for gather in ("float32", "bfloat16"))
    assert all(np.array_equal(np.asarray(tensor), np.asarray(others[name])) for name, tensor in tensors.items())
    assert toy.log_lines(more / f"{kind}-float32") == toy.log_lines(more / f"{kind}-bfloat16")
    assert {tensor.dtype for name, tensor in tensors.items() if name.startswith("model.")} == {torch.float32}


@pytest.mark.slow
def test_a_layer_that_is_gathered_apart_has_to_be_called(more: Path) -> None:
    for number in range(2):
        assert (
            "uses the weights of one without calling it: leave exchange.gather out"
            in (more / f"direct-{number}").read_text()
        )


def test_gradients_summed_in_bfloat16_err_by_their_rounding(done: Path) -> None:
    for number in range(2):
        errors = json.loads((done / f"errors-{number}.json").read_text())
        assert errors.keys() == {"ddp", "fsdp"}
        assert max(errors.values()) <= 1


def test_weights_are_not_gathered_in_bfloat16_for_layers_that_compute_in_float32() -> None:
    project = toy.Toy(toy.small(exchange__gather="bfloat16"))
    network = torch.nn.Linear(2, 2)
    with pytest.raises(BadInput, match=r"gather bfloat16 rounds the weights of layers that compute in float32"):
        parallel.Sharded(project, network, torch.device("cpu"), Precision("float32"))


def test_only_layers_of_which_autocast_rounds_all_weights_are_gathered_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(torch.nn.Linear):
        """Its forward pass may compute anything from the weights in float32."""

    monkeypatch.setattr(fsdp, "LEAST_APART", 10)
    nn = torch.nn
    tied = [nn.Embedding(4, 4), nn.Linear(4, 4)]
    tied[1].weight = tied[0].weight
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    other = nn.utils.spectral_norm(nn.Linear(4, 4))
    plain = [nn.Linear(4, 4), nn.Conv2d(2, 2, 3), nn.MultiheadAttention(4, 2)]
    kept = nn.Linear(4, 4)
    less = [normed, other, Own(4, 4), nn.Bilinear(4, 4, 4), nn.LSTM(4, 4), nn.LayerNorm(16), kept, nn.Linear(2, 2)]
    network = nn.ModuleList([*less, *tied, nn.Sequential(*plain), plain[0]])
    assert fsdp.rounded_layers(network, {kept}) == plain


def test_a_setting_that_the_chosen_strategy_does_not_use_is_told(done: Path) -> None:
    assert "note: exchange.gather bfloat16 has no effect: train.strategy is ddp" in (done / "said-0").read_text()
    found = toy.small(train__strategy="fsdp", exchange__unused="find").without_effect()
    assert [*found] == ["exchange.unused find has no effect: train.strategy is fsdp, not ddp"]


def test_a_search_that_exact_resuming_needs_is_not_left_out() -> None:
    project = toy.Toy(toy.small(train__strategy="ddp", train__deterministic=True, exchange__unused="none"))
    with pytest.raises(BadInput, match=r"train.deterministic needs exchange.unused find"):
        parallel.parallel(project, torch.nn.Linear(2, 2), torch.device("cpu"), Precision("float32"), 1, 2)


def test_a_network_that_is_compiled_is_wrapped_before_its_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that dynamo divides it in a new run as in a resumed one."""
    wrapped = []
    monkeypatch.setattr(ddp.Replicated, "_wrap", lambda self, finds: wrapped.append(finds))
    for unused, found in (("auto", True), ("none", False)):
        more = {"train__strategy": "ddp", "train__compile": "on", "exchange__unused": unused}
        project = toy.Toy(toy.small(**more))
        parallel.parallel(project, torch.nn.Linear(2, 2), torch.device("cpu"), Precision("float32"), 1, 2)
        assert wrapped.pop() == found


@pytest.mark.parametrize("kind", ["Forgetful", "Partly"])
def test_a_step_that_leaves_out_a_weight_is_learned_from_and_the_next_are_searched(kind: str, done: Path) -> None:
    together.assert_close_runs(done / f"one-{kind}", done / kind)
    values, _ = toy.final_state(done / kind)
    assert (values["loop"]["step"], values["torch"]["unused_weights"]) == (STEPS, ["mask"])


def test_a_step_that_leaves_out_a_weight_against_the_settings_ends_all_processes_alike(done: Path) -> None:
    first, second = ((done / f"none-{number}").read_text() for number in range(2))
    assert first == second
    assert "a step left out mask in some process, and exchange.unused none says" in first


def test_the_weights_that_a_loss_reaches() -> None:
    used, unused = torch.nn.Linear(2, 2), torch.nn.Parameter(torch.ones(1))
    assert ddp._reached(used(torch.ones(1, 2)).sum()) == {id(p) for p in used.parameters()}
    assert id(unused) not in ddp._reached((used.weight * used.weight).sum() + used.bias.detach().sum())


# ---------------------------------------------------------------- two levels


@pytest.mark.slow
def test_two_groups_of_two_learn_what_one_process_does_and_anybody_goes_on(tmp_path: Path) -> None:
    """A 2 × 2 mesh: each gradient part crosses between the groups once a step, and checkpoints are anybody's."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    toy.run(exchange.settings(1), tmp_path / "one", project=exchange.Steady)
    start(tmp_path, 4, json.dumps(exchange.LEVELS))
    traffic = [json.loads((tmp_path / f"traffic-4-{number}.json").read_text()) for number in range(4)]
    whole = {name: found["whole"] for name, found in traffic[0].items()}
    assert whole["hsdp-micro_batch"]["all-reduce"] == 2 * whole["hsdp"]["all-reduce"]
    assert whole["hsdp"]["reduce-scatter"] == whole["hsdp-micro_batch"]["reduce-scatter"]
    assert whole["hsdp-micro_batch"]["reduce-scatter"] == 2 * whole["hsdp-step"]["reduce-scatter"]
    for name in exchange.LEVELS:
        together.assert_close_runs(tmp_path / "one", tmp_path / name)
    path = max((tmp_path / "hsdp" / "checkpoints").glob("step-*"))
    assert json.loads((path / INDEX).read_text())["files"] == 2
    assert len([*path.glob("model-*-of-00002.safetensors")]) == 2
    for name, source in (("two", "hsdp"), ("single", "hsdp"), ("levels", "fsdp"), ("again", "hsdp")):
        together.cut_after(shutil.copytree(tmp_path / source, tmp_path / name), 6)
    start(tmp_path, 2, json.dumps({"two": {"train__strategy": "fsdp"}}))
    start(tmp_path, 4, json.dumps({"levels": exchange.LEVELS["hsdp"], "again": exchange.LEVELS["hsdp"]}))
    toy.run(exchange.settings(1), tmp_path / "single", project=exchange.Steady, resume=True)
    torch.set_num_threads(threads)
    for name in ("two", "single", "levels"):
        together.assert_close_runs(tmp_path / "one", tmp_path / name)
    (values, tensors), (values2, tensors2) = toy.final_state(tmp_path / "hsdp"), toy.final_state(tmp_path / "again")
    assert values == values2
    assert all(np.array_equal(np.asarray(tensor), np.asarray(tensors2[name])) for name, tensor in tensors.items())


def test_groups_that_are_not_alike_are_refused() -> None:
    assert for_torch.shard_count(None, ["a", "a", "b", "b"], 4) == 2
    assert for_torch.shard_count(2, ["a"] * 6, 6) == 2
    for asked, hosts, said in (
        (None, ["a"] * 4, "divides 4 processes into groups of 4 .the number of processes on the first machine"),
        (4, ["a"] * 6, r"groups of 4 \(exchange.shard_devices"),
        (None, ["a", "a", "b", "a", "b", "b"], "process 2 is on b, with 3 on each"),
        (None, ["a", "b", "a", "b"], "process 1 is on b, with 2 on each"),
        (None, ["a", "b"], "the first machine has one: take fsdp or ddp"),
    ):
        with pytest.raises(BadInput, match=said):
            for_torch.shard_count(asked, hosts, len(hosts))
