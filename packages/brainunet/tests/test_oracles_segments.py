"""DICOM SEG, read by dcmqi, with which 3D Slicer reads it: `bash .ci/run oracles`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import nibabel
import pytest
from runner_brainunet import segments

sys.path.insert(0, str(Path(__file__).parent))
from test_segments import SHAPE, places, predicted, write_series


def test_slicers_reader_finds_the_mask_in_its_place(tmp_path: Path) -> None:
    program = shutil.which("segimage2itkimage", path=f"{Path(sys.executable).parent}") or shutil.which(
        "segimage2itkimage"
    )
    if program is None:
        pytest.skip("dcmqi is not installed: it is in the group oracles")
    voxels, affine = write_series(tmp_path / "series")
    mask = predicted(SHAPE)
    path = segments.write(mask, voxels, affine, "s1", tmp_path / "series", tmp_path / "mask.dcm")
    words = [program, "--inputDICOM", str(path), "--outputDirectory", str(tmp_path), "--outputType", "nii"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = map(nibabel.load, tmp_path.glob("*.nii.gz"))
    assert places(found.get_fdata() > 0, found.affine) == places(mask, affine)
