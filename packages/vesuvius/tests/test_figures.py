"""Pictures show what they say they show, in bounded size."""

from __future__ import annotations

import numpy as np
import pytest
from runner_vesuvius import figures


def colours(picture: np.ndarray) -> set[tuple[int, ...]]:
    return {tuple(map(int, c)) for c in np.unique(picture.reshape(-1, 3), axis=0)}


@pytest.fixture
def image() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (20, 30, 40), dtype=np.uint8)


def sheet(at: int) -> np.ndarray:
    mask = np.zeros((20, 30, 40), np.uint8)
    mask[at : at + 4] = 1
    return mask


def test_prediction_truth_and_both_have_their_colours(image) -> None:
    drawn = colours(figures.figure(image, sheet(5), sheet(7)))
    assert drawn >= {figures.PREDICTION, figures.TRUTH}
    assert figures.BOTH in colours(figures.figure(image, sheet(5), sheet(5)))


def test_without_truth_only_the_prediction_is_drawn(image) -> None:
    drawn = colours(figures.figure(image, sheet(5), None))
    assert figures.PREDICTION in drawn
    assert not drawn & {figures.TRUTH, figures.BOTH}


def test_slices_show_the_fullest_place(image, monkeypatch) -> None:
    truth = np.zeros(image.shape, np.uint8)
    truth[3, 10:20, 10:20] = 1
    truth[:, 12] |= np.arange(40) == 11
    shown = {}
    drawn = figures._text
    monkeypatch.setattr(figures, "_text", lambda words, *size: shown.update(words) or drawn(words, *size))
    figures.figure(image, sheet(5), truth)
    assert list(shown)[:3] == ["z = 3", "y = 12", "x = 11"]
    assert figures._fullest(np.zeros((20, 30, 40), bool), 0) == 10


def test_outlines_lie_where_the_mask_is() -> None:
    """One voxel of the slice is a square of the picture."""
    mask = np.zeros((12, 12, 12), np.uint8)
    mask[6, 2, 9] = 1
    picture = figures.figure(np.zeros((12, 12, 12), np.uint8), mask, None)
    first = picture[:, : 12 * 6][: -figures._LINE - 3]
    hits = np.argwhere((first == figures.PREDICTION).all(-1))
    below = figures._LINE + 12 * 6 + figures._GAP
    assert hits.min(0).tolist() == [below + 2 * 6, 9 * 6]
    assert hits.max(0).tolist() == [below + 3 * 6 - 1, 10 * 6 - 1]


def test_what_nobody_annotated_is_dimmed(image) -> None:
    truth = np.full(image.shape, 2, np.uint8)
    truth[:, :15] = 0
    bright = figures.figure(np.full_like(image, 255), np.zeros_like(image), truth)
    dim = round(figures.BRIGHTEST * figures.DIM)
    assert {(figures.BRIGHTEST,) * 3, (dim,) * 3} <= colours(bright)
    nothing = figures.figure(np.full_like(image, 255), np.zeros_like(image), np.zeros_like(image))
    assert (dim,) * 3 not in colours(nothing[: -2 * figures._LINE])


@pytest.mark.parametrize("shape", [(1, 1, 1), (48, 48, 48), (900, 20, 20), (20, 30, 1700), (3, 1500, 2), (320, 320, 5)])
def test_size_is_bounded_for_any_volume(shape) -> None:
    mask = np.zeros(shape, np.uint8)
    mask[shape[0] // 2] = 1
    picture = figures.figure(np.zeros(shape, np.uint8), mask, 2 * mask)
    assert picture.dtype == np.uint8
    assert picture.shape[2] == 3
    assert picture.shape[1] <= figures.SIZE
    assert picture.shape[0] <= figures.SIZE + 8 * figures._LINE


def test_a_thin_sheet_is_still_there_when_the_picture_is_smaller_than_the_volume() -> None:
    mask = np.zeros((4, 1500, 1500), np.uint8)
    mask[:, 700] = 1
    picture = figures.figure(np.zeros(mask.shape, np.uint8), mask, None)
    row = (picture[: -figures._LINE * 2] == figures.PREDICTION).all(-1).sum(1).max()
    assert row >= figures._zoom(mask.shape) * 1500 * 0.9
