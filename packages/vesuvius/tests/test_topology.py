"""The topology loss: its gradient is exact, and points the right way where a known error of topology is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_vesuvius.persistence import barcode
from runner_vesuvius.topology import crop, topology, topology_loss
from torch import Tensor

Voxel = tuple[int, int, int]


def pulled(probability: np.ndarray, truth: np.ndarray, known: np.ndarray | None = None) -> tuple[float, np.ndarray]:
    """The loss, and by how much a step of gradient descent would move each voxel."""
    known = np.ones(truth.shape, bool) if known is None else known
    free = torch.tensor(probability, dtype=torch.float64, requires_grad=True)
    loss = topology_loss(free, torch.tensor(truth), torch.tensor(known))
    loss.backward()
    return float(loss.detach()), -free.grad.numpy()


def moved(pull: np.ndarray) -> dict[Voxel, int]:
    """The voxels that move: 1 up, −1 down."""
    return {tuple(map(int, at)): int(np.sign(pull[tuple(at)])) for at in np.argwhere(pull)}


def soft(truth: np.ndarray, seed: int = 0) -> np.ndarray:
    """A sure prediction without an error: near 1 and near 0, all voxels different."""
    noise = np.random.default_rng(seed).permutation(truth.size).reshape(truth.shape) / truth.size
    return np.where(truth, 0.99 + 0.005 * noise, 0.005 + 0.005 * noise)


@pytest.fixture
def sheets() -> np.ndarray:
    """Two parallel sheets, two voxels apart."""
    truth = np.zeros((7, 7, 7), bool)
    truth[[2, 5]] = True
    return truth


# ---------------------------------------------------------------- the gradient


@given(st.integers(0, 2**32 - 1), st.floats(0.0, 1.0))
@settings(max_examples=8, deadline=None)
def test_the_gradient_is_that_of_finite_differences(seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    shape = (4, 5, 4)
    # at least 1/80 apart: the step of the differences changes no order
    probability = torch.tensor((rng.permutation(80).reshape(shape) + 1) / 82, requires_grad=True)
    truth, known = torch.tensor(rng.random(shape) < share), torch.tensor(rng.random(shape) < 0.9)
    assert torch.autograd.gradcheck(lambda p: topology_loss(p, truth, known), probability, eps=1e-6, atol=1e-6)


def test_the_formula_on_a_line() -> None:
    """Bars (0.9, 0.3) and (0.6, 0.2) are the truth's, (0.5, 0.1) is not, 0.95 is of the component that stays."""
    probability = np.array([[[0.95, 0.3, 0.9, 0.2, 0.6, 0.1, 0.5, 0.05]]])
    truth = np.array([[[1, 0, 1, 0, 1, 0, 0, 0]]], bool)
    loss, pull = pulled(probability, truth)
    squares = 0.05**2 + (0.1**2 + 0.3**2) + (0.4**2 + 0.2**2) + 0.4**2
    assert loss == pytest.approx(squares / (1 + 3))
    expected = np.array([0.05, -0.3, 0.1, -0.2, 0.4, 0.4, -0.4, 0]) * 2 / 4
    assert pull[0, 0] == pytest.approx(expected)


def test_a_component_that_is_missing_counts_but_cannot_pull() -> None:
    truth = np.zeros((1, 1, 7), bool)
    truth[0, 0, [0, 6]] = True
    probability = np.array([[[0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]]])
    loss, pull = pulled(probability, truth)
    assert loss == pytest.approx((0.1**2 + 1) / (1 + 2))
    assert moved(pull) == {(0, 0, 0): 1}


def test_a_prediction_that_is_right_and_sure_costs_nothing(sheets: np.ndarray) -> None:
    loss, pull = pulled(sheets.astype(float), sheets)
    assert loss == 0
    assert not pull.any()


# ---------------------------------------------------------------- known errors


def test_a_bridge_between_two_sheets_is_taken_down(sheets: np.ndarray) -> None:
    probability = soft(sheets)
    probability[3:5, 3, 3] = 0.6, 0.7
    _, pull = pulled(probability, sheets)
    assert pull.argmin() == np.ravel_multi_index((3, 3, 3), pull.shape)
    assert pull[3, 3, 3] < -0.3
    assert np.delete(np.abs(pull), pull.argmin()).max() < 0.05 * -pull.min()


def test_a_hole_in_a_sheet_is_filled(sheets: np.ndarray) -> None:
    probability = soft(sheets)
    probability[2, 3, 4] = 0.1
    _, pull = pulled(probability, sheets)
    assert pull.argmax() == np.ravel_multi_index((2, 3, 4), pull.shape)
    assert pull[2, 3, 4] > 0.3


def test_a_hole_that_the_truth_has_is_kept_beside_one_that_it_has_not(sheets: np.ndarray) -> None:
    truth = sheets.copy()
    truth[2, 2, 2] = False
    probability = soft(truth)
    probability[2, 2, 2], probability[2, 4, 4] = 0.4, 0.1  # the false hole is the deeper one
    _, pull = pulled(probability, truth)
    assert pull[2, 2, 2] < 0 < pull[2, 4, 4]


@pytest.mark.parametrize("true_top, false_top", [(0.95, 0.6), (0.6, 0.95)], ids=["weaker", "stronger than the sheet"])
@pytest.mark.parametrize("between", [0.01, 0.3], ids=["apart", "faintly connected"])
def test_a_false_blob_is_taken_down(true_top: float, false_top: float, between: float) -> None:
    """Its place decides, not its strength."""
    truth = np.zeros((9, 6, 6), bool)
    truth[2] = True
    probability = np.where(truth, true_top, 0.01 * soft(truth))
    probability[2, 0, 0] += 0.01
    probability[3:6, 3, 3] = between
    probability[6, 3, 3] = false_top
    _, pull = pulled(probability, truth)
    assert pull[6, 3, 3] < -0.2
    assert pull[2, 0, 0] > 0
    assert (pull[2] >= 0).all()


def test_a_false_blob_where_there_is_no_surface_is_taken_down() -> None:
    probability = np.full((5, 5, 5), 0.1)
    probability[2, 2, 2] = 0.8
    loss, pull = pulled(probability, np.zeros((5, 5, 5), bool))
    assert loss == pytest.approx(0.8**2)
    assert moved(pull) == {(2, 2, 2): -1}


@pytest.mark.parametrize("inside", [0.3, 0.05], ids=["shallower", "deeper than the true one"])
def test_a_false_cavity_is_filled_and_a_true_one_kept(inside: float) -> None:
    truth = np.ones((5, 5, 9), bool)
    truth[2, 2, 2] = False
    probability = soft(truth)
    probability[2, 2, 2], probability[2, 2, 6] = 0.15, inside
    probability[2, 2, 3:6] = 0.7  # a thin wall: the two merge before either meets the outside
    _, pull = pulled(probability, truth)
    assert pull[2, 2, 6] > 0.2
    assert pull[2, 2, 2] < 0


def betti(mask: np.ndarray) -> list[int]:
    return [len(bars.births) + (k == 0) * bool(mask.any()) for k, bars in enumerate(barcode(1.0 - mask))]


def test_descent_makes_the_betti_numbers_right(sheets: np.ndarray) -> None:
    probability = soft(sheets)
    probability[3:5, 3, 3] = 0.6, 0.7  # a bridge
    probability[3:5, 1, 5] = 0.55, 0.8  # and another: a loop through both
    probability[2, 4, 4] = 0.2  # a hole
    probability[0, 1, 1] = 0.9  # a blob
    logits = torch.tensor(probability).logit().requires_grad_()
    assert betti(probability > 0.5) == [2, 2, 0]
    assert betti(sheets) == [2, 0, 0]
    optimizer = torch.optim.SGD([logits], lr=10.0)
    known = torch.ones(sheets.shape, dtype=torch.bool)
    for _ in range(30):
        optimizer.zero_grad()
        loss = topology_loss(logits.sigmoid(), torch.tensor(sheets), known)
        loss.backward()
        optimizer.step()
    assert betti((logits > 0).numpy()) == [2, 0, 0]
    assert float(loss.detach()) < 0.05


# ---------------------------------------------------------------- what is not annotated; kinds of tensors


def test_what_is_not_known_changes_nothing_and_is_not_moved(sheets: np.ndarray) -> None:
    known = np.ones(sheets.shape, bool)
    known[:, :, 5:] = False
    right = soft(sheets)
    wrong, other = right.copy(), sheets.copy()
    wrong[3:5, 3, 6], wrong[0, 0, 6], other[0, :, 5] = 0.9, 0.8, True
    expected, _ = pulled(right, sheets, known)
    loss, pull = pulled(wrong, other, known)
    assert loss == expected
    assert not pull[~known].any()


def test_with_nothing_known_the_loss_is_zero(sheets: np.ndarray) -> None:
    loss, pull = pulled(soft(sheets), sheets, np.zeros(sheets.shape, bool))
    assert loss == 0
    assert not pull.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_computed_in_single(sheets: np.ndarray, dtype: torch.dtype) -> None:
    probability = torch.tensor(soft(sheets)).to(dtype).requires_grad_()
    loss = topology_loss(probability, torch.tensor(sheets), torch.ones(sheets.shape, dtype=torch.bool))
    loss.backward()
    assert loss.dtype == torch.float32
    assert probability.grad.dtype == dtype
    assert probability.grad.any()


def test_a_probability_that_is_no_number_makes_a_loss_that_is_none(sheets: np.ndarray) -> None:
    probability = soft(sheets)
    probability[3, 3, 3] = np.nan
    loss, _ = pulled(probability, sheets)
    assert np.isnan(loss)


# ---------------------------------------------------------------- the crop


def test_the_crop_lies_where_much_is_known() -> None:
    known = torch.zeros((20, 40, 40), dtype=torch.bool)
    known[:, :, 20:] = True
    truth = torch.zeros_like(known)
    for step in range(0, 500, 50):
        region = crop(known, truth, 12, step)
        assert known[region].shape == (12, 12, 12)
        assert known[region].float().mean() > 0.7
        assert region == crop(known, truth, 12, step)
    assert len({str(crop(known, truth, 12, step)) for step in range(0, 500, 50)}) > 5


def test_a_crop_is_cut_to_the_volume() -> None:
    known = torch.ones((8, 30, 30), dtype=torch.bool)
    assert known[crop(known, known, 16, 0)].shape == (8, 16, 16)


def batch() -> tuple[Tensor, Tensor, Tensor]:
    rng = np.random.default_rng(3)
    probability = torch.tensor(rng.random((2, 1, 10, 12, 12)), requires_grad=True)
    return probability, torch.tensor(rng.random(probability.shape) < 0.3), torch.ones(probability.shape, dtype=bool)


def test_the_loss_of_a_batch_is_the_mean_of_its_samples() -> None:
    """… so that a batch may be cut into micro-batches."""
    probability, truth, known = batch()
    whole = topology(probability, truth, known, side=6, step=50)
    alone = [topology(probability[i : i + 1], truth[i : i + 1], known[i : i + 1], 6, 50) for i in range(2)]
    assert torch.allclose(whole, torch.stack(alone).mean())
    whole.backward()
    assert probability.grad[0].any()
    assert probability.grad[1].any()


def test_truth_may_be_a_float_mask() -> None:
    probability, truth, known = batch()
    assert topology(probability, truth, known, 6, 0) == topology(probability, truth.float(), known, 6, 0)
