"""The projection head against its definition in float64."""

from __future__ import annotations

import pytest
import torch
from runner_dinocell.heads import DINOHead
from torch.nn import functional


def test_it_is_its_definition() -> None:
    torch.manual_seed(0)
    head, tokens = DINOHead(24, 40, 8, 100).double(), torch.randn(7, 24, dtype=torch.float64)
    weights = head.state_dict()
    x = tokens
    for number in (0, 2, 4):
        x = x @ weights[f"mlp.{number}.weight"].T + weights[f"mlp.{number}.bias"]
        if number < 4:
            x = 0.5 * x * (1 + torch.erf(x / 2**0.5))
    directions = x / x.norm(dim=1, keepdim=True)
    prototypes = weights["prototypes"] / weights["prototypes"].norm(dim=1, keepdim=True)
    torch.testing.assert_close(head(tokens), directions @ prototypes.T)


def test_logits_are_cosines_whatever_the_weights() -> None:
    head, tokens = DINOHead(24, 40, 8, 100), torch.randn(7, 24)
    before = head(tokens)
    assert before.abs().max() <= 1 + 1e-6
    with torch.no_grad():
        head.prototypes.mul_(37.0)  # the gain stays 1
    torch.testing.assert_close(head(tokens), before)


def test_no_tokens_no_logits_but_gradients() -> None:
    """A batch without masked patches: the head's parameters have gradients (of 0), as sharded training needs."""
    head = DINOHead(24, 40, 8, 100)
    logits = head(torch.zeros(0, 24))
    assert logits.shape == (0, 100)
    logits.sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in head.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_in_half_precision(dtype) -> None:
    torch.manual_seed(0)
    head, tokens = DINOHead(24, 40, 8, 100), torch.randn(7, 24)
    with torch.autocast("cpu", dtype):
        low = head(tokens)
    assert low.dtype is dtype
    torch.testing.assert_close(low.float(), head(tokens), rtol=0, atol=0.02)


def test_prototypes_begin_in_all_directions() -> None:
    torch.manual_seed(0)
    directions = functional.normalize(DINOHead(24, 40, 16, 20_000).prototypes.detach(), dim=1)
    assert directions.mean(0).abs().max() < 0.01
    torch.testing.assert_close(directions.T @ directions / 20_000, torch.eye(16) / 16, rtol=0, atol=3e-3)
