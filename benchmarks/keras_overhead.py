"""What a Keras step costs besides the step: plain `fit`, a plain compiled loop, and runner, in one process.

    uv run python benchmarks/keras_overhead.py [--steps 1000] [--repetitions 9]

Everyone trains the same tiny network with the same optimizer on the same batches (16 × 32 float32) on TensorFlow.
Repetitions take turns, so that what else the machine does falls on all alike; the table shows medians. `fit` gets
its batches from a tf.data pipeline that holds all of them in memory; the others gather each batch from an array.
The plain loop calls one `tf.function` a step and does nothing else: what remains is TensorFlow's own cost of a call.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf
from runner_core.engines.keras import KerasEngine
from runner_core.project import Project
from runner_core.protocols import Precision, Step
from runner_core.sampling import order
from tiny import BATCH, FEATURES, INPUTS, LOG_EVERY, ROWS, TARGETS, Seconds, runner


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

    def optimizer(self, groups: Any) -> keras.optimizers.Optimizer:
        return optimizer()

    def step(self, model: Any, batch: Any, progress: Any) -> Step:
        return Step(keras.ops.mean(keras.ops.square(model(batch["x"]) - batch["y"])))


EVERYONE: dict[str, Callable[[], Seconds]] = {
    "plain compiled loop": plain,
    "runner": partial(runner, Tiny, KerasEngine),
    "keras fit": partial(fit, 1),
    "runner, 32 steps at once": partial(runner, Tiny, KerasEngine, 32),
    "keras fit, 32 steps at once": partial(fit, 32),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=960)
    parser.add_argument("--repetitions", type=int, default=9)
    options = parser.parse_args()
    running = {name: make() for name, make in EVERYONE.items()}
    for run in running.values():
        run(options.steps)  # warm-up: traces and compiles
    times: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(options.repetitions):
        for name, run in running.items():
            times[name].append(run(options.steps) / options.steps * 1e3)
    fits = statistics.median(times["keras fit"])
    print(f"Keras {keras.__version__}, TensorFlow {tf.__version__}, {options.repetitions} × {options.steps} steps")
    print("\n| | ms a step (median) | fastest | slowest | of `fit` |\n| --- | ---: | ---: | ---: | ---: |")
    for name, taken in times.items():
        middle = statistics.median(taken)
        print(f"| {name} | {middle:.3f} | {min(taken):.3f} | {max(taken):.3f} | {middle / fits:.2f} |")


if __name__ == "__main__":
    main()
