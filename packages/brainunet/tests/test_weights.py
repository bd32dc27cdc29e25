"""The weights in the package: small, honest about their data, and able to strip heads that they were not trained on."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
import pytest
import runner_core
from runner_brainunet.phantom import write_phantom
from runner_core.testing import predict_from_wheel, texts_of_weights


@pytest.fixture(scope="module")
def scan(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A generated head, and its brain mask."""
    folder = tmp_path_factory.mktemp("phantom")
    write_phantom(folder, np.random.default_rng(0))
    mask = sorted(folder.rglob("*_brainmask.nii.gz"))[0]
    return mask.with_name(mask.name.replace("_brainmask", "")), mask


def test_the_folder_holds_a_card_and_no_place_of_this_machine() -> None:
    texts = texts_of_weights(runner_core.open("builtin", "brainunet").path)
    for words in ("Lesjak", "CC BY 4.0", "research"):
        assert words in texts


def test_the_wheel_brings_them_and_predicts_with_them(scan: tuple[Path, Path], tmp_path: Path) -> None:
    masks, said = predict_from_wheel(Path(__file__).parents[1], "brainunet", scan[0], tmp_path)
    assert "For research only" in said
    found, truth = (np.asarray(nibabel.load(p).dataobj) > 0 for p in (next(masks.glob("*.nii.gz")), scan[1]))
    assert found.shape == truth.shape
