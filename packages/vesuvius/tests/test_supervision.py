"""Coarse targets by their definition, and the weights of the levels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_vesuvius.config import LossConfig
from runner_vesuvius.losses import LOSSES
from runner_vesuvius.network import SurfaceUNet
from runner_vesuvius.supervision import DENSE, over_levels, supervised, targets

CONFIG = LossConfig()


def batch_of(label: np.ndarray, tube: np.ndarray | None = None) -> dict[str, torch.Tensor]:
    """Labels (B, D, H, W)."""
    arrays = {"surface": (label == 1).astype(np.float32), "known": label != 2}
    arrays["tube"] = label == 1 if tube is None else tube
    return {name: torch.from_numpy(array)[:, None] for name, array in arrays.items()}


def levels_of(size: tuple[int, ...], count: int) -> list[torch.Tensor]:
    return [torch.zeros(1, 1, *(-(-n // 2**level) for n in size)) for level in range(count)]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.tuples(*[st.integers(3, 13)] * 3), st.floats(0, 0.3), st.floats(0, 1))
def test_coarse_voxels_by_their_definition(seed: int, size: tuple[int, int, int], share: float, known: float) -> None:
    rng = np.random.default_rng(seed)
    label = np.where(rng.random(size) < known, rng.random(size) < share, 2).astype(np.int64)
    tube = (label == 1) & (rng.random(size) < 0.5)
    found = targets(batch_of(label[None], tube[None]), levels_of(size, 3))
    for level in (1, 2):
        side = 2**level
        for place in np.ndindex(*(-(-n // side) for n in size)):
            block = tuple(slice(side * i, side * (i + 1)) for i in place)
            surface = (label[block] == 1).any()
            at = (0, 0, *place)
            assert found[level]["surface"][at] == surface
            assert found[level]["known"][at] == (surface or (label[block] != 2).all())
            assert found[level]["tube"][at] == tube[block].any()


def test_the_finest_level_is_the_batch_itself() -> None:
    batch = batch_of(np.ones((1, 4, 4, 4), np.int64))
    assert targets(batch, levels_of((4, 4, 4), 1)) == [batch]


def test_a_tube_that_no_loss_reads_is_not_needed() -> None:
    batch = batch_of(np.ones((1, 4, 4, 4), np.int64))
    del batch["tube"]
    assert set(targets(batch, levels_of((4, 4, 4), 2))[1]) == {"surface", "known"}


def test_levels_that_are_no_halves_are_refused() -> None:
    batch = batch_of(np.ones((1, 8, 8, 8), np.int64))
    with pytest.raises(ValueError, match=r"\(3, 4, 4\).*\(4, 4, 4\)"):
        targets(batch, [torch.zeros(1, 1, 8, 8, 8), torch.zeros(1, 1, 3, 4, 4)])


def test_targets_are_on_the_grids_of_the_network() -> None:
    network = SurfaceUNet(4, (1, 1, 2, 2), 1)
    label = np.random.default_rng(0).integers(0, 3, (2, 17, 16, 22))
    logits = network(torch.randn(2, 1, 17, 16, 22))
    for own, level in zip(targets(batch_of(label), logits), logits, strict=True):
        assert all(tensor.shape == level.shape for tensor in own.values())


def test_levels_are_weighted_by_halves() -> None:
    losses = [torch.tensor(value) for value in (1.0, 2.0, 4.0)]
    assert over_levels(losses).item() == pytest.approx((1 + 2 / 2 + 4 / 4) / (1 + 1 / 2 + 1 / 4))
    assert over_levels(losses[:1]).item() == 1


def test_only_dense_losses_ask_all_levels() -> None:
    size = (8, 9, 10)
    rng = np.random.default_rng(1)
    batch = batch_of(rng.integers(0, 3, (1, *size)))
    batch |= {"medial": batch["tube"], "distance": torch.randn(1, 1, *size)}
    logits = levels_of(size, 3)
    levels = targets(batch, logits)
    for name in LOSSES:
        losses = supervised(name, logits, levels, CONFIG)
        assert len(losses) == (3 if name in DENSE else 1)
        assert losses[0] == LOSSES[name].function(logits[0], batch, CONFIG)


@pytest.mark.parametrize("name", DENSE)
def test_a_perfect_answer_costs_next_to_nothing_at_every_level(name: str) -> None:
    label = np.zeros((1, 16, 16, 16), np.int64)
    label[:, 5:8] = 1
    label[:, :, 12:] = 2
    batch = batch_of(label)
    levels = targets(batch, levels_of((16, 16, 16), 3))
    logits = [60 * level["surface"] - 30 for level in levels]
    for loss in supervised(name, logits, levels, CONFIG):
        assert loss.item() == pytest.approx(0, abs=1e-6)
