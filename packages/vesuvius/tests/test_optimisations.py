"""An optimisation that is switched off computes the same in another way, or at another time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_core import Progress
from runner_vesuvius.batches import decoded, on_device, signed, stored
from runner_vesuvius.config import LossConfig, TermConfig, demo
from runner_vesuvius.instep import computed
from runner_vesuvius.losses import LOSSES
from runner_vesuvius.phantom import make_scrolls, make_volume
from runner_vesuvius.project import Vesuvius
from runner_vesuvius.skeleton import pooled_skeleton, soft_skeleton
from runner_vesuvius.targets import prepare
from torch import Tensor, nn

ALL = {"tube", "medial", "distance"}


@pytest.fixture(scope="module")
def label() -> np.ndarray:
    """Return a label of a phantom scroll, (24, 32, 32): torn sheets, and voxels that nobody annotated."""
    rng = np.random.default_rng(0)
    ((rolling, scan),) = make_scrolls(1, rng)
    return np.ascontiguousarray(make_volume(rolling, scan, (72, 80, 80), rng)[1][24:48, 24:56, 24:56])


def cached(label: np.ndarray, tube: int = 1) -> dict[str, Tensor]:
    """Return what the losses read of a whole volume."""
    made = prepare(label, tube)
    target, distance = (torch.from_numpy(made[name])[None, None] for name in ("target", "distance"))
    return decoded(target, ALL) | {"distance": signed(distance, target)}


@pytest.mark.parametrize("tube", [0, 1, 2])
def test_a_patch_that_is_the_whole_volume_has_its_targets(label: np.ndarray, tube: int) -> None:
    expected = cached(label, tube)
    found = computed({"surface": expected["surface"], "known": expected["known"]}, ALL, tube)
    assert set(found) == ALL
    for name, tensor in found.items():
        assert tensor.dtype == expected[name].dtype
        torch.testing.assert_close(tensor, expected[name], rtol=1e-6, atol=1e-6)


def test_only_what_is_wanted_is_computed_and_empty_patches_are_far_from_everything() -> None:
    nothing = {"surface": torch.zeros(2, 1, 4, 5, 6), "known": torch.ones(2, 1, 4, 5, 6, dtype=torch.bool)}
    found = computed(nothing, {"distance"}, 1)
    assert set(found) == {"distance"}
    assert (found["distance"] == 255**0.5).all()
    full = computed({**nothing, "surface": torch.ones(2, 1, 4, 5, 6)}, {"distance", "tube"}, 1)
    assert (full["distance"] == -(255**0.5)).all()
    assert full["tube"].shape == (2, 1, 4, 5, 6)


class Answer(nn.Module):
    """A network that returns the same logits, whatever its input is."""

    def __init__(self, size: tuple[int, ...]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.randn(size, generator=torch.Generator().manual_seed(0)))

    def forward(self, image: Tensor) -> list[Tensor]:
        return [self.logits]


def test_a_step_learns_the_same_from_targets_of_its_own(label: np.ndarray) -> None:
    """Loss and gradient of a patch that is the whole volume, with every loss that reads a target, are equal."""
    config = demo()
    for name in ("cldice", "boundary", "surface_distance"):
        setattr(config.loss, name, TermConfig(0.5))
    made = prepare(label, config.data.tube)
    batch = {"image": torch.from_numpy(label)[None].clone()}
    batch |= {name: torch.from_numpy(made[name])[None] for name in ("target", "distance")}
    found = []
    for way in ("cached", "step"):
        config.loss.targets = way  # type: ignore[assignment]
        project, network = Vesuvius(config), Answer((1, 1, *label.shape))
        tensors = on_device(batch, {"mean": 1.0, "std": 1.0}, config, None)
        assert ("tube" in tensors) == (way == "cached")
        step = project.step(network, tensors, Progress(0, 10, 0))
        found.append((step.loss.detach(), torch.autograd.grad(step.loss, network.logits)[0]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)


def test_the_loader_leaves_the_distances_alone_that_a_step_computes() -> None:
    loss = LossConfig(boundary=TermConfig(1.0))
    assert stored(loss) == {"tube", "distance"}
    loss.targets = "step"
    assert stored(loss) == set()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 4), st.tuples(*[st.integers(1, 9)] * 3))
def test_pooled_skeletons_are_the_same(seed: int, iterations: int, size: tuple[int, int, int]) -> None:
    """The gradient is the same too, if no two voxels are equal."""
    rng = np.random.default_rng(seed)
    p = torch.from_numpy(rng.random(size))[None, None].requires_grad_()
    known = torch.from_numpy(rng.random(size) < 0.8)[None, None]
    one, other = soft_skeleton(p, known, iterations), pooled_skeleton(p, known, iterations)
    torch.testing.assert_close(one, other)
    weights = torch.from_numpy(rng.normal(size=(1, 1, *size)))
    gradients = [torch.autograd.grad((found * weights).sum(), p)[0] for found in (one, other)]
    torch.testing.assert_close(*gradients)


def test_pooled_cldice_is_cldice_with_the_soft_skeleton_of_the_truth(label: np.ndarray) -> None:
    batch = cached(label)
    own = pooled_skeleton(batch["surface"], batch["known"], 3)
    drawn = torch.Generator().manual_seed(0)
    logits = torch.randn(batch["surface"].shape, generator=drawn).requires_grad_()
    losses = []
    for way in ("shifts", "pools"):
        config = LossConfig(cldice_skeleton=way)  # type: ignore[arg-type]
        value = LOSSES["cldice"].function(logits, batch | {"medial": own > 0}, config)
        losses.append((value.detach(), torch.autograd.grad(value, logits)[0]))
    for one, other in zip(*losses, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)
