"""Pictures show what they say they show."""

from __future__ import annotations

import numpy as np
from runner_ssmunet import figures

NAMES = {1: "one", 2: "two", 3: "three"}


def colours(picture: np.ndarray) -> set[tuple[int, ...]]:
    return {tuple(map(int, c)) for c in np.unique(picture.reshape(-1, 3), axis=0)}


def test_colours_differ_and_none_is_that_of_no_tissue() -> None:
    for labels in (2, 8, 40):
        found = figures.palette(labels)
        assert found.shape == (labels + 1, 3)
        assert found.dtype == np.uint8
        assert len(colours(found)) == labels + 1


def test_the_overlay_shows_truth_prediction_and_error() -> None:
    grey = np.random.default_rng(0).random((20, 30))
    truth = np.zeros((20, 30), int)
    truth[5:10, 5:15] = 1
    predicted = np.full((20, 30), 1)
    predicted[:, 20:] = 2
    palette = figures.palette(3)
    right = colours(figures.overlay(grey, predicted, truth, NAMES)[:150])
    assert right >= {tuple(palette[1]), tuple(palette[2]), figures.RIGHT}
    assert figures.WRONG not in right
    assert figures.WRONG in colours(figures.overlay(grey, 3 - predicted, truth, NAMES)[:150])
    plain = figures.overlay(grey, predicted, None, NAMES)
    assert not colours(plain) & {figures.RIGHT, figures.WRONG}
    assert plain.dtype == np.uint8


def test_the_map_has_the_place_and_size_of_the_prediction() -> None:
    """One pixel of the grid is a square of the picture, where it should be."""
    predicted = np.zeros((10, 10), int)
    predicted[2, 7] = 2
    picture = figures.overlay(np.zeros((10, 10)), predicted, None, NAMES)
    hits = np.argwhere((picture[:278] == figures.palette(3)[2]).all(-1))  # above the legend
    zoom = np.ptp(hits[:, 0]) + 1
    assert len(hits) == zoom * zoom
    assert (hits.min(0) - [18, 0]).tolist() == [2 * zoom, 7 * zoom + 10 * zoom + 6]


def test_the_legend_names_each_class_in_its_colour() -> None:
    entries = {f"class {i}": (i, 100, 200) for i in range(12)}
    picture = figures.legend(entries, 300)
    assert picture.shape[1] == 300
    assert colours(picture) >= set(entries.values())


def test_attention_is_drawn_where_it_is_and_not_across_a_gap() -> None:
    axis = np.concatenate([np.arange(900, 1350, 4.0), np.arange(1490, 1801, 4.0)])
    attention = np.full(len(axis), 0.1)
    attention[np.abs(axis - 1655).argmin()] = 1.0
    picture = figures.attention_chart(attention, axis, {"amide I": 1655}, 600)
    assert picture.shape == (190, 600, 3)
    blue = (picture == (0, 114, 178)).all(-1)

    def across(wavenumber: float) -> int:
        return round(46 + (1800 - wavenumber) / 900 * (600 - 12 - 46))  # high wavenumbers on the left

    assert not blue[:, across(1480) : across(1360)].any()
    top = np.argwhere(blue[:60])
    assert np.abs(top[:, 1] - across(1655)).max() < 8


def test_filters_over_training_are_drawn_from_the_first_step_to_the_last() -> None:
    bands = np.array([[1615.0, 1695.0], [1505.0, 1585.0]])
    watched = [(step, bands + step / 10) for step in (10, 20, 30)]
    picture = figures.filter_chart(watched, {"amide I": 1655}, 900, 1800)
    assert picture.dtype == np.uint8
    first = tuple(figures.palette(2)[1])
    columns = np.argwhere((picture == first).all(-1))[:, 1]
    assert columns.min() < 60
    assert columns.max() > 700
    assert figures.filter_chart(watched[:1], {}, 900, 1800).shape == picture.shape


def test_pictures_of_different_widths_are_stacked() -> None:
    stacked = figures.stack([np.zeros((4, 10, 3), np.uint8), np.zeros((6, 7, 3), np.uint8)])
    assert stacked.shape == (10, 10, 3)
    assert (stacked[4:, 7:] == 255).all()
