"""The label of an image, its class: how it is read, scored and written."""

from typing import Any

import numpy as np
from runner_core import Annotation, BadInput

# change this: your classes, as labels.csv spells them
CLASSES = ("disc", "ring", "rings")

COLUMN = "class"
DTYPE, OUTPUTS = "int64", len(CLASSES)
MONITOR = ("accuracy", "max")
SETTINGS = list(CLASSES)  # what `number` depends on


def read(text: str, where: str) -> str:
    """Return what a cell of the table says; `where` is its file and line."""
    if text not in CLASSES:
        raise BadInput(f"{where}: {text!r} is no class; the classes are {', '.join(CLASSES)} (labels.py)")
    return text


def number(label: Any) -> int:
    return CLASSES.index(label)


def start(numbers: np.ndarray) -> tuple[np.ndarray, float]:
    """Return logits of a method that ignores the image (each class's share of the training), and 1, their scale."""
    counts = np.bincount(numbers, minlength=OUTPUTS)
    if missing := [name for name, count in zip(CLASSES, counts, strict=True) if not count]:
        raise BadInput(f"no training image is of the class {', '.join(missing)}")
    return np.log(counts / counts.sum()).astype(np.float32), 1.0


def decide(output: np.ndarray) -> np.ndarray:
    """Return the classes' probabilities (..., classes) for the network's output."""
    powers = np.exp(output - output.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def row(prediction: np.ndarray) -> dict[str, str | float]:
    """Return what the table of predictions says of an image."""
    shares = {f"p_{name}": round(float(p), 4) for name, p in zip(CLASSES, prediction, strict=True)}
    return {COLUMN: CLASSES[int(prediction.argmax())], **shares}


def score(prediction: np.ndarray, label: Any) -> dict[str, float]:
    return {"accuracy": float(prediction.argmax() == number(label))}


def annotation(label: Any) -> Annotation | None:
    """Return how `check` counts the label: an image of its class."""
    return Annotation({name: int(name == label) for name in CLASSES})


def plain_metrics(output: np.ndarray, numbers: np.ndarray) -> dict[str, float]:
    """Return the metrics by definition, for the contract test."""
    return {"accuracy": float((output.argmax(-1) == numbers).mean())}


def phantom(number: int, rng: np.random.Generator) -> tuple[int, float, str]:
    """Return rings, radius (a share of the image's side) and label of a made-up image."""
    rings = number % len(CLASSES)
    return rings, rng.uniform(0.25, 0.4), CLASSES[rings]
