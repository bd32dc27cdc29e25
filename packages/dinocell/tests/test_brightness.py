"""Where brightness differs: against the variances that made the data, and scipy; and the scaling that asks for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runner_core import Array
from runner_dinocell import checks, files, statistics
from runner_dinocell.brightness import brightness
from runner_dinocell.config import CellConfig
from scipy.stats import f_oneway


def made(plate: float, well: float, site: float, shape: tuple[int, int, int], seed: int = 0) -> tuple[Array, list[str]]:
    """Levels (N, 2 channels, 2) whose distance has these standard deviations in log2, and keys."""
    rng = np.random.default_rng(seed)
    plates, wells, sites = shape
    values = (
        rng.normal(0, plate, (plates, 1, 1, 2))
        + rng.normal(0, well, (plates, wells, 1, 2))
        + rng.normal(0, site, (plates, wells, sites, 2))
    )
    keys = [f"B/P{p}/A{w:02d}/{s}" for p, w, s in np.ndindex(shape)]
    low = np.full((len(keys), 2), 100.0)
    return np.stack((low, low + 2 ** (8 + values.reshape(-1, 2))), 2), keys


def test_it_finds_the_variances_of_unequal_groups() -> None:
    levels, keys = made(0.5, 0.3, 0.1, (60, 12, 3))
    kept = np.random.default_rng(1).random(len(keys)) < 0.7
    found = brightness(levels[kept], [key for key, there in zip(keys, kept, strict=True) if there])
    assert (found.plate, found.well, found.site) == pytest.approx((0.5, 0.3, 0.1), rel=0.1)
    assert found.fields == kept.sum()


def test_the_chance_of_one_channel_on_one_plate_is_scipys() -> None:
    levels, keys = made(0, 0.1, 0.1, (1, 5, 3))
    values = np.log2(levels[:, :1, 1] - levels[:, :1, 0]).reshape(5, 3)
    assert brightness(levels[:, :1], keys).p == pytest.approx(f_oneway(*values).pvalue)


@pytest.mark.parametrize(
    ("spreads", "shape", "wanted"),
    [
        ((0.7, 0.1, 0.1), (6, 12, 2), "field"),
        ((0.1, 0.5, 0.1), (6, 12, 2), "set"),
        ((0.0, 0.3, 0.1), (1, 8, 2), "set"),
        ((0.0, 0.3, 0.1), (1, 8, 1), "field"),  # one site of each well: nobody knows
        ((0.0, 0.3, 0.1), (1, 1, 4), "field"),
    ],
)
def test_the_scaling_it_asks_for(spreads: Any, shape: Any, wanted: str) -> None:
    found = brightness(*made(*spreads, shape))
    assert found.scale == wanted
    assert math.isnan(found.well) == (1 in shape[1:])
    assert ("not known" in str(found)) == (1 in shape[1:])


def test_channels_that_a_field_lacks_do_not_count() -> None:
    levels, keys = made(0, 0.3, 0.1, (1, 8, 2))
    alone = brightness(levels[:, :1], keys)
    levels[3, 1] = 0
    np.testing.assert_array_equal(brightness(levels, keys), alone)
    levels[3] = 0
    assert math.isnan(brightness(levels, keys).well)


class Grey:
    def read(self, number: int) -> Array:
        return np.array([9, 9])


class Store:
    """Fields of two sites, with a brightness for each well of each plate."""

    def __init__(self, gains: Array) -> None:
        rng = np.random.default_rng(0)
        self.keys = [f"P{p}/A{w:02d}/{s}" for p, w, s in np.ndindex(*gains.shape, 2)]
        self._images = [
            (100 + rng.gamma(2, 40, (2, 16, 16)) * gains[p, w]).astype(np.uint16)
            for p, w, _ in np.ndindex(*gains.shape, 2)
        ]
        self.arrays, self.meta = {"image": self, "grey": Grey()}, [{"channels": ["DNA", "ER"]}] * len(self.keys)

    def read(self, number: int) -> Array:
        return self._images[number]


def test_training_decides_by_its_fields(config: CellConfig) -> None:
    wells, plates = np.array([[1.0, 4, 1, 4], [4, 1, 4, 1]]), np.array([[1.0, 1, 1, 1], [6, 6, 6, 6]])
    config.data.scale = "auto"
    bright, dull = (Store(gains) for gains in (wells, plates))
    levels = statistics.fit(bright, range(16), config)["levels"]  # type: ignore[arg-type]
    config.data.scale = "set"
    assert np.array_equal(levels, statistics.fit(bright, range(16), config)["levels"])  # type: ignore[arg-type]
    config.data.scale = "auto"
    assert "levels" not in statistics.fit(dull, range(16), config)  # type: ignore[arg-type]
    assert "levels" not in statistics.fit(bright, [0, 2, 4], config)  # type: ignore[arg-type]


def test_pairs_are_two_sites_of_wells_of_all_plates() -> None:
    keys = [f"P{p}/A{w:02d}/{s}" for p in range(4) for w in range(30) for s in range(1 if w == 0 else 3)]
    chosen = [keys[n] for n in statistics.pairs(keys, range(len(keys)))]
    assert len(chosen) == statistics.FIELDS
    wells = [key.rsplit("/", 1)[0] for key in chosen]
    assert all(wells.count(well) == 2 for well in wells)
    assert {well[:2] for well in wells} == {"P0", "P1", "P2", "P3"}
    assert not any(well.endswith("A00") for well in wells)


def test_check_says_what_the_real_fields_ask_for(real_plate: Path, config: CellConfig) -> None:
    records = files.find_records(real_plate, config)
    for scale, level in (("auto", "note"), ("set", "note"), ("field", "warning")):
        config.data.scale = scale  # type: ignore[assignment]
        (found,) = [f for f in checks.set_findings(records, config.data) if f.rule == "brightness"]
        assert found.level == level
        assert "wells of a plate by 1.2" in found.message
        assert "takes set" in found.message
