"""A scan stored as scaled integers keeps its grey levels inside the brain, and is 0 outside."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
import pytest
from runner_brainunet import nifti


@pytest.mark.parametrize(("slope", "inter"), [(2.5, 0.0), (0.5, -7.25), (1.0, 0.0)])
def test_the_stripped_scan_keeps_its_values(tmp_path: Path, slope: float, inter: float) -> None:
    raw = np.random.default_rng(0).integers(-500, 500, (6, 7, 8)).astype(np.int16)
    header = nibabel.Nifti1Header()
    header.set_data_dtype(np.int16)
    image = nibabel.Nifti1Image(raw, np.eye(4), header)
    image.header.set_slope_inter(slope, inter)
    nibabel.save(image, tmp_path / "scan.nii")
    source = nibabel.load(tmp_path / "scan.nii")
    mask = np.zeros(raw.shape, bool)
    mask[2:5, 2:5, 2:5] = True
    stripped = nibabel.load(nifti.write_masked(source, mask, tmp_path / "brain.nii")).get_fdata()
    assert np.array_equal(stripped[mask], source.get_fdata()[mask])
    assert not stripped[~mask].any()
