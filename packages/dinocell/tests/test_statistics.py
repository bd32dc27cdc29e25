"""`fit` learns channels, and percentiles over all plates, from the training fields."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from runner_core import BadInput
from runner_dinocell import statistics, windows
from runner_dinocell.config import CellConfig


class Grey:
    """How many grey values the channels of fields have."""

    def __init__(self, lacking: tuple[int, ...]) -> None:
        self._lacking = lacking

    def read(self, number: int) -> np.ndarray:
        return np.array([9, 0 if number in self._lacking else 9])


class Fields:
    """A store of images, of which some cannot be read, and some lack their second channel."""

    def __init__(
        self,
        images: list[np.ndarray],
        keys: list[str] | None = None,
        bad: tuple[int, ...] = (),
        lacking: tuple[int, ...] = (),
    ) -> None:
        self.keys = keys or [f"P{n % 2}/A{n:02d}/1" for n in range(len(images))]
        self._images, self._bad = images, bad
        self.read_numbers: list[int] = []
        self.arrays: dict[str, Any] = {"image": self, "grey": Grey(lacking)}
        self.meta = self

    def read(self, number: int) -> np.ndarray:
        self.read_numbers.append(number)
        if number in self._bad:
            raise BadInput(f"{self.keys[number]}: truncated")
        return self._images[number]

    def __getitem__(self, number: int) -> dict[str, Any]:
        if number in self._bad:
            raise BadInput(f"{self.keys[number]}: truncated")
        return {"channels": ["DNA", "ER"]}


def images(count: int, dtype: type = np.uint16) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    top = np.iinfo(dtype).max
    return [np.clip(rng.gamma(2, 40 * (n + 1), (2, 9, 7)), 0, top).astype(dtype) for n in range(count)]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_percentiles_of_all_training_fields_together(config: CellConfig, dtype: type) -> None:
    config.data.scale, config.data.percentiles = "set", (1.0, 98.5)
    made = images(6, dtype)
    learned = statistics.fit(Fields(made), [0, 2, 3, 5], config)  # type: ignore[arg-type]
    together = np.concatenate([made[n].reshape(2, -1) for n in (0, 2, 3, 5)], axis=1).astype(float)
    assert learned["channels"] == ["DNA", "ER"]
    assert learned["levels"].dtype == np.float32
    assert np.allclose(learned["levels"], np.percentile(together, (1.0, 98.5), axis=1).T, rtol=1e-6)


def test_fields_of_their_own_scale_are_not_read(config: CellConfig) -> None:
    store = Fields(images(3))
    assert statistics.fit(store, [0, 1, 2], config) == {"channels": ["DNA", "ER"]}  # type: ignore[arg-type]
    assert store.read_numbers == []


def test_a_missing_channel_darkens_no_level(config: CellConfig) -> None:
    config.data.scale = "set"
    made = images(4)
    for n in (1, 2):
        made[n][1] = 0
    learned = statistics.fit(Fields(made, lacking=(1, 2)), [0, 1, 2, 3], config)  # type: ignore[arg-type]
    there = statistics.fit(Fields([made[0], made[3]]), [0, 1], config)  # type: ignore[arg-type]
    assert np.array_equal(learned["levels"][1], there["levels"][1])
    nowhere = statistics.fit(Fields(made, lacking=(0, 1, 2, 3)), [0, 1], config)["levels"]  # type: ignore[arg-type]
    own = np.array([[1, 2], [3, 4]], np.float32)
    assert windows.usable(nowhere, own)[1].tolist() == [3, 4]


def test_unreadable_fields_are_passed_over(config: CellConfig) -> None:
    config.data.scale = "set"
    made = images(4)
    learned = statistics.fit(Fields(made, bad=(0, 2)), [0, 1, 2, 3], config)  # type: ignore[arg-type]
    expected = statistics.fit(Fields(made), [1, 3], config)  # type: ignore[arg-type]
    assert learned["channels"] == expected["channels"]
    assert np.array_equal(learned["levels"], expected["levels"])


@pytest.mark.parametrize("scale", ["field", "set"])
def test_nothing_can_be_read(config: CellConfig, scale: Any) -> None:
    config.data.scale = scale
    with pytest.raises(BadInput, match="P0/A00/1: truncated"):
        statistics.fit(Fields(images(2), bad=(0, 1)), [0, 1], config)  # type: ignore[arg-type]


def test_the_fields_are_spread_over_the_plates() -> None:
    """As many of each plate as there are; what a small one lacks, others give; never more than 64."""
    keys = [f"s/b/{plate}/A{n:02d}/1" for plate, count in (("P", 500), ("Q", 300), ("R", 4)) for n in range(count)]
    chosen = statistics.spread(keys, range(len(keys)))
    counts = {plate: sum(keys[n].startswith(f"s/b/{plate}") for n in chosen) for plate in "PQR"}
    assert counts == {"P": 30, "Q": 30, "R": 4}
    assert chosen == sorted(set(chosen))
    assert {keys[chosen[0]], keys[chosen[-1]]} == {keys[0], keys[-1]}
    assert statistics.spread(keys, [5, 7]) == [5, 7]
    many = [f"P{n}/A01/1" for n in range(1000)]
    assert len(statistics.spread(many, range(1000))) == statistics.FIELDS
