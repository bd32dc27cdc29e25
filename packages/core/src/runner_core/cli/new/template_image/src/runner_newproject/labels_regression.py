"""The label of an image, a number: how it is read, scored and written."""

import math
from typing import Any

import numpy as np
from runner_core import Annotation, BadInput

COLUMN = "value"
DTYPE, OUTPUTS = "float32", 1
MONITOR = ("error", "min")
SETTINGS: list[str] = []  # what `number` depends on


def read(text: str, where: str) -> float:
    """Return what a cell of the table says; `where` is its file and line."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadInput(f"{where}: {text!r} is no number")
    return value


def number(label: Any) -> float:
    return float(label)


def start(numbers: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the output of a method that ignores the image (the training's mean), and the labels' spread."""
    spread = float(numbers.std())
    if spread == 0:
        raise BadInput(f"all training images have the value {numbers[0]:g}: there is nothing to learn")
    return np.array([numbers.mean()], np.float32), spread


def decide(output: np.ndarray) -> np.ndarray:
    """Return the value (..., 1) for the network's output."""
    return output


def row(prediction: np.ndarray) -> dict[str, str | float]:
    """Return what the table of predictions says of an image."""
    return {COLUMN: float(f"{prediction[0]:.6g}")}


def score(prediction: np.ndarray, label: Any) -> dict[str, float]:
    return {"error": abs(float(prediction[0]) - number(label))}


def annotation(label: Any) -> Annotation | None:
    """Return how `check` counts the label: numbers are no classes."""
    return None


def plain_metrics(output: np.ndarray, numbers: np.ndarray) -> dict[str, float]:
    """Return the metrics by definition, for the contract test."""
    return {"error": float(abs(output[:, 0] - numbers).mean())}


def phantom(number: int, rng: np.random.Generator) -> tuple[int, float, float]:
    """Return rings, radius (a share of the image's side) and label of a made-up image: the disc's area in percent."""
    radius = rng.uniform(0.1, 0.4)
    return 0, radius, round(100 * math.pi * radius**2, 2)
