"""Files that `predict` writes, and remarks on a prediction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from runner_core import Array, Finding, Record

from runner_brainunet import nifti
from runner_brainunet.checks import LITRES


def write(prediction: Array, record: Record, folder: Path, brain: bool) -> list[Path]:
    """Write KEY_brainmask.nii.gz, and with `brain` KEY_brain.nii.gz, with the scan's grid and header."""
    image = nifti.open_image(record.files["image"])
    written = [nifti.write_like(image, prediction, folder / f"{record.key}_brainmask.nii.gz")]
    if brain:
        written.append(nifti.write_masked(image, prediction, folder / f"{record.key}_brain.nii.gz"))
    return written


def write_map(record: Record, values: Array, stem: Path) -> list[Path]:
    """Write values on the scan's grid as STEM.nii.gz (float32), with the scan's header."""
    image = nifti.open_image(record.files["image"])
    return [nifti.write_like(image, values, stem.with_name(f"{stem.name}.nii.gz"), np.float32)]


def remarks(prediction: Array, spacing: Sequence[float]) -> Iterator[Finding]:
    """Warn if a predicted brain (bool, voxels of `spacing` mm) is empty, or of a size that no brain has."""
    ml = float(np.count_nonzero(prediction)) * float(np.prod(spacing)) / 1e3
    if ml == 0:
        text = "no brain was found: the mask is empty; is this a T1 scan of a head?"
        yield Finding("volume", "warning", text)
    elif not LITRES[0] * 1e3 <= ml <= LITRES[1] * 1e3:
        expected = f"{LITRES[0] * 1e3:.0f} to {LITRES[1] * 1e3:.0f} ml"
        text = f"a brain of {ml:.0f} ml (expected {expected}): look at it before you use it"
        yield Finding("volume", "warning", text)
