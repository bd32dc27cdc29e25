"""What runner relies on (the contract), and what this project promises of its own."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from runner_core import BadInput, Record
from runner_core.testing import ProjectContract

from runner_newproject.project import VALUES, NewTask, Settings

IMAGE, MASK = "images/ann_1.png", "masks/ann_1.png"
NO_CLASS = next(value for value in range(256) if value not in VALUES)
RAMP = np.arange(1200).reshape(30, 40)


class TestContract(ProjectContract):
    project = "newproject"


@pytest.fixture
def project() -> NewTask:
    return NewTask(Settings())


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """Return a folder with one good pair, to be spoilt."""
    save(tmp_path / IMAGE, RAMP.astype(np.uint16))
    save(tmp_path / MASK, np.array(VALUES, np.uint8)[(RAMP > 500).astype(int)])
    return tmp_path


def save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(pixels).save(path)


def test_images_are_read_as_they_are_and_masks_as_classes(project: NewTask, pair: Path) -> None:
    (record,) = project.records(pair)
    decoded = project.decode(record)
    assert record.group == "ann"
    assert np.array_equal(decoded.arrays["image"][..., 0], RAMP)  # all 16 bits of it
    assert np.array_equal(decoded.arrays["mask"], RAMP > 500)
    stored = project.prepare(decoded)
    grey = stored["image"][:30, :40].ravel().astype(int)
    assert stored["image"].shape == (*stored["mask"].shape, 1) == (128, 128, 1)
    assert grey[0] < grey[-1], "the picture is still there"
    assert (np.diff(grey) >= 0).all(), "brighter stays brighter: nothing overflows"


def test_a_prediction_that_is_written_can_be_trained_on(project: NewTask, pair: Path) -> None:
    (record,) = project.records(pair)
    prediction = (RAMP % len(VALUES)).astype(np.uint8)
    (path,) = project.write(record, prediction, pair / "out")
    again = Record("again", "ann", {"image": record.files["image"], "mask": path})
    assert np.array_equal(project.decode(again).arrays["mask"], prediction)
    assert set(project.score(again, prediction).values()) == {1.0}
    assert set(project.score(again, (prediction + 1) % len(VALUES)).values()) == {0.0}


@pytest.mark.parametrize("shape", [(30, 40, 3), (5, 30, 40, 1), (5, 30, 40, 3)])
def test_colours_and_volumes(shape: tuple[int, ...], project: NewTask, tmp_path: Path) -> None:
    image, mask = ((tmp_path / path).with_suffix(".npy") for path in (IMAGE, MASK))
    for path in (image, mask):
        path.parent.mkdir(exist_ok=True)
    classes = (np.arange(np.prod(shape[:-1])).reshape(shape[:-1]) % len(VALUES)).astype(np.uint8)
    np.save(image, np.arange(np.prod(shape), dtype=np.uint16).reshape(shape))
    np.save(mask, np.array(VALUES, np.uint8)[classes])
    (record,) = project.records(tmp_path)
    decoded = project.decode(record)
    assert np.array_equal(decoded.arrays["mask"], classes)
    (written,) = project.write(record, classes, tmp_path / "out")
    again = Record("again", "ann", {"image": image, "mask": written})
    assert np.array_equal(project.decode(again).arrays["mask"], classes)
    stored = project.prepare(decoded)
    assert stored["image"].shape == (*((16,) if len(shape) == 4 else ()), 128, 128, shape[-1])
    assert stored["mask"].shape == stored["image"].shape[:-1]


SPOILT = {
    "no partner": lambda root: (root / MASK).unlink(),
    "another size": lambda root: save(root / MASK, np.zeros((30, 41), np.uint8)),
    "no class": lambda root: save(root / MASK, np.full((30, 40), NO_CLASS, np.uint8)),
    "a mask in colours": lambda root: save(root / MASK, np.zeros((30, 40, 3), np.uint8)),
    "cut off": lambda root: (root / IMAGE).write_bytes((root / IMAGE).read_bytes()[:90]),
    "twice": lambda root: save((root / IMAGE).with_suffix(".bmp"), np.zeros((30, 40), np.uint8)),
}


@pytest.mark.parametrize("fault", SPOILT)
def test_what_cannot_be_used_is_refused_by_name(fault: str, project: NewTask, pair: Path) -> None:
    SPOILT[fault](pair)
    with pytest.raises(BadInput, match="ann"):
        [project.decode(record) for record in project.records(pair)]
