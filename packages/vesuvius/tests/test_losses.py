"""Each loss against its definition in NumPy, its gradient, and what must hold where nobody annotated."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_vesuvius import losses
from runner_vesuvius.config import LossConfig, TermConfig
from runner_vesuvius.losses import EPSILON, LOSSES
from scipy import ndimage
from torch.utils._python_dispatch import TorchDispatchMode

NAMES = tuple(LOSSES)
CONFIG = LossConfig(positive=3.0, cldice_iterations=2, tau=4.0)
Batch = dict[str, torch.Tensor]


def batch_of(label: np.ndarray) -> Batch:
    """Return what the losses read of labels (B, D, H, W); all known surface is its own medial surface and tube."""
    surface = label == 1
    outside = [ndimage.distance_transform_edt(~s) if s.any() else np.full(s.shape, 15.0) for s in surface]
    inside = [ndimage.distance_transform_edt(s) if not s.all() else np.full(s.shape, 15.0) for s in surface]
    distance = np.where(surface, -np.stack(inside), np.stack(outside))
    arrays = {
        "surface": surface.astype(np.float64), "known": label != 2, "tube": surface, "medial": surface,
        "distance": distance,
    }  # fmt: skip
    return {name: torch.from_numpy(array)[:, None] for name, array in arrays.items()}


def drawn(seed: int, size: tuple[int, ...] = (2, 4, 5, 6), kinds: int = 3) -> tuple[torch.Tensor, Batch]:
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy(rng.normal(0, 2, size))[:, None].requires_grad_()
    return logits, batch_of(rng.integers(0, kinds, size))


def value(name: str, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    return LOSSES[name].function(logits, batch, CONFIG)


def plain(name: str, logits: np.ndarray, batch: dict[str, np.ndarray]) -> float:
    """One sample (D, H, W), by the formula that the docstring gives."""
    known = batch["known"]
    p = 1 / (1 + np.exp(-logits))
    y, s, q, d = batch["surface"][known], batch["tube"][known], p[known], batch["distance"][known]
    if name == "bce":
        return float(-np.mean(CONFIG.positive * y * np.log(q) + (1 - y) * np.log(1 - q)))
    if name == "dice":
        return 1 - (2 * (q * y).sum() + EPSILON) / (q.sum() + y.sum() + EPSILON)
    if name == "skeleton_recall":
        return 1 - ((q * s).sum() + EPSILON) / (s.sum() + EPSILON)
    if name == "boundary":
        return float(np.mean(q * d))
    if name == "surface_distance":
        return float(np.mean(np.minimum(np.maximum(d, 0) / CONFIG.tau, 1) * q))
    skeleton = plain_skeleton(p, known)[known]
    m = batch["medial"][known]
    t = ((skeleton * y).sum() + EPSILON) / (skeleton.sum() + EPSILON)
    u = ((m * q).sum() + EPSILON) / (m.sum() + EPSILON)
    return 1 - 2 * t * u / (t + u)


def plain_skeleton(p: np.ndarray, known: np.ndarray) -> np.ndarray:
    cross, cube = ndimage.generate_binary_structure(3, 1), np.ones((3, 3, 3), bool)
    skeleton = np.zeros_like(p)
    for _ in range(CONFIG.cldice_iterations + 1):
        smaller = ndimage.grey_erosion(np.where(known, p, np.inf), footprint=cross, mode="constant", cval=np.inf)
        opened = ndimage.grey_dilation(np.where(known, smaller, -np.inf), footprint=cube, mode="constant", cval=-np.inf)
        taken = np.maximum(np.where(known, p, 0) - np.where(known, opened, 0), 0)
        skeleton += np.maximum(taken - skeleton * taken, 0)
        p = smaller
    return skeleton


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_value_is_the_mean_of_the_samples_by_definition(name: str, seed: int) -> None:
    logits, batch = drawn(seed)
    arrays = [{key: tensor[i, 0].numpy() for key, tensor in batch.items()} for i in range(2)]
    expected = np.mean([plain(name, logits[i, 0].detach().numpy(), arrays[i]) for i in range(2)])
    assert value(name, logits, batch).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kinds", [2, 3])
def test_gradient_by_finite_differences(name: str, kinds: int) -> None:
    """All voxels are annotated, or a third are not."""
    logits, batch = drawn(7, (2, 3, 4, 3), kinds)
    assert torch.autograd.gradcheck(lambda z: value(name, z, batch), (logits,))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), there=st.sampled_from([-np.inf, -1e4, -50.0, 50.0, 1e4, np.inf, np.nan]))
def test_what_is_not_annotated_changes_nothing(name: str, seed: int, there: float) -> None:
    logits, batch = drawn(seed)
    before = value(name, logits, batch)
    (gradient,) = torch.autograd.grad(before, logits)
    assert not gradient[~batch["known"]].any()
    changed = logits.detach().masked_fill(~batch["known"], there).requires_grad_()
    after = value(name, changed, batch)
    assert torch.equal(after, before)
    assert torch.equal(torch.autograd.grad(after, changed)[0], gradient)


@pytest.mark.parametrize("name", NAMES)
def test_a_sample_without_annotation_costs_nothing(name: str) -> None:
    logits, batch = drawn(3)
    batch = {key: tensor.clone() for key, tensor in batch.items()}
    batch["known"][1] = False
    batch["surface"][1] = 0
    both = value(name, logits, batch)
    first = value(name, logits[:1], {key: tensor[:1] for key, tensor in batch.items()})
    torch.testing.assert_close(both, first / 2)
    (gradient,) = torch.autograd.grad(both, logits)
    assert gradient[0].any()
    assert not gradient[1].any()
    alone = value(name, logits[1:], {key: tensor[1:] for key, tensor in batch.items()})
    assert alone.item() == 0
    assert not torch.autograd.grad(alone, logits)[0].any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("parts", [(1, 1, 1, 1), (2, 2)])
def test_micro_batches_keep_the_objective(name: str, parts: tuple[int, ...]) -> None:
    """The mean over equal parts is the whole's, value and gradient."""
    logits, batch = drawn(11, (4, 4, 5, 4))
    batch["known"][2] = False
    batch["surface"][2] = 0
    whole = value(name, logits, batch)
    split = zip(*(tensor.split(parts) for tensor in batch.values()), strict=True)
    cut = [dict(zip(batch, own, strict=True)) for own in split]
    pieces = [value(name, z, own) for z, own in zip(logits.split(parts), cut, strict=True)]
    summed = sum(piece / len(parts) for piece in pieces)
    torch.testing.assert_close(summed, whole, rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.autograd.grad(summed, logits)[0], torch.autograd.grad(whole, logits)[0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("surface", [True, False])
def test_extreme_logits_stay_finite(name: str, dtype: torch.dtype, surface: bool) -> None:
    label = np.random.default_rng(0).integers(0, 3 if surface else 1, (1, 5, 6, 7))
    for sign in (50.0, -50.0):
        wrong = torch.from_numpy(np.where(label == 1, -sign, sign))[:, None].to(dtype).requires_grad_()
        loss = value(name, wrong, batch_of(label))
        assert loss.isfinite()
        assert torch.autograd.grad(loss, wrong)[0].isfinite().all()


def test_half_precision_is_summed_in_float32() -> None:
    """Over more voxels than float16 counts to."""
    logits = torch.zeros(1, 1, 50, 50, 50, dtype=torch.float16)
    batch = batch_of(np.indices((1, 50, 50, 50)).sum(0) % 2)
    for name in ("bce", "dice", "skeleton_recall"):
        found = value(name, logits, batch)
        torch.testing.assert_close(found, value(name, logits.double(), batch), check_dtype=False)


# ------------------------------------------------------------ which way each loss pulls


def sheet() -> np.ndarray:
    """(1, 12, 16, 16): one sheet, two voxels thick, the last rows not annotated."""
    label = np.zeros((1, 12, 16, 16), np.int64)
    label[:, 5:7] = 1
    label[:, :, 13:] = 2
    return label


def scene(kind: str) -> torch.Tensor:
    """Logits of a prediction with one fault."""
    p = np.full((1, 12, 16, 16), 0.02)
    p[:, 5:7] = 0.98
    if kind == "missed sheet":
        p[:] = 0.02
    elif kind == "blob":
        p[:, 9:12, 2:6, 2:6] = 0.95
    elif kind == "gap":
        p[:, :, 6:9, 6:9] = 0.02
    return torch.from_numpy(np.log(p / (1 - p)))[:, None].requires_grad_()


RAISES = {"bce", "dice", "skeleton_recall", "cldice", "boundary"}
LOWERS = {"bce", "dice", "boundary", "surface_distance"}


def descent(name: str, kind: str) -> tuple[torch.Tensor, np.ndarray]:
    """−gradient (D, H, W) of a loss at a scene, and the label."""
    logits, label = scene(kind), sheet()
    batch = batch_of(label)
    batch["medial"] = batch["tube"] & (torch.arange(12) == 5)[None, None, :, None, None]
    (gradient,) = torch.autograd.grad(value(name, logits, batch), logits)
    return -gradient[0, 0], label[0]


@pytest.mark.parametrize("kind", ["right", "missed sheet", "blob", "gap"])
@pytest.mark.parametrize("name", NAMES)
def test_no_step_goes_against_the_label(name: str, kind: str) -> None:
    """clDice, through its openings, may thicken what lies beside the surface: but not more than it takes away."""
    down, label = descent(name, kind)
    background = down[label == 0]
    assert (background if name != "cldice" else background.sum()).max() <= 1e-15
    assert down[label == 1].min() >= -1e-15
    assert not down[label == 2].any()


@pytest.mark.parametrize("kind", ["missed sheet", "gap"])
@pytest.mark.parametrize("name", sorted(RAISES))
def test_a_missed_surface_is_raised(name: str, kind: str) -> None:
    down, label = descent(name, kind)
    missed = (scene(kind)[0, 0].detach() < 0).numpy() & (label == 1)
    if name == "cldice":  # of the sheet, its medial surface
        missed[np.arange(12) != 5] = False
    assert missed.any()
    assert (down[missed] > 0).all()


@pytest.mark.parametrize("name", sorted(LOWERS))
def test_a_spurious_blob_is_lowered(name: str) -> None:
    down, _ = descent(name, "blob")
    assert (down[9:12, 2:6, 2:6] < 0).all()


def test_cldice_lowers_a_spurious_blob() -> None:
    """Through the voxels of its skeleton."""
    down, _ = descent("cldice", "blob")
    assert down[9:12, 2:6, 2:6].sum() < 0
    assert (down[9:12, 2:6, 2:6] <= 0).all()


@pytest.mark.parametrize("name", ["skeleton_recall", "cldice"])
def test_a_gap_costs_what_it_measures_along_the_sheet(name: str) -> None:
    right, gap, missed = (value(name, scene(kind), batch_of(sheet())) for kind in ("right", "gap", "missed sheet"))
    assert right < gap < missed


def test_farther_pulls_harder() -> None:
    for name in ("boundary", "surface_distance"):
        down, label = descent(name, "missed sheet")
        beside = -down[7:11, 4, 4]
        assert (beside.diff() > 0).all()
        assert beside[0] > 0
    assert not down[label == 1].any()  # of the surface itself, surface_distance says nothing


@pytest.mark.parametrize("name", sorted(RAISES | LOWERS))
def test_steps_lower_the_loss(name: str) -> None:
    logits, batch = scene("missed sheet" if name in RAISES else "blob"), batch_of(sheet())
    before = value(name, logits, batch)
    (gradient,) = torch.autograd.grad(before, logits)
    after = value(name, logits - gradient / gradient.abs().max(), batch)
    assert after < before


# ------------------------------------------------------------ others' implementations


def test_monai_has_the_same_dice_and_cldice() -> None:
    """All voxels are known; MONAI's clDice makes the skeleton of the truth by itself."""
    from monai.losses import DiceLoss, SoftclDiceLoss
    from monai.losses.cldice import soft_skel

    logits, batch = drawn(5, (1, 8, 9, 10), kinds=2)
    theirs = DiceLoss(sigmoid=True, smooth_nr=EPSILON, smooth_dr=EPSILON)(logits, batch["surface"])
    torch.testing.assert_close(value("dice", logits, batch), theirs)
    thick = torch.zeros_like(batch["surface"])
    thick[:, :, 2:7, 1:8] = 1
    batch |= {"surface": thick, "medial": soft_skel(thick, CONFIG.cldice_iterations) > 0}
    peer = SoftclDiceLoss(iter_=CONFIG.cldice_iterations, sigmoid=True, smooth=1e-14)
    theirs = peer(input=logits, target=thick)
    own = value("cldice", logits, batch)
    torch.testing.assert_close(own, theirs)
    torch.testing.assert_close(torch.autograd.grad(own, logits)[0], torch.autograd.grad(theirs, logits)[0])


def test_pytorch_has_the_same_cross_entropy() -> None:
    logits, batch = drawn(6, kinds=2)
    theirs = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, batch["surface"], pos_weight=torch.tensor(CONFIG.positive)
    )
    torch.testing.assert_close(value("bce", logits, batch), theirs)


# ------------------------------------------------------------ the rest


class Named(TorchDispatchMode):
    """The names of PyTorch's own operations within."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.add(function.__name__.partition(".")[0])
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", NAMES)
def test_sums_have_an_order_on_a_gpu(name: str) -> None:
    """Nothing of what `torch.use_deterministic_algorithms` refuses on CUDA."""
    logits, batch = drawn(0)
    with Named() as own:
        value(name, logits, batch).backward()
    unordered = {"max_pool3d_with_indices_backward", "avg_pool3d_backward", "scatter_add", "index_put_", "cumsum"}
    assert own.names & unordered == set()


def test_every_loss_of_the_settings_is_there() -> None:

    assert set(LOSSES) == set(LossConfig().terms()) - {"topology"}


@pytest.mark.parametrize(
    "begin, full, expected",
    [
        (0.0, 0.0, [2, 2, 2, 2, 2]),
        (0.5, 0.0, [0, 0, 2, 2, 2]),
        (0.5, 0.5, [0, 0, 2, 2, 2]),
        (0.25, 0.75, [0, 0, 1, 2, 2]),
        (0.0, 1.0, [0, 0.5, 1, 1.5, 2]),
        (1.0, 1.0, [0, 0, 0, 0, 2]),
    ],
)
def test_weights_rise_as_the_settings_say(begin: float, full: float, expected: list[float]) -> None:
    term = TermConfig(2.0, begin, full)
    assert [term.weight_at(fraction) for fraction in (0.0, 0.25, 0.5, 0.75, 1.0)] == expected


def test_functions_that_take_what_they_need() -> None:
    """Called by themselves, without the table."""
    logits, b = drawn(9)
    calls: list[tuple[str, Callable[[], torch.Tensor]]] = [
        ("bce", lambda: losses.weighted_bce(logits, b["surface"], b["known"], CONFIG.positive)),
        ("dice", lambda: losses.soft_dice(logits, b["surface"], b["known"])),
        ("skeleton_recall", lambda: losses.skeleton_recall(logits, b["tube"], b["known"])),
        ("cldice", lambda: losses.soft_cldice(logits, b["surface"], b["medial"], b["known"], 2)),
        ("boundary", lambda: losses.boundary(logits, b["distance"], b["known"])),
        ("surface_distance", lambda: losses.surface_distance(logits, b["distance"], b["known"], CONFIG.tau)),
    ]
    for name, call in calls:
        assert torch.equal(call(), value(name, logits, b)), name
