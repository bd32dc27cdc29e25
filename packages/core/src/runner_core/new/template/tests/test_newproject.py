"""What runner relies on (the contract), and what this project promises of its own."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from runner_core import BadInput, Record
from runner_core.testing import ProjectContract

from runner_newproject.project import VALUES, Config, Segmentation

RAMP = np.arange(1200).reshape(30, 40)


class TestContract(ProjectContract):
    project = "newproject"


@pytest.fixture
def project() -> Segmentation:
    return Segmentation(Config())


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A folder with one good pair, to be spoilt."""
    save(tmp_path / "images" / "ann_1.png", RAMP.astype(np.uint16))
    save(tmp_path / "masks" / "ann_1.png", np.array(VALUES, np.uint8)[(RAMP > 500).astype(int)])
    return tmp_path


def save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(pixels).save(path)


def test_images_are_read_as_they_are_and_masks_as_classes(project: Segmentation, pair: Path) -> None:
    (record,) = project.records(pair)
    arrays = project.decode(record).arrays
    assert (record.key, record.group) == ("ann_1", "ann")
    assert np.array_equal(arrays["image"], RAMP)  # all 16 bits of it
    assert np.array_equal(arrays["mask"], RAMP > 500)
    stored = project.prepare(project.decode(record))
    assert stored["image"].shape == stored["mask"].shape == (128, 128)
    assert (stored["image"].min(), stored["image"].max()) == (0, 255)


def test_a_prediction_that_is_written_can_be_trained_on(project: Segmentation, pair: Path) -> None:
    (record,) = project.records(pair)
    prediction = (RAMP % 3 == 0).astype(np.uint8)
    (path,) = project.write(record, prediction, pair / "masks")
    again = project.decode(Record("again", "ann", {"image": record.files["image"], "mask": path}))
    assert np.array_equal(again.arrays["mask"], prediction)
    assert set(project.score(record, prediction).values()) == {1.0}
    assert set(project.score(record, 1 - prediction).values()) == {0.0}


SPOILT = {
    "no partner": lambda root: (root / "masks" / "ann_1.png").unlink(),
    "another size": lambda root: save(root / "masks" / "ann_1.png", np.zeros((30, 41), np.uint8)),
    "no class": lambda root: save(root / "masks" / "ann_1.png", np.full((30, 40), 7, np.uint8)),
    "colours": lambda root: save(root / "images" / "ann_1.png", np.zeros((30, 40, 3), np.uint8)),
    "cut off": lambda root: (root / "images" / "ann_1.png").write_bytes((root / "images/ann_1.png").read_bytes()[:90]),
    "twice": lambda root: save(root / "images" / "ann_1.tif", RAMP.astype(np.uint16)),
}


@pytest.mark.parametrize("fault", SPOILT)
def test_what_cannot_be_used_is_refused_by_name(fault: str, project: Segmentation, pair: Path) -> None:
    SPOILT[fault](pair)
    with pytest.raises(BadInput, match="ann_1"):
        [project.decode(record) for record in project.records(pair)]
