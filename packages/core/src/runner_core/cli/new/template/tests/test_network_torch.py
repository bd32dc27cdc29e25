"""What happens on the device."""

import pytest
import torch

from runner_newproject import network


def test_augmentation_moves_the_mask_with_the_image() -> None:
    mask = (torch.rand(16, 8, 8) > 0.5).to(torch.uint8)
    batch = network.read_batch({"image": mask[..., None] * 255, "mask": mask}, torch.Generator().manual_seed(0))
    threshold = batch["image"].mean((1, 2, 3), keepdim=True)
    assert torch.equal(batch["image"][:, 0] > threshold[:, 0], batch["mask"] > 0)
    assert not torch.equal(batch["mask"], mask)  # some were mirrored


@pytest.mark.parametrize("shape", [(8, 12, 1), (8, 12, 3), (4, 8, 12, 1)])
def test_every_kind_of_image_gets_a_class_for_each_pixel(shape: tuple[int, ...]) -> None:
    stored = {"image": torch.zeros((2, *shape), dtype=torch.uint8), "mask": torch.zeros((2, *shape[:-1])).byte()}
    batch = network.read_batch(stored, torch.Generator().manual_seed(0))
    logits = network.unet(len(shape) - 1, shape[-1], 5, 4)(batch["image"])
    assert logits.shape == (2, *shape[:-1], 5)
    assert network.dice(network.one_hot(batch["mask"], logits), logits).shape == (2, 5)


def test_a_perfect_prediction_has_no_loss_and_a_wrong_one_has() -> None:
    mask = (torch.rand(4, 8, 8) > 0.5).to(torch.uint8)
    logits = 50 * (2 * network.one_hot(mask, torch.zeros(2)) - 1)
    assert sum(network.losses(logits, mask).values()) < 1e-3
    assert sum(network.losses(-logits, mask).values()) > 1
    assert torch.equal(network.decide(logits), mask.long())
