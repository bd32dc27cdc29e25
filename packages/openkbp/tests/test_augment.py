"""Decoding and augmentation: what one array does, all do; the packed masks most of all."""

from __future__ import annotations

import math

import keras
import numpy as np
import pytest
from keras import ops
from runner_openkbp.augment import augment, flip, warp_length, warp_plane
from runner_openkbp.batches import decode, images
from runner_openkbp.config import AugmentConfig
from runner_openkbp.rois import MASKS, ROIS, pack_masks, unpack
from runner_openkbp.whole import mirrored, swap_sides

S = 8


@pytest.fixture
def stored() -> dict[str, np.ndarray]:
    """Two patients as the cache has them."""
    rng = np.random.default_rng(3)
    shape = (2, 1, S, S, S)
    return {
        "ct": rng.integers(0, 28036, shape).astype(np.int16),
        "masks": rng.integers(0, 1 << len(MASKS), shape).astype(np.uint16),
        "dose": rng.integers(0, 65535, shape).astype(np.uint16),
        "dose_step": np.array([[[1 / 800]], [[1 / 700]]], np.float32),
        "record": np.array([4, 7]),
    }


@pytest.fixture
def decoded(stored: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return numpy(decode(stored))


def rotate(batch: dict[str, np.ndarray], angle: np.ndarray) -> dict[str, np.ndarray]:
    count = len(angle)
    return numpy(warp_plane(batch, angle.astype(np.float32), np.ones(count, np.float32), np.zeros((count, 2), "f4")))


def numpy(batch: dict[str, object]) -> dict[str, np.ndarray]:
    return {name: ops.convert_to_numpy(value) for name, value in batch.items()}


def test_decoded_and_scaled(stored: dict[str, np.ndarray]) -> None:
    found = numpy(images(decode(stored), 1024.0, (-1024.0, 1500.0)))
    ct = np.clip(stored["ct"][:, 0].astype(float) - 1024, -1024, 1500) / 1000
    np.testing.assert_allclose(found["image"][..., 0], ct, rtol=1e-6)
    for channel, name in enumerate(ROIS, 1):
        np.testing.assert_array_equal(found["image"][..., channel], unpack(stored["masks"][:, 0], name))
    np.testing.assert_array_equal(found["mask"][..., 0], unpack(stored["masks"][:, 0], "possible_dose_mask"))
    dose = stored["dose"][:, 0] * np.array([1 / 800, 1 / 700])[:, None, None, None]
    np.testing.assert_allclose(found["dose"][..., 0], dose, rtol=1e-6)
    np.testing.assert_array_equal(found["record"], [4, 7])
    assert {found[name].dtype for name in ("image", "mask", "dose")} == {np.dtype(np.float32)}


def test_patients_without_dose(stored: dict[str, np.ndarray]) -> None:
    only = {name: stored[name] for name in ("ct", "masks")}
    assert set(images(decode(only), 1024.0, (-1024.0, 1500.0))) == {"image", "mask"}


def test_sides_change_places() -> None:
    masks = pack_masks({name: np.arange(3) == i for i, name in enumerate(("LeftParotid", "RightParotid", "PTV70"))})
    swapped = swap_sides(masks)
    assert unpack(swapped, "RightParotid").tolist() == [True, False, False]
    assert unpack(swapped, "LeftParotid").tolist() == [False, True, False]
    np.testing.assert_array_equal(unpack(swapped, "PTV70"), unpack(masks, "PTV70"))
    every = np.arange(1 << len(MASKS)).astype(np.uint16)
    np.testing.assert_array_equal(swap_sides(swap_sides(every)), every)


def test_flip_mirrors_only_those_chosen(decoded: dict[str, np.ndarray]) -> None:
    found = numpy(flip(decoded, np.array([True, False])))
    for name in ("ct", "dose"):
        np.testing.assert_array_equal(found[name][0], decoded[name][0][:, ::-1])
        np.testing.assert_array_equal(found[name][1], decoded[name][1])
    for name in MASKS:
        other = {"LeftParotid": "RightParotid", "RightParotid": "LeftParotid"}.get(name, name)
        np.testing.assert_array_equal(
            unpack(found["masks"][0].astype(np.uint16), name),
            unpack(decoded["masks"][0].astype(np.uint16), other)[:, ::-1],
        )
    np.testing.assert_array_equal(found["masks"][1], decoded["masks"][1])


def test_prediction_mirrors_as_training_does(stored: dict[str, np.ndarray], decoded: dict[str, np.ndarray]) -> None:
    found = decode(mirrored({name: stored[name] for name in ("ct", "masks")}))
    expected = numpy(flip(decoded, np.array([True, True])))
    for name, value in numpy(found).items():
        np.testing.assert_array_equal(value, expected[name])


def test_no_rotation_is_the_identity(decoded: dict[str, np.ndarray]) -> None:
    for name, value in rotate(decoded, np.zeros(2)).items():
        np.testing.assert_array_equal(value, decoded[name], err_msg=name)


@pytest.mark.parametrize("quarters", [1, 2, 3, -1])
def test_quarter_turns(decoded: dict[str, np.ndarray], quarters: int) -> None:
    """Turn the axial plane with NumPy, each patient by its own angle."""
    found = rotate(decoded, np.array([quarters * math.pi / 2, 0]))
    np.testing.assert_array_equal(found["masks"][0], np.rot90(decoded["masks"][0], quarters))
    for name in ("ct", "dose"):
        np.testing.assert_allclose(found[name][0], np.rot90(decoded[name][0], quarters), rtol=1e-4, atol=0.05)
        np.testing.assert_array_equal(found[name][1], decoded[name][1])


def test_dose_turns_with_the_masks() -> None:
    """A block of dose in a block of mask, off centre: after any turn they still cover each other."""
    side = 32
    block = np.zeros((1, side, side, 2), np.float32)
    block[:, 6:16, 12:24] = 1
    batch = {"ct": 1000 * block, "masks": block.astype(np.int32), "dose": 70 * block}
    for degrees in (7, -33, 60):
        found = rotate(batch, np.array([math.radians(degrees)]))
        inside = found["masks"] > 0
        assert found["dose"][inside].min() >= 70 / 4 - 1e-3  # the corner of a voxel in the corner of the block
        assert found["dose"][~inside].max() <= 70 / 2 + 1e-3
        np.testing.assert_allclose(found["dose"], 0.07 * found["ct"], rtol=1e-5)
        assert found["dose"].sum() == pytest.approx(70 * block.sum(), rel=0.02)


def test_what_comes_from_outside_is_air(decoded: dict[str, np.ndarray]) -> None:
    full = {name: np.ones_like(decoded[name]) for name in ("ct", "masks", "dose")}
    found = rotate(full, np.full(2, math.pi / 4))
    assert all((found[name][:, 0, 0] == 0).all() for name in found)
    assert all((found[name][:, S // 2, S // 2] == 1).all() for name in ("masks",))


def test_a_larger_and_moved_patient(decoded: dict[str, np.ndarray]) -> None:
    """Whole voxels: each patient by its own, along every axis; an axis twice as long is interpolated."""
    plane = warp_plane(decoded, np.zeros(2, "f4"), np.ones(2, "f4"), np.array([[2 / S, -1 / S], [0, 0]], np.float32))
    length = warp_length(numpy(plane), np.ones(2, "f4"), np.array([0, 3 / S], np.float32))
    for name, value in numpy(length).items():
        expected = np.zeros_like(decoded[name])
        expected[0, 2:, :-1] = decoded[name][0, :-2, 1:]
        expected[1, :, :, 3:] = decoded[name][1, :, :, :-3]
        np.testing.assert_allclose(value, expected, rtol=1e-5, err_msg=name)

    ramp = np.broadcast_to(np.arange(S, dtype=np.float32), (1, S, S, S)) - (S - 1) / 2
    batch = {"ct": ramp, "dose": np.swapaxes(ramp, 2, 3), "masks": (ramp > 0).astype(np.int32)}
    two, still = np.full(1, 2, "f4"), np.zeros(1, "f4")
    twice = numpy(warp_length(batch, two, still))
    np.testing.assert_allclose(twice["ct"], ramp / 2, atol=1e-6)
    np.testing.assert_allclose(twice["dose"], batch["dose"], atol=1e-6)
    np.testing.assert_array_equal(twice["masks"], batch["masks"])
    twice = numpy(warp_plane(batch, still, two, np.zeros((1, 2), "f4")))
    np.testing.assert_allclose(twice["dose"], batch["dose"] / 2, atol=1e-6)
    np.testing.assert_allclose(twice["ct"], ramp, atol=1e-6)


def test_everything_moves_together() -> None:
    """A block of dose in a block of mask, under everything at once: they cover each other still."""
    side = 32
    block = np.zeros((8, side, side, side), np.float32)
    block[:, 10:20, 12:22, 8:20] = 1
    batch = {"ct": 1000 * block, "masks": block.astype(np.int32), "dose": 70 * block}
    found = numpy(augment(batch, AugmentConfig(True, 30.0, 0.2, 0.1), keras.random.SeedGenerator(0)))
    inside = found["masks"] > 0
    np.testing.assert_allclose(found["dose"], 0.07 * found["ct"], rtol=1e-4, atol=1e-3)
    assert found["dose"][inside].min() >= 70 / 8 - 0.01
    assert found["dose"][~inside].max() <= 70 / 2 + 0.01
    volumes, doses = inside.sum((1, 2, 3)), found["dose"].sum((1, 2, 3))
    np.testing.assert_allclose(doses, 70 * volumes, rtol=0.15)  # masks count whole voxels
    assert len(set(volumes.tolist())) == 8
    assert 0.5 < volumes.min() / block[0].sum() < 1 < volumes.max() / block[0].sum() < 2


def test_one_seed_one_result(decoded: dict[str, np.ndarray]) -> None:
    config = AugmentConfig(flip=True, rotate=30.0, scale=0.2, shift=0.1)
    runs = [
        [numpy(augment(decoded, config, rng)) for rng in [keras.random.SeedGenerator(seed)] for _ in range(4)]
        for seed in (1, 1, 2)
    ]
    for first, again in zip(runs[0], runs[1], strict=True):
        assert all(np.array_equal(first[name], again[name]) for name in first)
    assert any(not np.array_equal(a["ct"], b["ct"]) for a, b in zip(runs[0], runs[2], strict=True))
    assert any(not np.array_equal(runs[0][0]["ct"], run["ct"]) for run in runs[0][1:])
    np.testing.assert_array_equal(runs[0][0]["record"], [4, 7])


def test_nothing_random_when_switched_off(decoded: dict[str, np.ndarray]) -> None:
    found = augment(decoded, AugmentConfig(flip=False), keras.random.SeedGenerator(1))
    assert all(found[name] is decoded[name] for name in decoded)


def test_half_of_the_patients_are_mirrored() -> None:
    count = 2000
    batch = {name: np.zeros((count, 4, 4, 1), kind) for name, kind in (("ct", "f4"), ("masks", "i4"), ("dose", "f4"))}
    batch["ct"][:, 0, 0] = 1
    ct = numpy(augment(batch, AugmentConfig(), keras.random.SeedGenerator(0)))["ct"]
    assert 0.45 < (ct[:, 0, 3, 0] == 1).mean() < 0.55
    assert (ct.sum((1, 2, 3)) == 1).all()


def test_parts_that_are_not_square(decoded: dict[str, np.ndarray]) -> None:
    """Half a turn, a move by whole voxels and no change are exact on 6 × 8 × 5 too."""
    part = {name: decoded[name][:, :6, :, :5] for name in ("ct", "masks", "dose")}
    turned = rotate(part, np.full(2, math.pi))
    ones, none = np.ones(2, np.float32), np.zeros(2, np.float32)
    moved = numpy(warp_plane(part, none, ones, np.array([[2 / 6, -1 / 8]] * 2, np.float32)))
    moved = numpy(warp_length(moved, ones, np.full(2, 1 / 5, np.float32)))
    for name, values in part.items():
        np.testing.assert_allclose(turned[name], values[:, ::-1, ::-1], rtol=1e-3, atol=0.2)
        expected = np.zeros_like(values)
        expected[:, 2:, :-1, 1:] = values[:, :-2, 1:, :-1]
        np.testing.assert_allclose(moved[name], expected, rtol=1e-3, atol=0.2)
