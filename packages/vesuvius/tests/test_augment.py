"""Mirrored and turned arrays stay bit for bit; a warped label moves with its image."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
import torch
from runner_vesuvius import augment
from runner_vesuvius.config import AugmentConfig
from runner_vesuvius.labels import IGNORE, SURFACE
from runner_vesuvius.targets import LABEL, MEDIAL, TUBE
from scipy import ndimage

NOTHING = AugmentConfig(
    flip=False, rotate90=False, blur=0, low_resolution=0, affine=0, rotate=15, scale=0.15, elastic=0, gamma_inverted=0,
    **dict.fromkeys(["brightness", "contrast", "gamma", "noise"], 0),
    **dict.fromkeys(["brightness_share", "contrast_share", "gamma_share", "noise_share"], 1),
)  # fmt: skip


EVERYTHING = replace(
    NOTHING,
    blur=1,
    low_resolution=1,
    gamma_inverted=0.5,
    **dict.fromkeys(["brightness", "contrast", "gamma", "noise"], 0.2),
)


def host(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def coordinates(count: int, size: tuple[int, ...]) -> torch.Tensor:
    """(count, 1, D, H, W) int64: each voxel's own number."""
    return torch.arange(int(np.prod(size))).view(1, 1, *size).repeat(count, 1, 1, 1, 1)


def moves(size: tuple[int, ...], seeds: range, config: AugmentConfig) -> set[tuple[tuple[int, ...], tuple[bool, ...]]]:
    """Every (order of the axes, mirrored axes) that comes up; checks that it is one, and that all volumes share it."""
    found = set()
    for seed in seeds:
        numbers = coordinates(2, size)
        turned = augment.turned({"image": numbers.to(torch.float32), "target": numbers}, config, host(seed))
        assert torch.equal(turned["image"].long(), turned["target"])
        for patch in turned["target"][:, 0]:
            ways = [
                (order, mirrored)
                for order in permutations(range(3))
                for mirrored in product((False, True), repeat=3)
                if tuple(size[axis] for axis in order) == tuple(size)
                and torch.equal(numbers[0, 0].permute(order).flip([axis for axis in range(3) if mirrored[axis]]), patch)
            ]
            assert len(ways) == 1
            found.add(ways[0])
    return found


def parity(order: tuple[int, ...]) -> int:
    return sum(order[i] > order[j] for i in range(3) for j in range(i + 1, 3)) % 2


def test_flips_and_turns_are_the_16_symmetries_that_keep_the_axis() -> None:
    found = moves((3, 3, 3), range(300), replace(NOTHING, flip=True, rotate90=True))
    assert len(found) == 16
    assert {order[0] for order, _ in found} == {0}


def test_turns_alone_are_rotations_about_the_axis() -> None:
    """Beside the scroll's axis the fibres of recto and verso would change places."""
    for size in ((3, 3, 3), (2, 3, 3)):
        found = moves(size, range(60), replace(NOTHING, rotate90=True))
        assert len(found) == 4
        assert all(order[0] == 0 and not mirrored[0] for order, mirrored in found)
        assert all((parity(order) + sum(mirrored)) % 2 == 0 for order, mirrored in found)


def test_turns_only_where_height_and_width_are_equal() -> None:
    for size in ((2, 3, 4), (3, 3, 2), (3, 2, 3)):
        assert len(moves(size, range(20), replace(NOTHING, rotate90=True))) == 1


def test_each_axis_is_mirrored_half_of_the_time() -> None:
    flipped = augment.turned({"image": coordinates(400, (2, 3, 4))}, replace(NOTHING, flip=True), host())["image"][:, 0]
    same = coordinates(1, (2, 3, 4))[0, 0]
    for axis in range(3):
        ahead = (flipped.select(axis + 1, 1) - flipped.select(axis + 1, 0)).flatten(1)[:, 0] > 0
        assert 150 < int(ahead.sum()) < 250
        assert (same.select(axis, 1) > same.select(axis, 0)).all()


def test_what_was_stored_is_not_changed() -> None:
    """On a CPU tensors are views of the loader's buffers."""
    stored = coordinates(2, (4, 4, 4))
    kept = stored.clone()
    augment.turned({"image": stored}, NOTHING, host())["image"].zero_()
    assert torch.equal(stored, kept)


# ------------------------------------------------------------ warps

SIZE = (24, 26, 28)


def scene(count: int = 1) -> dict[str, torch.Tensor]:
    """A thick ball of surface off the middle, some of the rest not annotated, and distances to it."""
    z, y, x = np.indices(SIZE)
    surface = (z - 11) ** 2 + (y - 14) ** 2 + (x - 15) ** 2 < 36
    label = np.where(surface, SURFACE, np.where(z > 20, IGNORE, 0)).astype(np.uint8)
    target = label | np.where(surface, TUBE | MEDIAL, 0).astype(np.uint8)
    distance = np.where(surface, -ndimage.distance_transform_edt(surface), ndimage.distance_transform_edt(~surface))
    arrays = {"image": surface * 2.0 - 1, "target": target, "distance": np.clip(distance, -15, 15)}
    tensors = {name: torch.from_numpy(array)[None, None] for name, array in arrays.items()}
    return {
        name: (t if name == "target" else t.float()).repeat(count, 1, 1, 1, 1) for name, t in tensors.items()
    }  # fmt: skip


def warped(config: AugmentConfig, seed: int, count: int = 1) -> dict[str, torch.Tensor]:
    volumes = scene(count)
    augment.warp(volumes, config, host(seed))
    return volumes


AFFINE = replace(NOTHING, affine=1)
ELASTIC = replace(NOTHING, elastic=1)


@pytest.mark.parametrize("config", [AFFINE, ELASTIC, replace(AFFINE, elastic=1)])
@pytest.mark.parametrize("seed", [0, 1])
def test_labels_go_where_the_image_goes(config: AugmentConfig, seed: int) -> None:
    volumes = warped(config, seed)
    label = volumes["target"] & LABEL
    known = label != IGNORE
    surface, bright = (label == SURFACE)[known], (volumes["image"] > 0)[known]
    assert 2 * (surface & bright).sum() / (surface.sum() + bright.sum()) > 0.97
    assert not torch.equal(label, scene()["target"] & LABEL)
    tube = volumes["target"] & (TUBE | MEDIAL)
    assert torch.equal(tube > 0, label == SURFACE)  # the bits of a voxel stay together
    assert (volumes["target"] <= LABEL | TUBE | MEDIAL).all()


@pytest.mark.parametrize("factor", [0.8, 1.25])
def test_sizes_and_distances_grow_by_the_factor(factor: float) -> None:
    """About the middle of the patch, and distances are those that the warped label has."""
    volumes = scene()
    places = augment._places(torch.eye(3) / factor, SIZE, "cpu")
    label = augment._nearest(volumes["target"][0], places)[0] & LABEL
    before, after = ((v == SURFACE).sum().item() for v in (volumes["target"][0] & LABEL, label))
    assert after / before == pytest.approx(factor**3, rel=0.1)
    distance = augment._linear(volumes["distance"][0], places)[0] * factor
    true = ndimage.distance_transform_edt((label != SURFACE).numpy())
    near = (label == 0).numpy() & (true < 6)
    assert np.abs(distance.numpy() - true)[near].mean() < 0.5


def test_only_rotations_keep_distances() -> None:
    volumes = warped(replace(AFFINE, scale=0), 3)
    label = (volumes["target"] & LABEL)[0, 0].numpy()
    true = ndimage.distance_transform_edt(label != SURFACE)
    near = (label == 0) & (true < 6)
    assert np.abs(volumes["distance"][0, 0].numpy() - true)[near].mean() < 0.5


@pytest.mark.parametrize("seed", range(4))
def test_distances_keep_their_sign_and_their_limit(seed: int) -> None:
    volumes = warped(replace(AFFINE, elastic=1), seed)
    surface = (volumes["target"] & LABEL) == SURFACE
    assert (volumes["distance"][surface] <= 0).all()
    assert (volumes["distance"][~surface] >= 0).all()
    assert volumes["distance"].abs().max() <= 255**0.5


def test_beyond_the_patch_nothing_is_known() -> None:
    label = torch.zeros(1, *SIZE, dtype=torch.uint8)
    places = augment._places(2 * torch.eye(3), SIZE, "cpu")  # shrunk to half: three quarters and more are from beyond
    found = augment._nearest(label, places)[0]
    inside = found == 0
    assert (found[~inside] == IGNORE).all()
    assert inside.sum().item() == pytest.approx(np.prod(SIZE) / 8, rel=0.15)
    assert inside[6:18, 7:19, 7:21].all()
    assert not inside[:5].any()


def test_grids_find_the_voxels_they_name() -> None:
    """No rotation, no scaling: every voxel itself. Against `scipy.ndimage.affine_transform` otherwise."""
    volume = torch.rand(1, *SIZE, generator=host())
    torch.testing.assert_close(augment._linear(volume, augment._places(torch.eye(3), SIZE, "cpu")), volume)
    matrix, _ = augment._similarity(AFFINE, host(5))
    found = augment._linear(volume, augment._places(matrix, SIZE, "cpu"))[0].numpy()
    turn = matrix.numpy()[::-1, ::-1]  # (x, y, z) → (z, y, x)
    middle = (np.array(SIZE) - 1) / 2
    true = ndimage.affine_transform(volume[0].numpy(), turn, middle - turn @ middle, order=1, mode="nearest")
    np.testing.assert_allclose(found, true, atol=1e-4)


def test_rotations_and_sizes_are_within_the_settings() -> None:
    for seed in range(20):
        matrix, factor = augment._similarity(replace(AFFINE, rotate=20.0, scale=0.1), host(seed))
        assert np.exp(-0.1) <= factor <= np.exp(0.1)
        turn = matrix.double() * factor
        torch.testing.assert_close(turn @ turn.T, torch.eye(3, dtype=torch.float64), atol=1e-5, rtol=0)
        assert torch.linalg.det(turn) > 0
        angle = torch.rad2deg(torch.arccos(((turn.trace() - 1) / 2).clamp(-1, 1)))
        assert angle < 20 * 3**0.5 + 1


def test_elastic_warps_have_the_size_asked_for_and_do_not_fold() -> None:
    size = (48, 72, 60)
    found = [augment._displacement(size, 3.0, host(seed), "cpu")[0] * augment._half(size) for seed in range(20)]
    assert torch.stack(found).std().item() == pytest.approx(3.0, rel=0.15)
    for field in found:
        for axis, component in enumerate((2, 1, 0)):
            assert field[..., component].diff(dim=axis).min() > -1


def test_only_some_are_warped_and_the_others_are_not_touched() -> None:
    volumes, before = warped(replace(NOTHING, affine=0.3, elastic=0.2), 7, count=40), scene(40)
    same = torch.tensor([torch.equal(a, b) for a, b in zip(volumes["image"], before["image"], strict=True)])
    assert 10 <= int(same.sum()) <= 35  # 0.7 · 0.8 of 40 are 22
    for name, volume in volumes.items():
        assert torch.equal(volume[same], before[name][same]), name


# ------------------------------------------------------------ intensities


def image(count: int = 3) -> torch.Tensor:
    return torch.randn(count, 1, 12, 14, 16, generator=host(9))


def changed(config: AugmentConfig, seed: int = 0) -> torch.Tensor:
    return augment.intensity(image(), config, torch.Generator().manual_seed(seed), host(seed))


@pytest.mark.parametrize("part", ["brightness", "contrast", "gamma", "noise", "blur"])
def test_each_part_changes_each_patch_in_its_own_way(part: str) -> None:
    config = replace(NOTHING, **{part: 0.3 if part != "blur" else 1})
    found, before = changed(config), image()
    difference = (found - before).flatten(1).abs().mean(1)
    assert (difference > 1e-4).all()
    assert len({round(float(d), 6) for d in difference}) == 3
    if part in ("brightness", "contrast", "gamma"):  # curves: the order of the grey values stays
        order = before.flatten(1).argsort(1)
        assert (found.flatten(1).gather(1, order).diff(dim=1) >= -1e-4).all()
    if part == "gamma":  # from the darkest to the brightest
        torch.testing.assert_close(found.flatten(1).aminmax(dim=1), before.flatten(1).aminmax(dim=1))


@pytest.mark.parametrize("part", ["brightness", "contrast", "gamma", "noise", "low_resolution"])
def test_a_share_of_the_patches_is_changed(part: str) -> None:
    share = {part: 0.3} if part == "low_resolution" else {part: 0.3, f"{part}_share": 0.3}
    before = image(200)
    found = augment.intensity(before.clone(), replace(NOTHING, **share), torch.Generator().manual_seed(0), host())
    touched = (found - before).flatten(1).abs().amax(1) > 1e-4
    assert 40 < int(touched.sum()) < 80
    torch.testing.assert_close(found[~touched], before[~touched], atol=1e-5, rtol=0)


def test_an_inverted_gamma_is_that_of_the_negative() -> None:
    config = replace(NOTHING, gamma=0.3, gamma_inverted=1)
    plain = augment.intensity(-image(), replace(config, gamma_inverted=0), torch.Generator().manual_seed(0), host())
    torch.testing.assert_close(changed(config), -plain, atol=1e-5, rtol=1e-5)
    assert (changed(config) - changed(replace(config, gamma_inverted=0))).abs().max() > 0.1


def test_a_lower_resolution_loses_detail_and_nothing_else() -> None:
    config, rng = replace(NOTHING, low_resolution=1), torch.Generator()
    found, before = changed(config), image()
    assert (found.flatten(1).std(1) < 0.95 * before.flatten(1).std(1)).all()
    flat = torch.full((2, 1, 9, 9, 9), 0.7)
    torch.testing.assert_close(augment.intensity(flat.clone(), config, rng, host()), flat)
    ramp = torch.arange(24.0).view(1, 1, 24, 1, 1).expand(1, 1, 24, 8, 8)
    moved = augment.intensity(ramp.clone(), config, rng, host())[0, 0, :, 4, 4] - ramp[0, 0, :, 4, 4]
    assert moved.abs().max() < 1.01  # a voxel of at most twice the width


def test_nothing_asked_for_changes_nothing() -> None:
    assert torch.equal(changed(NOTHING), image())
    volumes = warped(NOTHING, 0)
    assert all(torch.equal(volume, scene()[name]) for name, volume in volumes.items())
    numbers = coordinates(2, (3, 3, 3))
    assert torch.equal(augment.turned({"image": numbers}, NOTHING, host())["image"], numbers)


def test_blur_is_a_gaussian() -> None:
    weights = [0.05, 0.25, 0.4, 0.25, 0.05]
    volume = image(1)[0]
    true = volume[0].double().numpy()
    for axis in range(3):
        true = ndimage.correlate1d(true, weights, axis, mode="nearest")
    np.testing.assert_allclose(augment.smooth(volume, weights)[0].numpy(), true, atol=1e-5)


def test_a_patch_of_one_grey_value_stays_finite() -> None:
    flat = torch.full((2, 1, 6, 6, 6), 0.7)
    assert augment.intensity(flat, EVERYTHING, torch.Generator().manual_seed(0), host()).isfinite().all()


# ------------------------------------------------------------ generators


def test_the_host_follows_the_engine() -> None:
    """The same state gives the same numbers; each call gives others."""
    rng = torch.Generator().manual_seed(4)
    state = rng.get_state()
    first, second = (torch.rand(3, generator=augment.on_host(rng)) for _ in range(2))
    rng.set_state(state)
    assert torch.equal(torch.rand(3, generator=augment.on_host(rng)), first)
    assert not torch.equal(first, second)
