"""Profiles of wells: normalised and sphered as pycytominer does it, scored as copairs does it, and their table."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from runner_core import Array
from runner_dinocell import outputs, profiles
from runner_dinocell.config import CellPredictConfig
from runner_dinocell.fields import Field
from runner_dinocell.profiles import average_precision, mean_over, normalised, of_wells, sphered
from runner_dinocell.whole import Embedded

pandas = pytest.importorskip("pandas")


def screen(plates: int = 3, wells: int = 24, width: int = 6, seed: int = 0) -> tuple[Array, Any]:
    """Profiles with an effect of the plate and of each compound, and pycytominer's columns; a third are controls."""
    made = np.random.default_rng(seed)
    plate, well = (values.ravel() for values in np.indices((plates, wells)))
    compound = np.where(well % 3 == 0, 0, 1 + well % 5)
    values = 3 * made.normal(size=(plates, width))[plate] + made.normal(size=(6, width))[compound]
    values += made.normal(size=values.shape) @ made.normal(size=(width, width))
    columns = {"Metadata_Plate": plate, "Metadata_Well": well, "Metadata_Compound": compound}
    return values, pandas.DataFrame(columns)


@pytest.mark.parametrize(("method", "theirs"), [("standardise", "standardize"), ("mad", "mad_robustize")])
def test_normalisation_is_pycytominers(method: Literal["standardise", "mad"], theirs: str) -> None:
    pycytominer = pytest.importorskip("pycytominer")
    values, meta = screen()
    names = [f"Embedding_{n}" for n in range(values.shape[1])]
    frame = pandas.concat((meta, pandas.DataFrame(values, columns=names)), axis=1)
    wanted = [
        pycytominer.normalize(
            own.reset_index(drop=True), names, meta_features=list(meta), samples="Metadata_Compound == 0", method=theirs
        )[names].to_numpy()
        for _, own in frame.groupby("Metadata_Plate")
    ]
    found = normalised(values, meta.Metadata_Plate.to_numpy(), (meta.Metadata_Compound == 0).to_numpy(), method)
    np.testing.assert_allclose(found, np.concatenate(wanted), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("wells", [60, 9])
@pytest.mark.parametrize("epsilon", [0.0, 0.4])
def test_sphering_is_pycytominers_zca_cor(wells: int, epsilon: float) -> None:
    """With fewer controls than columns, too. Its epsilon is added to singular values, ours to standard deviations."""
    transform = pytest.importorskip("pycytominer.operations.transform")
    made = np.random.default_rng(0)
    mixed = made.normal(size=(12, 12))
    controls, others = made.normal(size=(wells, 12)) @ mixed + 5, made.normal(size=(7, 12)) @ mixed
    theirs = transform.Spherize(epsilon=epsilon * math.sqrt(wells - 1), method="ZCA-cor", return_numpy=True)
    theirs.fit(pandas.DataFrame(controls))
    wanted = theirs.transform(pandas.DataFrame(others))
    np.testing.assert_allclose(sphered(others, controls, epsilon), wanted, rtol=1e-7, atol=1e-7)
    if wells > 12 and not epsilon:
        covariance = np.cov(sphered(controls, controls, 0.0).T)
        np.testing.assert_allclose(covariance, np.eye(12), atol=1e-9)


@pytest.mark.parametrize("across", [False, True])
def test_average_precision_is_copairs(across: bool) -> None:
    """Replicates before controls, and a compound's wells on other plates before all other compounds'."""
    copairs = pytest.importorskip("copairs.map")
    values, meta = screen()
    meta["Metadata_Control"] = meta.Metadata_Compound == 0
    label, plate = meta.Metadata_Compound.to_numpy(), meta.Metadata_Plate.to_numpy()
    same, control = label[:, None] == label, label == 0
    if across:
        positive, negative = same & (plate[:, None] != plate), ~same
        differ, apart = ["Metadata_Plate"], ["Metadata_Compound"]
    else:
        positive, negative = same & ~np.eye(len(label), dtype=bool), ~same & control
        differ, apart = [], ["Metadata_Control"]
    wanted = copairs.average_precision(meta, values, ["Metadata_Compound"], differ, [], apart, progress_bar=False)
    found = average_precision(values, positive, negative)
    np.testing.assert_allclose(found[~control], wanted.average_precision.to_numpy()[~control], rtol=1e-5)
    by_compound = wanted[~control].groupby("Metadata_Compound").average_precision.mean()
    assert mean_over(np.where(control, np.nan, found), label) == pytest.approx(by_compound.mean(), rel=1e-5)


def test_what_has_no_positive_or_no_negative_has_no_precision() -> None:
    values, nothing = np.random.default_rng(0).normal(size=(4, 3)), np.zeros((4, 4), bool)
    everything = ~np.eye(4, dtype=bool)
    assert np.isnan(average_precision(values, nothing, everything)).all()
    assert np.isnan(average_precision(values, everything, nothing)).all()
    assert math.isnan(mean_over(np.full(4, np.nan), np.arange(4)))


def test_equal_profiles_score_by_chance() -> None:
    label = np.arange(200) // 2
    same = (label[:, None] == label) & ~np.eye(200, dtype=bool)
    assert np.nanmean(average_precision(np.ones((200, 3)), same, label[:, None] != label)) < 0.1


def test_a_plate_without_controls_is_left_out_and_constant_columns_stay() -> None:
    values, plate = np.arange(12.0).reshape(6, 2), np.array([0, 0, 0, 1, 1, 1])
    values[:, 1] = 7
    control = np.array([True, True, False, False, False, False])
    found = normalised(values, plate, control)
    assert np.isnan(found[3:]).all()
    assert found[:3].tolist() == [[-1, 0], [1, 0], [3, 0]]


def table(controls: tuple[str, ...], drop: int | None = None) -> Any:
    values, meta = screen(plates=4)
    label, plate, well = (meta[f"Metadata_{name}"].to_numpy() for name in ("Compound", "Plate", "Well"))
    names = [f"c{number}" for number in label]
    control = np.array([name in controls for name in names]) & (plate != drop)
    fault = profiles.unknown_controls(controls, names)
    methods = {"network": values, "pixel statistics": np.random.default_rng(1).normal(size=values.shape)}
    settings = CellPredictConfig(controls=controls, neighbours=5)
    return profiles.table(
        methods, profiles.Wells(label, plate, plate // 2, well, control, np.ones(len(label), bool)), settings, fault
    )


def test_normalisation_takes_the_plate_out_and_lets_compounds_be_found() -> None:
    found = table(("c0",))
    rows = {str(name): dict(zip(found.columns[1:], values, strict=True)) for name, *values in found.rows}
    raw, by_plate = rows["network, as they are"], rows["network, normalised"]
    assert raw["plate"] > 0.6 > by_plate["plate"]
    assert (raw["chance"], raw["chance (batch)"]) == (1 / 4, 1 / 2)
    assert by_plate["compound"] > raw["compound"] + 0.1
    assert by_plate["compound"] > rows["pixel statistics, normalised"]["compound"] + 0.1
    assert len(rows) == 6
    assert "Profiles of 96 wells, normalised by 32 control wells." in found.title


@pytest.mark.parametrize("shift", [0.0, 8.0])
def test_a_batch_is_told_from_its_other_plates(shift: float) -> None:
    """Before normalisation, if it shifts the profiles; never after that, nor if only plates differ."""
    values, meta = screen(plates=6)
    plate, well = meta.Metadata_Plate.to_numpy(), meta.Metadata_Well.to_numpy()
    made, batch = np.random.default_rng(1), plate // 3
    values = values - of_wells(values, plate)[plate] + made.normal(size=(6, 6))[plate] / 4
    values += shift * made.normal(size=(2, 6))[batch]
    everywhere = np.ones(len(plate), bool)
    wells = profiles.Wells(plate * 0, plate, batch, well, ~everywhere, everywhere)
    raw, by_plate, _ = profiles.table({"network": values}, wells, CellPredictConfig(neighbours=5)).rows
    assert (raw[5] > 0.95) == bool(shift)
    assert by_plate[5] < 0.65
    assert raw[6] == 0.5


def test_what_cannot_be_said_is_left_out_with_the_reason() -> None:
    without = table(())
    assert all(math.isnan(row[1]) for row in without.rows)
    assert all(math.isfinite(row[2]) for row in without.rows)
    assert "normalised by all wells of the plate" in without.title
    assert "No replicate precision: predict.controls names no label of controls" in without.title
    wrong = table(("c9",))
    assert "No replicate precision: predict.controls: no field has the label 'c9'" in wrong.title
    assert "24 wells left out, on plates without controls" in table(("c0",), drop=2).title


def test_the_profiles_of_wells_are_written_for_pycytominer(tmp_path: Path) -> None:
    """Sites of a well are averaged, each the mean over its windows, and pycytominer normalises what it reads."""
    pycytominer = pytest.importorskip("pycytominer")
    made, parts = np.random.default_rng(0), []
    windows = made.normal(size=(8, 3, 5)).astype(np.float32)  # four wells of two sites of three windows
    for number in range(8):
        names: dict[str, Any] = {"plate": "P1", "well": f"A{number // 2:02d}", "site": str(number % 2)}
        field = Field(key=f"P1/{number}", group="P1", files={}, **names)
        corners = np.zeros((3, 2), np.int32)
        rows = outputs.rows(field, Embedded(windows[number], corners), "window", {"channels": ["1"]})
        parts += outputs.write(rows, field.key, tmp_path)
    _, path = outputs.collect(parts, tmp_path)
    frame = pandas.read_parquet(path)
    assert list(frame.columns[:5]) == [f"Metadata_{n}" for n in ("Source", "Batch", "Plate", "Well", "Site_Count")]
    names = [name for name in frame if name.startswith("Embedding_")]
    wanted = of_wells(windows.mean(1), np.arange(8) // 2)
    np.testing.assert_allclose(frame[names].to_numpy(), wanted, rtol=1e-5, atol=1e-6)
    assert frame.Metadata_Site_Count.tolist() == [2] * 4
    done = pycytominer.normalize(frame, names, meta_features=list(frame.columns[:5]))
    np.testing.assert_allclose(done[names].to_numpy(), normalised(wanted, np.zeros(4), np.ones(4, bool)), rtol=1e-3)
