"""Predictions of volumes, the files that `predict` writes, and remarks on them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import Array, BadInput, Box, Finding

from runner_vesuvius import volumes
from runner_vesuvius.config import ScrollPredictConfig

PROBABILITY = "_probability"
"""End of the name of a file with probabilities, after the key."""
EVERYWHERE = 0.6
"""Share of a volume that sheets with air between them do not reach."""
MERGED = (0.9, 0.15)
"""Share of the surface in one component, and of the volume in the surface, beyond which sheets have merged."""


@dataclass(frozen=True)
class Detected:
    """A volume's prediction: `mask` (D, H, W) uint8, 1 for surface, and `probability`.

    `probability` is (D, H, W) uint8, 255 for certain, or None if the method has none.
    """

    mask: Array
    probability: Array | None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the mask, for NumPy."""
        return np.array(self.mask, dtype)


def write_map(box: Box, values: Array, stem: Path) -> list[Path]:
    """Write values of 0 to 1 in the crop `box` as STEM.tif (uint8): 0 to 255, as probabilities are written."""
    path = stem.with_name(f"{stem.name}.tif")
    _write_tif(path, box.restore(np.rint(values * 255).astype(np.uint8)))
    return [path]


def write(prediction: Detected, key: str, folder: Path, probability: bool) -> list[Path]:
    """Write KEY.tif, the challenge's format, and if asked for KEY_probability.tif, and return the files.

    Raises BadInput if they cannot be written.
    """
    wanted = {folder / f"{key}.tif": prediction.mask}
    if probability and prediction.probability is not None:
        wanted[folder / f"{key}{PROBABILITY}.tif"] = prediction.probability
    for path, volume in wanted.items():
        _write_tif(path, volume)
    return list(wanted)


def _write_tif(path: Path, volume: Array) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        volumes.write_tif(path, volume)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror or error}") from error


def refuse_overlap(place: Path, keys: Collection[str]) -> None:
    """Raise BadInput if the probabilities of one volume would have the name of another's mask."""
    for key in sorted(keys):
        if f"{key}{PROBABILITY}" in keys:
            raise BadInput(
                f"{place}: {key}{PROBABILITY} is a volume here, and the probabilities of {key} would have its name. Is "
                "it an earlier prediction? Move it elsewhere, or leave --probability out."
            )


def remarks(prediction: Detected, settings: ScrollPredictConfig) -> Iterator[Finding]:
    """Warn of a prediction that cannot be right, and note sheets in one piece, as most honest predictions have."""
    from runner_vesuvius.components import label26, sizes

    mask = prediction.mask
    found = int(np.count_nonzero(mask))
    share = found / mask.size
    if not found:
        highest = "" if prediction.probability is None else f"; the highest probability is {_highest(prediction):.2f}"
        yield Finding("empty", "warning", f"no surface was found{highest} (predict.threshold, predict.min_size)")
        return
    if share > EVERYWHERE:
        yield Finding("everywhere", "warning", f"{share:.0%} of the volume is surface: that is no sheet any more")
        return
    labels, count = label26(mask)
    largest = int(sizes(labels, count)[1:].max()) / found
    if largest > MERGED[0] and share > MERGED[1]:
        text = f"{largest:.0%} of the surface, which fills {share:.0%} of the volume, is one piece: sheets touch. "
        text += "A higher predict.threshold tears sheets as soon as it parts them: it does not raise the score."
        if not (settings.along_sheets and settings.thickness):
            text += " predict.along_sheets and predict.thickness often part some of them; `select` tries both"
        yield Finding("merged", "note", text)


def _highest(prediction: Detected) -> float:
    return float(np.max(prediction.probability)) / 255  # type: ignore[arg-type]
