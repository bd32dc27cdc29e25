"""Margins against distances counted one by one, volumes with their uncertainty, their table and their page."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from runner_brainunet import outputs, qc, volume
from runner_brainunet.outputs import BrainPredictOptions
from runner_core import BadInput
from runner_core.testing import cropped


def by_definition(mask: np.ndarray, margin: float, spacing: tuple[float, ...]) -> np.ndarray:
    """Every voxel against every other one, in float64."""
    places = np.stack(np.meshgrid(*map(np.arange, mask.shape), indexing="ij"), -1).reshape(-1, 3) * np.array(spacing)
    flat = mask.ravel()
    other = places[flat] if margin > 0 else places[~flat]
    near = np.array([np.sqrt(((other - place) ** 2).sum(1)).min() <= abs(margin) * (1 + 1e-9) for place in places])
    return (flat | near if margin > 0 else flat & ~near).reshape(mask.shape)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.tuples(*[st.sampled_from([0.5, 0.7, 1.0, 1.2, 3.0])] * 3),
    st.sampled_from([-4.2, -3.0, -2.1, -1.0, -0.4, 0.3, 0.5, 1.0, 1.4, 2.1, 3.0, 3.6]),
    st.integers(1, 40),
)
def test_margins_are_euclidean_in_true_spacing(seed: int, spacing, margin: float, count: int) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random((7, 6, 5)) < count / 41
    if not mask.any() or mask.all():
        return
    expected = by_definition(mask, margin, spacing)
    if expected.any():
        assert np.array_equal(volume.with_margin(mask, margin, spacing), expected)
    else:
        with pytest.raises(BadInput, match="leaves nothing"):
            volume.with_margin(mask, margin, spacing)


def test_a_brain_that_the_field_of_view_cuts_does_not_shrink_from_there() -> None:
    mask = np.zeros((12, 12, 12), bool)
    mask[:, :, :6] = True
    shrunk = volume.with_margin(mask, -2, (1, 1, 1))
    assert shrunk[:, :, :4].all()
    assert not shrunk[:, :, 4:].any()
    assert volume.with_margin(np.ones((3, 3, 3), bool), -2, (1, 1, 1)).all()
    assert not volume.with_margin(np.zeros((3, 3, 3), bool), 2, (1, 1, 1)).any()


def test_the_spread_is_that_of_the_volume_above_a_random_threshold() -> None:
    """A ball of doubtful voxels around a sure one; far away, something that is no brain."""
    probability = np.zeros((30, 30, 30), np.float32)
    distance = np.linalg.norm(np.indices(probability.shape) - 15, axis=0)
    probability[distance < 10] = np.clip(1.2 - distance[distance < 10] / 10, 0, 1)
    levels = (np.arange(20_000) + 0.5) / 20_000
    inside = np.sort(probability[(distance < 10) & (probability > 0.05)].astype(np.float64))
    above = len(inside) - np.searchsorted(inside, levels, side="right")
    assert volume.spread_ml(probability, 0.5) == pytest.approx(0.5 * above.std(), rel=0.01)
    probability[:2, :2, :2] = 0.9
    assert volume.spread_ml(probability, 0.5) == pytest.approx(0.5 * above.std(), rel=0.01)
    sure = (distance < 5).astype(np.float32)
    assert volume.spread_ml(sure, 1.0) == 0
    assert volume.spread_ml(np.zeros((3, 3, 3), np.float32), 1.0) == 0


def test_a_margin_changes_the_mask_and_not_the_brain(project, write_head, bright_is_brain) -> None:
    (record,) = project.records(write_head(spacing=(5.0, 4.0, 6.0), shape=(40, 55, 32)).parent)
    plain = project.predict(cropped(project, record), bright_is_brain)
    project.config.predict.margin = 8
    wide = project.predict(cropped(project, record), bright_is_brain)
    assert np.array_equal(wide, by_definition_near(plain, 8, (5, 4, 6)))
    assert wide.volume == plain.volume
    assert plain.volume.ml == pytest.approx(np.count_nonzero(plain) * 0.12)
    assert (plain | wide).volume is None
    _, sidecar = project.write(record, wide, record.files["image"].parent / "out")
    about = json.loads(sidecar.read_text())
    assert about["BrainVolume"] == pytest.approx(plain.volume.ml, abs=0.01)
    assert about["MaskVolume"] == pytest.approx(np.count_nonzero(wide) * 0.12, abs=0.01)
    assert (about["Margin"], about["Threshold"], about["Record"]) == (8, 0.5, record.key)


def by_definition_near(mask: np.ndarray, margin: float, spacing: tuple[float, ...]) -> np.ndarray:
    """Shifted copies of the mask, one for each voxel of a ball."""
    grown = np.zeros_like(mask)
    reach = [int(margin // size) for size in spacing]
    for shift in np.ndindex(*(2 * n + 1 for n in reach)):
        step = [s - n for s, n in zip(shift, reach, strict=True)]
        if np.linalg.norm(np.multiply(step, spacing)) <= margin:
            grown |= np.roll(mask, step, (0, 1, 2))
    return np.asarray(grown)


def test_remarks_say_what_to_look_at() -> None:
    mask = np.zeros((60, 60, 60), bool)
    mask[5:55, 5:55, 0:50] = True
    sure = volume.Brain.of(mask, volume.Volume(1000, 20, 5))
    assert [(f.rule, f.level) for f in outputs.remarks(sure, (2, 2, 2))] == [("border", "note")]
    assert "first slice of axis 2" in next(outputs.remarks(sure, (2, 2, 2))).message
    unsure = volume.Brain.of(mask, volume.Volume(1000, 160, 50))
    assert [f.rule for f in outputs.remarks(unsure, (2, 2, 2))] == ["doubt", "pieces", "border"]
    assert [f.rule for f in outputs.remarks(mask, (1, 1, 1))] == ["volume", "border"]


def test_the_table_and_the_page_hold_all_masks_worst_first(project, write_head, bright_is_brain, tmp_path) -> None:
    """Over several calls; pictures stay in the folder, and a name that is HTML stays text."""
    out = tmp_path / "out"
    project.predict_options = BrainPredictOptions(qc=True)
    for name in ("sub-01/a<b_T1w", "sub-02/c_T1w"):
        (record,) = project.inputs(write_head(name))
        project.write(record, project.predict(cropped(project, record), bright_is_brain), out)
        written = project.judging().summarise(out)
    assert [path.name for path in written] == ["volumes.csv", "qc.html"]
    rows = list(csv.DictReader(written[0].open()))
    assert [row["record"] for row in rows] == ["a<b_T1w", "c_T1w"]
    mask = nibabel.load(out / rows[0]["mask"])
    assert float(rows[0]["brain_ml"]) == pytest.approx(np.count_nonzero(mask.dataobj) * 0.125, abs=0.01)
    sidecar = out / "c_T1w_brainmask.json"
    about = json.loads(sidecar.read_text())
    sidecar.write_text(json.dumps({**about, "Warnings": ["odd"] * 5}))
    text = qc.summarise(out)[1].read_text()
    assert text.index(">c_T1w<") < text.index(">a&lt;b_T1w<")
    assert text.count("data:image/jpeg;base64,") == 2
    assert "<b_T1w" not in text.replace("&lt;b_T1w", "")
    assert Image.open(out / "c_T1w_qc.jpg").size[0] == 1056
    Image.new("RGB", (4, 4)).save(tmp_path / "secret.jpg")
    sidecar.write_text(json.dumps({**about, "Picture": "../secret.jpg"}))
    assert qc.summarise(out)[1].read_text().count("data:image/jpeg;base64,") == 1
    project.predict_options, project.config.predict.margin = BrainPredictOptions(), 4.0  # again, without a picture
    project.write(record, project.predict(cropped(project, record), bright_is_brain), out)
    table, found = qc.summarise(out)
    assert not (out / "c_T1w_qc.jpg").exists()
    assert found.read_text().count("data:image/jpeg;base64,") == 1
    assert "with a margin of 4 mm" in found.read_text()
    assert [row["margin_mm"] for row in csv.DictReader(table.open())] == ["0.0", "4.0"]
    sidecar.write_text("{")
    with pytest.raises(BadInput, match=r"c_T1w_brainmask\.json: cannot be read as JSON"):
        qc.summarise(out)


def test_an_empty_folder_has_no_table(tmp_path: Path) -> None:
    assert qc.summarise(tmp_path) == []
    assert not list(tmp_path.iterdir())
