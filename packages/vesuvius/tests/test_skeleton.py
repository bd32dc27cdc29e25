"""The soft skeleton: by its definition, and where the end of what is annotated is no end of a sheet."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_vesuvius.skeleton import Highest, soft_skeleton
from scipy import ndimage
from torch.nn import functional

CROSS = ndimage.generate_binary_structure(3, 1)
CUBE = np.ones((3, 3, 3), bool)


def plain_skeleton(p: np.ndarray, iterations: int) -> np.ndarray:
    """Algorithm 1 of Shit et al. 2021 on (D, H, W), with SciPy."""

    def opened(x: np.ndarray) -> np.ndarray:
        smaller = ndimage.grey_erosion(x, footprint=CROSS, mode="constant", cval=np.inf)
        return ndimage.grey_dilation(smaller, footprint=CUBE, mode="constant", cval=-np.inf)

    skeleton = np.maximum(p - opened(p), 0)
    for _ in range(iterations):
        p = ndimage.grey_erosion(p, footprint=CROSS, mode="constant", cval=np.inf)
        taken = np.maximum(p - opened(p), 0)
        skeleton = skeleton + np.maximum(taken - skeleton * taken, 0)
    return skeleton


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 4), st.tuples(*[st.integers(1, 9)] * 3))
def test_it_is_that_of_the_paper(seed: int, iterations: int, size: tuple[int, int, int]) -> None:
    p = np.random.default_rng(seed).random(size)
    found = soft_skeleton(torch.from_numpy(p)[None, None], torch.ones(1, 1, *size, dtype=torch.bool), iterations)
    np.testing.assert_allclose(found[0, 0].numpy(), plain_skeleton(p, iterations), atol=1e-12)


def test_a_sheet_is_not_thinned_where_its_annotation_ends() -> None:
    sheet = torch.zeros(1, 1, 9, 16, 16)
    sheet[:, :, 3:6] = 1
    known = torch.ones_like(sheet, dtype=torch.bool)
    known[..., 9:] = False
    whole = soft_skeleton(sheet, torch.ones_like(known), 3)
    assert whole[0, 0, 4].min() == 1  # the middle of the three layers
    assert whole[0, 0, [0, 1, 2, 3, 5, 6, 7, 8]].max() == 0
    part = soft_skeleton(torch.where(known, sheet, torch.rand_like(sheet)), known, 3)
    assert torch.equal(part, whole * known)


@pytest.mark.parametrize("axes", [(2,), (3,), (4,), (2, 3, 4)])
def test_gradients_of_its_pools(axes: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(2, 1, 4, 5, 3, dtype=torch.float64, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: Highest.apply(x, axes), (x,))


def test_ties_pass_their_gradient_once() -> None:
    """Like PyTorch's max-pool, it routes each gradient once, not once for each of several equal voxels."""
    x = torch.ones(1, 1, 6, 6, 6, requires_grad=True)
    gradient = torch.rand(x.shape, generator=torch.Generator().manual_seed(2))
    Highest.apply(x, (2, 3, 4)).backward(gradient)
    assert torch.equal(x.grad, gradient)


@pytest.mark.parametrize("axis", [2, 3, 4])
def test_pools_and_gradients_are_those_of_pytorch(axis: int) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(1, 1, 7, 6, 8, generator=generator, requires_grad=True)
    window = [3 if a == axis else 1 for a in (2, 3, 4)]
    theirs = functional.max_pool3d(x, window, 1, [n // 2 for n in window])
    own = Highest.apply(x, (axis,))
    assert torch.equal(own, theirs)
    gradient = torch.rand(x.shape, generator=generator)
    (one,), (other,) = torch.autograd.grad(own, x, gradient), torch.autograd.grad(theirs, x, gradient)
    torch.testing.assert_close(one, other)
