"""The residual network: any size, no memory of other patients, blocks that begin as the identity; parts of patients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops
from runner_core import BadInput, RowSamples, Samples, Store
from runner_core.testing import open_store
from runner_openkbp.config import ModelConfig, small
from runner_openkbp.project import OpenKBP
from runner_openkbp.residual import CHANNELS, LEAK, _never_negative, residual_network
from runner_openkbp.rois import POSSIBLE, unpack
from runner_openkbp.samples import MaskedPatches
from runner_openkbp.whole import box, predict

TINY = {"network": "residual", "widths": (3, 4), "refine": 2, "start": 20.0}
PATCH = (8, 16, 4)


def network(seed: int = 0, moved: bool = True, **settings: object) -> keras.Model:
    """Two levels; `moved`: with random weights in place of the zeros that it starts with."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    model = residual_network(ModelConfig(**(TINY | settings)))
    if moved:
        rng = np.random.default_rng(seed)
        for variable in model.trainable_variables:
            variable.assign(variable.value + rng.normal(0, 0.05, variable.shape).astype(np.float32))
    return model


def images(*sides: int, count: int = 1) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(count, *sides, CHANNELS)).astype(np.float32)


def dose(model: keras.Model, image: np.ndarray) -> np.ndarray:
    return np.asarray(ops.convert_to_numpy(model(image)))


def test_the_presets_parameters() -> None:
    assert residual_network(small().model).count_params() == 2_335_593
    assert small().model.unit == 16


def test_no_output_is_dead(gradient: Callable[..., np.ndarray]) -> None:
    """Below 0 Gy the dose is 0, but what makes it negative is still unlearned."""
    model = network(moved=False, start=0.0)
    head = model.get_layer("head")
    kernel, bias = head.get_weights()
    head.set_weights([0 * kernel, bias - 1])
    assert not dose(model, images(4, 4, 4)).any()
    at = np.array([-3.0, -0.1, 0.1, 3.0], np.float32)
    np.testing.assert_allclose(gradient(lambda x: ops.sum(_never_negative(x)), at), [LEAK, LEAK, 1, 1], rtol=1e-6)


@pytest.mark.parametrize("refine", [0, 2])
def test_any_multiple_of_its_unit(refine: int) -> None:
    model = network(refine=refine)
    for sides in ((4, 4, 4), (8, 4, 12)):
        found = dose(model, images(*sides))
        assert found.shape == (1, *sides, 1)
        assert found.dtype == np.float32
        assert found.min() >= 0


def test_patients_of_a_batch_know_nothing_of_each_other() -> None:
    model, pair = network(), images(8, 8, 8, count=2)
    alone = np.concatenate([dose(model, one[None]) for one in pair])
    np.testing.assert_allclose(dose(model, pair), alone, rtol=1e-4, atol=1e-4)


def test_blocks_begin_as_the_identity() -> None:
    """More of them change nothing at first, given the same other weights."""
    one, two = network(moved=False), network(moved=False, blocks=2)
    for name in ("stem", "down1", "up0", "fine", "fine_conv", "head"):
        two.get_layer(name).set_weights(one.get_layer(name).get_weights())
    image = images(8, 8, 8)
    np.testing.assert_allclose(dose(two, image), dose(one, image), rtol=1e-5, atol=1e-5)


def test_it_moves_with_the_patient() -> None:
    """Moved by its unit, away from the borders: no voxel of a block of 2³ is preferred."""
    model = network(widths=(3,), refine=2)
    image = images(32, 32, 32)
    moved = np.roll(image, 2, axis=(1, 2, 3))
    inner = (0, *(slice(12, 20),) * 3, 0)
    found, expected = dose(model, moved)[inner], np.roll(dose(model, image), 2, axis=(1, 2, 3))[inner]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    assert np.ptp(expected) > 1


# ---------------------------------------------------------------- parts of patients


@pytest.fixture
def project(tmp_path: Path) -> OpenKBP:
    config = small()
    config.data.size, config.data.patch = 32, PATCH
    for name, value in TINY.items():
        setattr(config.model, name, value)
    config.cache.dir = tmp_path / "cache"
    return OpenKBP(config)


@pytest.fixture
def store(project: OpenKBP, write_boxes: Callable[..., Path]) -> Store:
    """Two patients on 32³."""
    folders = [write_boxes("pt_1"), write_boxes("pt_2", boxes={POSSIBLE: (44, 56, 0, 128, 100, 124)})]
    return open_store(project, project.records(folders[0].parent))


@pytest.fixture
def samples(project: OpenKBP, store: Store) -> MaskedPatches:
    assert type(project.samples(store, [0], "validation")) is RowSamples
    made = project.samples(store, [0, 1], "train")
    assert type(made) is MaskedPatches
    return made


def drawn(samples: Samples, epoch: int, count: int = 2) -> dict[str, np.ndarray]:
    out = {name: np.empty((count, *spec.shape), spec.dtype) for name, spec in samples.spec.items()}
    samples.fill(np.arange(count) % 2, np.arange(count), 3, epoch, out)
    return out


def test_parts_cover_the_mask_as_far_as_they_can(samples: MaskedPatches) -> None:
    """Masks of 13 × 13 × 23 and 3 × 32 × 6 voxels, parts of 8 × 16 × 4."""
    inside = [unpack(samples.arrays["masks"].read(record)[0], POSSIBLE) for record in (0, 1)]
    seen = [np.zeros_like(mask) for mask in inside]
    for epoch in range(200):
        parts, starts = drawn(samples, epoch), samples.starts_of(np.arange(2), np.arange(2), 3, epoch)
        assert parts["ct"].shape == (2, 1, *PATCH)
        for record in (0, 1):
            where = tuple(slice(a, a + n) for a, n in zip(starts[record, 1:].tolist(), PATCH, strict=True))
            for name in ("ct", "masks", "dose"):
                np.testing.assert_array_equal(parts[name][record, 0], samples.arrays[name].read(record)[0][where])
            extents = [len(np.unique(places)) for places in np.nonzero(inside[record])]
            covered = [len(np.unique(places)) for places in np.nonzero(inside[record][where])]
            assert covered == [min(extent, side) for extent, side in zip(extents, PATCH, strict=True)]
            seen[record][where] = True
    for learned, mask in zip(seen, inside, strict=True):
        for places, wanted in zip(np.nonzero(learned & mask), np.nonzero(mask), strict=True):
            np.testing.assert_array_equal(np.unique(places), np.unique(wanted))  # to the mask's ends along each axis


def test_parts_are_drawn_anew_in_each_epoch_and_again_alike(samples: MaskedPatches) -> None:
    first, again, other = drawn(samples, 0), drawn(samples, 0), drawn(samples, 1)
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    assert any((first[name] != other[name]).any() for name in ("masks", "ct", "dose"))
    assert first["dose_step"].shape == (2, 1, 1)
    assert first["record"].tolist() == [0, 1]


def test_a_step_on_parts(project: OpenKBP, samples: MaskedPatches) -> None:
    from runner_core import Precision, Progress

    batch = project.on_device(drawn(samples, 0), {}, keras.random.SeedGenerator(0))
    assert batch["image"].shape == (2, *PATCH, CHANNELS)
    np.testing.assert_array_equal(batch["image"][..., -1:], batch["mask"])
    step = project.step(project.model(Precision("float32")), batch, Progress(1, 1, 0))
    assert list(step.terms) == ["mae", "regions"]
    assert float(step.loss) == pytest.approx(float(step.terms["mae"]) + 0.5 * float(step.terms["regions"]), rel=1e-5)


def test_parts_unpacked_on_the_host_are_the_same(project: OpenKBP, store: Store, samples: MaskedPatches) -> None:
    project.config.data.unpack = "host"
    plain = project.samples(store, [0, 1], "train")
    packed, unpacked = (project.on_device(drawn(made, 0), {}, None) for made in (samples, plain))
    assert set(packed) == set(unpacked) == {"image", "mask", "dose", "record"}
    for name in packed:
        np.testing.assert_array_equal(unpacked[name], packed[name])


# ---------------------------------------------------------------- whole patients


def test_the_box_holds_the_mask_and_little_more() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        mask = np.zeros((32, 48, 16), bool)
        low = [int(rng.integers(0, n)) for n in mask.shape]
        high = [int(rng.integers(a, n)) + 1 for a, n in zip(low, mask.shape, strict=True)]
        mask[tuple(slice(a, b) for a, b in zip(low, high, strict=True))] = True
        inner = box(mask, 8)
        assert mask[inner].sum() == mask.sum()
        for part, a, b in zip(inner, low, high, strict=True):
            assert part.stop - part.start == -(-(b - a) // 8) * 8
    assert box(np.zeros((8, 16, 8), bool), 8) == (slice(0, 8), slice(0, 16), slice(0, 8))


def test_a_patient_is_predicted_in_its_box(project: OpenKBP, samples: MaskedPatches) -> None:
    model, seen = network(), []

    def infer(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        batch = project.on_device(arrays, {}, None)
        seen.append(batch["image"].shape)
        return {"prediction": dose(model, np.asarray(batch["image"]))}

    rows = {name: samples.arrays[name].read(1) for name in ("ct", "masks")}
    found = predict(rows, infer, project.config.model.unit)
    assert seen == [(1, 4, 32, 8, CHANNELS)]
    assert found.shape == (128, 128, 128)
    mask = unpack(rows["masks"][0], POSSIBLE).repeat(4, 0).repeat(4, 1).repeat(4, 2)
    assert found[mask].mean() > 10
    assert not found[:30].any()


@pytest.mark.parametrize(
    ("section", "name", "value", "words"),
    [
        ("data", "patch", (8, 16), "data.patch"),
        ("data", "patch", (8, 16, 6), "multiples of 4"),
        ("data", "patch", (8, 16, 256), "up to 32"),
        ("model", "widths", (), "model.widths"),
        ("model", "widths", (4, 0), "model.widths"),
        ("model", "widths", (4,) * 6, "no multiple of 64"),
        ("model", "cascade", True, "model.cascade"),
        ("model", "recompute", True, "model.recompute"),
        ("model", "network", "challenge", "data.patch is for model.network residual"),
    ],
)
def test_settings_that_do_not_go_together(project: OpenKBP, section: str, name: str, value: object, words: str) -> None:
    setattr(getattr(project.config, section), name, value)
    with pytest.raises(BadInput, match=words):
        OpenKBP(project.config)
