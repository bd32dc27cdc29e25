"""Extended multiplicative signal correction, with interferents and the variation between replicates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from runner_core import BadInput, counted

from runner_ssmunet.steps.operations import Operation, applied

Array = np.ndarray[Any, np.dtype[Any]]

LEAST = 10
"""Annotated pixels of a class that a core needs for a mean spectrum."""


def model(reference: Array, wavenumbers: Array, degree: int, further: Iterable[Array] = ()) -> Operation:
    """Return the operation that fits x = b · reference + polynomial + further shapes, and keeps (x − the rest) / b.

    EMSC by Martens and Stark (Journal of Pharmaceutical and Biomedical Analysis 9, 1991); with interferents, such as
    paraffin or vapour, as in Afseth and Kohler (Chemometrics and Intelligent Laboratory Systems 117, 2012).
    `reference` (L,), `further` arrays (K, L).
    """
    place = np.interp(wavenumbers, (wavenumbers[0], wavenumbers[-1]), (-1, 1))
    shapes = np.concatenate([np.polynomial.legendre.legvander(place, degree).T, *further])
    solve = np.linalg.pinv(np.concatenate([reference[None], shapes])).astype(np.float64)
    return "emsc", {"solve": solve, "shapes": shapes}


def class_means(cores: Iterable[tuple[Array, Array]]) -> Iterator[tuple[int, Array]]:
    """Yield (label, mean spectrum (L,)) of each class of each core that has enough pixels.

    A core is its labels (H, W), 0 where nobody annotated, and its spectra (H, W, L).
    """
    for labels, spectra in cores:
        counts = np.bincount(labels.ravel())
        for label in np.flatnonzero(counts[1:] >= LEAST) + 1:
            yield int(label), spectra[labels == label].mean(0, dtype=np.float64)


def replicate_shapes(means: Iterable[tuple[int, Array]], basic: Operation, count: int) -> Array:
    """Return `count` components (count, L) of the variation between replicates (Kohler et al., 2009).

    Replicates are cores that show the same class: `means` holds (class, mean spectrum (L,)) of each core. They are
    corrected by the `basic` model, each class's mean is subtracted, and the rest is taken apart into principal
    components. Kohler et al.: "Reducing inter-replicate variation in Fourier transform infrared spectroscopy by
    extended multiplicative signal correction", Applied Spectroscopy 63.

    Raises BadInput if there are too few replicates.
    """
    by_class: dict[int, list[Array]] = {}
    for label, mean in means:
        by_class.setdefault(label, []).append(applied(mean[None], [basic])[0].astype(np.float64))
    groups = [np.stack(own) for own in by_class.values() if len(own) > 1]
    free = sum(len(own) - 1 for own in groups)
    if free < count:
        raise BadInput(
            f"preprocess.replicates {count}: the training records have {counted(free, 'pair')} of cores that show one "
            f"class on {LEAST} annotated pixels or more, and {count} are needed. Lower preprocess.replicates"
        )
    rest = np.concatenate([own - own.mean(0) for own in groups])
    return np.asarray(np.linalg.svd(rest, full_matrices=False)[2][:count])
