"""Synthetic slices: a pure function of the seed, in which the masks stay true."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from runner_brainunet.batches import on_device
from runner_brainunet.config import AugmentConfig
from runner_brainunet.synthetic import AIR, cluster, synthesise
from runner_core.testing import open_store

NOTHING = AugmentConfig(
    probability=0, flip=False, crop=0, decoy=0, elastic=0, contrast=0, gamma=0, surround=0, bias=0, noise=0, blur=0
)


def heads(count: int = 24, side: int = 48) -> tuple[torch.Tensor, torch.Tensor]:
    """Three slices each of a brain (fluid, grey, white) in a ring of fat, as the cache holds them: uint8."""
    at = torch.linspace(-1, 1, side)
    radius = (at[:, None] ** 2 + at**2).sqrt()
    head = 230 * ((radius > 0.75) & (radius < 0.9)) + 130 * (radius < 0.6) - 60 * (radius < 0.2) + 60 * (radius < 0.4)
    noise = torch.randint(0, 8, (count, 3, side, side), generator=torch.Generator().manual_seed(0))
    return (head + noise).clamp(0, 255).byte(), (radius < 0.6).byte().expand(count, 3, side, side)


def made(seed: int, share: float = 1.0, count: int = 24) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    image, masks = heads(count)
    image, masks = image.float() / 255, masks.float()
    generator = torch.Generator().manual_seed(seed)
    return synthesise(image, masks, AugmentConfig(synthetic=share), generator), image, masks


def test_slices_are_a_pure_function_of_the_seed_and_stay_in_range() -> None:
    one, image, _ = made(1)
    assert torch.equal(one, made(1)[0])
    assert not torch.equal(one, made(2)[0])
    assert one.shape == image.shape
    assert 0 <= one.min() <= one.max() <= 1
    assert torch.isfinite(one).all()


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_the_share_of_slices_that_are_made_anew(share: float) -> None:
    counts = []
    for seed in range(40):
        found, image, _ = made(seed, share, count=10)
        counts.append(int(((found - image).abs().amax((1, 2, 3)) > 1e-3).sum()))
    assert np.mean(counts) == pytest.approx(10 * share, abs=0.4)


def test_contrasts_go_both_ways_and_the_brain_differs_from_its_surroundings_or_not() -> None:
    found, image, masks = made(3, count=200)
    brain, fat = masks > 0, (image > 0.8) & (masks == 0)
    ratio = (
        (found * brain).sum((1, 2, 3))
        / brain.sum((1, 2, 3))
        / ((found * fat).sum((1, 2, 3)) / fat.sum((1, 2, 3))).clamp(min=1e-3)
    )
    real = (image * brain).sum() / brain.sum() / ((image * fat).sum() / fat.sum())
    assert 0.2 < real < 0.8, "fat is brighter in the real ones, always"
    assert 0.15 < (ratio > 1).float().mean() < 0.85, "in the synthetic ones now this, now that"


def test_the_brain_is_never_cut_nor_covered() -> None:
    """A flat image: within the mask there is one class only, so that a structure over it would show."""
    masks = heads(60)[1].float()
    image = 0.5 * masks + 0.9 * (heads(60)[0] > 200)
    generator = torch.Generator().manual_seed(4)
    found = synthesise(image, masks, AugmentConfig(synthetic=1.0), generator)
    core = torch.nn.functional.avg_pool2d(masks, 9, 1, 4) > 0.999  # away from its soft border
    blurred = torch.nn.functional.avg_pool2d(found, 5, 1, 2)  # without the grain
    inside = torch.where(core, blurred, torch.nan).flatten(1).double()
    spread = torch.nanmean((inside - torch.nanmean(inside, 1, keepdim=True)) ** 2, 1).sqrt()
    assert spread.max() < 0.08


def test_clusters_are_those_of_k_means() -> None:
    from scipy.cluster.vq import kmeans2

    values = torch.cat([torch.randn(400) * 0.02 + centre for centre in (0.2, 0.5, 0.8)]).clamp(AIR, 1)
    values = values[torch.randperm(1200, generator=torch.Generator().manual_seed(0))].view(1, 1, 30, 40)
    found, rest = cluster(values, torch.ones_like(values, dtype=torch.bool), 3, rounds=20)
    thinned = values.flatten()[::5].double().numpy()
    centres, _ = kmeans2(thinned, np.array([0.2, 0.5, 0.8]), minit="matrix")
    np.testing.assert_allclose([(values - rest)[found == k].mean() for k in range(3)], np.sort(centres), atol=1e-4)
    empty, _ = cluster(values, torch.zeros_like(values, dtype=torch.bool), 3)
    assert empty.max() < 3, "a slice without brain"


def test_the_mask_of_the_middle_slice_stays() -> None:
    image, masks = heads(6)
    masks = masks.clone()
    masks[:, 0] = 0
    view = torch.zeros(6, 1, dtype=torch.uint8)
    config = AugmentConfig(**{**vars(NOTHING), "synthetic": 1.0})
    out = on_device({"image": image, "mask": masks, "view": view}, config, torch.Generator().manual_seed(0))
    assert torch.equal(out["mask"], masks[:, 1:2].float())
    plain = on_device({"image": image, "mask": masks[:, 1:2], "view": view}, config, None)
    assert torch.equal(plain["image"], image.float() / 255)


def test_training_alone_reads_the_masks_of_the_neighbours(project, write_head) -> None:
    project.config.cache.mode = "memory"
    records = project.records(write_head().parent.parent)
    store = open_store(project, records)
    project.config.augment.synthetic = 0.5
    assert project.samples(store, [0], "train").spec["mask"].shape[0] == 3
    assert project.samples(store, [0], "validation").spec["mask"].shape[0] == 1
    project.config.augment.synthetic = 0.0
    assert project.samples(store, [0], "train").spec["mask"].shape[0] == 1
