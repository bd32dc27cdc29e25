"""The phantom: files, annotation, chemistry."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from runner_ssmunet import phantom
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
