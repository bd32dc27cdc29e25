"""Windows with their draws and masks: what each holds, and that it depends on (seed, epoch, position) alone."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from runner_core import BadInput, Layout, PreparedStore, Url
from runner_dinocell import fields, windows
from runner_dinocell.config import CellConfig
from runner_dinocell.files import find_records
from runner_dinocell.samples import CellSamples

Filled = dict[str, np.ndarray]


class Held(Layout):
    """A stored array in memory."""

    def __init__(self, arrays: list[np.ndarray]) -> None:
        super().__init__(arrays[0].dtype, [array.shape for array in arrays])
        self._arrays = arrays

    def read(self, record: int, region: tuple[slice, ...] | None = None) -> np.ndarray:
        return self._arrays[record] if region is None else self._arrays[record][region]

    def take(self, rows: np.ndarray, out: np.ndarray) -> None:
        raise AssertionError("windows are read one by one")


@pytest.fixture
def store(write_plates: Callable[..., Path], config: CellConfig) -> PreparedStore:
    """Four fields of two plates, two channels of 40 × 48 pixels."""
    config.data.window = 32
    records = find_records(write_plates({"P": 2, "Q": 2}), config)
    made = [windows.prepare(fields.decode(record).arrays["image"], (0.1, 99.9)) for record in records]
    arrays = {name: Held([each[name] for each in made]) for name in made[0]}
    return PreparedStore([r.key for r in records], [{"channels": ["1", "2"]}] * 4, arrays, "")


def filled(samples: CellSamples, positions: np.ndarray, seed: int = 3, epoch: int = 2) -> Filled:
    out = {name: np.empty((len(positions), *spec.shape), spec.dtype) for name, spec in samples.spec.items()}
    samples.fill(positions % len(samples), positions, seed, epoch, out)
    return out


def test_windows_are_parts_of_their_fields(store: PreparedStore, config: CellConfig) -> None:
    """16 bits stay 16 bits; levels and grey levels are the whole field's, not the window's."""
    samples = CellSamples(store, [0, 1, 3], config, "train")
    assert len(samples) == 3 * config.data.windows
    assert len(CellSamples(store, [0], config, "validation")) == config.data.validation_windows
    got = filled(samples, np.arange(24))
    assert got["image"].dtype == np.uint16
    assert set(got["record"].tolist()) == {0, 1, 3}
    for i, record in enumerate(got["record"].tolist()):
        whole = store.arrays["image"].read(record)
        windows = np.lib.stride_tricks.sliding_window_view(whole, (2, 32, 32))[0]
        assert (windows == got["image"][i]).all((2, 3, 4)).any()
        assert np.array_equal(got["levels"][i], store.arrays["levels"].read(record))
        assert np.array_equal(got["grey"][i], store.arrays["grey"].read(record))


def test_one_of_the_two_global_crops_is_masked_in_turn(store: PreparedStore, config: CellConfig) -> None:
    got = filled(CellSamples(store, [0, 1], config, "train"), np.arange(40))
    shares = got["mask"].mean(2)
    side = config.augment.global_size // config.model.patch
    low, high = config.loss.masked_share
    assert got["mask"].shape == (40, 2, side * side)
    for position, share in enumerate(shares):
        assert share[1 - position % 2] == 0
        assert low - 0.5 / side**2 <= share[position % 2] <= high + 0.5 / side**2
    assert len(np.unique(shares.max(1))) > 5


def test_draws_are_uniform_and_independent(store: PreparedStore, config: CellConfig) -> None:
    got = filled(CellSamples(store, [0, 1, 2, 3], config, "train"), np.arange(3000))
    draws = got["draws"].astype(float)
    assert draws.dtype == np.float64
    assert got["draws"].dtype == np.float32
    assert 0 <= draws.min() < draws.max() < 1
    assert abs(draws.mean() - 0.5) < 0.01
    assert abs(draws.var() - 1 / 12) < 0.002
    between = np.corrcoef(draws[:, :60].T)
    assert np.abs(between - np.eye(60)).max() < 0.1
    share = got["mask"].mean((1, 2))
    assert max(abs(np.corrcoef(share, draws[:, n])[0, 1]) for n in range(draws.shape[1])) < 0.1


@pytest.mark.parametrize("split", ["train", "validation"])
def test_samples_depend_on_seed_epoch_and_position_alone(store: PreparedStore, config: CellConfig, split: str) -> None:
    """Whatever batch they are in, in whatever order, on however many ranks, in another process."""
    samples = CellSamples(store, [0, 1, 2], config, split)
    positions = np.arange(100, 130)
    whole = filled(samples, positions)
    again = pickle.loads(pickle.dumps(samples))
    for own in (slice(None, None, -1), slice(0, None, 2), slice(7, 8), slice(11, 29)):
        part = filled(again, positions[own])
        for name, array in whole.items():
            assert np.array_equal(array[own], part[name]), name
    for other in (filled(samples, positions, seed=4), filled(samples, positions, epoch=3)):
        assert not np.array_equal(whole["draws"], other["draws"])
        assert not np.array_equal(whole["image"], other["image"])


def test_fields_smaller_than_the_window(store: PreparedStore, config: CellConfig) -> None:
    config.data.window = 48
    with pytest.raises(BadInput, match=r"P/A01/1: 40 × 48 pixels, smaller than a window of 48²\. Set data\.window"):
        CellSamples(store, [0, 1], config, "train")


def test_fields_of_two_sizes_can_be_cut(store: PreparedStore, config: CellConfig) -> None:
    config.data.window = 24
    small = {name: Held([array.read(0), array.read(1)]) for name, array in store.arrays.items()}
    small["image"] = Held([store.arrays["image"].read(0), store.arrays["image"].read(1)[:, 4:40, 4:40].copy()])
    samples = CellSamples(PreparedStore(store.keys[:2], store.meta[:2], small, ""), [0, 1], config, "train")
    assert filled(samples, np.arange(8))["image"].shape == (8, 2, 24, 24)


def test_records_know_their_urls_and_paths_alike() -> None:
    """A field can be sent to another process, wherever its files lie."""
    field = fields.Field("P/A01/1", "P", {"1": Url("s3://b/1.tif")}, plate="P", well="A01", site="1", channels=("1",))
    assert pickle.loads(pickle.dumps(field)) == field
