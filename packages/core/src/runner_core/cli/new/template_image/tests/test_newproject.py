"""What runner relies on (the contract), and what this project promises of its own."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from runner_core import BadInput
from runner_core.testing import ProjectContract

from runner_newproject import labels
from runner_newproject.files import resize
from runner_newproject.project import NewTask, Settings

LABEL = labels.phantom(0, np.random.default_rng(0))[2]
RAMP = np.arange(1200).reshape(30, 40)


class TestContract(ProjectContract):
    project = "newproject"


@pytest.fixture
def project() -> NewTask:
    return NewTask(Settings())


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder with one good image, to be spoilt."""
    save(tmp_path / "images" / "ann_1.png", RAMP.astype(np.uint16))
    (tmp_path / "labels.csv").write_text(f"image,group,{labels.COLUMN}\nann_1.png,ann,{LABEL}\n")
    return tmp_path


def save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(pixels).save(path)


def test_an_image_and_its_label_are_read_as_they_are(project: NewTask, data: Path) -> None:
    (record,) = project.records(data)
    decoded = project.decode(record)
    assert (record.key, record.group, dict(record.values)) == ("ann_1.png", "ann", {labels.COLUMN: LABEL})
    assert np.array_equal(decoded.arrays["image"][..., 0], RAMP)  # all 16 bits of it
    stored = project.prepare(decoded)
    assert stored["image"].shape == (128, 128, 1)
    assert stored["label"] == np.array([labels.number(LABEL)], labels.DTYPE)
    assert stored["image"][0, 0, 0] < stored["image"][-1, -1, 0], "the picture is still there"


def test_a_volume_gets_one_size() -> None:
    assert resize(np.zeros((3, 8, 9, 1), np.uint16), 4).shape == (4, 4, 4, 1)


SPOILT = {
    "no image": lambda root: (root / "images" / "ann_1.png").unlink(),
    "cut off": lambda root: (root / "images" / "ann_1.png").write_bytes(b"\x89PNG"),
    "no table": lambda root: (root / "labels.csv").unlink(),
    "no label": lambda root: (root / "labels.csv").write_text(f"image,{labels.COLUMN}\nann_1.png,\n"),
    "a strange label": lambda root: (root / "labels.csv").write_text(f"image,{labels.COLUMN}\nann_1.png,?\n"),
    "no column": lambda root: (root / "labels.csv").write_text("image,other\nann_1.png,1\n"),
}


@pytest.mark.parametrize("fault", SPOILT)
def test_what_cannot_be_used_is_refused_by_name(fault: str, project: NewTask, data: Path) -> None:
    SPOILT[fault](data)
    with pytest.raises(BadInput, match=r"ann_1|labels\.csv"):
        [project.decode(record) for record in project.records(data)]
