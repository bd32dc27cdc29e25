"""The phantom: real file names, people and sessions, plausible brains that a threshold cannot find."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
import pytest
from runner_brainunet import phantom
from runner_brainunet.nifti import spacing
from runner_brainunet.project import BrainUNet
from runner_core.testing import cropped
from scipy import ndimage


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("phantom")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phantom, "SUBJECTS", 3)
        patch.setattr(phantom, "TWICE", 1)
        phantom.write_phantom(folder, np.random.default_rng(0))
    return folder


def test_names_people_and_sessions(project: BrainUNet, heads: Path) -> None:
    records = project.records(heads)
    assert [r.group for r in records] == ["sub-P01", "sub-P01", "sub-P02", "sub-P03"]
    assert records[0].key == "sub-P01_ses-1_T1w"


def test_brains_are_of_human_size_and_one_piece(project: BrainUNet, heads: Path) -> None:
    for record in project.records(heads):
        image = nibabel.load(record.files["mask"])
        mask = np.asarray(image.dataobj) > 0
        assert 1.0 < mask.sum() * np.prod(spacing(image)) / 1e6 < 1.9
        sizes = np.bincount(ndimage.label(mask)[0].ravel())[1:]
        assert sizes.max() > 0.98 * sizes.sum()
        assert not any(f.level == "error" for f in project.checks().record(record))


def test_scanners_differ(project: BrainUNet, heads: Path) -> None:
    images = [nibabel.load(r.files["image"]) for r in project.records(heads)]
    assert len({i.shape for i in images}) > 2
    assert len({nibabel.aff2axcodes(i.affine) for i in images}) > 1


def test_a_threshold_is_not_enough(project: BrainUNet, heads: Path) -> None:
    for record in project.records(heads):
        assert project.score(record, project.baseline(cropped(project, record)))["dice"] < 0.85


def test_the_same_seed_gives_the_same_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phantom, "SUBJECTS", 1)
    monkeypatch.setattr(phantom, "TWICE", 0)
    scans = []
    for folder in ("a", "b"):
        phantom.write_phantom(tmp_path / folder, np.random.default_rng(3))
        scans.append(np.asarray(nibabel.load(tmp_path / folder / "sub-P01" / "sub-P01_ses-1_T1w.nii.gz").dataobj))
    assert np.array_equal(*scans)
