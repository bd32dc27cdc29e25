"""Pictures show what they say they show."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from PIL import ImageDraw
from runner_ssmunet import figures
from runner_ssmunet.classes import Classes, palette

NAMES = ("one", "two", "three")
AXIS = np.concatenate([np.arange(900, 1350, 4.0), np.arange(1490, 1801, 4.0)])


def colours(picture: np.ndarray) -> set[tuple[int, ...]]:
    return {tuple(map(int, c)) for c in np.unique(picture.reshape(-1, 3), axis=0)}


def test_colours_differ_and_none_is_that_of_no_tissue() -> None:
    for labels in (2, 8, 40):
        found = palette(labels)
        assert found.shape == (labels + 1, 3)
        assert found.dtype == np.uint8
        assert len(colours(found)) == labels + 1


def test_colours_of_the_data_are_drawn() -> None:
    own = {2: (10, 20, 30), 9: (1, 2, 3)}
    assert palette(3, own)[2].tolist() == [10, 20, 30]
    np.testing.assert_array_equal(palette(3, own)[[0, 1, 3]], palette(3)[[0, 1, 3]])
    picture = figures.overlay(np.zeros((10, 10)), np.full((10, 10), 2), None, Classes(NAMES, own))
    assert (10, 20, 30) in colours(picture)


def test_the_overlay_shows_truth_prediction_and_error() -> None:
    grey = np.random.default_rng(0).random((20, 30))
    truth = np.zeros((20, 30), int)
    truth[5:10, 5:15] = 1
    predicted = np.full((20, 30), 1)
    predicted[:, 20:] = 2
    colour = palette(3)
    right = colours(figures.overlay(grey, predicted, truth, Classes(NAMES))[:150])
    assert right >= {tuple(colour[1]), tuple(colour[2]), figures.RIGHT}
    assert figures.WRONG not in right
    assert figures.WRONG in colours(figures.overlay(grey, 3 - predicted, truth, Classes(NAMES))[:150])
    plain = figures.overlay(grey, predicted, None, Classes(NAMES))
    assert not colours(plain) & {figures.RIGHT, figures.WRONG}
    assert plain.dtype == np.uint8


def test_the_map_has_the_place_and_size_of_the_prediction() -> None:
    """One pixel of the grid is a square of the picture, where it should be."""
    predicted = np.zeros((10, 10), int)
    predicted[2, 7] = 2
    picture = figures.overlay(np.zeros((10, 10)), predicted, None, Classes(NAMES))
    hits = np.argwhere((picture[:278] == palette(3)[2]).all(-1))  # above the legend
    zoom = np.ptp(hits[:, 0]) + 1
    assert len(hits) == zoom * zoom
    assert (hits.min(0) - [18, 0]).tolist() == [2 * zoom, 7 * zoom + 10 * zoom + 6]


def test_the_legend_names_each_class_in_its_colour() -> None:
    entries = {f"class {i}": (i, 100, 200) for i in range(12)}
    picture = figures.legend(entries, 300)
    assert picture.shape[1] == 300
    assert colours(picture) >= set(entries.values())


def test_attention_is_drawn_where_it_is_and_not_across_a_gap() -> None:
    axis = AXIS
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


def test_right_and_wrong_are_no_class_and_differ_in_lightness() -> None:
    lightness = [np.dot(colour, (0.2126, 0.7152, 0.0722)) for colour in (figures.RIGHT, figures.WRONG)]
    assert lightness[0] > 2 * lightness[1]
    classes = palette(8).astype(int)
    for verdict in (figures.RIGHT, figures.WRONG):
        assert np.linalg.norm(classes - verdict, axis=1).min() > 60


def test_attention_fills_the_height_however_little_it_varies() -> None:
    attention = (1 + 1e-3 * np.sin(np.arange(len(AXIS)) / 9)) / len(AXIS)
    blue = (figures.attention_chart(attention, AXIS, {}, 600) == (0, 114, 178)).all(-1)
    assert np.ptp(np.argwhere(blue)[:, 0]) > 100
    even = figures.attention_chart(np.full(len(AXIS), 1 / len(AXIS)), AXIS, {}, 600)  # nothing to scale
    assert (even == (0, 114, 178)).all(-1).any()


def test_bands_that_lie_in_a_gap_are_not_drawn() -> None:
    bands = {"amide I": 1655.0, "CH₂ bending": 1450.0, "at the edge": 900.0, "beyond": 1900.0}
    assert set(figures.on_axis(bands, AXIS)) == {"amide I", "at the edge"}
    seen, gap = {"amide I": 1655.0}, {"CH₂ bending": 1450.0}
    attention, watched = np.full(len(AXIS), 0.01), [(1, np.array([[1615.0, 1695.0]]))]
    for draw in (
        lambda named: figures.attention_chart(attention, AXIS, named, 600),
        lambda named: figures.filter_chart(watched, AXIS, named),
    ):
        np.testing.assert_array_equal(draw(seen | gap), draw(seen))
        assert (draw(seen) != draw({})).any()


def test_names_of_neighbouring_bands_do_not_overprint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every name is drawn into pixels of its own."""
    places: list[tuple[float, float, float]] = []
    drawn = ImageDraw.ImageDraw.text

    def text(self: ImageDraw.ImageDraw, place: tuple[float, float], words: str, **how: object) -> None:
        if words.startswith("band"):
            places.append((*place, self.textlength(words)))
        drawn(self, place, words, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", text)
    bands = {f"band number {i}": 1600.0 + 10 * i for i in range(5)} | {"band at the end": 902.0}
    for draw in (
        lambda: figures.attention_chart(np.full(len(AXIS), 0.01), AXIS, bands, 600),
        lambda: figures.filter_chart([(1, np.array([[1615.0, 1695.0]]))], AXIS, bands),
    ):
        places.clear()
        width = draw().shape[1]
        assert len(places) == 6
        assert all(x + w <= width for x, _, w in places)
        for (x, y, w), (a, b, v) in itertools.combinations(places, 2):
            assert x + w < a or a + v < x or abs(y - b) >= 11


def test_filters_over_training_are_drawn_from_the_first_step_to_the_last() -> None:
    bands = np.array([[1615.0, 1695.0], [1505.0, 1585.0]])
    watched = [(step, bands + step / 10) for step in (10, 20, 30)]
    picture = figures.filter_chart(watched, AXIS, {"amide I": 1655})
    assert picture.dtype == np.uint8
    first = tuple(palette(2)[1])
    columns = np.argwhere((picture == first).all(-1))[:, 1]
    assert columns.min() < 60
    assert columns.max() > 700
    assert figures.filter_chart(watched[:1], AXIS, {}).shape == picture.shape


def test_pictures_of_different_widths_are_stacked() -> None:
    stacked = figures.stack([np.zeros((4, 10, 3), np.uint8), np.zeros((6, 7, 3), np.uint8)])
    assert stacked.shape == (10, 10, 3)
    assert (stacked[4:, 7:] == 255).all()
