"""What happens on the device."""

import pytest
import torch

from runner_newproject import labels, network, objective

SHAPES = {"grey": (4, 32, 32, 1), "colours": (4, 32, 32, 3), "volume": (4, 16, 16, 16, 1)}


@pytest.mark.parametrize("kind", SHAPES)
def test_every_kind_of_image_gets_an_answer(kind: str) -> None:
    shape = SHAPES[kind]
    statistics = {"mean": [0.5] * shape[-1], "std": [2.0] * shape[-1]}
    stored = {"image": torch.rand(shape), "label": torch.zeros(4, 1)}
    batch = network.read_batch(stored, statistics, torch.Generator().manual_seed(0))
    model = network.Network(len(shape) - 2, shape[-1], 4, [0.0] * labels.OUTPUTS, 1.0)
    assert model(batch["image"]).shape == (4, labels.OUTPUTS)
    assert batch["label"].shape == (4,)


def test_a_better_answer_has_a_smaller_loss() -> None:
    good, bad = (torch.full((2, labels.OUTPUTS), value) for value in (1.0, -5.0))
    good[:, 0], bad[:, 0] = 10.0, -10.0
    label = torch.full((2,), 0.0 if labels.OUTPUTS > 1 else 10.0)
    assert sum(objective.losses(good, label, 1.0).values()) < 0.1 < 1 < sum(objective.losses(bad, label, 1.0).values())
