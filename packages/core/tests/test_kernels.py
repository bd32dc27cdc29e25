"""Kernels against plain float32: wrong ones are found, right ones are not, and training is untouched."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "engine_toy"))
from hypothesis import given
from hypothesis import strategies as st
from runner_core.contract import HostBatch
from runner_core.contract.kernels import Disagreement, Observed, Updated, Way
from runner_core.engines.kernels import EPS, MARGIN, allowed_ratio, blamed_layer, jitter, ratios, wrong_updates
from runner_core.training.kernels import check, known, proof
from runner_core.training.kernels.check import prove, verify
from runner_core.training.kernels.options import options
from runner_core.training.kernels.proof import Proof, first_batch
from runner_core.training.kernels.verdict import Verdict

torch = pytest.importorskip("torch")
import kernel_toy as toy  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def column_is_wrong(dtype):
    """Whether this oneDNN and processor multiply with a column of a wider matrix wrongly (oneDNN#4209)."""
    a, wide = torch.randn(64, 1000).to(dtype), torch.randn(1000, 17).to(dtype)
    right = a.double() @ wide[:, :1].double()
    return float((a @ wide[:, :1] - right).norm() / right.norm()) > 0.1


RIGHT = {
    "channels last": toy.LAST,
    "bfloat16": toy.HALF,
    "float16": {"precision__mode": "float16"},
    "own kernel": {**toy.FAST, "own__dropout": 0.3},
    "own kernel in bfloat16": {**toy.FAST, **toy.HALF, **toy.LAST},
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_agree(name):
    setup, data = toy.setup(**RIGHT[name])
    found = verify(setup, data)
    assert (found.status, found.wrong) == ("right", []), found.text


@pytest.mark.parametrize(("alarms", "status"), [(1, "right"), (2, "right"), (99, "wrong")])
def test_what_disagrees_with_some_weights_only_is_chance(monkeypatch, alarms, status):
    real, calls = proof.ratios, []

    def alarmed(*given):
        calls.append(given)
        return [(one, 5.0 if len(calls) <= alarms else ratio) for one, ratio in real(*given)]

    monkeypatch.setattr(proof, "ratios", alarmed)
    setup, data = toy.setup(**toy.LAST)
    assert verify(setup, data).status == status


def test_a_compiled_step_agrees():
    with toy.compiler(lambda outputs: outputs):
        setup, data = toy.setup(**toy.COMPILED)
        assert verify(setup, data).status == "right"


@pytest.mark.parametrize("settings", [toy.COMPILED, {"precision__mode": "float16"}], ids=str)
def test_a_step_is_the_same_after_one_with_other_weights(settings):
    graphs = []
    with toy.compiler(lambda outputs: outputs, seen=graphs.append):
        setup, data = toy.setup(**settings)
        own = Proof(setup, data, options(setup))
        once, other, again = (own._observe({}, Way(weights=number)) for number in (0, 1, 0))
    assert len(graphs) == (settings is toy.COMPILED), "it was compiled again"
    for name in once.gradients:
        np.testing.assert_array_equal(again.gradients[name], once.gradients[name], err_msg=name)
        assert (other.gradients[name] != once.gradients[name]).any(), name
    for name in once.values:
        np.testing.assert_array_equal(again.values[name], once.values[name], err_msg=name)


def test_a_device_holds_two_networks_at_once():
    setup, data = toy.setup(precision__mode="float16")
    own, most = Proof(setup, data, options(setup)), 0
    own._keeps_all, observe = False, own._observe

    def counted(settings, way):
        nonlocal most
        found = observe(settings, way)
        most = max(most, len(own._trainers))
        return found

    own._observe = counted
    assert own.wrong({}) == []
    assert most == 2


@pytest.mark.parametrize("name", toy.FAULTS)
def test_wrong_kernels_are_found_and_blamed(name):
    fault, settings, blamed, layer = toy.FAULTS[name]
    setup, data = toy.setup(**settings)
    with fault():
        found = verify(setup, data)
    assert found.status == "wrong", found
    assert found.wrong
    assert layer in found.layer
    if blamed:
        assert len(found.blamed) == 1
        assert blamed in found.blamed[0]
        assert found.off


class OfAColumn(torch.nn.Module):
    """A layer is fed with one column of a wider matrix, and the output of another is joined to others by cat.

    Two samples give products that are too small for oneDNN: a whole batch's are not.
    """

    def __init__(self, joined):
        super().__init__()
        self.wide, self.joined = torch.nn.Linear(2, 24), joined
        self.column, self.one, self.head = torch.nn.Linear(1, 8), torch.nn.Linear(24, 1), torch.nn.Linear(9, 1)

    def forward(self, image):
        x = torch.nn.functional.silu(self.wide(image.flatten(2).transpose(1, 2)))  # (B, 64, 24)
        if self.joined:
            return self.head(torch.cat([self.one(x), x[..., :8]], -1).sin()).mean((1, 2))
        return self.head(torch.cat([self.column(x[..., :1]), x[..., :1]], -1).sin()).mean((1, 2))


@pytest.mark.skipif(not column_is_wrong(torch.bfloat16), reason="oneDNN multiplies a column rightly here")
@pytest.mark.parametrize("mode", ["bfloat16", "float16"])
@pytest.mark.parametrize("joined", [False, True])
def test_wrong_products_of_a_column_are_found_and_the_run_goes_without_16_bits(monkeypatch, joined, mode):
    if not column_is_wrong(getattr(torch, mode)):
        pytest.skip("oneDNN multiplies a column rightly in this dtype")
    monkeypatch.setattr(toy, "Net", lambda own: OfAColumn(joined))
    setup, data = toy.setup(precision__mode=mode)
    found = prove(setup, data, lambda text: None)
    assert (found.status, found.off, found.switched) == ("wrong", {"precision.mode": "float32"}, True), found.text
    assert ("one" if joined else "column") in found.layer, found.layer
    assert f"mm ({mode}" in found.text
    assert setup.precision.compute == "float32"
    assert verify(setup, data).status == "right"


def test_a_wrong_option_is_switched_off_and_the_run_says_so():
    setup, data = toy.setup(**toy.FAST)
    said = []
    with toy.own("border"):
        found = prove(setup, data, said.append)
    assert found.switched
    assert setup.config.own.kernel == "plain"
    assert setup.project.config is setup.config
    assert any("Switched off for this run: own.kernel plain" in text for text in said)
    (finding,) = found.findings()
    assert finding.rule == "kernels"
    assert "block" in finding.message
    assert options(setup) == []


def test_warn_trains_on_and_off_compares_nothing(monkeypatch):
    setup, data = toy.setup(**toy.FAST, train__kernels="warn")
    with toy.own("border"):
        found = prove(setup, data, print)
    assert (found.status, found.switched, setup.config.own.kernel) == ("wrong", False, "fast")
    assert "Switch it off: own.kernel plain" in found.text
    setup.config.train.kernels = "off"
    monkeypatch.setattr(check, "verify", None)
    assert prove(setup, data, print) == Verdict()


def test_what_no_setting_does_without_is_a_warning():
    setup, data = toy.setup(**toy.FAST)
    said = []
    with toy.average(toy.of_twice_the_weights):
        found = prove(setup, data, said.append)
    assert (found.status, found.switched) == ("wrong", False)
    assert "No setting does without it" in said[-1]
    assert [finding.level for finding in found.findings()] == ["warning"]


def test_plain_float32_is_not_compared(monkeypatch):
    monkeypatch.setattr(check, "verify", None)
    setup, data = toy.setup()
    assert prove(setup, data, print).status == "unused"


def test_the_result_is_remembered_for_the_same_network_options_and_versions(monkeypatch):
    setup, data = toy.setup(**toy.FAST)
    assert prove(setup, data, print).status == "right"
    real = check.verify
    monkeypatch.setattr(check, "verify", None)
    again, data = toy.setup(**toy.FAST, train__epochs=7)
    assert prove(again, data, print).remembered
    monkeypatch.setattr(check, "verify", real)
    other, data = toy.setup(**toy.FAST, **toy.LAST)
    assert not prove(other, data, print).remembered
    monkeypatch.setattr(known, "versions", lambda setup: {"torch": "9.9"})
    assert not prove(again, data, print).remembered


def test_a_check_that_fails_stops_no_training(monkeypatch):
    setup, data = toy.setup(**toy.FAST)
    monkeypatch.setattr(proof, "first_batch", lambda *_: {}["nothing"])
    found = prove(setup, data, print)
    assert (found.status, list(found.findings())) == ("unchecked", [])
    assert "KeyError" in found.text


def test_the_training_is_the_same_bit_for_bit():
    """Two steps after a check, and without: weights, average, optimizer, buffers and generators are equal."""

    def after(check):
        setup, data = toy.setup(**toy.FAST, **toy.HALF, own__dropout=0.3)
        if check:
            assert prove(setup, data, print).status == "right"
        data.samples = {"train": setup.project.samples(data.store, data.splits["train"], "train")}
        batch = first_batch(setup, data, None)
        trainer = setup.engine.trainer(setup, data, 10)
        for step in range(2):
            trainer.train_step(HostBatch(batch, 6, lambda: None), step)
        return trainer.state()

    one, other = after(False), after(True)
    assert one.tensors.keys() == other.tensors.keys()
    for name, tensor in one.tensors.items():
        assert np.asarray(tensor).tobytes() == np.asarray(other.tensors[name]).tobytes(), name


# ---------------------------------------------------------------- the error model


def observed(**gradients):
    return Observed(gradients={name: np.asarray(values, np.float32) for name, values in gradients.items()})


@given(st.integers(0, 2**32 - 1), st.floats(1e-4, 0.3), st.sampled_from([(), (3,), (4, 5), (16, 8, 3)]))
def test_noise_of_the_same_size_agrees_and_ten_times_as_much_in_one_slice_does_not(seed, noise, shape):
    rng = np.random.default_rng(seed)
    right = rng.standard_normal(shape) + 3

    def noisy():
        return right + noise * rng.uniform(-1, 1, shape)

    rounded, reference = [observed(w=noisy()) for _ in range(2)], observed(w=right)
    assert all(ratio <= 1 for _, ratio in ratios(reference, rounded, observed(w=noisy()), EPS["float32"]))
    if len(shape) > 1:
        wrong = noisy()
        wrong[..., -1] += 60 * noise
        ((one, ratio),) = ratios(reference, rounded, observed(w=wrong), EPS["float32"])
        assert ratio > 1
        assert f"axis {len(shape) - 1}" in one.where or len(shape) == 2


def test_what_is_zero_by_construction_may_be_any_small_number():
    """A bias before a norm has no gradient but rounding."""
    reference = observed(bias=[0.0, 0.0], weight=[1.0, -2.0])
    found = observed(bias=[1e-7, -1e-7], weight=[1.0, -2.0])
    assert all(ratio <= 1 for _, ratio in ratios(reference, [reference], found, EPS["float32"]))


def test_nan_and_other_shapes_are_wrong():
    reference = observed(a=[1.0], b=[1.0, 2.0])
    found = ratios(reference, [reference], observed(a=[np.nan], b=[1.0]), EPS["float32"])
    assert [ratio for _, ratio in found] == [np.inf, np.inf]


@given(st.integers(1, 10**6), st.integers(1, 8))
def test_the_bound_falls_with_what_the_noise_was_measured_on(elements, rounded):
    assert allowed_ratio(elements, rounded) >= allowed_ratio(elements + 1, rounded) >= MARGIN
    assert allowed_ratio(elements, rounded) >= allowed_ratio(elements, rounded + 1)


def test_the_layer_to_blame_is_the_first_on_the_way_of_the_computation():
    reference = Observed(order={"one": 0, "two": 1, "three": 2})

    def wrong(kind, *names):
        return [Disagreement(kind, name, 1.0, 0.1) for name in names]

    assert "one" in blamed_layer(reference, wrong("output of", "three", "one"))
    assert "two.bias" in blamed_layer(reference, wrong("gradient of", "one.weight", "two.bias"))
    backward = wrong("gradient of", "one.weight") + wrong("gradient at the output of", "one", "two")
    assert "between two and the layer after it" in blamed_layer(reference, backward)


def test_jitter_moves_zeros_and_is_the_same_each_time():
    zeros, ones = np.zeros((3, 4), np.float32), np.ones((3, 4), np.float32)
    assert np.abs(jitter("gate", zeros)).min() > 0
    np.testing.assert_array_equal(jitter("gate", ones), jitter("gate", ones))
    assert np.abs(jitter("gate", ones) - 1).max() < 0.3
    assert np.abs(jitter("gate", ones, 1) - jitter("gate", ones)).max() > 0


def test_a_plain_update_equals_the_trained_one():
    before = {"w": np.ones(3, np.float32)}
    after = [{"w": np.full(3, value, np.float32)} for value in (0.9, 0.8)]
    average = {"w": np.float32(1 + (9 / 11) * -0.1) * np.ones(3, np.float32)}
    average["w"] += (9 / 12) * (np.float32(0.8) - average["w"])
    found = Updated(before, after, before, average)
    assert wrong_updates(found, found, 0.999) == []
    assert [one.kind for one in wrong_updates(found, replace(found, average=before), 0.999)] == ["moving average of"]
    other = replace(found, steps=[after[0], {"w": np.full(3, 0.79, np.float32)}])
    assert "update of" in [one.kind for one in wrong_updates(found, other, 0.999)]
