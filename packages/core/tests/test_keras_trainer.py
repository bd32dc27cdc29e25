"""The Keras trainer against plain Keras: gradients, clipping, averages, blocks, memory, precision. Both backends."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "engine_toy"))
import engine_toy as toy
import keras_toy
from runner_core.base.errors import BadInput, Unhealthy
from runner_core.contract import Device, HostBatch, Precision, Step
from runner_core.contract.run import matches
from runner_core.contract.start import StartWeights

pytest.importorskip("keras", reason="the keras engine is not installed (extra keras)")
import keras
from keras import layers, ops
from runner_core.engines.keras import memory, precision
from runner_core.engines.keras.backend import OutOfDeviceMemory
from runner_core.engines.keras.engine import backend
from runner_core.engines.keras.network import Bound, arrays, build, named

tensorflow_only = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow only")


class Linear(keras_toy.KerasToy):
    """Least squares; no augmentation, nothing random."""

    splittable = True
    monitor = ("loss", "min")
    kernel_regularizer = None

    def on_device(self, batch, statistics, rng):
        return batch

    def model(self, precision):
        hidden = layers.Dense(5, activation="tanh", kernel_regularizer=self.kernel_regularizer)
        return keras.Sequential([keras.Input((6,)), hidden, layers.Dense(1, dtype="float32")])

    def optimizer(self, groups):
        return keras.optimizers.SGD(self.config.train.learning_rate)

    def step(self, model, batch, progress):
        prediction = ops.cast(model(batch["x"]), "float32")
        loss = ops.mean(ops.square(prediction - batch["y"]))
        return Step(loss, {"mse": loss, "constant": 2.0}, prediction)

    def decision(self, prediction):
        return prediction

    def metrics(self):
        return []


def config(**settings):
    base = {"train__schedule": "constant", "train__warmup": 0.0, "train__batch_size": 7, "train__epochs": 1}
    return toy.small(**{**base, **settings})


class Setup(toy.ToySetup):
    precision = Precision("float32")
    device = Device("cpu")


def trainer(project=Linear, steps=10, policy=Precision("float32"), device=Device("cpu"), **settings):  # noqa: B008
    made = project(config(**settings))
    setup = Setup(made)
    setup.__dict__["precision"], setup.__dict__["device"] = policy, device
    return setup.engine.trainer(setup, toy.make_data(made), steps)


def host_batch(seed=0, count=7, scale=1.0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, 6), dtype=np.float32) * np.float32(scale)
    released = Counter()
    return HostBatch(
        {"x": x, "y": x.sum(1, keepdims=True) ** 2}, count, lambda: released.update(["released"])
    ), released


def weights(network):
    return [np.array(ops.convert_to_numpy(v.value), np.float64) for v in network.trainable_variables]


def plain_gradients(values, x, y):
    """Compute the gradient of the mean squared error by hand, in float64."""
    w1, b1, w2, b2 = values
    hidden = np.tanh(x @ w1 + b1)
    error = 2 * (hidden @ w2 + b2 - y) / len(x)
    inner = (error @ w2.T) * (1 - hidden**2)
    return [x.T @ inner, inner.sum(0), hidden.T @ error, error.sum(0)], np.mean((hidden @ w2 + b2 - y) ** 2)


@pytest.mark.parametrize(
    "returned, said",
    [
        *toy.NOTHING_LEARNED,
        pytest.param(
            lambda step: step._replace(loss=ops.stop_gradient(step.loss)), "no weight changes it", marks=tensorflow_only
        ),
    ],
)
def test_a_step_that_nothing_is_learned_from_is_refused(returned, said):
    class Wrong(Linear):
        def step(self, model, batch, progress):
            return returned(super().step(model, batch, progress))

    with pytest.raises(BadInput, match=f"project {Wrong.name}: .*{said}"):
        trainer(Wrong).train_step(host_batch()[0], 0)
    if "weight changes" not in said:  # nothing is learned in a validation
        with pytest.raises(BadInput, match=said):
            trainer(Wrong).validate([host_batch()[0]])


@pytest.mark.parametrize("accumulate", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_steps_are_those_of_the_definition(accumulate, clip):
    """Seven samples in micro-batches of 7, 4+3, 3+3+1, …: gradient descent on the whole batch, in float64 by hand."""
    ours = trainer(train__accumulate=accumulate, train__clip=clip)
    values, losses, norms = weights(ours.network), [], []
    for step in range(4):
        batch, released = host_batch(step)
        gradients, loss = plain_gradients(values, batch.arrays["x"].astype(float), batch.arrays["y"].astype(float))
        norms.append(np.sqrt(sum(np.sum(g**2) for g in gradients)))
        factor = 1.0 if clip is None else min(1.0, clip / norms[-1])
        values = [v - 0.05 * factor * g for v, g in zip(values, gradients, strict=True)]
        losses.append(loss)
        ours.train_step(batch, step)
        assert released["released"] == 1
    for own, wanted in zip(weights(ours.network), values, strict=True):
        np.testing.assert_allclose(own, wanted, rtol=1e-4, atol=1e-6)
    log = ours.read_log()
    assert log["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert log["constant"] == pytest.approx(2.0)
    assert log["learning_rate"] == pytest.approx(0.05)
    if clip is not None:
        assert log["gradient_norm"] == pytest.approx(np.mean(norms), rel=1e-5)
    assert "mse" not in ours.read_log()  # read once


def test_average_of_the_weights():
    ours = trainer(train__ema=0.5)
    average = weights(ours.network)
    for step in range(6):
        ours.train_step(host_batch(step)[0], step)
        decay = min(0.5, (2 + step) / (11 + step))
        average = [decay * a + (1 - decay) * w for a, w in zip(average, weights(ours.network), strict=True)]
    kept = list(ours.state().tensors.items())
    ema = [value for name, value in kept if name.startswith("ema.")]
    for own, wanted in zip(ema, average, strict=True):
        np.testing.assert_allclose(own, wanted, rtol=1e-5, atol=1e-6)
    before = weights(ours.network)
    batch, _ = host_batch(9)
    seen = ours.validate([batch])["loss"]
    x, y = batch.arrays["x"].astype(float), batch.arrays["y"].astype(float)
    assert seen == pytest.approx(plain_gradients(average, x, y)[1], rel=1e-4)  # the average was evaluated
    for own, wanted in zip(weights(ours.network), before, strict=True):
        np.testing.assert_array_equal(own, wanted)


def test_regularizers_count():
    class Regularized(Linear):
        kernel_regularizer = keras.regularizers.L2(0.1) if keras else None

    ours, plain = trainer(Regularized), trainer()
    start = weights(ours.network)
    batch, _ = host_batch()
    ours.train_step(batch, 0)
    plain.train_step(host_batch()[0], 0)
    log, without = ours.read_log(), plain.read_log()
    assert log["regularization"] == pytest.approx(0.1 * np.sum(start[0] ** 2), rel=1e-5)
    assert log["loss"] == pytest.approx(without["loss"] + log["regularization"], rel=1e-5)
    moved = weights(plain.network)[0] - weights(ours.network)[0]
    np.testing.assert_allclose(moved, 0.05 * 0.2 * start[0], rtol=1e-3, atol=1e-6)


def test_sgd_is_nesterovs():
    class Default(Linear):
        def optimizer(self, groups):
            return None

    ours = trainer(Default, train__optimizer="sgd", train__momentum=0.9, train__weight_decay=0.3)
    optimizer = ours._learning.optimizer
    assert isinstance(optimizer, keras.optimizers.SGD)
    assert (optimizer.momentum, optimizer.nesterov, optimizer.weight_decay) == (0.9, True, 0.3)
    with pytest.raises(BadInput, match=r"own optimizer: leave train\.optimizer out"):
        trainer(Linear, train__optimizer="sgd")


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear", "poly"])
def test_decay_and_schedule_are_what_the_settings_say(optimizer, schedule):
    """Ten steps in float64 by hand: the rate of each step, and decay by this rate, apart from the gradient."""

    class Default(Linear):
        def optimizer(self, groups):
            return None

    settings = {"train__optimizer": optimizer, "train__schedule": schedule, "train__warmup": 0.2}
    rate, decay, momentum = 0.05, 0.1, 0.9
    ours = trainer(Default, train__learning_rate=rate, train__weight_decay=decay, train__momentum=momentum, **settings)
    values, rates = weights(ours.network), []
    first, second = [0 * v for v in values], [0 * v for v in values]
    for step in range(10):
        passed = max(0.0, (step - 2) / 8)
        falls = {"constant": 1, "cosine": (1 + np.cos(np.pi * passed)) / 2, "linear": 1 - passed}
        now = rate * ((step + 1) / 2 if step < 2 else falls.get(schedule, (1 - passed) ** 0.9))
        rates.append(now)
        batch, _ = host_batch(step)
        gradients, _ = plain_gradients(values, batch.arrays["x"].astype(float), batch.arrays["y"].astype(float))
        ours.train_step(batch, step)
        for i, g in enumerate(gradients):
            if optimizer == "sgd":
                first[i] = momentum * first[i] - now * g
                move = momentum * first[i] - now * g
            else:
                first[i], second[i] = 0.9 * first[i] + 0.1 * g, 0.999 * second[i] + 0.001 * g**2
                mean, square = first[i] / (1 - 0.9 ** (step + 1)), second[i] / (1 - 0.999 ** (step + 1))
                move = -now * mean / (np.sqrt(square) + 1e-7)
            values[i] = values[i] * (1 - now * decay) + move
        assert ours.read_log()["learning_rate"] == pytest.approx(now, rel=1e-5)
    for own, wanted in zip(weights(ours.network), values, strict=True):
        np.testing.assert_allclose(own, wanted, rtol=1e-3, atol=1e-4)


def test_a_rate_that_falls_at_the_end():
    ours = trainer(keras_toy.KerasToy, steps=10, train__schedule="wsd", train__warmup=0.4, train__learning_rate=2.0)
    seen = []
    for step in range(10):
        arrays = {"image": np.zeros((4, 2, toy.SIDE, toy.SIDE), np.uint8)}
        ours.train_step(HostBatch({**arrays, "mask": arrays["image"][:, 1:]}, 4, lambda: None), step)
        seen.append(ours.read_log()["learning_rate"])
    assert seen == pytest.approx([0.5, 1.0, 1.5, *[2.0] * 6, 1.0])


@tensorflow_only
@pytest.mark.parametrize("block", [2, 3, 5])
def test_blocks_are_the_same_steps(block):
    """Steps in blocks, the last of an epoch shorter, change no bit, dropout and noise on the device included."""

    def trained(**settings):
        ours = trainer(keras_toy.KerasToy, steps=14, train__epochs=2, train__batch_size=4, train__clip=1.0, **settings)
        rng, released = np.random.default_rng(0), []
        for step in range(14):
            image = rng.integers(0, 255, (4, 2, toy.SIDE, toy.SIDE), dtype=np.uint8)
            mask = (image[:, 1:] > 128).astype(np.uint8)
            ours.train_step(HostBatch({"image": image, "mask": mask}, 4, lambda: released.append(1)), step)
            assert len(released) == step + 1
        state = ours.state()
        return state.tensors, state.values["keras"]["log"]

    (one, log), (blocks, log_of_blocks) = trained(), trained(train__steps_per_execution=block)
    assert one.keys() == blocks.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, blocks[name], err_msg=name)
    assert log == log_of_blocks


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="TensorFlow takes blocks")
def test_blocks_are_refused():
    with pytest.raises(BadInput, match="only TensorFlow"):
        trainer(train__steps_per_execution=2)


def test_accumulation_needs_a_splittable_project():
    class Whole(Linear):
        splittable = False

    with pytest.raises(BadInput, match=r"train\.accumulate 3: project enginetoy does not allow it"):
        trainer(Whole, train__accumulate=3)


def test_constants_from_on_device_cannot_be_cut():
    class Constant(Linear):
        def on_device(self, batch, statistics, rng):
            return {**batch, "weights": ops.ones((3,))}

    with pytest.raises(BadInput, match=r"on_device returned 'weights' of shape \(3,\) for a batch of 7"):
        trainer(Constant, train__accumulate=2).train_step(host_batch()[0], 0)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_sparse_gradients_are_gradients(accumulate):
    """An embedding's gradient names a row more than once: its norm is that of the sums."""

    class Embedded(Linear):
        def on_device(self, batch, statistics, rng):
            return {**batch, "x": ops.cast(ops.abs(batch["x"]) * 3, "int32")}

        def model(self, precision):
            return keras.Sequential([keras.Input((6,)), layers.Embedding(10, 1), layers.Flatten(), layers.Dense(1)])

    ours = trainer(Embedded, train__clip=1e9, train__accumulate=accumulate)
    (table, kernel, bias), batch = weights(ours.network), host_batch()[0]
    rows, y = np.abs(batch.arrays["x"] * 3).astype(int), batch.arrays["y"].astype(float)
    found = table[rows, 0]
    error = 2 * (found @ kernel + bias - y) / len(y)
    wanted = [np.zeros_like(table), found.T @ error, error.sum(0)]
    np.add.at(wanted[0][:, 0], rows, error @ kernel.T)
    ours.train_step(batch, 0)
    norm = np.sqrt(sum(np.sum(gradient**2) for gradient in wanted))
    assert ours.read_log()["gradient_norm"] == pytest.approx(norm, rel=1e-5)
    np.testing.assert_allclose(weights(ours.network)[0], table - 0.05 * wanted[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 9)), "has a schedule as its"),
        (lambda: keras.optimizers.SGD(0.1, use_ema=True), "has use_ema: use train.ema"),
        (lambda: keras.optimizers.SGD(0.1, loss_scale_factor=9.0), "has loss_scale_factor: use precision.mode"),
        (lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), "use train.accumulate"),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), "scales the loss"),
    ],
)
def test_optimizers_that_do_the_runners_work_are_refused(make, told):
    class Own(Linear):
        def optimizer(self, groups):
            return make()

    with pytest.raises(BadInput, match=told):
        trainer(Own)


def test_adjust_is_refused():
    class Adjusts(Linear):
        def adjust(self, groups, progress):
            pass

    with pytest.raises(BadInput, match="`adjust` is for PyTorch"):
        trainer(Adjusts)


def test_layers_of_the_network_train_too():
    """A step may call them one by one: dropout and BatchNorm know that it trains."""

    class Body(keras.Model):
        def __init__(self):
            super().__init__()
            self.dropout, self.norm, self.head = layers.Dropout(0.5), layers.BatchNormalization(), layers.Dense(1)

        def call(self, x):
            return self.head(self.norm(self.dropout(x)))

    class Called(Linear):
        def model(self, precision):
            network = Body()
            network(keras.Input((6,)))
            return network

        def step(self, model, batch, progress):
            prediction = model.head(model.layers[1](model.get_layer("dropout")(batch["x"])))
            loss = ops.mean(ops.square(prediction - batch["y"]))
            return Step(loss, {}, prediction, [prediction])  # outputs are not looked at

    ours = trainer(Called)
    before = arrays(named(ours.network.non_trainable_variables))
    ours.train_step(host_batch()[0], 0)
    after = arrays(named(ours.network.non_trainable_variables))
    assert [name for name in before if np.array_equal(before[name], after[name])] == []
    ours.validate([host_batch()[0]])
    for name, array in arrays(named(ours.network.non_trainable_variables)).items():
        np.testing.assert_array_equal(array, after[name], err_msg=name)


def test_an_unbuilt_network_is_refused():
    class Unbuilt(Linear):
        def model(self, precision):
            return keras.Sequential([layers.Dense(3)])

    with pytest.raises(BadInput, match="has no weights yet"):
        trainer(Unbuilt)


def test_only_chosen_weights_are_trained():
    class Head(Linear):
        def parameter_groups(self, model):
            return model.layers[-1].trainable_variables

    ours = trainer(Head)
    before = weights(ours.network)
    ours.train_step(host_batch()[0], 0)
    after = weights(ours.network)
    assert [np.array_equal(a, b) for a, b in zip(before, after, strict=True)] == [True, True, False, False]


def test_after_step_sees_the_new_weights():
    class Doubling(Linear):
        def after_step(self, model, progress):
            bias = model.layers[-1].bias
            bias.assign(ops.ones_like(bias.value) * (progress.step + 1))

    ours = trainer(Doubling)
    for step in range(3):
        ours.train_step(host_batch(step)[0], step)
    assert weights(ours.network)[-1] == pytest.approx(3.0)


# ------------------------------------------------------------ numbers that are not finite


def test_a_loss_that_is_not_finite():
    ours = trainer()
    ours.train_step(host_batch()[0], 0)
    ours.train_step(host_batch(1, scale=np.inf)[0], 1)
    with pytest.raises(Unhealthy, match="was NaN or infinite in step 2"):
        ours.state()
    log = ours.read_log()
    assert (log["nonfinite_step"], log["nonfinite_term"]) == (2, "mse")


def test_weights_that_are_not_finite():
    ours = trainer(train__learning_rate=3e38)
    ours.train_step(host_batch(scale=3)[0], 0)
    with pytest.raises(Unhealthy, match=r"\(a weight\) became NaN or infinite"):
        ours.state()


# ------------------------------------------------------------ precision


@pytest.mark.parametrize("compute", ["bfloat16", "float16"])
def test_mixed_precision_is_seen(compute):
    ours = trainer(policy=Precision(compute), train__clip=1.0, train__ema=0.9)
    before = weights(ours.network)
    for step in range(3):
        batch, _ = host_batch(step)
        batch.arrays["y"] /= 100  # gradients that float16 holds, times the first scale
        ours.train_step(batch, step)
    log = ours.read_log()
    assert log["precision_seen"] == {compute: 1}  # the head is float32 by its own wish
    assert matches(Precision(compute), log["precision_seen"])
    assert np.isfinite(log["gradient_norm"])
    assert {v.dtype for v in ours.network.variables} == {"float32"}
    assert not np.array_equal(before[0], weights(ours.network)[0])
    assert ours.network.layers[0].call.__name__ == "call"  # nobody watches any more
    assert "call" not in vars(ours.network.layers[0])


def test_float16_skips_steps_that_overflow():
    """The scale halves, weights and average stay, and the log counts only finite norms."""
    ours = trainer(policy=Precision("float16"), train__ema=0.9, train__clip=1.0)
    before, scale = ours.state().tensors, float(ours._learning.optimizer.dynamic_scale)
    batch, _ = host_batch()
    batch.arrays["y"][:] = 3e5  # its gradient, times the scale, is beyond float16
    ours.train_step(batch, 0)
    after = ours.state().tensors
    assert float(ours._learning.optimizer.dynamic_scale) == scale / 2
    for name, array in before.items():
        if name.startswith(("model.", "ema.")):
            np.testing.assert_array_equal(array, after[name], err_msg=name)


def test_layers_that_stay_float32():
    network = build(Linear(config()), Precision("bfloat16"))
    precision.keep_float32(network, Precision("bfloat16", keep_float32=("dense",)))
    assert network.layers[0].dtype_policy.name == "float32"
    with pytest.raises(BadInput, match=r"no layer 'danse' to keep.*dense"):
        precision.keep_float32(network, Precision("bfloat16", keep_float32=("danse",)))


def test_layers_below_stay_float32_too():
    """Under the names of what holds them; several may have one name."""

    class Blocks(Linear):
        def model(self, precision):
            blocks = [keras.Sequential([layers.Dense(3, name="same")], name=name) for name in ("first", "second")]
            return keras.Sequential([keras.Input((6,)), *blocks])

    network = build(Blocks(config()), Precision("bfloat16", keep_float32=("second",)))
    found = [block.layers[0].dtype_policy.name for block in network.layers]
    assert found == ["mixed_bfloat16", "float32"]


# ------------------------------------------------------------ memory


def running_out(ours, most):
    """Compiled steps of more than `most` samples at once fail, after they changed what a forward pass changes."""
    compiled, sizes = ours._backend.compiled, []

    class Small:
        def __getattr__(self, name):
            return getattr(backend(), name)

        def compiled(self, function, variables, xla):
            run = compiled(function, variables, xla)

            def limited(*arguments):
                size = min(ours._learning.size, len(arguments[0]["x"])) if arguments else 0
                sizes.append(size)
                if size > most:
                    for variable in ours._learning.frozen:
                        variable.assign(ops.zeros_like(variable.value))
                    raise OutOfDeviceMemory("no")
                return run(*arguments)

            return limited

    ours._backend = ours._learning._backend = ours._micro._backend = Small()
    ours._step = ours._compile()
    return sizes


class Normalized(Linear):
    def model(self, precision):
        return keras.Sequential([keras.Input((6,)), layers.Dense(5), layers.BatchNormalization(), layers.Dense(1)])


def test_out_of_memory_halves_the_micro_batch(monkeypatch):
    monkeypatch.setattr(memory, "CAN_RUN_OUT", {"cpu"})
    ours, plain = trainer(Normalized), trainer(Normalized, train__accumulate=4)
    sizes = running_out(ours, 2)
    for step in range(3):
        ours.train_step(host_batch(step)[0], step)
        plain.train_step(host_batch(step)[0], step)
    assert sizes == [7, 4, 2, 2, 2]
    assert [note.partition(" with ")[2][:9] for note in ours.notes()] == ["7 samples", "4 samples"]
    for (name, one), other in zip(
        ours.state().tensors.items(), plain.state().tensors.values(), strict=True
    ):  # not a trace of the failed steps
        np.testing.assert_array_equal(one, other, err_msg=name)


def test_the_micro_batch_is_in_the_checkpoint(monkeypatch):
    monkeypatch.setattr(memory, "CAN_RUN_OUT", {"cpu"})
    ours = trainer()
    running_out(ours, 2)
    ours.train_step(host_batch()[0], 0)
    again = trainer()
    again.load_state(ours.state())
    assert again._micro.size == 2


def test_one_sample_is_too_much(monkeypatch):
    monkeypatch.setattr(memory, "CAN_RUN_OUT", {"cpu"})
    ours = trainer()
    running_out(ours, 0)
    with pytest.raises(BadInput, match="nor does any smaller one"):
        ours.train_step(host_batch()[0], 0)


@pytest.mark.parametrize(("most", "told"), [(3, "--train.batch-size 3 fits"), (0, "nor does any smaller one")])
def test_what_cannot_be_split_is_told_what_fits(most, told):
    class Whole(Linear):
        splittable = False

    ours = trainer(Whole)
    running_out(ours, most)
    with pytest.raises(BadInput, match=told):
        ours.train_step(host_batch()[0], 0)


def test_no_retry_once_the_update_has_begun(monkeypatch):
    monkeypatch.setattr(memory, "CAN_RUN_OUT", {"cpu"})
    ours = trainer()
    running_out(ours, 3)
    ours._learning._begun.assign(0)
    with pytest.raises(BadInput, match="out of device memory in the optimizer's step"):
        ours.train_step(host_batch()[0], 0)


def test_validation_goes_on_in_parts():
    ours, plain = trainer(Normalized), trainer(Normalized)
    compute = ours._validation._compute

    def limited(batch):
        if batch.count > 3:
            raise OutOfDeviceMemory("no")
        return compute(batch)

    ours._validation._compute = limited
    one, other = ours.validate([host_batch()[0]]), plain.validate([host_batch()[0]])
    assert one == pytest.approx(other, rel=1e-5)
    assert "in validation" in ours.notes()[0]


@tensorflow_only
def test_tensorflows_own_error_is_understood():
    import tensorflow as tf

    def fails(x):
        tf.debugging.assert_none_equal(x, x)

    def run_out(x):
        return tf.reduce_sum(tf.broadcast_to(x, [1 << 44]) * x)

    with pytest.raises(OutOfDeviceMemory):
        backend().compiled(run_out, [], False)(np.ones(1, np.float32))
    with pytest.raises(tf.errors.InvalidArgumentError):
        backend().compiled(fails, [], False)(np.ones(2, np.float32))
    for words in (
        "Out of memory while trying to allocate 9 bytes",
        "No algorithm worked!",
        "CUDNN_STATUS_ALLOC_FAILED",
    ):
        with pytest.raises(OutOfDeviceMemory), backend().allocating():
            raise tf.errors.InternalError(None, None, words)


def exhausted():
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        raise tf.errors.ResourceExhaustedError(None, None, "no")
    import jax

    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no")


def test_memory_that_runs_out_before_any_step(monkeypatch):
    """In what the framework does outside of compiled functions too."""

    class Huge(Linear):
        def model(self, precision):
            exhausted()

    with pytest.raises(BadInput, match="the network alone does not fit"):
        trainer(Huge)
    ours = trainer()
    monkeypatch.setattr(type(backend()), "tensor", lambda self, array: exhausted())
    with pytest.raises(BadInput, match="bringing the batch to the device"):
        ours.train_step(host_batch()[0], 0)
    with pytest.raises(BadInput, match="validation runs out of device memory"):
        ours.validate([host_batch()[0]])


@tensorflow_only
def test_compiled_functions_keep_no_arguments():
    import tensorflow as tf

    tensor = tf.ones(9)
    there = weakref.ref(tensor)
    function = backend().compiled(lambda arrays: ops.sum(arrays["x"]), [], False)
    assert float(function({"x": tensor})) == 9
    del tensor
    gc.collect()
    assert there() is None


# ------------------------------------------------------------ state


def test_state_continues_exactly():
    """Dropout, BatchNorm, noise on the device, average, optimizer: three steps, a checkpoint, two more."""
    settings = {"train__batch_size": 4, "train__ema": 0.9, "train__clip": 0.5}

    def images(step):
        rng = np.random.default_rng(step)
        image = rng.integers(0, 255, (4, 2, toy.SIDE, toy.SIDE), dtype=np.uint8)
        return HostBatch({"image": image, "mask": (image[:, 1:] > 128).astype(np.uint8)}, 4, lambda: None)

    one, other = trainer(keras_toy.KerasToy, **settings), trainer(keras_toy.KerasToy, train__seed=8, **settings)
    other.config.seed = 0  # another start, the same run
    for step in range(3):
        one.train_step(images(step), step)
    other.load_state(one.state())
    for step in range(3, 5):
        one.train_step(images(step), step)
        other.train_step(images(step), step)
    a, b = one.state(), other.state()
    assert a.values == b.values
    for name, array in a.tensors.items():
        np.testing.assert_array_equal(array, b.tensors[name], err_msg=name)


@tensorflow_only
def test_what_is_drawn_without_a_seed_continues_exactly():
    class Careless(Linear):
        def step(self, model, batch, progress):
            return super().step(model, {**batch, "x": batch["x"] + keras.random.normal((7, 6))}, progress)

    one, other = trainer(Careless), trainer(Careless)
    for step in range(2):
        one.train_step(host_batch(step)[0], step)
    other.load_state(one.state())
    for ours in (one, other):
        ours.train_step(host_batch(2)[0], 2)
    for a, b in zip(weights(one.network), weights(other.network), strict=True):
        np.testing.assert_array_equal(a, b)


def test_another_policy_is_refused():
    one, other = trainer(policy=Precision("bfloat16")), trainer()
    with pytest.raises(
        BadInput, match=r"trained under the precision policy mixed_bfloat16.*set precision.mode to bfloat16"
    ):
        other.load_state(one.state())


def test_another_network_is_refused():
    other = trainer(Normalized)
    with pytest.raises(BadInput, match="do not fit this project's network: it lacks"):
        other.load_state(trainer().state())


def test_a_network_starts_from_weights_that_fit():
    project, seed = keras_toy.KerasToy(config()), 3
    other = arrays(named(build(project, Precision("float32"), seed + 1).variables))
    floats = {name: array for name, array in other.items() if array.dtype.kind == "f"}
    first, second, *_ = floats
    given = {**other, first: np.zeros((1, 1, 1), np.float32)}
    del given[second]
    start = StartWeights("file", "", "", True, lambda: given)
    begun = arrays(named(build(project, Precision("float32"), seed, start).variables))
    initial = arrays(named(build(project, Precision("float32"), seed).variables))
    assert start.fit is not None
    assert (start.fit.kept, [*start.fit.differ], start.fit.unused) == ([second], [first], [])
    for name, array in begun.items():
        fits = name in floats and name not in (first, second)
        np.testing.assert_array_equal(array, (other if fits else initial)[name])
    assert any(not np.array_equal(other[name], initial[name]) for name in start.fit.fitted)


def test_names_do_not_depend_on_what_was_made_before():
    project = Linear(config())
    first = list(named(build(project, Precision("float32")).variables))
    layers.Dense(3)
    assert list(named(build(project, Precision("float32")).variables)) == first


def test_the_bound_network_is_the_network():
    network = build(keras_toy.KerasToy(config()), Precision("float32"))
    x = np.ones((2, toy.SIDE, toy.SIDE, 2), np.float32)
    assert [layer.name for layer in Bound(network, False).layers] == [layer.name for layer in network.layers]
    np.testing.assert_array_equal(Bound(network, False)(x), network(x, training=False))
    before = arrays(named(network.non_trainable_variables))
    Bound(network, True)(x)
    after = arrays(named(network.non_trainable_variables))
    assert any(not np.array_equal(before[n], after[n]) for n in before)  # BatchNorm saw a training batch


# ------------------------------------------------------------ the set on the device


def test_the_set_on_the_device(tmp_path):
    """Gathered there or read from the host: the same samples, the same weights, bit for bit."""

    class Unchanged(keras_toy.KerasToy):
        augment = None  # the device has no host-side augmentation

    states = []
    for device in (False, True):
        project, folder = Unchanged(toy.small()), tmp_path / str(device)
        data = toy.make_data(project, toy.MemoryStore(device=device))
        keras_toy.run(project.config, folder, project=Unchanged, data=data)
        states.append(toy.final_state(folder)[1])
    loose = (
        {} if keras.backend.backend() == "tensorflow" else {"rtol": 0.1, "atol": 1e-2}
    )  # XLA fuses the gather, AdamW enlarges it
    for name, array in states[0].items():
        np.testing.assert_allclose(array, states[1][name], err_msg=name, **(loose or {"rtol": 0}))


def test_only_rows_live_on_the_device():
    project = Linear(config())
    data = toy.make_data(project, toy.MemoryStore(device=True))
    data.samples = {"train": object()}
    setup = Setup(project)
    with pytest.raises(BadInput, match="needs samples that are rows"):
        setup.engine.trainer(setup, data, 1)
