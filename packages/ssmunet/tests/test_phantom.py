"""The phantom: files, annotation, chemistry."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from runner_ssmunet import artefacts, phantom
from runner_ssmunet.steps import mie, spectrafile
from scipy import ndimage


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("phantom")
    phantom.write_phantom(folder, np.random.default_rng(0))
    return folder


@pytest.fixture(scope="module")
def cores(folder: Path) -> list[dict[str, np.ndarray]]:
    return [dict(np.load(path, allow_pickle=False)) for path in sorted(folder.glob("core_*.npz"))]


def test_the_files_are_as_specified(folder: Path, cores: list[dict[str, np.ndarray]]) -> None:
    assert len(cores) == phantom.PATIENTS * phantom.CORES
    assert sum(path.stat().st_size for path in folder.iterdir()) < 80e6
    for core in cores:
        height, width, channels = core["X"].shape
        assert core["X"].dtype == np.float32
        assert np.isfinite(core["X"]).all()
        assert core["y"].shape == core["tissue_mask"].shape == (height, width)
        assert core["tissue_mask"].dtype == bool
        assert core["wn"].shape == (channels,)
        assert (core["wn"][0], core["wn"][-1]) == (900, 1800)
        assert float(core["delta_cm1"]) == pytest.approx(np.diff(core["wn"]).mean())
        assert {"core_id", "patient_id", "slide_id"} <= json.loads(str(core["meta"])).keys()


def test_annotation_is_sparse_on_tissue_and_in_patches(cores: list[dict[str, np.ndarray]]) -> None:
    for core in cores:
        known = core["y"] > 0
        assert 0.05 <= known.mean() <= 0.2
        assert not (known & ~core["tissue_mask"]).any()
        _, pieces = ndimage.label(known)
        assert known.sum() / pieces > 4
        assert set(np.unique(core["y"])) <= set(range(len(phantom.AMOUNTS) + 1))


def test_each_patient_shows_every_tissue(cores: list[dict[str, np.ndarray]]) -> None:
    seen = defaultdict(set)
    for core in cores:
        seen[json.loads(str(core["meta"]))["patient_id"]] |= set(np.unique(core["y"])) - {0}
    assert len(seen) == phantom.PATIENTS
    every = [len(found) == len(phantom.AMOUNTS) for found in seen.values()]
    assert np.mean(every) > 0.7  # small regions may get no annotation


def test_its_classes_are_named_beside_the_cores(folder: Path) -> None:
    lines = (folder / "classes.csv").read_text("utf-8").splitlines()
    assert lines == ["label,name", *(f"{label},{name}" for label, name in enumerate(phantom.AMOUNTS, 1))]
    assert all(len(amounts) == len(phantom.BANDS) for amounts in phantom.AMOUNTS.values())


@pytest.mark.parametrize(
    ("component", "position"),
    [("helix", 1655), ("sheet", 1631), ("lipid", 1740), ("nucleic", 1086), ("glycogen", 1025), ("mucin", 1076)],
)
def test_components_absorb_most_where_they_should(component: str, position: float) -> None:
    axis = np.linspace(900, 1800, 901)
    spectrum = phantom.absorption(axis, phantom.BANDS[component])
    assert axis[spectrum.argmax()] == pytest.approx(position, abs=12)


def test_a_band_has_its_width() -> None:
    axis = np.linspace(1600, 1700, 100_001)
    band = phantom.absorption(axis, [(1650.0, 40.0, 2.0)])
    assert band.max() == pytest.approx(2, abs=1e-6)
    assert np.ptp(axis[band > 1]) == pytest.approx(40, abs=0.01)


def test_tissue_absorbs_in_amide_one_and_what_is_none_does_not(cores: list[dict[str, np.ndarray]]) -> None:
    axis = cores[0]["wn"]
    amide, beside = (axis > 1640) & (axis < 1660), (axis > 1780)
    for core in cores:
        height = core["X"][..., amide].mean(-1) - core["X"][..., beside].mean(-1)
        inside, outside = height[core["tissue_mask"]], height[~core["tissue_mask"]]
        assert np.median(inside) > 10 * abs(np.median(outside))
        assert np.percentile(inside, 5) > np.percentile(outside, 95)


def one_core(faulty: bool) -> dict[str, np.ndarray]:
    """The same core, with artefacts or without."""
    axis, rng = np.linspace(900, 1800, phantom.CHANNELS), np.random.default_rng(3)
    components = phantom.component_spectra(axis, rng)
    return phantom.make_core(axis, components, np.arange(5), rng, np.random.default_rng(4) if faulty else None)


def test_artefacts_leave_the_chemistry_and_the_rest_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clean = one_core(faulty=False)
    for name in ("SCATTERED", "VAPOUR", "THINNER", "SPILLED"):
        monkeypatch.setattr(artefacts, name, 0.0)
    for name, array in one_core(faulty=True).items():
        np.testing.assert_array_equal(array, clean[name], err_msg=name)


def test_labels_spill_over_some_borders(monkeypatch: pytest.MonkeyPatch) -> None:
    found, truth = one_core(faulty=True)["y"], one_core(faulty=False)["y"]
    wrong = (found != truth) & (found > 0)
    assert 0.01 < wrong.sum() / (found > 0).sum() < 0.1
    assert ((found > 0) >= (truth > 0)).all()
    assert ndimage.binary_dilation(found == truth, iterations=2)[wrong].all()


def test_scattering_is_van_de_hulsts_and_strongest_at_the_edge() -> None:
    mask = np.zeros((9, 9), bool)
    mask[1:-1, 1:-1] = True
    axis = np.linspace(900, 1800, 50)
    added = artefacts.scattered(np.zeros((9, 9, 50)), axis, mask, np.zeros((4, 9, 9)))
    assert not added[~mask].any()
    radius, index = 4.5e-4, 0.3  # the middle of both ranges, without absorbance no variation
    expected = artefacts.SCATTERED * mie.extinction(4 * np.pi * radius * index * axis)
    edge, middle = artefacts.at_edge(mask)[1, 4], artefacts.at_edge(mask)[4, 4]
    assert edge == 1 > middle
    np.testing.assert_allclose(added[1, 4], artefacts.AT_EDGE * expected, rtol=1e-9)
    np.testing.assert_allclose(added[4, 4], (1 + (artefacts.AT_EDGE - 1) * middle) * expected, rtol=1e-9)


def test_its_vapour_is_in_the_cores_and_in_the_file_beside_them(
    folder: Path, cores: list[dict[str, np.ndarray]]
) -> None:
    found = spectrafile.read(folder / phantom.VAPOUR_FILE, single=True)
    axis = cores[0]["wn"]
    np.testing.assert_allclose(found.spectra[0], artefacts.vapour(axis), rtol=1e-4, atol=1e-5)
    lines = np.diff(found.spectra[0], 2)
    amounts = [np.diff(core["X"].reshape(-1, len(axis)), 2) @ lines / (lines @ lines) for core in cores]
    by_row = [own.reshape(phantom.SIDE, -1).mean(1).std() for own in amounts]
    assert np.median(by_row) == pytest.approx(artefacts.VAPOUR, rel=0.3)
