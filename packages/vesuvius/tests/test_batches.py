"""From stored volumes to batches: what the losses read, exactly as it was stored, with nothing random but rng."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from runner_core import Tensors
from runner_vesuvius.batches import needed, on_device, unscaled
from runner_vesuvius.config import AugmentConfig, ScrollConfig, TermConfig, demo
from runner_vesuvius.targets import prepare

STATISTICS = {"mean": 100.0, "std": 40.0}
SIZE = (12, 14, 14)
PLAIN = AugmentConfig(
    rotate90=True, brightness=0, contrast=0, gamma=0, noise=0, blur=0, low_resolution=0, affine=0, elastic=0
)


def settings(*names: str, augment: AugmentConfig | None = None) -> ScrollConfig:
    """Default settings with these losses beside."""
    config = demo()
    for name in names:
        setattr(config.loss, name, TermConfig(1.0))
    config.augment = augment or AugmentConfig()
    return config


def stored(count: int = 2) -> tuple[Tensors, np.ndarray]:
    """Return a batch as the cache holds it, and the labels."""
    rng = np.random.default_rng(0)
    label = rng.choice(np.arange(3, dtype=np.uint8), (count, *SIZE), p=[0.6, 0.3, 0.1])
    label[:, 4:6] = 1
    made = [prepare(one, 1) for one in label]
    batch = {name: torch.from_numpy(np.stack([m[name] for m in made])) for name in ("target", "distance")}
    batch["image"] = torch.from_numpy(rng.integers(0, 256, (count, *SIZE), dtype=np.uint8))
    return batch | {"record": torch.arange(count)}, label


ALL = ("cldice", "boundary", "surface_distance")


def test_every_part_is_decoded() -> None:
    batch, label = stored()
    out = on_device(batch, STATISTICS, settings(*ALL), None)
    assert {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in out.items()} == {
        "image": (torch.float32, (2, 1, *SIZE)),
        "surface": (torch.float32, (2, 1, *SIZE)),
        "distance": (torch.float32, (2, 1, *SIZE)),
        "known": (torch.bool, (2, 1, *SIZE)),
        "tube": (torch.bool, (2, 1, *SIZE)),
        "medial": (torch.bool, (2, 1, *SIZE)),
        "record": (torch.int64, (2,)),
    }
    torch.testing.assert_close(out["image"][:, 0], (batch["image"].float() - 100) / 40)
    assert np.array_equal(out["surface"][:, 0].numpy(), label == 1)
    assert np.array_equal(out["known"][:, 0].numpy(), label != 2)
    assert (out["tube"] | ~out["medial"]).all()
    assert (out["distance"][:, 0].numpy()[label == 1] < 0).all()
    assert (out["distance"][:, 0].numpy()[label != 1] > 0).all()
    assert np.array_equal(out["distance"].square().round()[:, 0].numpy(), batch["distance"].numpy())


def test_only_what_the_losses_read_is_made() -> None:
    batch, _ = stored()
    assert set(on_device(batch, STATISTICS, settings(), None)) == {"image", "surface", "known", "tube", "record"}
    plain = settings()
    plain.loss.skeleton_recall.weight = 0
    assert needed(plain.loss) == set()
    assert set(on_device(batch, STATISTICS, plain, None)) == {"image", "surface", "known", "record"}
    assert needed(settings("cldice").loss) == {"tube", "medial"}


@pytest.mark.parametrize("seed", [None, 0])
def test_an_image_alone_is_all_that_prediction_has(seed: int | None) -> None:
    rng = None if seed is None else torch.Generator().manual_seed(seed)
    out = on_device({"image": stored()[0]["image"]}, STATISTICS, settings(*ALL), rng)
    assert set(out) == {"image"}
    assert out["image"].shape == (2, 1, *SIZE)


@pytest.mark.parametrize("seed", [None, 3])
def test_the_stored_volumes_are_not_changed(seed: int | None) -> None:
    """They are views of the loader's buffers."""
    batch, _ = stored()
    kept = {name: tensor.clone() for name, tensor in batch.items()}
    rng = None if seed is None else torch.Generator().manual_seed(seed)
    out = on_device(batch, STATISTICS, settings(*ALL, augment=AugmentConfig(affine=1, elastic=1, blur=1)), rng)
    for tensor in out.values():
        tensor.zero_()
    del kept["record"]  # handed on as it is
    assert all(torch.equal(batch[name], tensor) for name, tensor in kept.items())


def test_flips_and_turns_are_exact_for_every_target() -> None:
    """Each target is mirrored and turned exactly as the image: it can be undone, bit for bit."""
    batch, _ = stored()
    batch["image"] = torch.arange(int(np.prod(SIZE))).remainder(251).to(torch.uint8).view(1, *SIZE).repeat(2, 1, 1, 1)
    config = settings(*ALL, augment=PLAIN)
    plain = on_device(batch, STATISTICS, config, None)
    ways = [
        (transposed, mirrored)
        for transposed in (False, True)
        for mirrored in ((), (1,), (2,), (3,), (1, 2), (1, 3), (2, 3), (1, 2, 3))
    ]
    seen = set()
    for seed in range(12):
        out = on_device(batch, STATISTICS, config, torch.Generator().manual_seed(seed))
        for i in range(2):

            def moved(tensor: torch.Tensor, way: tuple[bool, tuple[int, ...]], i: int = i) -> torch.Tensor:
                return (tensor[i].transpose(2, 3) if way[0] else tensor[i]).flip(way[1])

            (way,) = [way for way in ways if torch.equal(moved(plain["image"], way), out["image"][i])]
            seen.add(way)
            for name in ("surface", "known", "tube", "medial", "distance"):
                assert torch.equal(moved(plain[name], way), out[name][i]), name
    assert len(seen) > 6


def test_the_generator_alone_decides() -> None:
    batch, _ = stored()
    config = settings(*ALL, augment=AugmentConfig(affine=0.7, elastic=0.7, blur=0.7))
    torch.manual_seed(0)
    first = on_device(batch, STATISTICS, config, torch.Generator().manual_seed(5))
    untouched = torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(3), untouched)  # nothing was drawn from the global generator
    again = on_device(batch, STATISTICS, config, torch.Generator().manual_seed(5))
    other = on_device(batch, STATISTICS, config, torch.Generator().manual_seed(6))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["image"], other["image"])


def test_nothing_asked_for_is_as_in_validation() -> None:
    batch, _ = stored()
    config = settings(*ALL, augment=replace(PLAIN, flip=False, rotate90=False))
    plain = on_device(batch, STATISTICS, config, None)
    trained = on_device(batch, STATISTICS, config, torch.Generator().manual_seed(0))
    assert all(torch.equal(plain[name], trained[name]) for name in plain)


def test_warped_surfaces_are_known() -> None:
    """The losses rely on this."""
    batch, _ = stored(4)
    config = settings(*ALL, augment=AugmentConfig(affine=1, elastic=1))
    out = on_device(batch, STATISTICS, config, torch.Generator().manual_seed(1))
    assert not (out["surface"].bool() & ~out["known"]).any()
    assert not (out["tube"] & ~out["known"]).any()
    assert not (out["medial"] & ~out["tube"]).any()
    assert torch.equal(out["distance"] < 0, out["surface"].bool() & (out["distance"] != 0))


def test_each_patch_has_its_own_scale() -> None:
    batch, _ = stored()
    out = on_device(batch | {"scale": torch.tensor([[100.0, 40.0], [7.0, 3.0]])}, STATISTICS, settings(), None)
    torch.testing.assert_close(out["image"][0, 0], (batch["image"][0].float() - 100) / 40)
    torch.testing.assert_close(out["image"][1, 0], (batch["image"][1].float() - 7) / 3)
    torch.testing.assert_close(unscaled(out, STATISTICS)[:, 0], batch["image"].float())
