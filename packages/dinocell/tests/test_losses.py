"""The losses and targets against their definitions, written out in loops in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_dinocell import losses, targets
from runner_dinocell.config import LossConfig
from runner_dinocell.targets import Centring, Targets, centred, sinkhorn
from torch import Tensor
from torch.nn import functional

Array = np.ndarray[Any, np.dtype[np.float64]]
STUDENT, TEACHER = 0.1, 0.05


def random(*shape: int, seed: int = 0, scale: float = 0.3) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ------------------------------------------------------------ definitions


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max())
    return e / e.sum()


def entropy(p: Array, logits: Array, temperature: float) -> float:
    """−Σ p ln softmax(logits / temperature)."""
    return float(-sum(a * math.log(b) for a, b in zip(p, softmax(logits / temperature), strict=True)))


def sinkhorn_loop(logits: Array, temperature: float) -> Array:
    """Three rounds on a matrix (prototypes, samples), with all the divisions."""
    q = np.exp(logits / temperature).T
    q = q / q.sum()
    prototypes, samples = q.shape
    for _ in range(3):
        for row in range(prototypes):
            q[row] /= q[row].sum() * prototypes
        for column in range(samples):
            q[:, column] /= q[:, column].sum() * samples
    return (q * samples).T


def dino_loop(global_logits: Array, local_logits: Array, p: Array) -> float:
    images = len(global_logits) // 2
    locals_ = len(local_logits) // images
    total = 0.0
    for teacher in range(2):
        for student in range(2 + locals_):
            if student == teacher:
                continue
            of_pair = 0.0
            for b in range(images):
                crop = global_logits[student * images + b] if student < 2 else local_logits[(student - 2) * images + b]
                of_pair += entropy(p[teacher * images + b], crop, STUDENT)
            total += of_pair / images
    return total / (2 + 2 * locals_)


def ibot_loop(masked_logits: Array, p: Array, mask: Array) -> float:
    """`mask` (crops, T); masked patches row by row."""
    total, at = 0.0, 0
    for crop in mask:
        of_crop = 0.0
        for hidden in crop:
            if hidden:
                of_crop += entropy(p[at], masked_logits[at], STUDENT)
                at += 1
        total += of_crop / max(1, crop.sum())
    return total / len(mask)


def koleo_loop(features: Array) -> float:
    rows = [f / np.linalg.norm(f) for f in features]
    nearest = [min(np.linalg.norm(a - b) for j, b in enumerate(rows) if j != i) for i, a in enumerate(rows)]
    return float(-np.mean([math.log(d + losses.EPSILON) for d in nearest]))


# ------------------------------------------------------------ targets


@pytest.fixture(autouse=True, params=[2**18, 40])
def part(request, monkeypatch) -> None:
    """At once, and in many parts."""
    monkeypatch.setitem(targets.PART, "cpu", request.param)


def whole(made: Targets) -> Tensor:
    return made.at(slice(None))


@given(samples=st.integers(1, 12), prototypes=st.integers(2, 20), temperature=st.floats(0.04, 1.0))
@settings(deadline=None, max_examples=30)
def test_sinkhorn_is_what_the_loop_makes(samples, prototypes, temperature) -> None:
    logits = random(samples, prototypes, seed=samples + prototypes)
    made = whole(sinkhorn(logits, temperature))
    np.testing.assert_allclose(made, sinkhorn_loop(logits.numpy(), temperature), rtol=1e-9, atol=1e-300)


def test_sinkhorn_survives_logits_whose_exponentials_do_not() -> None:
    logits = 50 * random(6, 9).float()
    made = whole(sinkhorn(logits, 0.04))
    assert made.isfinite().all()
    torch.testing.assert_close(made.sum(1), torch.ones(6), rtol=1e-3, atol=1e-3)


def test_centred_targets_are_softmaxes_of_logits_less_the_centre() -> None:
    logits, centre = random(5, 7), random(7, seed=1)
    expected = [softmax(row) for row in ((logits - centre) / TEACHER).numpy()]
    np.testing.assert_allclose(whole(centred(logits, centre, TEACHER)), expected, rtol=1e-10)


def test_the_centre_follows_the_mean_of_batches_before() -> None:
    centring = Centring(LossConfig(centring="centre", centre_momentum=0.75), 7).double()
    expected = np.zeros(7)
    for batch in range(3):
        logits = random(5, 7, seed=batch) + batch
        made = centring(logits, TEACHER)
        torch.testing.assert_close(whole(made), whole(centred(logits, torch.from_numpy(expected), TEACHER)))
        expected = 0.75 * expected + 0.25 * logits.numpy().mean(0)
        np.testing.assert_allclose(centring.centre, expected)
    centring.eval()(random(5, 7), TEACHER)
    centring.train()(random(0, 7), TEACHER)
    np.testing.assert_allclose(centring.centre, expected)  # neither validation nor a batch without patches moves it
    assert list(centring.state_dict()) == ["centre"]
    assert not Centring(LossConfig(), 7).state_dict()


def test_no_patches_have_no_targets() -> None:
    for made in (sinkhorn(random(0, 7), TEACHER), centred(random(0, 7), torch.zeros(7), TEACHER)):
        assert whole(made).shape == (0, 7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_targets_of_halves_are_computed_in_float32(dtype) -> None:
    logits = random(6, 9).to(dtype)
    made = sinkhorn(logits, TEACHER)
    assert made.logits.data_ptr() == logits.data_ptr()  # not copied
    assert whole(made).dtype == torch.float32
    torch.testing.assert_close(whole(made), whole(sinkhorn(logits.double(), TEACHER)).float(), rtol=1e-4, atol=1e-6)


# ------------------------------------------------------------ losses


@given(images=st.integers(1, 5), crops=st.integers(0, 3), prototypes=st.integers(2, 9))
@settings(deadline=None, max_examples=25)
def test_dino_is_the_mean_over_all_pairs_of_crops(images, crops, prototypes) -> None:
    globals_, locals_ = random(2 * images, prototypes), random(crops * images, prototypes, seed=1)
    made = sinkhorn(random(2 * images, prototypes, seed=2), TEACHER)
    expected = dino_loop(globals_.numpy(), locals_.numpy(), whole(made).numpy())
    assert float(losses.dino(globals_, locals_, made, STUDENT)) == pytest.approx(expected, rel=1e-10)


@given(crops=st.integers(1, 5), patches=st.integers(1, 8), prototypes=st.integers(2, 9), seed=st.integers(0, 9))
@settings(deadline=None, max_examples=25)
def test_ibot_counts_every_masked_crop_alike(crops, patches, prototypes, seed) -> None:
    mask = random(crops, patches, seed=seed) > 0
    index = mask.flatten().nonzero()[:, 0]
    student, teacher = random(len(index), prototypes), random(len(index), prototypes, seed=1)
    made = sinkhorn(teacher, TEACHER)
    value = losses.ibot(student, made, STUDENT, losses.patch_weights(mask, index), crops)
    expected = ibot_loop(student.numpy(), whole(made).numpy(), mask.numpy())
    assert float(value) == pytest.approx(expected, rel=1e-6)


def test_what_knows_nothing_loses_the_logarithm_of_the_prototypes() -> None:
    flat, mask = torch.zeros(4, 16), torch.tensor([[True, False], [False, False]])
    assert float(losses.dino(flat, torch.zeros(6, 16), sinkhorn(random(4, 16), TEACHER), 0.1)) == pytest.approx(
        math.log(16)
    )
    weights = losses.patch_weights(mask, torch.tensor([0]))
    value = losses.ibot(flat[:1], sinkhorn(random(1, 16), TEACHER), STUDENT, weights, len(mask))
    assert float(value) == pytest.approx(math.log(16) / 2)


@given(count=st.integers(2, 12), width=st.integers(1, 6), seed=st.integers(0, 9))
@settings(deadline=None, max_examples=40)
def test_koleo_is_the_logarithm_of_the_nearest_distance(count, width, seed) -> None:
    features = random(count, width, seed=seed)
    assert float(losses.koleo(features)) == pytest.approx(koleo_loop(features.numpy()), rel=1e-6, abs=1e-6)


def test_one_image_has_no_neighbour() -> None:
    features = random(1, 4).requires_grad_()
    losses.koleo(features).backward()
    assert torch.equal(features.grad, torch.zeros_like(features))


@pytest.mark.parametrize(("count", "others"), [(2, 0), (2, 5), (8, 0)])
def test_koleo_pushes_equal_embeddings_apart(count, others) -> None:
    features = torch.cat([random(1, 16).expand(count, 16), random(others, 16, seed=1)]).requires_grad_()
    value = losses.koleo(features)
    assert value.item() == pytest.approx(koleo_loop(features.detach().numpy()), rel=1e-6)
    value.backward()
    assert 1 < features.grad.norm(dim=1)[:count].max() < 1000  # as at a small distance: it drowns no other loss
    moved = functional.normalize((features - 1e-3 * features.grad).detach(), dim=1)[:count]
    assert torch.pdist(moved).min() > 1e-3


def test_gradients_are_those_of_finite_differences() -> None:
    globals_, locals_, features = random(4, 6).requires_grad_(), random(6, 6, seed=1).requires_grad_(), random(5, 3)
    made, mask = sinkhorn(random(4, 6, seed=2), TEACHER), torch.tensor([[True, True], [False, False], [True, True]])
    weights = losses.patch_weights(mask, mask.flatten().nonzero()[:, 0]).double()
    assert torch.autograd.gradcheck(lambda a, b: losses.dino(a, b, made, STUDENT), (globals_, locals_))
    assert torch.autograd.gradcheck(lambda a: losses.ibot(a, made, STUDENT, weights, 3), globals_)
    assert torch.autograd.gradcheck(losses.koleo, features.requires_grad_())


def test_under_autocast_losses_and_gradients_are_those_of_float32() -> None:
    globals_, locals_, teacher = random(8, 300), random(8, 300, seed=1), random(8, 300, seed=2)
    results = []
    for dtype in (torch.float64, torch.bfloat16):
        crops = [z.bfloat16().to(dtype).requires_grad_() for z in (globals_, locals_, random(8, 40, seed=3))]
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            made = sinkhorn(teacher.bfloat16().to(dtype), TEACHER)
            value = losses.dino(crops[0], crops[1], made, STUDENT) + losses.koleo(crops[2])
        value.backward()
        results.append((value.double(), [crop.grad.double() for crop in crops]))
    (expected, exact), (value, found) = results
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2 * float(other.abs().max()))
