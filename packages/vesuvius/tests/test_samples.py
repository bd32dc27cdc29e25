"""From volumes to batches: what is prepared, what a patch holds, what is refused."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import tifffile
from runner_core import BadInput, Layout, PreparedStore, Record
from runner_core.testing import prepared
from runner_vesuvius.config import TermConfig
from runner_vesuvius.targets import LABEL, TUBE


class Held(Layout):
    """A stored array in memory."""

    def __init__(self, arrays: list[np.ndarray]) -> None:
        super().__init__(arrays[0].dtype, [array.shape for array in arrays])
        self._arrays = arrays

    def read(self, record: int, region: Any = None) -> np.ndarray:
        return self._arrays[record] if region is None else self._arrays[record][region]

    def take(self, rows: np.ndarray, out: np.ndarray) -> None:
        np.concatenate(self._arrays).take(rows, axis=0, out=out)


def stored(project, records) -> PreparedStore:
    made = [prepared(project, record) for record in records]
    arrays = {name: Held([each.arrays[name] for each in made]) for name in made[0].arrays}
    return PreparedStore([r.key for r in records], [each.meta for each in made], arrays, "")


def filled(samples: Any) -> dict[str, np.ndarray]:
    indices = np.arange(len(samples))
    out = {name: np.zeros((len(samples), *spec.shape), spec.dtype) for name, spec in samples.spec.items()}
    samples.fill(indices, indices, 0, 0, out)
    return out


def test_what_is_prepared_is_the_volume_its_targets_and_its_histogram(project, write_volumes) -> None:
    record = project.records(write_volumes({"1": "A", "2": "B"}))[0]
    arrays = prepared(project, record).arrays
    image, label = tifffile.imread(record.files["image"]), tifffile.imread(record.files["label"])
    assert set(arrays) == {"image", "target", "distance", "surface", "valid", "histogram"}
    assert np.array_equal(arrays["image"], image)
    assert np.array_equal(arrays["target"] & LABEL, label)
    assert ((arrays["target"] & TUBE > 0) <= (label == 1)).all()
    assert (label[tuple(arrays["surface"].T)] == 1).all()
    assert (label[tuple(arrays["valid"].T)] != 2).all()
    assert arrays["histogram"][:2].sum() == (label != 2).sum()
    assert np.array_equal(arrays["histogram"].sum(0), np.bincount(image.ravel(), minlength=256))
    alone = prepared(project, Record("1", "A", {"image": record.files["image"]})).arrays
    assert set(alone) == {"image"}


def test_patches_hold_surface_and_annotated_voxels(project, write_volumes) -> None:
    store = stored(project, project.records(write_volumes({"1": "A", "2": "B"})))
    project.config.data.patches, project.config.data.surface_share = 20, 1.0
    samples = project.samples(store, [0, 1], "train")
    assert set(samples.spec) == {"image", "target", "record"}
    assert len(samples) == 40
    assert ((filled(samples)["target"] & LABEL) == 1).any(axis=(1, 2, 3)).all()
    project.config.data.surface_share = 0.0
    assert ((filled(project.samples(store, [0, 1], "train"))["target"] & LABEL) != 2).any(axis=(1, 2, 3)).all()
    assert len(project.samples(store, [1], "validation")) == project.config.data.validation_patches


@pytest.mark.parametrize("name", ["boundary", "surface_distance"])
def test_distances_are_read_where_a_loss_wants_them(project, write_volumes, name) -> None:
    setattr(project.config.loss, name, TermConfig(0.1))
    store = stored(project, project.records(write_volumes({"1": "A", "2": "B"})))
    assert "distance" in project.samples(store, [0, 1], "train").spec


def test_a_volume_smaller_than_the_patch_is_refused_by_name(project, write_volumes) -> None:
    store = stored(project, project.records(write_volumes({"1": "A", "2": "B"}, shape=(24, 12, 32))))
    with pytest.raises(BadInput, match=r"^1: 24 × 12 × 32 voxels, smaller than the patch of 16 × 16 × 16.*data\.patch"):
        project.samples(store, [0, 1], "train")


def test_labels_of_another_shape_are_refused_by_name(project, write_volumes) -> None:
    root = write_volumes({"1": "A", "2": "B"})
    tifffile.imwrite(root / "train_labels" / "1.tif", np.zeros((24, 28, 30), np.uint8))
    record = project.records(root)[0]
    with pytest.raises(BadInput, match=r"train_labels/1\.tif: 24 × 28 × 30 voxels, but its image .* has 24 × 28 × 32"):
        project.decode(record)


def test_a_batch_on_the_device_is_what_the_losses_read(project, write_volumes) -> None:
    import torch
    from runner_core import Progress

    for name in ("cldice", "boundary"):
        setattr(project.config.loss, name, TermConfig(0.1))
    store = stored(project, project.records(write_volumes({"1": "A", "2": "B"})))
    statistics = project.fit(store, [0, 1])
    arrays = filled(project.samples(store, [0, 1], "train"))
    tensors = {name: torch.from_numpy(array[:2].copy()) for name, array in arrays.items()}
    batch = project.on_device(tensors, statistics, torch.Generator().manual_seed(0))
    assert {"image", "surface", "known", "tube", "medial", "distance"} <= set(batch)
    assert all(batch[name].shape == (2, 1, 16, 16, 16) for name in set(batch) - {"record"})
    made = project.step(project.model(precision=None), batch, Progress(0, 10, 0))
    names = ("bce", "dice", "skeleton_recall", "cldice", "boundary")
    assert set(made.terms) == {f"{name}_loss" for name in names}
    assert torch.isfinite(made.loss)
    assert made.prediction.shape == (2, 1, 16, 16, 16)
    assert project.health().decision(made.prediction).dtype == torch.bool


def test_normalised_by_volume_or_scroll_patches_carry_their_scale(project, write_volumes) -> None:
    """By scroll: volumes of a trained scroll share the scale of its training volumes; others have their own."""
    records = project.records(write_volumes({"1": "A", "2": "A", "3": "B"}))
    store = stored(project, records)
    volumes = [tifffile.imread(record.files["image"]).astype(float) for record in records]
    own = [(v[v > 0].mean(), v[v > 0].std()) for v in volumes]
    both = np.concatenate([v[v > 0] for v in volumes[:2]])
    for kind, wanted in {"volume": own, "scroll": [(both.mean(), both.std())] * 2 + own[2:]}.items():
        project.config.data.normalise = kind
        project.fit(store, [0, 1])
        arrays = filled(project.samples(store, [0, 1, 2], "train"))
        assert arrays["scale"] == pytest.approx(np.array(wanted)[arrays["record"]], rel=1e-5)
        pickle.loads(pickle.dumps(project.samples(store, [0, 2], "validation")))
