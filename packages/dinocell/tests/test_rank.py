"""RankMe, against its definition and what is known of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_dinocell.rank import RankMe, rank_me


def ranked(*batches: torch.Tensor) -> float:
    metric = RankMe()
    for batch in batches:
        metric.update(batch, {})
    return metric.compute()["rank"]


def by_definition(embeddings: np.ndarray) -> float:
    singular = np.linalg.svd(embeddings, compute_uv=False)
    shares = [s / sum(singular) + 1e-7 for s in singular]
    return math.exp(-sum(p * math.log(p) for p in shares))


@given(count=st.integers(1, 30), width=st.integers(1, 12), seed=st.integers(0, 9), cut=st.integers(0, 30))
@settings(deadline=None, max_examples=40)
def test_it_is_that_of_all_embeddings_however_they_were_cut(count, width, seed, cut) -> None:
    z = torch.randn(count, 2, width, generator=torch.Generator().manual_seed(seed))
    expected = by_definition(z.flatten(0, 1).double().numpy())
    assert ranked(z[: min(cut, count)], z[min(cut, count) :]) == pytest.approx(expected, rel=1e-6)
    assert rank_me(z.numpy()) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("directions", [1, 3, 8])
def test_it_counts_directions(directions) -> None:
    z = torch.zeros(40, 8)
    z[:, :directions] = torch.eye(directions).repeat(40, 1)[:40] if directions > 1 else 1
    z = z[: 40 // directions * directions]
    assert ranked(z) == pytest.approx(directions, rel=1e-4)


def test_embeddings_that_are_all_the_same_have_one_direction_and_of_nothing_none() -> None:
    assert ranked(torch.randn(1, 16).expand(50, 16)) == pytest.approx(1, rel=1e-3)
    assert ranked(torch.zeros(50, 16)) == 0


def test_it_begins_anew() -> None:
    metric = RankMe()
    assert metric.compute() == {}
    metric.update(torch.eye(4), {})
    metric.reset()
    metric.update(torch.ones(4, 4), {})
    assert metric.compute()["rank"] == pytest.approx(1, rel=1e-3)
