"""From any scan to its mask: place, header, stripped volume; with a network that knows the answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import nibabel
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nibabel.affines import apply_affine
from runner_brainunet import whole
from runner_brainunet.project import BrainPredictOptions, BrainUNet
from runner_core import Arrays, BadInput
from runner_core.testing import cropped, prepared
from scipy import ndimage


def bright_is_brain(arrays: Arrays) -> Arrays:
    """Stands in for a trained network: a voxel of the middle slice is brain where it is bright."""
    middle = arrays["image"].shape[1] // 2
    return {"prediction": (arrays["image"][:, middle : middle + 1].astype(np.float32) - 150) / 10}


def oblique(degrees: float, spacing: tuple[float, float, float], order: tuple[int, ...], flips: tuple[int, ...]):
    angle = np.radians(degrees)
    turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    matrix = np.zeros((3, 3))
    for column, row in enumerate(order):
        matrix[row, column] = flips[column] * spacing[column]
    affine = np.eye(4)
    affine[:3, :3] = turn @ matrix
    affine[:3, 3] = (17, -23, 41)
    return affine


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.floats(-25, 25), st.tuples(*[st.floats(3, 6)] * 3), st.permutations(range(3)),
    st.tuples(*[st.sampled_from([-1, 1])] * 3),
)  # fmt: skip
def test_the_mask_lies_where_the_brain_is(project, write_head, degrees, spacing, order, flips) -> None:
    """Oblique, flipped, permuted, anisotropic: centre within half a voxel, overlap high, header untouched."""
    shape = tuple(int(190 / s) for s in spacing)
    affine = oblique(degrees, spacing, tuple(order), flips)
    scan = write_head(affine=affine, shape=shape, spacing=spacing)
    (record,) = project.records(scan.parent)
    mask = project.predict(cropped(project, record), bright_is_brain)
    truth = np.asarray(nibabel.load(record.files["mask"]).dataobj) > 0
    assert mask.shape == truth.shape
    places = [apply_affine(affine, ndimage.center_of_mass(m)) for m in (mask, truth)]
    assert np.linalg.norm(places[0] - places[1]) < 0.5 * min(spacing)
    assert project.score(record, mask)["dice"] > 0.93
    out = scan.parent.parent.parent / "out"
    written, _ = project.write(record, mask, out)
    assert_same_place(scan, written)


def assert_same_place(scan: Path, written: Path) -> None:
    before, after = nibabel.load(scan), nibabel.load(written)
    assert after.shape == before.shape
    for name in ("sform_code", "qform_code", "xyzt_units", "srow_x", "srow_y", "srow_z", "quatern_b", "quatern_c",
                 "quatern_d", "qoffset_x", "qoffset_y", "qoffset_z", "pixdim", "descrip"):  # fmt: skip
        assert np.array_equal(before.header[name], after.header[name]), name
    assert after.header.endianness == before.header.endianness
    if "mask" in written.name:
        assert after.get_data_dtype().newbyteorder("=") == np.uint8
        assert set(np.unique(after.dataobj)) == {0, 1}


@pytest.mark.parametrize("codes", [(1, 2), (0, 1), (3, 0), (0, 0)])
@pytest.mark.parametrize("endian", ["<", ">"])
@pytest.mark.parametrize("dtype, slope, inter", [(np.int16, 1, 0), (np.uint8, 2.5, 10), (np.float32, 1, 0)])
def test_headers_survive(project, write_head, codes, endian, dtype, slope, inter) -> None:
    scan = write_head()
    image = nibabel.load(scan)
    affine = oblique(12, (5, 5, 5), (0, 1, 2), (-1, 1, 1))
    header = nibabel.Nifti1Header(endianness=endian)
    header.set_data_dtype(dtype)
    header.set_data_shape(image.shape)
    header.set_qform(affine, codes[0])
    header.set_sform(affine if codes[1] else None, codes[1])
    header.set_xyzt_units("mm", "sec")
    header["descrip"] = b"scanner 7"
    header.set_slope_inter(slope, inter)
    header["cal_max"] = 1200
    raw = (np.asarray(image.dataobj) / 4).astype(np.dtype(dtype).newbyteorder(endian))
    new = nibabel.Nifti1Image(raw, None, header)
    new.header.set_slope_inter(slope, inter)
    nibabel.save(new, scan)
    project.predict_options = BrainPredictOptions(brain=True)
    (record,) = project.inputs(scan)
    mask = project.predict(cropped(project, record), bright_is_brain)
    assert mask.any()
    written = project.write(record, mask, scan.parent / "out")
    names = [f"{record.key}_{end}" for end in ("brainmask.nii.gz", "brain.nii.gz", "brainmask.json")]
    assert [p.name for p in written] == names
    for path in written[:2]:
        assert_same_place(scan, path)
    before, after = nibabel.load(scan), nibabel.load(written[1])
    has_zero = dtype is not np.uint8  # else 0 cannot be stored: float32 then
    assert after.get_data_dtype() == (before.get_data_dtype() if has_zero else np.dtype("f4").newbyteorder(endian))
    assert np.array_equal(np.asarray(before.dataobj, "f4")[mask], np.asarray(after.dataobj, "f4")[mask])
    assert not np.asarray(after.dataobj)[~mask].any()
    header = nibabel.load(written[0]).header
    assert float(header["cal_max"]) == 1


def test_a_single_volume_in_four_dimensions(project, write_head) -> None:
    scan = write_head()
    image = nibabel.load(scan)
    nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj)[..., None], image.affine), scan)
    (record,) = project.inputs(scan)
    mask = project.predict(cropped(project, record), bright_is_brain)
    written, _ = project.write(record, mask, scan.parent / "out")
    assert nibabel.load(written).shape == (40, 48, 36, 1)


def test_one_brain_without_holes(project, write_head) -> None:
    """A bright spot elsewhere is dropped; a dark spot inside is filled."""
    scan = write_head()
    image = nibabel.load(scan)
    data = np.asarray(image.dataobj).copy()
    data[19:22, 23:26, 17:20] = 0
    data[34:38, 23:26, 17:20] = 600
    nibabel.save(nibabel.Nifti1Image(data, image.affine), scan)
    (record,) = project.records(scan.parent)
    mask = project.predict(cropped(project, record), bright_is_brain)
    _, pieces = ndimage.label(mask)
    assert pieces == 1
    assert mask[20, 24, 18]
    assert not mask[36, 24, 18]


def test_nothing_found_is_an_empty_mask(project, write_head) -> None:
    (record,) = project.records(write_head().parent)
    mask = project.predict(
        cropped(project, record), lambda arrays: {"prediction": np.full_like(arrays["image"][:, :1], -9, np.float32)}
    )
    assert mask.shape == (40, 48, 36)
    assert not mask.any()
    scores = project.score(record, mask)
    assert scores["dice"] == 0
    assert scores["hd95_mm"] == np.inf


def test_a_higher_threshold_gives_a_smaller_mask(project, write_head) -> None:
    (record,) = project.records(write_head().parent)

    def doubtful(arrays: Arrays) -> Arrays:
        """Probability 0.6 where it is rather bright, 0.99 where very bright."""
        image = arrays["image"][:, 1:2].astype(np.float32)
        return {"prediction": np.where(image > 200, 5.0, np.where(image > 60, 0.4, -5.0))}

    sizes = []
    for threshold in (0.5, 0.75):
        project.config.predict.threshold = threshold
        sizes.append(int(project.predict(cropped(project, record), doubtful).sum()))
        assert project.health().decision(np.array(project._cut + 0.01))
        assert not project.health().decision(np.array(project._cut - 0.01))
    assert sizes[1] < 0.8 * sizes[0]


def test_views_are_fused(project, write_head) -> None:
    """Each view is asked once per slice that is not empty (and once mirrored)."""
    asked = []

    def infer(arrays: Arrays) -> Arrays:
        asked.append(len(arrays["image"]))
        return bright_is_brain(arrays)

    (record,) = project.records(write_head().parent)
    project.predict(cropped(project, record), infer)
    three = sum(asked)
    asked.clear()
    project.config.predict.views = ()
    project.predict(cropped(project, record), infer)
    assert three == 2 * sum(asked)


def test_prepare_is_pure(project, write_head) -> None:
    (record,) = project.records(write_head().parent)
    decoded = project.decode(record)
    kept = {name: array.copy() for name, array in decoded.arrays.items()}
    first, second = project.prepare(decoded), project.prepare(replace(decoded))
    assert set(first) == {"image", "mask", "view"}
    for name in first:
        assert np.array_equal(first[name], second[name])
        assert first[name].dtype == np.uint8
        assert len(first[name]) == len(first["image"])
    for name, array in kept.items():
        assert np.array_equal(array, decoded.arrays[name])


def test_the_prepared_mask_is_the_truth(project, write_head) -> None:
    """Slices fused and brought back to the scanner: what the network is taught is the mask that was given."""
    (record,) = project.records(write_head().parent)
    case = cropped(project, record)
    case.prepared["image"][:] = prepared(project, record).arrays["mask"] * 254 + 1

    def infer(arrays: Arrays) -> Arrays:
        return {"prediction": arrays["image"][:, 1:2].astype(np.float32) / 10 - 9}

    project.config.predict.views = ()
    assert project.score(record, project.predict(case, infer))["dice"] > 0.97


def test_a_network_meets_the_head_and_little_air(project, write_head) -> None:
    """It gets a part of the squares that it was trained on, and finds the same brain in it."""
    (record,) = project.records(write_head().parent)
    case, shapes = cropped(project, record), set()
    layout, side = project._layout(case.decoded.arrays["image"].shape), project.config.data.size

    def blurred(arrays: Arrays) -> Arrays:
        shapes.add(arrays["image"].shape[2:])
        near = ndimage.uniform_filter(arrays["image"][:, 1:2].astype(np.float32), (0, 0, 3, 3), mode="constant")
        return {"prediction": (near - 100) / 10}

    part, on_squares = (whole.predict(case.prepared, layout, blurred, 3, 16, multiple) for multiple in (2, side))
    shapes.remove((side, side))
    assert shapes
    assert sum(map(np.prod, shapes)) < 0.8 * len(shapes) * side**2
    assert np.allclose(part, on_squares, atol=1e-3)
    assert part.max() > 0.9


def test_an_unwritable_folder_is_named(project, write_head, tmp_path) -> None:
    (record,) = project.records(write_head().parent)
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(BadInput, match="cannot be written"):
        project.write(record, np.zeros((40, 48, 36), bool), blocked / "out")


def test_figures_show_prediction_and_truth(project, write_head) -> None:
    (record,) = project.records(write_head().parent)
    truth = np.asarray(nibabel.load(record.files["mask"]).dataobj) > 0
    picture = project.pictures().figure(record, truth)
    assert picture.dtype == np.uint8
    assert picture.ndim == 3
    red, green, yellow = (255, 70, 50), (60, 220, 90), (255, 225, 60)
    slices, legend = picture[:-24], picture[-24:]
    assert {red, green, yellow} <= colours(legend)
    assert yellow in colours(slices)
    assert green not in colours(slices)
    shifted = np.roll(truth, 4, axis=0)
    assert {red, green} <= colours(project.pictures().figure(record, shifted)[:-24])
    (unlabelled,) = project.inputs(record.files["image"])
    assert {red, green, yellow} & colours(project.pictures().figure(unlabelled, truth)[-24:]) == {red}


def colours(picture: np.ndarray) -> set[tuple[int, ...]]:
    return {tuple(map(int, c)) for c in picture.reshape(-1, 3)}


def test_the_baseline_is_worse_than_the_truth(project: BrainUNet, write_head) -> None:
    (record,) = project.records(write_head().parent)
    assert project.score(record, project.baseline(cropped(project, record)))["dice"] < 0.9


def test_layers_lie_as_radiologists_look_at_them() -> None:
    """Slices go upwards, rows backwards, and columns to the patient's left."""
    from runner_brainunet.figures import layers

    ras = np.arange(4 * 5 * 6).reshape(4, 5, 6)
    scan, truth, found = layers(ras, ras > 50, ras > 60, (1.0, 2.0, 3.0))
    assert [layer.name for layer in (scan, truth, found)] == ["scan", "annotated", "prediction"]
    assert scan.values.shape == (6, 5, 4)
    assert scan.spacing == found.spacing == (3.0, 2.0, 1.0)
    for x, y, z in ((0, 0, 0), (3, 1, 2), (1, 4, 5)):
        assert scan.values[z, 4 - y, 3 - x] == ras[x, y, z]
        assert found.values[z, 4 - y, 3 - x] == (ras[x, y, z] > 50)
        assert truth.values[z, 4 - y, 3 - x] == (ras[x, y, z] > 60)
