"""Augmentation: geometry that moves all maps alike, spectra that change as told, nothing random but the generator."""

from __future__ import annotations

import pytest
import torch
from runner_ssmunet.augment import spectral, turned
from runner_ssmunet.config import AugmentConfig

EIGHT = [
    torch.rot90(x, k, (0, 1))
    for x in (torch.arange(36).view(6, 6), torch.arange(36).view(6, 6).flip(1))
    for k in range(4)
]
"""All ways in which a square can lie."""


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def lying(options: AugmentConfig, count: int = 200) -> list[int]:
    """In which of the eight ways each of `count` patches ends up."""
    patches = torch.arange(36).view(1, 6, 6).repeat(count, 1, 1)
    found = turned({"x": patches}, options, generator())["x"]
    return [next(i for i, way in enumerate(EIGHT) if torch.equal(one, way)) for one in found]


@pytest.mark.parametrize(
    ("flip", "rotate", "ways"),
    [(True, True, set(range(8))), (False, True, {0, 1, 2, 3}), (True, False, {0, 2, 4, 6}), (False, False, {0})],
)
def test_patches_are_mirrored_and_turned_as_allowed_and_equally_often(flip: bool, rotate: bool, ways: set[int]) -> None:
    found = lying(AugmentConfig(flip=flip, rotate90=rotate))
    assert set(found) == ways
    assert all(found.count(way) > 200 / len(ways) / 2 for way in ways)


def test_spectra_labels_and_tissue_move_together() -> None:
    label = torch.randint(0, 9, (8, 16, 16), generator=generator(1)).to(torch.uint8)
    spectra = label[..., None] * torch.tensor([1.0, 2.0, 3.0])
    out = turned({"spectra": spectra, "label": label, "tissue": label > 3}, AugmentConfig(), generator())
    assert not torch.equal(out["label"], label)
    assert torch.equal(out["spectra"], out["label"][..., None] * torch.tensor([1.0, 2.0, 3.0]))
    assert torch.equal(out["tissue"], out["label"] > 3)
    assert out["label"].dtype == torch.uint8


@pytest.mark.parametrize("seed", [0, 5])
def test_it_is_a_function_of_the_generator_alone(seed: int) -> None:
    def once() -> tuple[torch.Tensor, torch.Tensor]:
        draws = generator(seed)
        x = torch.arange(8 * 36.0).view(8, 6, 6, 1).repeat(1, 1, 1, 5)
        x = turned({"x": x}, AugmentConfig(), draws)["x"]
        return x, spectral(x.clone(), torch.ones(5), AugmentConfig(), draws)

    torch.manual_seed(1)
    first = once()
    torch.manual_seed(2)
    again = once()
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], first[1])


def test_parts_that_are_off_change_nothing() -> None:
    off = AugmentConfig(flip=False, rotate90=False, scale=0, tilt=0, noise=0)
    x = torch.rand(3, 6, 6, 4, generator=generator())
    assert torch.equal(turned({"x": x}, off, generator())["x"], x)
    assert torch.equal(spectral(x.clone(), torch.ones(4), off, generator()), x)


def test_a_factor_is_one_number_a_pixel() -> None:
    options = AugmentConfig(scale=0.1, tilt=0, noise=0)
    ratio = spectral(torch.full((4, 20, 20, 7), 3.0), torch.ones(7), options, generator()) / 3
    assert torch.allclose(ratio, ratio[..., :1].expand_as(ratio))
    assert float(ratio[..., 0].std()) == pytest.approx(0.1, rel=0.1)


def test_a_tilt_is_one_line_a_patch_in_units_of_the_channels() -> None:
    options = AugmentConfig(scale=0, tilt=0.5, noise=0)
    std = torch.linspace(1, 2, 11)
    line = spectral(torch.zeros(300, 2, 2, 11), std, options, generator()) / std
    assert torch.allclose(line, line[:, :1, :1].expand_as(line))
    assert line.diff(n=2).abs().max() < 1e-5
    assert float(line[:, 0, 0, -1].std()) == pytest.approx(0.5, rel=0.15)


def test_noise_is_independent_and_in_units_of_the_channels() -> None:
    options = AugmentConfig(scale=0, tilt=0, noise=0.1)
    noise = spectral(torch.zeros(4, 30, 30, 3), torch.tensor([1.0, 2.0, 4.0]), options, generator()).flatten(0, 2)
    assert torch.allclose(noise.std(0), torch.tensor([0.1, 0.2, 0.4]), rtol=0.1)
    assert torch.corrcoef(noise.T).fill_diagonal_(0).abs().max() < 0.1
