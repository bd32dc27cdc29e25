"""Steps that a few constants and plain arithmetic describe: the same code serves NumPy arrays and torch tensors.

An operation is a name of `OPERATIONS` and its constants. It turns spectra (…, L) into spectra (…, L), each by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from runner_ssmunet.bands import THINNEST

Array = np.ndarray[Any, np.dtype[Any]]
Operation = tuple[str, Mapping[str, Array]]

FAINT = 1e-2
"""Least amount of the reference in a spectrum that EMSC divides by: below it there is hardly any tissue."""


def product(spectra: Any, matrix: Any) -> Any:
    """Filter each spectrum by a matrix (L, L)."""
    return spectra @ matrix


def without(spectra: Any, solve: Any, shapes: Any) -> Any:
    """Subtract `shapes` (K, L), each as much as `solve` (L, K) finds."""
    return spectra - (spectra @ solve) @ shapes


def projected(spectra: Any, mean: Any, down: Any, up: Any) -> Any:
    """Keep only the components of `down` (L, K), which `up` (K, L) turns back into spectra."""
    return mean + ((spectra - mean) @ down) @ up


def emsc(spectra: Any, solve: Any, shapes: Any) -> Any:
    """Subtract `shapes` (K, L) and divide by the amount of the reference, which `solve` (L, 1 + K) finds first."""
    amounts = spectra @ solve
    return (spectra - amounts[..., 1:] @ shapes) / amounts[..., :1].clip(min=FAINT)


def snv(spectra: Any) -> Any:
    """Give each spectrum mean 0 and standard deviation 1 (Barnes, Dhanoa and Lister, Applied Spectroscopy 43, 1989)."""
    centred = spectra - spectra.mean(-1)[..., None]
    deviation = (centred * centred).mean(-1)[..., None] ** 0.5
    return centred / (deviation + (deviation == 0))


def vector(spectra: Any) -> Any:
    """Scale each spectrum to the root of its length, so that a value is about 1."""
    size = (spectra * spectra).mean(-1)[..., None] ** 0.5
    return spectra / (size + (size == 0))


def area(spectra: Any, weights: Any) -> Any:
    """Divide each spectrum by its mean absolute value over the axis; `weights` (L,) sum to 1."""
    size = (abs(spectra) @ weights)[..., None]
    return spectra / (size + (size == 0))


def height(spectra: Any, weights: Any) -> Any:
    """Divide each spectrum by its mean height at a band, which `weights` (L,) measure."""
    return spectra / (spectra @ weights)[..., None].clip(min=THINNEST)


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    function.__name__: function for function in (product, without, projected, emsc, snv, vector, area, height)
}


def applied(spectra: Any, operations: Iterable[Operation]) -> Any:
    """Return spectra (…, L) after the operations, in float32: NumPy, or torch on the tensor's device."""
    if isinstance(spectra, np.ndarray):
        spectra = spectra.astype(np.float32, copy=False)
    for name, constants in operations:
        own = {key: _like(spectra, value) for key, value in constants.items()}
        spectra = OPERATIONS[name](spectra, **own)
    return spectra


def _like(spectra: Any, constant: Array) -> Any:
    """Return a constant as float32 of the same kind as `spectra`."""
    if isinstance(spectra, np.ndarray):
        return np.asarray(constant, np.float32)
    import torch

    return torch.as_tensor(np.asarray(constant, np.float32)).to(spectra.device, non_blocking=True)
