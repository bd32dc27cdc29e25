"""What happens on the device."""

import torch

from runner_newproject import network


def test_augmentation_moves_the_mask_with_the_image() -> None:
    mask = (torch.rand(16, 8, 8) > 0.5).to(torch.uint8)
    batch = network.read_batch({"image": mask * 255, "mask": mask}, torch.Generator().manual_seed(0))
    threshold = batch["image"].mean((1, 2, 3), keepdim=True)
    assert torch.equal(batch["image"][:, 0] > threshold[:, 0], batch["mask"] > 0)
    assert not torch.equal(batch["mask"], mask)  # some were mirrored


def test_a_perfect_prediction_has_no_loss_and_a_wrong_one_has() -> None:
    mask = (torch.rand(4, 8, 8) > 0.5).to(torch.uint8)
    logits = 50 * (2 * network.one_hot(mask, torch.zeros(2)) - 1)
    assert sum(network.losses(logits, mask).values()) < 1e-3
    assert sum(network.losses(-logits, mask).values()) > 1
    assert torch.equal(network.decide(logits), mask.long())
