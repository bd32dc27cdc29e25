"""Crops are what their draws say, by loops in float64; nothing of them depends on the batch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_dinocell import augment, cropping
from runner_dinocell.batches import on_device
from runner_dinocell.config import AugmentConfig, CellConfig
from scipy import ndimage
from torch.nn import functional

NOTHING = AugmentConfig(flip=False, rotate90=False, brightness=0, contrast=0, blur=0, noise=0)
SMALL: dict[str, Any] = {"global_size": 16, "local_size": 9, "locals": 3}
Batch = dict[str, torch.Tensor]


def config(**augmentation: Any) -> CellConfig:
    return CellConfig(augment=replace(AugmentConfig(), **SMALL | augmentation))


def batch(settings: CellConfig, count: int = 4, channels: int = 3, side: int = 24, seed: int = 0) -> Batch:
    made = np.random.default_rng(seed)
    image = made.integers(90, 2000, (count, channels, side, side)).astype(np.uint16)
    levels = np.stack([made.uniform(100, 200, (count, channels)), made.uniform(1500, 1900, (count, channels))], -1)
    draws = made.random((count, augment.draw_count(settings, channels)), np.float32)
    return {"image": torch.from_numpy(image), "levels": torch.from_numpy(levels.astype(np.float32)),
            "draws": torch.from_numpy(draws)}  # fmt: skip


def normal(image: torch.Tensor) -> torch.Tensor:
    return (image - augment.CENTRE) / augment.SPREAD


# ---------------------------------------------------------------- the definition, crop by crop


def plain_resampling(start: float, length: float, size: int, side: int) -> np.ndarray:
    matrix = np.zeros((size, side))
    step = length / size
    for i in range(size):
        for j in range(int(start), int(start + length)):
            matrix[i, j] = max(0.0, 1 - abs(j + 0.5 - (start + (i + 0.5) * step)) / max(step, 1.0))
        matrix[i] /= matrix[i].sum()
    return matrix


def plain_blur(image: np.ndarray, sigma: float) -> np.ndarray:
    def smooth(values: np.ndarray) -> np.ndarray:
        return np.asarray(ndimage.gaussian_filter(values, sigma, mode="constant"))

    return smooth(image) / smooth(np.ones_like(image))


def plain_crop(window: np.ndarray, draws: np.ndarray, settings: AugmentConfig, which: int) -> np.ndarray:
    """window (C, w, w) float64, scaled; `which`: 0 and 1 are the global crops."""
    side, scale = window.shape[-1], settings.global_scale if which < 2 else settings.local_scale
    size = settings.global_size if which < 2 else settings.local_size
    area = scale[0] + draws[0] * (scale[1] - scale[0])
    aspect = math.exp((2 * draws[1] - 1) * min(math.log(4 / 3), -math.log(area)))
    height, width = (max(1, round(side * math.sqrt(area * a))) for a in (aspect, 1 / aspect))
    rows = plain_resampling(math.floor(draws[2] * (side - height + 1)), height, size, side)
    columns = plain_resampling(math.floor(draws[3] * (side - width + 1)), width, size, side)
    crop = np.stack([rows @ channel @ columns.T for channel in window])
    if settings.rotate90:
        crop = {0: crop, 1: np.flip(crop, 1).swapaxes(1, 2), 2: crop[:, ::-1, ::-1],
                3: np.flip(crop, 2).swapaxes(1, 2)}[int(draws[6] * 4)]  # fmt: skip
    up_down, left_right = (axis for axis in ((2, 1) if settings.rotate90 and int(draws[6] * 4) % 2 else (1, 2)))
    if settings.flip:
        for axis, chance in ((up_down, draws[4]), (left_right, draws[5])):
            crop = np.flip(crop, axis) if chance < 0.5 else crop
    share = {0: min(1, 2 * settings.blur), 1: settings.blur / 5}.get(which, settings.blur)
    if draws[7] < share:
        crop = np.stack([plain_blur(channel, 0.1 + 1.9 * draws[8]) for channel in crop])
    contrast, brightness = (2 * draws[10:] - 1).reshape(2, -1, 1, 1)
    crop = crop * (1 + settings.contrast * contrast) + settings.brightness * brightness
    return np.asarray((crop - augment.CENTRE) / augment.SPREAD)


@pytest.mark.parametrize("way", ["_one_by_one", "_together"])
@pytest.mark.parametrize("side", [12, 24, 64])
@pytest.mark.parametrize("parts", [{}, {"flip": False}, {"rotate90": False}, {"blur": 1.0}])
def test_crops_are_those_of_loops_in_float64(
    side: int, parts: dict[str, Any], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of processors and that of GPUs."""
    monkeypatch.setattr(cropping, "_one_by_one", getattr(cropping, way))
    settings = config(**parts)
    given = batch(settings, side=side)
    made = on_device(given, settings, None)
    low, high = given["levels"].double().numpy()[..., None, None].transpose(2, 0, 1, 3, 4)
    windows = ((given["image"].numpy() - low) / (high - low)).clip(0, augment.CEILING)
    draws = given["draws"].double().numpy()[:, :-4].reshape(4, 5, -1)
    for sample in range(4):
        for which in range(5):
            wanted = plain_crop(windows[sample], draws[sample, which], settings.augment, which)
            found = made["globals"][sample, which] if which < 2 else made["locals"][sample, which - 2]
            np.testing.assert_allclose(found.numpy(), wanted, atol=2e-4)


def test_nothing_asked_for_gives_the_window_back_exactly() -> None:
    settings = CellConfig(
        augment=replace(NOTHING, global_size=24, local_size=24, global_scale=(1, 1), local_scale=(1, 1))
    )
    given = batch(settings)
    window = augment.scaled(given["image"], given["levels"])
    made = on_device(given, settings, torch.Generator())
    wanted = window * (1 / augment.SPREAD) - augment.CENTRE / augment.SPREAD
    for crop in (*made["globals"].unbind(1), *made["locals"].unbind(1)):
        torch.testing.assert_close(crop, wanted, rtol=0, atol=1e-6)
    sharp = cropping.blurring(torch.tensor(cropping.SHARP), 9) @ cropping.resampling(
        torch.zeros(()), torch.tensor(9.0), 9, 9
    )
    assert torch.equal(sharp, torch.eye(9))


def test_levels_become_0_and_1_and_16_bits_are_kept() -> None:
    image = torch.tensor([100, 101, 1100, 1600, 60000, 0], dtype=torch.int64).to(torch.uint16).view(1, 1, 2, 3)
    found = augment.scaled(image, torch.tensor([[[100.0, 1100.0]]])).flatten()
    torch.testing.assert_close(found, torch.tensor([0, 0.001, 1, 1.5, augment.CEILING, 0]))
    assert len(augment.scaled(torch.arange(40000, 41000).to(torch.uint16).view(1, 1, 1, -1),
                              torch.tensor([[[39000.0, 42000.0]]])).unique()) == 1000  # fmt: skip


def test_levels_of_the_set_take_the_place_of_each_fields() -> None:
    chosen = config(noise=0)
    given, levels = batch(chosen), np.array([[50, 1000], [80, 2500], [0, 700]], np.float32)
    found = on_device(given, chosen, None, levels)
    wanted = on_device(given | {"levels": torch.from_numpy(levels).expand(4, -1, -1)}, chosen, None)
    own = on_device(given, chosen, None)
    for name in ("image", "globals", "locals"):
        torch.testing.assert_close(found[name], wanted[name])
        assert not torch.allclose(found[name], own[name])


def test_a_channel_of_one_value_stays_finite() -> None:
    flat = augment.scaled(torch.full((1, 1, 3, 3), 7).to(torch.uint16), torch.tensor([[[7.0, 7.0]]]))
    assert torch.equal(flat, torch.zeros(1, 1, 3, 3))


# ---------------------------------------------------------------- geometry


@pytest.mark.parametrize("size", [5, 8, 13, 24, 30, 61])
def test_resampling_of_all_is_torchs_with_antialias(size: int) -> None:
    image = torch.rand(2, 3, 24, 24)
    matrix = cropping.resampling(torch.zeros(()), torch.tensor(24.0), size, 24)
    wanted = functional.interpolate(image, (size, size), mode="bilinear", antialias=True)
    torch.testing.assert_close(matrix @ image @ matrix.T, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("way", ["_one_by_one", "_together"])
@pytest.mark.parametrize("size", [7, 16, 40])
def test_crops_are_torchvisions(size: int, way: str) -> None:
    """RandomResizedCrop of the places that were drawn, with antialias, then its flips."""
    from torchvision.transforms.v2 import functional as vision

    made = torch.Generator().manual_seed(0)
    image, draws = torch.rand(3, 2, 32, 32, generator=made), torch.rand(3, 4, 7, generator=made)
    box, turned = cropping.boxes(draws[..., :4], (0.1, 1.0), 32), cropping.symmetry(draws[..., 4:], True, False)
    found = getattr(cropping, way)(image, box, turned, None, size)
    for sample, which in np.ndindex(3, 4):
        place = [int(value[sample, which]) for value in box]
        wanted = vision.resized_crop(image[sample], *place, [size, size], antialias=True)
        wanted = vision.vertical_flip(wanted) if turned.down[sample, which] else wanted
        wanted = vision.horizontal_flip(wanted) if turned.right[sample, which] else wanted
        torch.testing.assert_close(found[sample, which], wanted, atol=1e-5, rtol=1e-5)


def test_nothing_aliases() -> None:
    """Stripes finer than the crop's pixels become grey, and do not beat."""
    stripes = (torch.arange(64) % 2).float()
    matrix = cropping.resampling(torch.tensor([1.0]), torch.tensor([50.0]), 12, 64)[0]
    grey = matrix @ stripes
    assert float((grey - 0.5).abs().max()) < 0.05
    points = functional.interpolate(stripes.view(1, 1, -1), 12, mode="linear", align_corners=True).flatten()
    assert float((points - 0.5).abs().max()) > 0.3


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.floats(0, 1, exclude_max=True, width=32), min_size=4, max_size=4),
    st.floats(0.01, 1),
    st.floats(0.01, 1),
    st.integers(8, 400),
)
def test_boxes_lie_in_the_window_with_the_area_asked_for(draws: list[float], a: float, b: float, side: int) -> None:
    scale = min(a, b), max(a, b)
    box = cropping.boxes(torch.tensor(draws).view(1, 1, 4), scale, side)
    top, left, height, width = (float(v) for v in (box.top, box.left, box.height, box.width))
    assert min(top, left) >= 0
    assert max(top + height, left + width) <= side * (1 + 1e-6)
    assert all(value == int(value) for value in (top, left, height, width))
    assert min(height, width) >= 1
    if height > 1 < width:  # rounded by half a pixel at most
        assert (height - 0.5) * (width - 0.5) / side**2 <= scale[1] + 1e-4
        assert (height + 0.5) * (width + 0.5) / side**2 >= scale[0] - 1e-4
        assert (height - 0.5) / (width + 0.5) <= 4 / 3 + 1e-4
        assert (width - 0.5) / (height + 0.5) <= 4 / 3 + 1e-4


def symmetries(flip: bool, rotate90: bool) -> set[tuple[int, ...]]:
    """All orders that the pixels of a 3 × 3 window come in."""
    settings = CellConfig(
        augment=replace(NOTHING, flip=flip, rotate90=rotate90, global_size=3, local_size=3, locals=1,
                        global_scale=(1, 1), local_scale=(1, 1))
    )  # fmt: skip
    image = torch.arange(9).to(torch.uint16).view(1, 1, 3, 3).expand(64, 1, 3, 3)
    given = batch(settings, 64, 1, 3) | {"image": image, "levels": torch.tensor([0.0, 8.0]).expand(64, 1, 2)}
    crops = on_device(given, settings, None)["globals"].flatten(0, 1)[:, 0]
    numbers = ((crops * augment.SPREAD + augment.CENTRE) * 8).round().long()
    return {tuple(n) for n in numbers.flatten(1).tolist()}


def test_flips_and_turns_are_all_eight_symmetries() -> None:
    square = torch.arange(9).view(3, 3)
    turned = {tuple(torch.rot90(square, k).flatten().tolist()) for k in range(4)}
    flipped = {tuple(square.flip(axes).flatten().tolist()) for axes in ([], [0], [1], [0, 1])}
    assert symmetries(False, False) == {tuple(range(9))}
    assert symmetries(False, True) == turned
    assert symmetries(True, False) == flipped
    assert len(symmetries(True, True)) == 8


# ---------------------------------------------------------------- draws alone decide


def test_crops_do_not_depend_on_the_batch() -> None:
    settings = config()
    settings.model.channels = "subset"
    given = batch(settings, 6)
    together = on_device(given, settings, None)
    order = torch.tensor([4, 1, 5])
    apart = on_device({name: value[order] for name, value in given.items()}, settings, None)
    for name in ("globals", "locals"):
        torch.testing.assert_close(apart[name], together[name][order], rtol=0, atol=1e-5)


def test_crops_of_a_sample_differ_and_follow_its_draws() -> None:
    settings = config()
    given = batch(settings, 2)
    given["image"][1], given["levels"][1] = given["image"][0], given["levels"][0]
    made = on_device(given, settings, None)
    assert not torch.allclose(made["globals"][0], made["globals"][1], atol=0.1)
    assert not torch.allclose(made["globals"][0, 0], made["globals"][0, 1], atol=0.1)


def test_the_rest_of_the_batch_is_kept() -> None:
    settings = config()
    given = batch(settings) | {"record": torch.arange(4), "mask": torch.ones(4, 2, 4, dtype=torch.bool)}
    made = on_device(given, settings, None)
    assert set(made) == {"globals", "locals", "record", "mask", "image"}
    assert set(on_device(given, settings, torch.Generator())) == {"globals", "locals", "record", "mask"}
    assert made["globals"].shape == (4, 2, 3, 16, 16)
    assert made["locals"].shape == (4, 3, 3, 9, 9)
    assert made["globals"].is_contiguous()
    assert made["globals"].dtype == torch.float32


def test_noise_is_the_generators_and_as_strong_as_drawn() -> None:
    settings = config(noise=0.5, global_size=64)
    given = batch(settings)
    clean = on_device(given, settings, None)["globals"]
    noisy = on_device(given, settings, torch.Generator().manual_seed(1))["globals"]
    again = on_device(given, settings, torch.Generator().manual_seed(1))["globals"]
    assert torch.equal(noisy, again)
    drawn = given["draws"][:, :-4].view(4, 5, -1)[:, :2, 9]
    found = (noisy - clean).flatten(2).std(-1) * augment.SPREAD
    torch.testing.assert_close(found, 0.5 * drawn, rtol=0.05, atol=1e-3)


def test_blur_falls_on_crops_as_in_dinov2() -> None:
    """In white noise all first global crops are blurred, a tenth of the second, and half of the local ones."""
    whole = config(global_scale=(1, 1), local_scale=(1, 1), global_size=24, local_size=24, brightness=0, contrast=0)
    given = batch(whole, 300, 1)
    made = on_device(given, whole, None)
    del made["image"]
    unblurred = on_device(given, replace(whole, augment=replace(whole.augment, blur=0)), None)["globals"]
    sharpness = {name: (crops[..., 1:] - crops[..., :-1]).square().mean((2, 3, 4)) for name, crops in made.items()}
    most = (unblurred[..., 1:] - unblurred[..., :-1]).square().mean((2, 3, 4))
    sigma = given["draws"][:, :-2].view(300, 5, -1)[:, 0, 8]
    seen = sharpness["globals"] < 0.97 * most  # a blur of 0.1 pixels cannot be seen
    assert seen[sigma > 0.2, 0].all()
    assert 0.04 < float(seen[:, 1].float().mean()) < 0.16
    assert 0.35 < float((sharpness["locals"] < 0.97 * most[:, :1]).float().mean()) < 0.6


@pytest.mark.parametrize("kind", ["subset", "bag"])
def test_missing_channels_are_0_and_never_the_only_ones(kind: Any) -> None:
    settings = config(noise=0.1)
    settings.model.channels = kind
    given = batch(settings, count=64) | {"grey": torch.tensor([[900, 0, 300]] * 64)}
    made = on_device(given, settings, torch.Generator())
    filled = made["globals"].flatten(3).any(3)
    assert torch.equal(filled[:, 0], filled[:, 1])
    assert set(filled[:, 0].sum(1).tolist()) == ({1, 2} if kind == "subset" else {2})
    looked_at = on_device({n: t for n, t in given.items() if n != "draws"}, settings, None)["image"]
    assert looked_at.flatten(2).any(2).tolist() == [[True, False, True]] * 64


def test_a_subset_keeps_one_channel_at_least_the_same_in_all_crops() -> None:
    settings = CellConfig(augment=replace(NOTHING, **SMALL, noise=0.1))
    settings.model.channels = "subset"
    given = batch(settings, 200, 4)
    for channel in range(4):  # each of one grey value, to be told apart
        given["image"][:, channel] = 200 + 300 * channel
    given["levels"][:] = torch.tensor([0.0, 2000.0])
    made = on_device(given, settings, torch.Generator())
    kept = (made["globals"] != 0).any(-1).any(-1)
    assert torch.equal(kept, kept[:, :1].expand_as(kept))
    assert torch.equal(kept[:, :1].expand(-1, 3, -1), (made["locals"] != 0).any(-1).any(-1))
    assert set(kept[:, 0].sum(-1).tolist()) == {1, 2, 3, 4}
    clean = on_device(given, settings, None)["globals"]
    shades = ((clean[:, 0, :, 0, 0] * augment.SPREAD + augment.CENTRE) * 2000).round()
    orders = {tuple(row) for row in shades[kept[:, 0].all(-1)].tolist()}
    assert len(orders) > 10
    assert all(sorted(order) == [200, 500, 800, 1100] for order in orders)


# ---------------------------------------------------------------- inference


def test_without_draws_the_whole_window_is_seen() -> None:
    settings = config()
    given = {name: value for name, value in batch(settings).items() if name != "draws"}
    found = on_device(given, settings, None)
    assert set(found) == {"image"}
    window = augment.scaled(given["image"], given["levels"])
    wanted = normal(functional.interpolate(window, (16, 16), mode="bilinear", antialias=True))
    torch.testing.assert_close(found["image"], wanted, atol=1e-4, rtol=1e-4)
