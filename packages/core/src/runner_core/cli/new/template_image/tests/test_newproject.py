"""What runner relies on (the contract), and what this project promises of its own."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from runner_core import BadInput
from runner_core.testing import ProjectContract

from runner_newproject import labels
from runner_newproject.files import read, resize
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


def test_grey_colours_and_volumes_are_known_by_their_files(tmp_path: Path) -> None:
    pages = [Image.fromarray(np.full((8, 9), n, np.uint16)) for n in (1, 500, 9)]
    pages[0].save(tmp_path / "volume.tif", save_all=True, append_images=pages[1:])
    save(tmp_path / "colours.png", np.zeros((8, 9, 3), np.uint8))
    save(tmp_path / "grey.png", np.zeros((8, 9), np.uint8))
    shapes = {path.stem: read(path).shape for path in tmp_path.iterdir()}
    assert shapes == {"volume": (3, 8, 9, 1), "colours": (8, 9, 3), "grey": (8, 9, 1)}
    assert read(tmp_path / "volume.tif")[1].max() == 500
    assert resize(read(tmp_path / "volume.tif"), 4).shape == (4, 4, 4, 1)


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


def test_images_of_two_kinds_are_refused_by_name(project: NewTask) -> None:
    images = SimpleNamespace(shapes=[(16, 16, 3), (16, 16, 1)])
    store = SimpleNamespace(keys=["one.png", "two.png"], arrays={"image": images, "label": None})
    with pytest.raises(BadInput, match=r"one\.png has 2 axes and 3 channels, two\.png has 2 axes and 1 channel;"):
        project.fit(store, [0])
