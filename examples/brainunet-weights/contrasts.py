"""Measure a network on heads that were painted anew in other contrasts: T1, T2, FLAIR, PD, and inverted.

    python contrasts.py RUN SCAN MASK [SCAN MASK …]      # RUN: a run's folder, or `builtin`

There is no T2, FLAIR or PD scan with a mask among the data of this repository. So the classes of a T1 scan, which
`runner_brainunet.synthetic` finds inside the brain mask and outside, get that contrast's typical intensities, with half
of each class's texture. Such a copy has T1's borders and artefacts: what it shows is whether a network depends on T1's
brightness, not how it does on a real scan. `T1` is painted in the same way, so that the others can be compared with it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import runner_core
import torch
from runner_brainunet.synthetic import AIR, INSIDE, OUTSIDE, TYPICAL, cluster
from scipy import ndimage

Array = np.ndarray[Any, np.dtype[Any]]
TEXTURE, BLUR, NOISE = 0.5, 0.5, 0.02
"""Share of a class's own differences that is kept; voxels of the blur at borders; standard deviation of the noise."""


def painted(scan: Array, mask: Array) -> dict[str, Array]:
    """Return copies of a T1 scan (3-D, air dark) by their contrast, float32 from 0 to 1."""
    head = np.percentile(scan[scan > scan.mean()], 99.5)
    image = torch.from_numpy((scan / head).clip(0, 1).astype(np.float32))[None, None].flatten(3)
    brain = torch.from_numpy(mask)[None, None].flatten(3)
    tissue = ~brain & (image > AIR)
    (inner, inner_rest), (outer, outer_rest) = cluster(image, brain, INSIDE), cluster(image, tissue, OUTSIDE)
    label = torch.where(brain, inner + 1, torch.where(tissue, outer + 1 + INSIDE, 0))
    texture = torch.where(brain, inner_rest, outer_rest * tissue) * TEXTURE
    noise = np.random.default_rng(0).normal(0, NOISE, scan.shape)
    copies = {"as it is": (scan / head).clip(0, 1), "inverted": np.where(scan > AIR * head, (1 - scan / head), 0)}
    for name, (inside, outside) in TYPICAL.items():
        levels = torch.tensor((0.02, *inside, *outside))
        made = (levels[label] + texture).clamp(0, 1).reshape(scan.shape).numpy()
        copies[name] = np.abs(ndimage.gaussian_filter(made, BLUR) + noise)
    return {name: copy.clip(0, 1).astype(np.float32) for name, copy in copies.items()}


def dice(one: Array, other: Array) -> float:
    return float(2 * (one & other).sum() / (one.sum() + other.sum()))


def main(run: str, *files: str) -> None:
    network = runner_core.open(run, "brainunet")
    for scan, mask in zip(files[::2], files[1::2], strict=True):
        image, truth = nibabel.load(scan), np.asarray(nibabel.load(mask).dataobj) > 0
        for name, copy in painted(np.asarray(image.dataobj, np.float32), truth).items():
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "copy_T1w.nii.gz"
                nibabel.save(nibabel.Nifti1Image(copy, image.affine), file)
                found = np.asarray(network.predict(file).array) > 0
            print(f"{Path(scan).name}  {name:9} {dice(found, truth):.3f}  {found.sum() / truth.sum():.2f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
