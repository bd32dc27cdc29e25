"""Losses against PyTorch's cross-entropy, float64 NumPy by definition, and what must hold where nobody annotated."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from runner_ssmunet.losses import dice_loss, weighted_cross_entropy
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

CLASSES = 5
SHAPE = (2, 6, 7)


def drawn(seed: int, annotated: float, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(0, 3, (SHAPE[0], CLASSES, *SHAPE[1:]))).to(dtype).requires_grad_()
    labels = np.where(rng.random(SHAPE) < annotated, rng.integers(0, CLASSES - 1, SHAPE), -1)
    return logits, torch.from_numpy(labels)


def plain_cross_entropy(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> float:
    total = loss = 0.0
    for place in zip(*np.nonzero(labels >= 0), strict=True):
        row, label = logits[place[0], :, place[1], place[2]], labels[place]
        loss += weights[label] * (np.log(np.exp(row).sum()) - row[label])
        total += weights[label]
    return loss / total


def plain_dice(logits: np.ndarray, labels: np.ndarray) -> float:
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    known = labels >= 0
    losses = []
    for k in range(CLASSES):
        if (truth := labels == k).any():
            losses.append(1 - 2 * p[:, k][truth].sum() / (p[:, k][known].sum() + truth.sum()))
    return float(np.mean(losses))


@given(st.integers(0, 10_000), st.floats(0.05, 1))
def test_cross_entropy_is_the_weighted_mean_over_annotated_pixels(seed: int, annotated: float) -> None:
    logits, labels = drawn(seed, annotated)
    if not (labels >= 0).any():
        return
    weights = torch.from_numpy(np.random.default_rng(seed).uniform(0.1, 10, CLASSES))
    found = weighted_cross_entropy(logits, labels, weights)
    assert found.item() == pytest.approx(
        plain_cross_entropy(logits.detach().numpy(), labels.numpy(), weights.numpy()), rel=1e-10
    )
    torch.testing.assert_close(found, functional.cross_entropy(logits, labels, weights, ignore_index=-1))
    even = weighted_cross_entropy(logits, labels)
    torch.testing.assert_close(even, functional.cross_entropy(logits, labels, ignore_index=-1))


@given(st.integers(0, 10_000), st.floats(0.05, 1))
def test_dice_is_that_of_the_classes_annotated(seed: int, annotated: float) -> None:
    logits, labels = drawn(seed, annotated)
    if not (labels >= 0).any():
        return
    assert dice_loss(logits, labels).item() == pytest.approx(
        plain_dice(logits.detach().numpy(), labels.numpy()), rel=1e-10
    )


def both(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    weights = torch.linspace(0.5, 2, CLASSES)
    return weighted_cross_entropy(logits, labels, weights) + dice_loss(logits, labels)


def test_gradients() -> None:
    logits, labels = drawn(3, 0.4)
    assert torch.autograd.gradcheck(lambda x: both(x, labels), (logits,))


def test_unannotated_pixels_change_nothing() -> None:
    """Neither the losses nor the gradients of the others; their own gradient is 0."""
    logits, labels = drawn(5, 0.3)
    before = both(logits, labels)
    (gradient,) = torch.autograd.grad(before, logits)
    ignored = (labels < 0)[:, None].expand_as(logits)
    changed = torch.where(ignored, 50 * torch.randn_like(logits), logits).detach().requires_grad_()
    after = both(changed, labels)
    torch.testing.assert_close(after, before)
    (again,) = torch.autograd.grad(after, changed)
    torch.testing.assert_close(again, gradient)
    assert not gradient[ignored].any()


class Named(TorchDispatchMode):
    """The names of PyTorch's own operations within."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.add(function.__name__.partition(".")[0])
        return function(*args, **(kwargs or {}))


def test_sums_have_an_order_on_a_gpu() -> None:
    """Nothing that `torch.use_deterministic_algorithms` refuses on CUDA, nor what it replaces with something slower."""
    logits, labels = drawn(0, 0.5)
    with Named() as own:
        both(logits, labels).backward()
    with Named() as others:
        functional.cross_entropy(logits, labels, ignore_index=-1).backward()
    unordered = {"nll_loss2d_forward", "gather", "scatter", "scatter_add", "index_put", "index_put_", "index_add"}
    assert own.names & unordered == set()
    assert others.names & unordered == {"nll_loss2d_forward"}


def test_labels_of_an_ignored_class() -> None:
    logits, labels = drawn(4, 1.0)
    without = torch.where(labels == 2, -1, labels)
    torch.testing.assert_close(
        weighted_cross_entropy(logits, labels, ignore=2), weighted_cross_entropy(logits, without)
    )
    torch.testing.assert_close(dice_loss(logits, labels, ignore=2), dice_loss(logits, without))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_no_annotated_pixel_costs_nothing(dtype: torch.dtype) -> None:
    logits = drawn(1, 0.0, dtype)[0].detach().mul(100).requires_grad_()
    loss = both(logits, torch.full(SHAPE, -1))
    assert loss.item() == 0
    loss.backward()
    assert logits.grad is not None
    assert not logits.grad.any()


def test_classes_of_no_weight_cost_nothing() -> None:
    logits, _ = drawn(2, 1.0)
    labels = torch.zeros(SHAPE, dtype=torch.int64)
    assert weighted_cross_entropy(logits, labels, torch.tensor([0.0, 1, 1, 1, 1])).item() == 0


def test_the_truth_costs_nothing() -> None:
    _, labels = drawn(7, 0.5)
    logits = 200.0 * functional.one_hot(labels.clamp(min=0), CLASSES).permute(0, 3, 1, 2).double()
    assert both(logits, labels).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_summed_in_float32(dtype: torch.dtype) -> None:
    """Sums over many pixels would overflow in float16, and round away in bfloat16."""
    logits = torch.zeros(1, CLASSES, 300, 300, dtype=dtype)
    labels = torch.randint(0, CLASSES, (1, 300, 300), generator=torch.Generator().manual_seed(0))
    loss = weighted_cross_entropy(logits, labels)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(np.log(CLASSES), rel=1e-5)
    assert dice_loss(logits, labels).item() == pytest.approx(
        plain_dice(logits.double().numpy(), labels.numpy()), rel=1e-5
    )
