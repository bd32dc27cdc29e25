"""The network: the challenge's, counted; its head; cascade, recomputation, files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops
from runner_openkbp.config import ModelConfig
from runner_openkbp.network import CHANNELS, PRESCRIPTION, dose_network, levels, mean_of_neighbours


def image(size: int, count: int = 2, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, *(size,) * 3, CHANNELS)).astype(np.float32)


def network(size: int = 16, policy: str = "float32", **settings: Any) -> keras.Model:
    """Two features, the same weights and dropout each time."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(policy)
    try:
        return dose_network(size, ModelConfig(**({"features": 2} | settings)))
    finally:
        keras.config.set_dtype_policy("float32")


def numpy(value: Any) -> np.ndarray:
    return np.asarray(ops.convert_to_numpy(ops.cast(value, "float32")))


def test_the_challenges_parameters() -> None:
    """The challenge's own code counts as many with 11 input channels; at 64³ and for the demo's width too."""
    assert dose_network(128, ModelConfig(features=64)).count_params() == 116_981_249
    assert dose_network(64, ModelConfig(features=4)).count_params() == 460_769
    assert dose_network(64, ModelConfig(features=4, cascade=True)).count_params() == 2 * 460_769 + 64 * 4


def test_the_challenges_layers() -> None:
    """Bottleneck, widths, normalisation and dropout as published (Babier et al. 2021, and the code)."""
    model = dose_network(128, ModelConfig(features=64))
    found = {layer.name: layer for block in model.layers for layer in getattr(block, "layers", [block])}
    convolutions = [found[f"down{level}_conv"] for level in range(1, 7)]
    assert [layer.filters for layer in convolutions] == [64, 128, 256, 512, 512, 512]
    assert [found[f"up{level}_conv"].filters for level in range(5, 0, -1)] == [512, 512, 256, 128, 64]
    assert found["down6_relu"].output.shape == (None, 2, 2, 2, 512)
    assert all(layer.kernel_size == (4, 4, 4) and layer.strides == (2, 2, 2) for layer in convolutions)
    assert [name for name in found if name.startswith("down") and name.endswith("norm")] == [
        f"down{level}_norm" for level in range(1, 6)
    ]
    assert [name for name in found if name.endswith("dropout")] == ["up4_dropout", "up2_dropout"]
    assert all(layer.rate == 0.2 for name, layer in found.items() if name.endswith("dropout"))
    norms = [layer for name, layer in found.items() if name.endswith("norm")]
    assert {(layer.momentum, layer.epsilon) for layer in norms} == {(0.99, 1e-3)}
    assert found["head_conv"].use_bias
    assert not any(layer.use_bias for layer in convolutions)


def test_smaller_grids_have_fewer_levels() -> None:
    assert [levels(size) for size in (128, 64, 32, 16, 8)] == [6, 6, 5, 4, 3]
    assert network(8)(image(8)).shape == (2, 8, 8, 8, 1)


@pytest.mark.parametrize("shape", [(2, 6, 7, 8, 1), (1, 2, 3, 4, 1)])
def test_head_pools_as_the_layer_does(shape: tuple[int, ...], gradient: Callable[..., np.ndarray]) -> None:
    rng = np.random.default_rng(0)
    x, weight = (rng.normal(size=shape).astype(np.float32) for _ in range(2))
    pooling = keras.layers.AveragePooling3D(3, 1, "same")
    np.testing.assert_allclose(numpy(mean_of_neighbours(x)), numpy(pooling(x)), atol=1e-6)
    slopes = [gradient(lambda at, pool=pool: ops.sum(pool(at) * weight), x) for pool in (mean_of_neighbours, pooling)]
    np.testing.assert_allclose(*slopes, atol=1e-6)


def test_dose_is_in_gray_and_never_negative() -> None:
    """float32 whatever the policy; the head's numbers times 70 Gy."""
    for policy in ("float32", "mixed_bfloat16"):
        model = network(policy=policy)
        dose = model(image(16))
        assert keras.backend.standardize_dtype(dose.dtype) == "float32"
        assert float(ops.min(dose)) == 0
        assert {layer.compute_dtype for layer in model.get_layer("head").layers if "conv" in layer.name} == {"float32"}
        body = model.get_layer("up1").get_layer("up1_conv")
        assert body.compute_dtype == policy.removeprefix("mixed_")
    own = model.get_layer("head").get_layer("head_conv")
    own.kernel.assign(own.kernel * 0)
    for bias, expected in ((0.5, PRESCRIPTION / 2), (-0.5, 0)):
        own.bias.assign([bias])
        np.testing.assert_allclose(numpy(model(image(16))), expected, rtol=1e-5)


def test_an_untrained_network_starts_at_a_dose() -> None:
    doses = [numpy(network(start=start)(image(16))) for start in (0.0, 20.0)]
    assert np.median(doses[0]) < 5
    assert np.median(doses[1]) == pytest.approx(20, abs=5)


def test_cascade_sees_the_first_dose() -> None:
    """Its first network is the one without a cascade; the second one's dose depends on the first's."""
    model = network(cascade=True)
    first, second = model(image(16))
    assert first.shape == second.shape
    own, before = model.get_layer("head").get_layer("head_conv"), numpy(second)
    own.bias.assign(own.bias + 0.5)
    assert np.abs(numpy(model(image(16))[1]) - before).max() > 1e-3


def trained(model: keras.Model, size: int, steps: int = 3) -> list[np.ndarray]:
    """Variables after steps of gradient descent, dropout on."""
    from runner_core.engines.keras.engine import backend

    frozen = model.non_trainable_variables

    def step(x: Any) -> Any:
        def loss() -> tuple[Any, Any]:
            doses = model(x, training=True)
            doses = doses if isinstance(doses, list) else [doses]
            return sum(ops.mean(ops.abs(dose - 30.0)) for dose in doses), ()

        gradients, _ = backend().gradients(loss, model.trainable_variables, frozen)
        for variable, slope in zip(model.trainable_variables, gradients, strict=True):
            variable.assign(variable - 1e-3 * slope)
        return ops.sum(gradients[0])

    compiled = backend().compiled(step, model.variables, False)
    for number in range(steps):
        compiled(ops.convert_to_tensor(image(size, seed=number)))
    return [numpy(variable) for variable in model.variables]


@pytest.mark.parametrize("cascade", [False, True])
def test_recomputing_changes_nothing(cascade: bool) -> None:
    """Weights, running statistics and the dropout's seeds after a few steps, bit for bit (on a CPU)."""
    runs = [trained(network(8, recompute=on, cascade=cascade), 8) for on in (False, True)]
    for kept, again in zip(*runs, strict=True):
        np.testing.assert_allclose(again, kept, rtol=1e-5, atol=1e-6)


def test_recomputing_computes_again() -> None:
    """Every block runs twice if a gradient is needed, otherwise once."""
    if keras.backend.backend() != "tensorflow":
        pytest.skip("counts calls outside of a compiled function, with TensorFlow's tape")
    import tensorflow as tf

    calls = []
    model = network(8, recompute=True)
    layer = model.get_layer("up1").get_layer("up1_conv")
    plain = layer.call
    layer.call = lambda *args, **kwargs: (calls.append(1), plain(*args, **kwargs))[1]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(image(8), training=True))
    assert len(calls) == 1
    tape.gradient(loss, model.trainable_variables)
    assert len(calls) == 2
    model(image(8))
    assert len(calls) == 3


def test_file_loads_without_runner(tmp_path: Path) -> None:
    """`.keras` files in safe mode, in a process that cannot import runner."""
    np.save(tmp_path / "image.npy", image(16))
    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "recomputed": {"recompute": True},
        "cascade": {"cascade": True},
        "mixed": {"policy": "mixed_bfloat16"},
    }
    for name, settings in kinds.items():
        model = network(16, **settings)
        model.save(tmp_path / f"{name}.keras")
        doses = model(image(16))
        np.save(tmp_path / f"{name}.npy", numpy(doses[-1] if name == "cascade" else doses))
    script = (
        "import sys; sys.modules['runner_openkbp'] = sys.modules['runner_core'] = None\n"
        "import keras, numpy as np\n"
        "for name in sys.argv[1:]:\n"
        "    model = keras.saving.load_model(f'{name}.keras', safe_mode=True)\n"
        "    doses = model(np.load('image.npy'))\n"
        "    dose = np.asarray(doses[-1] if isinstance(doses, (list, tuple)) else doses)\n"
        "    np.testing.assert_allclose(dose, np.load(f'{name}.npy'), rtol=1e-4, atol=1e-4)\n"
    )
    command = [sys.executable, "-c", script, *kinds]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
