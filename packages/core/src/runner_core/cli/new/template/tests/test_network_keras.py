"""What happens on the device."""

import keras
import numpy as np
import pytest
from keras.ops import convert_to_numpy

from runner_newproject import network


def test_augmentation_moves_the_mask_with_the_image() -> None:
    mask = np.random.default_rng(0).integers(0, 2, (16, 8, 8)).astype(np.uint8)
    batch = network.read_batch({"image": mask[..., None] * 255, "mask": mask}, keras.random.SeedGenerator(0))
    image, moved = convert_to_numpy(batch["image"])[..., 0], convert_to_numpy(batch["mask"])
    assert np.array_equal(image > image.mean((1, 2), keepdims=True), moved > 0)
    assert not np.array_equal(moved, mask)  # some were mirrored


@pytest.mark.parametrize("shape", [(8, 12, 1), (8, 12, 3), (4, 8, 12, 1)])
def test_every_kind_of_image_gets_a_class_for_each_pixel(shape: tuple[int, ...]) -> None:
    stored = {"image": np.zeros((2, *shape), np.uint8), "mask": np.zeros((2, *shape[:-1]), np.uint8)}
    batch = network.read_batch(stored, keras.random.SeedGenerator(0))
    logits = network.unet(len(shape) - 1, shape[-1], 5, 4)(batch["image"])
    assert logits.shape == (2, *shape[:-1], 5)
    assert network.dice(network.one_hot(batch["mask"], logits), logits).shape == (2, 5)


def test_a_perfect_prediction_has_no_loss_and_a_wrong_one_has() -> None:
    mask = np.random.default_rng(0).integers(0, 2, (4, 8, 8)).astype(np.uint8)
    logits = 50 * (2 * convert_to_numpy(network.one_hot(mask, np.zeros(2))) - 1)
    assert sum(network.losses(logits, mask).values()) < 1e-3
    assert sum(network.losses(-logits, mask).values()) > 1
    assert np.array_equal(convert_to_numpy(network.decide(logits)), mask)
