"""Kernels of Keras against eager float32: wrong ones under XLA or 16 bits are found, right ones are not."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "engine_toy"))
import engine_toy as toy
import keras_toy
from runner_core.contract.kernels import Way
from runner_core.contract.setup import Setup
from runner_core.plugins import defaults
from runner_core.training.kernels.check import prove, verify
from runner_core.training.kernels.options import options
from runner_core.training.kernels.proof import Proof

pytest.importorskip("keras", reason="the keras engine is not installed (extra keras)")
from runner_core.engines.keras import kernels
from runner_core.engines.keras.engine import backend


class Hooks:
    versions: dict[str, str] = {}  # noqa: RUF012

    def first(self, hook, **arguments):
        return getattr(defaults, hook)(**arguments)

    def all(self, hook, **arguments):
        return [*getattr(defaults, hook)(**arguments)]


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def made(**settings):
    config = toy.small(**settings)
    setup = Setup(keras_toy.KerasToy(config), config, "demo", None, Hooks())
    return setup, toy.make_data(setup.project)


@pytest.fixture
def halved(monkeypatch):
    """XLA that halves the first gradient of what it compiles."""
    own = backend()
    real = type(own).compiled

    def compiled(self, function, variables, xla):
        run = real(self, function, variables, xla)
        if not xla or getattr(function, "__name__", "") != "compared_step":
            return run

        def wrong(*arguments):
            values, (first, *gradients) = run(*arguments)
            return values, [0.5 * first, *gradients]

        return wrong

    monkeypatch.setattr(type(own), "compiled", compiled)


@pytest.mark.parametrize("settings", [{"train__compile": "on"}, {"precision__mode": "bfloat16"}], ids=str)
def test_right_kernels_agree(settings):
    found = verify(*made(**settings, train__ema=0.9))
    assert (found.status, found.wrong) == ("right", []), found.text


def test_a_wrong_gradient_under_xla_is_found_and_switched_off(halved):
    setup, data = made(train__compile="on")
    found = prove(setup, data, print)
    assert found.blamed == ["train.compile (XLA)"]
    assert found.switched
    assert setup.config.train.compile == "off"
    assert "kernel" in found.layer or "bias" in found.layer


def test_plain_float32_is_not_compared():
    setup, _ = made()
    assert options(setup) == []


@pytest.mark.parametrize("rounding", [None, 0, 1])
def test_the_first_rounding_computes_normalisations_in_float64(rounding, monkeypatch):
    import keras

    setup, data = made(train__compile="on", net__batchnorm=True)
    seen, own = set(), keras.layers.BatchNormalization.call

    def call(self, inputs, *args, **kwargs):
        seen.add(keras.backend.standardize_dtype(inputs.dtype))
        return own(self, inputs, *args, **kwargs)

    monkeypatch.setattr(keras.layers.BatchNormalization, "call", call)
    proof = Proof(setup, data, options(setup))
    proof._trainer(proof._off).observe(proof._arrays, Way(plain=True, rounding=rounding))
    assert seen == {"float64" if rounding == 0 else "float32"}


def test_a_step_that_is_computed_again_finds_the_state_of_the_first(monkeypatch):
    setup, data = made(train__compile="on", net__batchnorm=True)
    proof = Proof(setup, data, options(setup))
    once = proof._trainer({}).observe(proof._arrays, Way())
    finite = kernels._finite
    monkeypatch.setattr(kernels, "_finite", lambda learning, run: (run(), finite(learning, run))[1])  # overflowed once
    again = proof._trainer({}).observe(proof._arrays, Way())
    buffers = [name for name in once.values if name.startswith("buffer ") and "seed" not in name]
    assert buffers
    for name in buffers:
        np.testing.assert_allclose(again.values[name], once.values[name], rtol=1e-6, err_msg=name)


def test_other_weights_are_compared_without_compiling_again(monkeypatch):
    tensorflow = pytest.importorskip("runner_core.engines.keras.tensorflow", reason="counts TensorFlow's traces")
    setup, data = made(train__compile="on", net__batchnorm=True)
    proof, traced, real = Proof(setup, data, options(setup)), [], tensorflow._trace
    monkeypatch.setattr(tensorflow, "_trace", lambda *given: (traced.append(given[3]), real(*given))[1])
    once, other, again = (proof._observe({}, Way(weights=number)) for number in (0, 1, 0))
    assert traced.count(True) == 1, "XLA compiled it again"
    for name in once.gradients:
        np.testing.assert_allclose(again.gradients[name], once.gradients[name], rtol=1e-6, err_msg=name)
    assert any(np.abs(other.gradients[name] - once.gradients[name]).max() > 1e-4 for name in once.gradients)
