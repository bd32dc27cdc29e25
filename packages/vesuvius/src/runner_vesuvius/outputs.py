"""What `predict` makes of a volume and writes, and what it remarks on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from runner_core import BadInput
from runner_core.protocols import Array, Finding

from runner_vesuvius import volumes

EVERYWHERE = 0.6
"""Share of a volume that sheets with air between them do not hold."""
MERGED = (0.9, 0.15)
"""Share of the surface in one component, and of the volume in the surface, beyond which sheets have merged."""


@dataclass(frozen=True)
class Detected:
    """A volume's prediction: `mask` (D, H, W) uint8, 1 for surface; `probability` (D, H, W) uint8, 255 for certain (of
    a method without: None)."""

    mask: Array
    probability: Array | None


def write(prediction: Detected, key: str, folder: Path, probability: bool) -> list[Path]:
    """KEY.tif, the challenge's submission format, and KEY_probability.tif where it is wanted; the files written.

    Raises BadInput where they cannot be written.
    """
    wanted = {folder / f"{key}.tif": prediction.mask}
    if probability and prediction.probability is not None:
        wanted[folder / f"{key}_probability.tif"] = prediction.probability
    for path, volume in wanted.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            volumes.write_tif(path, volume)
        except OSError as error:
            raise BadInput(f"{path}: cannot be written: {error.strerror or error}") from error
    return list(wanted)


def remarks(prediction: Detected) -> Iterator[Finding]:
    """Warnings of a prediction that cannot be right, and a note of sheets in one piece: most honest ones have them."""
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
        remedy = "A higher predict.threshold parts them where the probability between them is lower"
        yield Finding("merged", "note", text + remedy)


def _highest(prediction: Detected) -> float:
    return float(np.max(prediction.probability)) / 255  # type: ignore[arg-type]
