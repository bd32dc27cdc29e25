"""The network's size, the losses against float64 definitions, the streaming metrics, augmentation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from monai.metrics import compute_dice, compute_iou
from runner_brainunet.augment import Random, augment, curve, mirror, smooth
from runner_brainunet.config import PRESETS, AugmentConfig
from runner_brainunet.losses import bce_loss, dice, dice_loss
from runner_brainunet.network import UNet
from runner_brainunet.project import BrainUNet
from runner_core import BadInput, Progress
from runner_core.engines.torch.memory import MicroBatches
from scipy import ndimage


def count(network: torch.nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    "features, expected",
    [((32, 64, 128, 256, 512), 7_762_465), ((32, 64, 128, 256), 1_926_433), ((8, 16, 32, 64), 121_033)],
)
def test_parameter_counts(features: tuple[int, ...], expected: int) -> None:
    assert count(UNet(1, features)) == expected


def test_every_preset_builds_its_network() -> None:
    for name, preset in PRESETS.items():
        config = preset()
        network = BrainUNet(config).model(precision=None)
        size = 16 if name == "default" else 8
        out = network(torch.zeros(2, config.data.neighbours, size * 2, size * 2))
        assert out.shape == (2, 1, size * 2, size * 2)


@pytest.mark.parametrize("norm", ["batch", "instance", "group"])
def test_norms(norm: str) -> None:
    network = UNet(3, (4, 8), norm).eval()
    out = network(torch.randn(2, 3, 16, 16))
    assert out.shape == (2, 1, 16, 16)
    assert torch.isfinite(out).all()


def test_losses_are_their_definitions() -> None:
    rng = np.random.default_rng(0)
    z, t = rng.normal(size=(3, 1, 5, 7)), rng.integers(0, 2, (3, 1, 5, 7)).astype(float)
    p = 1 / (1 + np.exp(-z))
    logits, target = torch.from_numpy(z), torch.from_numpy(t)
    assert float(bce_loss(logits, target)) == pytest.approx(-np.mean(t * np.log(p) + (1 - t) * np.log(1 - p)))
    assert float(dice_loss(logits, target)) == pytest.approx(1 - (2 * (p * t).sum() + 100) / (p.sum() + t.sum() + 100))
    for loss in (bce_loss, dice_loss):
        assert torch.autograd.gradcheck(lambda x, f=loss: f(x, target), (logits.clone().requires_grad_(),))


def test_dice_over_samples_is_the_mean_of_theirs() -> None:
    z, t = torch.randn(3, 1, 5, 7, dtype=torch.float64), torch.rand(3, 1, 5, 7, dtype=torch.float64) > 0.5
    own = [dice_loss(z[i : i + 1], t[i : i + 1].double()) for i in range(3)]
    torch.testing.assert_close(dice_loss(z, t.double(), "sample"), torch.stack(own).mean())


def accumulating(size: int, norm: str, over: str) -> BrainUNet:
    config = PRESETS["small"]()
    config.model.norm, config.loss.dice_over, config.model.features = norm, over, (4, 8)
    config.train.batch_size, config.train.accumulate = 5, -(-5 // size)
    return BrainUNet(config)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("norm", ["instance", "group"])
def test_micro_batches_learn_what_the_batch_does(norm: str, size: int) -> None:
    """Gradients of 5 slices at once, and of `size` at a time (the last micro-batch is smaller)."""
    torch.manual_seed(0)
    batch = {"image": torch.rand(5, 3, 16, 16), "mask": (torch.rand(5, 1, 16, 16) > 0.6).float()}
    batch["mask"][1] = 0  # a slice without brain
    network = UNet(3, (4, 8), norm)
    found = {}
    for count in (5, size):
        project = accumulating(count, norm, "sample")
        assert project.learning().splittable

        def backward(tensors, progress, share, project=project):
            loss = project.step(network, tensors, progress).loss * share
            loss.backward()
            return {"loss": loss.detach()}

        cpu, config = torch.device("cpu"), project.config.train
        micro = MicroBatches(project, config, network, cpu, backward, network.zero_grad, print)
        assert micro.size == count
        network.zero_grad()
        loss = micro.gradients(batch, 5, Progress(0, 1, 0))["loss"]
        found[count] = [loss, *(p.grad.clone() for p in network.parameters())]
    for whole, parts in zip(found[5], found[size], strict=True):
        torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "norm, over, message",
    [
        ("batch", "sample", r"batch normalisation .* \(set model\.norm instance or group\)$"),
        ("instance", "batch", r"the Dice loss is one over the batch \(set loss\.dice_over sample\)$"),
        ("batch", "batch", r"batch normalisation .*, and the Dice loss"),
    ],
)
def test_accumulation_is_refused_with_the_reason(norm: str, over: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        accumulating(2, norm, over)
    assert not accumulating(5, norm, over).learning().splittable


def test_losses_fall_as_the_prediction_improves() -> None:
    target = torch.zeros(1, 1, 8, 8)
    target[..., 2:6, 2:6] = 1
    for loss in (bce_loss, dice_loss):
        values = [float(loss((2 * target - 1) * s, target)) for s in (-2.0, 0.0, 2.0, 8.0)]
        assert values == sorted(values, reverse=True)


def test_the_batches_dice_is_logged_on_request_and_teaches_nothing() -> None:
    """The same loss and gradients with it; its value is that of all voxels of the batch at the threshold."""
    torch.manual_seed(0)
    logits, mask = torch.randn(5, 1, 8, 8), (torch.rand(5, 1, 8, 8) > 0.6).float()
    mask[0] = 0
    found = {}
    for asked in (False, True):
        config = PRESETS["small"]()
        config.log.batch_dice = asked
        given = logits.clone().requires_grad_()
        step = BrainUNet(config).step(
            lambda image, given=given: given, {"image": mask, "mask": mask}, Progress(0, 1, 0)
        )
        step.loss.backward()
        found[asked] = step.terms, step.loss.item(), given.grad
    assert "batch_dice" not in found[False][0]
    assert found[True][1] == found[False][1]
    assert torch.equal(found[True][2], found[False][2])
    above = torch.sigmoid(logits) > 0.75
    expected = compute_dice(above.flatten()[None, None].float(), mask.flatten()[None, None])
    assert float(found[True][0]["batch_dice"]) == pytest.approx(float(expected))
    nothing = torch.zeros(2, 1, 4, 4, dtype=torch.bool)
    assert float(dice(nothing, nothing)) == 1


def test_the_metrics_are_monais_of_whole_volumes() -> None:
    rng = np.random.default_rng(0)
    truth = {r: rng.random((6, 1, 8, 8)) < 0.4 for r in (0, 3, 7)}
    logits = {r: rng.normal(size=(6, 1, 8, 8)) + t for r, t in truth.items()}
    config = PRESETS["demo"]()
    config.predict.threshold = 0.5  # a logit of 0
    (metric,) = BrainUNet(config).metrics()
    slices = [(r, i) for r in truth for i in range(6)]
    rng.shuffle(slices)
    for part in np.array_split(np.arange(len(slices)), 4):  # batches that mix records
        chosen = [slices[i] for i in part]
        batch = {
            "mask": torch.from_numpy(np.stack([truth[r][i] for r, i in chosen]).astype(np.float32)),
            "record": torch.tensor([r for r, _ in chosen]),
        }
        metric.update(torch.from_numpy(np.stack([logits[r][i] for r, i in chosen])), batch)
        batch["record"].fill_(99)  # the loader reuses its buffers
    whole = [[torch.from_numpy(v.reshape(1, 1, -1)).float() for v in (logits[r] > 0, truth[r])] for r in truth]
    dice = np.mean([float(compute_dice(p, t)) for p, t in whole])
    iou = np.mean([float(compute_iou(p, t)) for p, t in whole])
    assert metric.compute() == pytest.approx({"volume_dice": dice, "volume_iou": iou})
    metric.reset()
    assert np.isnan(metric.compute()["volume_dice"])


def batch(seed: int = 0, size: int = 32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.zeros(6, 1, size, size)
    mask[:, :, 8:24, 10:22] = 1
    image = 0.2 * torch.rand(6, 3, size, size, generator=generator) + 0.5 * mask
    return image, mask, torch.tensor([0, 1, 2, 0, 1, 2], dtype=torch.uint8)


def test_augmentation_is_a_function_of_its_generator() -> None:
    first, again, other = (augment(*batch(), AugmentConfig(), torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])


def test_augmented_batches_keep_their_form() -> None:
    for seed in range(10):
        image, mask = augment(*batch(), AugmentConfig(), torch.Generator().manual_seed(seed))
        assert image.shape == (6, 3, 32, 32)
        assert mask.shape == (6, 1, 32, 32)
        assert 0 <= float(image.min()) <= float(image.max()) <= 1
        assert set(mask.unique().tolist()) <= {0.0, 1.0}


def test_all_parts_off_is_the_identity() -> None:
    off = AugmentConfig(*[0 if not isinstance(v, bool) else False for v in vars(AugmentConfig()).values()])
    image, mask, view = batch()
    out, target = augment(image, mask, view, off, torch.Generator())
    assert torch.allclose(out, image, atol=1e-6)
    assert torch.equal(target, mask)


def test_image_and_mask_move_together() -> None:
    """Geometry alone: where the mask says brain, the picture of the mask is bright."""
    only = AugmentConfig(contrast=0, gamma=0, surround=0, bias=0, gain=0, noise=0, blur=0, decoy=0)
    _, mask, view = batch()
    for seed in range(10):
        image, moved = augment(
            mask.expand(-1, 3, -1, -1).clone(), mask, view, only, torch.Generator().manual_seed(seed)
        )
        assert torch.equal((image[:, 1:2] > 0.5).float(), moved)


def test_decoys_are_never_labelled_brain() -> None:
    only = AugmentConfig(*[0 if not isinstance(v, bool) else False for v in vars(AugmentConfig()).values()])
    only.decoy = 1.0
    image, mask, view = batch()
    emptied = 0
    for seed in range(8):
        out, target = augment(image, mask, view, only, torch.Generator().manual_seed(seed))
        for i in range(6):
            if target[i].sum() == 0:
                emptied += 1
                assert not torch.allclose(out[i], image[i])
            else:
                assert torch.equal(target[i], mask[i])
                assert torch.allclose(out[i][mask[i].expand(3, -1, -1) > 0], image[i][mask[i].expand(3, -1, -1) > 0])
    assert 10 < emptied < 38  # half of the 48


def test_curves_rise_from_black_to_white() -> None:
    ramp = torch.linspace(0, 1, 101).expand(4, 1, 1, 101)
    out = curve(ramp, torch.exp(torch.randn(4, 8, generator=torch.Generator().manual_seed(0))))
    assert (out.diff(dim=3) >= 0).all()
    assert torch.allclose(out[..., 0], torch.zeros(()))
    assert torch.allclose(out[..., -1], torch.ones(()), atol=1e-6)
    assert torch.allclose(curve(ramp, torch.ones(4, 8)), ramp, atol=1e-6)


def test_smooth_is_a_gaussian_filter() -> None:
    image = torch.rand(2, 3, 40, 48, generator=torch.Generator().manual_seed(0))
    out = smooth(image, torch.tensor([1.5, 0.8]), torch.tensor([0.7, 2.0]))
    for i, sigma in enumerate([(0, 1.5, 0.7), (0, 0.8, 2.0)]):
        expected = ndimage.gaussian_filter(image[i].numpy(), sigma, truncate=6)
        assert np.abs(out[i].numpy() - expected)[:, 10:-10, 10:-10].max() < 2e-3


def test_fields_are_smooth_and_of_unit_variance() -> None:
    field = Random(torch.Generator().manual_seed(0), 400, torch.device("cpu")).field(5, (32, 32))
    assert float(field.std()) == pytest.approx(1, abs=0.1)
    assert float(field.diff(dim=3).abs().mean()) < 0.3


def test_mirror_twice_is_nothing() -> None:
    image, mask, view = batch()
    which = torch.tensor([1.0, 1, 1, 0, 0, 0])
    once = mirror(image, mask, view, which)
    twice = mirror(*once, view, which)
    assert torch.equal(twice[0], image)
    assert torch.equal(twice[1], mask)
    assert torch.equal(once[0][3:], image[3:])
    assert torch.equal(once[0][2], image[2].flip(0))  # sagittal: the neighbours change places
    assert torch.equal(once[0][1], image[1].flip(2))
