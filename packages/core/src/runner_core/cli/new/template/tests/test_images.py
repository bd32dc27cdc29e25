"""Every kind of image file is read as it is."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from runner_core import BadInput, Record

from runner_newproject.images import one_kind, read, save, usable


def test_grey_colours_and_volumes_are_known_by_their_files(tmp_path: Path) -> None:
    pages = np.full((3, 8, 9), 500, np.uint16)
    save(pages, tmp_path / "volume.tif")
    save(pages[0], tmp_path / "grey.png")
    Image.fromarray(np.zeros((8, 9, 3), np.uint8)).save(tmp_path / "colours.png")
    np.save(tmp_path / "array.npy", np.full((4, 8, 9, 3), 40_000, np.uint16))
    np.save(tmp_path / "pages.npy", np.zeros((4, 8, 9), np.float32))
    images = {path.stem: read(path) for path in tmp_path.iterdir()}
    assert {name: image.shape for name, image in images.items()} == {
        "volume": (3, 8, 9, 1),
        "grey": (8, 9, 1),
        "colours": (8, 9, 3),
        "array": (4, 8, 9, 3),
        "pages": (4, 8, 9, 1),
    }
    assert (images["volume"].max(), images["grey"].max(), images["array"].max()) == (500, 500, 40_000)


def test_an_archive_that_is_named_as_an_array_is_refused_by_name(tmp_path: Path) -> None:
    with (tmp_path / "ann.npy").open("wb") as file:
        np.savez(file, image=np.zeros((4, 4)))
    with pytest.raises(BadInput, match=r"ann\.npy"):
        read(tmp_path / "ann.npy")


@pytest.mark.parametrize("array", [np.array([{}]), np.zeros((2, 2, 2, 2, 2)), np.full((4, 4), np.nan)])
def test_arrays_that_are_no_images_are_refused_by_name(array: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "ann.npy", array)
    with pytest.raises(BadInput, match=r"ann\.npy"):
        read(tmp_path / "ann.npy")


def test_images_of_two_kinds_are_refused_by_name() -> None:
    assert one_kind(["one", "two"], [(16, 16, 3), (9, 16, 3)]) == 2
    with pytest.raises(BadInput, match=r"one has 2 axes and 3 channels, two has 3 axes and 1 channel;"):
        one_kind(["one", "two"], [(16, 16, 3), (16, 16, 16, 1)])


def test_an_image_of_another_kind_than_those_in_training_is_refused_by_name() -> None:
    record = Record("new", "new", {"image": Path("new.png")})
    cropped = SimpleNamespace(record=record, prepared={"image": np.zeros((8, 9, 3))})
    assert usable(cropped, 2, 3).shape == (8, 9, 3)
    with pytest.raises(BadInput, match=r"each training image has 2 axes and 1 channel, new\.png has 2 axes and 3"):
        usable(cropped, 2, 1)
