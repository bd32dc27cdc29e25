"""Keras `fit`, a plain compiled loop and runner around one tiny network on TensorFlow.

`fit` gets its batches from a tf.data pipeline that holds all of them in memory; the others gather each batch from an
array. The plain loop calls one `tf.function` a step and does nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from runner_core import Learning, Precision, Project, Step
from runner_core.data.sampling import order
from runner_core.engines.keras import KerasEngine

from benchmarks.tiny import BATCH, FEATURES, INPUTS, LOG_EVERY, ROWS, TARGETS, Seconds, runner

PLAIN = "plain tf.function loop"


def network() -> keras.Model:
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((FEATURES,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)]
    )


def optimizer() -> keras.optimizers.Optimizer:
    return keras.optimizers.AdamW(1e-3)


def fit(block: int) -> Seconds:
    model = network()
    model.compile(optimizer(), "mse", steps_per_execution=block, jit_compile=False)
    data = tf.data.Dataset.from_tensor_slices((INPUTS, TARGETS)).cache().repeat()
    data = data.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

    def run(steps: int) -> float:
        begun = time.perf_counter()
        model.fit(data, epochs=1, steps_per_epoch=steps, verbose=0)
        return time.perf_counter() - begun

    return run


def plain() -> Seconds:
    model, optim = network(), optimizer()
    optim.build(model.trainable_variables)

    @tf.function(autograph=False)
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.ops.square(model(x, training=True) - y))
        optim.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    def run(steps: int) -> float:
        sequence = order(0, 0, ROWS, steps * BATCH, True)
        begun = time.perf_counter()
        for number in range(steps):
            rows = sequence[number * BATCH : (number + 1) * BATCH]
            loss = step(INPUTS[rows], TARGETS[rows])
            if (number + 1) % LOG_EVERY == 0:
                float(loss)
        return time.perf_counter() - begun

    return run


# ---------------------------------------------------------------- runner


class Tiny(Project):
    name = "tiny"
    framework = "keras"

    def model(self, precision: Precision) -> keras.Model:
        return network()

    def learning(self) -> Learning:
        return Learning(optimizer=lambda variables: optimizer())

    def step(self, model: Any, batch: Any, progress: Any) -> Step:
        return Step(keras.ops.mean(keras.ops.square(model(batch["x"]) - batch["y"])))


CONTENDERS: dict[str, Callable[[], Seconds]] = {
    PLAIN: plain,
    "runner (Keras)": partial(runner, Tiny, KerasEngine),
    "Keras fit": partial(fit, 1),
    "runner (Keras), steps_per_execution 32": partial(runner, Tiny, KerasEngine, 32),
    "Keras fit, steps_per_execution 32": partial(fit, 32),
}
