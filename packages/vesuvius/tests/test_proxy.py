"""The proxy: its values by definition, whatever the batches, and how well it follows the official score."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from runner_vesuvius.metric import score
from runner_vesuvius.phantom import make_scrolls, make_volume
from runner_vesuvius.proxy import Proxy, plain
from scipy import ndimage, stats


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def make_batch(rng, shape=(5, 1, 9, 10, 13)):
    surface = ndimage.gaussian_filter(rng.random(shape), (0, 0, 1, 1, 1)) > 0.52
    known = ndimage.gaussian_filter(rng.random(shape), (0, 0, 2, 2, 2)) > 0.48
    batch = {"surface": surface.astype(np.float32), "known": known, "tube": surface & (rng.random(shape) < 0.5)}
    return (rng.standard_normal(shape) + 2 * surface - 1).astype(np.float32), batch


def computed(prediction, batch, sizes, cut=0.0):
    metric = Proxy(cut)
    begin = 0
    for size in sizes:
        part = {name: torch.from_numpy(array[begin : begin + size]) for name, array in batch.items()}
        metric.update(torch.from_numpy(prediction[begin : begin + size]), part)
        begin += size
    return metric.compute()


@pytest.mark.parametrize("cut", [0.0, 0.7])
def test_by_definition_whatever_the_batches(rng, cut):
    prediction, batch = make_batch(rng)
    expected = plain(prediction, batch, cut)
    for sizes in ((5,), (1, 1, 1, 1, 1), (2, 3)):
        assert computed(prediction, batch, sizes, cut) == expected
    assert all(0 < value < 1 for value in expected.values())
    assert expected["proxy"] == pytest.approx(np.mean([expected[k] for k in ("dice", "surface_dice", "euler")]))


def test_perfect_and_empty(rng):
    _, batch = make_batch(rng)
    perfect = computed(batch["surface"] - 0.5, batch, (5,))
    assert perfect == dict.fromkeys(["dice", "surface_dice", "euler", "skeleton_recall", "proxy"], 1.0)
    missed = computed(batch["surface"] * 0 - 1, batch, (5,))
    assert missed == dict.fromkeys(perfect, 0.0)
    nothing = {name: array * 0 for name, array in batch.items()} | {"known": batch["known"]}
    nothing = {name: array.astype(batch[name].dtype) for name, array in nothing.items()}
    assert computed(batch["surface"] * 0 - 1, nothing, (5,)) == dict.fromkeys(perfect, 1.0)


def test_what_is_not_annotated_counts_in_nothing(rng):
    prediction, batch = make_batch(rng)
    expected = computed(prediction, batch, (5,))
    unknown = ~batch["known"]
    prediction[unknown] = rng.standard_normal(int(unknown.sum()))
    batch["surface"][unknown] = 1
    assert computed(prediction, batch, (5,)) == expected


def test_the_border_of_what_is_annotated_is_no_surface():
    """A sheet that goes on beyond: only its faces are surface, on both sides of the border alike."""
    surface = np.zeros((1, 1, 12, 12, 12), np.float32)
    surface[:, :, 5:7] = 1
    known = np.ones(surface.shape, bool)
    known[..., 6:] = False
    wrong = surface - 0.5
    wrong[..., 4:6] = -1  # the last two known columns are missed
    values = computed(wrong, {"surface": surface, "known": known}, (1,))
    assert values["surface_dice"] == 1  # what is missed is within 2 voxels, and nothing else is new
    assert "skeleton_recall" not in values


def test_before_the_first_batch():
    assert np.isnan(list(Proxy().compute().values())).all()


def test_reset(rng):
    prediction, batch = make_batch(rng)
    metric = Proxy()
    tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
    metric.update(torch.from_numpy(-prediction), tensors)
    metric.reset()
    metric.update(torch.from_numpy(prediction), tensors)
    assert metric.compute() == plain(prediction, batch)


def degraded(truth, rng):
    """Logits of predictions that are wrong in one way each, a little or a lot."""

    def field(scale):
        values = ndimage.gaussian_filter(rng.standard_normal(truth.shape), scale)
        return values / values.std()

    def most(values, share):
        return values > np.quantile(values, 1 - share)

    surface = truth == 1
    near = np.where(surface, ndimage.distance_transform_edt(surface), -ndimage.distance_transform_edt(~surface))
    near -= np.sign(near) * 0.5
    for shift in (-1.2, -0.6, 0.4, 1, 2):
        yield near + shift
    for share in (0.02, 0.1, 0.3, 0.6):
        yield np.where(most(field(3), share), -1, near)  # holes
    for share in (0.002, 0.01, 0.04):
        yield np.where(most(field(2.5), share), 1, near)  # bridges
        yield np.where(most(field(1), share), 1, near)  # specks
    for strength in (0.3, 0.6, 1, 1.5):
        yield near + strength * field(0.7)
        yield near + strength * field(3)
    for scale in (1, 2, 3):
        yield ndimage.gaussian_filter(surface.astype(float), scale) - 0.4
    for steps in (1, 2, 4):
        yield np.roll(near, steps, 0)
    sheets, count = ndimage.label(surface, np.ones((3, 3, 3)))
    for share in (0.2, 0.5, 0.8):
        yield np.where((rng.random(count + 1) < share)[sheets] & surface, -1, near)
    yield np.full(truth.shape, -1.0)
    yield np.full(truth.shape, 1.0)


def test_follows_the_official_score():
    """Spearman's correlation over predictions of a phantom, the proxy in patches as training sees them."""
    rng = np.random.default_rng(0)
    official, stand_in = [], []
    for rolling, scan in make_scrolls(1, rng):
        truth = make_volume(rolling, scan, (64, 64, 64), rng)[1]
        for logits in degraded(truth, rng):
            official.append(score(logits > 0, truth).score)
            patches = [
                volume.reshape(2, 32, 2, 32, 2, 32).transpose(0, 2, 4, 1, 3, 5).reshape(8, 1, 32, 32, 32)
                for volume in (logits, truth)
            ]
            batch = {"surface": (patches[1] == 1).astype(np.float32), "known": patches[1] != 2}
            stand_in.append(computed(patches[0], batch, (8,))["proxy"])
    correlation = stats.spearmanr(official, stand_in).statistic
    assert correlation > 0.9
