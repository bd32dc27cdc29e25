"""The phantom: JUMP's layout, 16 bits, treatments that no statistics of grey values tell apart, and damaged files."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import tifffile
from runner_core import BadInput
from runner_dinocell import cells, phantom, tiff
from runner_dinocell.config import CellConfig
from runner_dinocell.fields import Field
from runner_dinocell.files import find_records
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As it is by default."""
    folder = tmp_path_factory.mktemp("phantom") / "whole"
    phantom.write_phantom(folder, np.random.default_rng(0))
    return folder


@pytest.fixture(scope="module")
def read(folder: Path) -> list[tuple[Field, np.ndarray]]:
    """Fields that can be read, with their images (C, H, W)."""
    from runner_dinocell.config import demo

    found = []
    for record in find_records(folder, demo()):
        try:
            found.append((record, np.stack([tiff.read(Path(str(p))) for p in record.files.values()])))
        except BadInput:
            continue
    return found


def test_the_layout_is_jumps(folder: Path, config: CellConfig) -> None:
    records = find_records(folder, config)
    assert len(records) == 4 * 24 * 2
    assert Counter(r.group for r in records) == {
        f"source_1/Batch{batch}/BR{batch}{n}": 48 for batch in ("01", "02") for n in ("01", "02")
    }
    assert {r.channels for r in records} == {("1", "2", "3")}
    assert all(len(r.files) == 3 for r in records)
    assert sum(path.stat().st_size for path in folder.rglob("*.tiff")) < 20e6


def test_treatments_are_on_every_plate_and_not_in_the_names(folder: Path, config: CellConfig) -> None:
    """As many wells of each on each plate, at other places on each."""
    places = defaultdict(list)
    counts: Counter[tuple[str, str | None]] = Counter()
    for record in find_records(folder, config):
        places[record.well].append(record.label)
        counts[record.plate, record.label] += 1
    assert set(counts.values()) == {12}
    assert len(counts) == 4 * len(phantom.TREATMENTS)
    assert sum(len(set(labels)) > 1 for labels in places.values()) > 15
    with (folder / "labels.csv").open() as file:
        assert list(next(csv.DictReader(file))) == ["plate", "well", "treatment"]


def test_images_are_16_bits_as_a_cameras(read: list[tuple[Field, np.ndarray]]) -> None:
    for _, image in read:
        assert image.dtype == np.uint16
        assert image.shape == (3, phantom.SIDE, phantom.SIDE)
        assert all(len(np.unique(channel)) > 256 for channel in image)
        assert 20 < image.min() < np.median(image) < image.max() < 65535
        assert np.median(image) > 120


def test_a_few_files_are_damaged(folder: Path, config: CellConfig) -> None:
    """Less than 1 % of the files, and fewer than stop a run; the first field is whole; check names them."""
    records = find_records(folder, config)
    broken: dict[str, str] = {}
    for record in records:
        for path in record.files.values():
            try:
                tiff.read(Path(str(path)))
            except BadInput as error:
                broken[record.key] = str(error)
    assert len(broken) == 2
    assert len({key.rsplit("/", 2)[0] for key in broken}) == 2
    assert records[0].key not in broken
    assert ["the file is empty" in said for said in sorted(broken.values(), key=len)] == [True, False]


def test_the_same_seed_gives_the_same_files(small_phantom: Path, tmp_path: Path) -> None:
    for name, seed in (("again", 0), ("other", 1)):
        phantom.write_phantom(tmp_path / name, np.random.default_rng(seed), phantom.PLATES[:2], (2, 4), 64)
    files = sorted(path.relative_to(small_phantom) for path in small_phantom.rglob("*.*") if path.is_file())
    assert len(files) == 2 * 8 * 2 * 3 + 1
    assert all((small_phantom / f).read_bytes() == (tmp_path / "again" / f).read_bytes() for f in files)
    assert not any((small_phantom / f).read_bytes() == (tmp_path / "other" / f).read_bytes() for f in files[:9])


def test_any_compression_of_microscopes_reads_it(folder: Path) -> None:
    path = next(folder.rglob("*.tiff"))
    with tifffile.TiffFile(path) as tif:
        assert len(tif.pages) == 1
        assert tif.pages.first.aspage().compression == tifffile.COMPRESSION.ADOBE_DEFLATE


# ---------------------------------------------------------------- what is hidden


def test_before_the_plates_effects_all_fields_have_one_histogram() -> None:
    """So one mean and one variance: exactly; and nearly one correlation between channels."""
    rng = np.random.default_rng(0)
    made = [cells.draw(cells.style(treatment, rng), 64, 0.4, rng) for treatment in phantom.TREATMENTS for _ in range(4)]
    rough = np.stack(made) + 0.01 * rng.standard_normal((16, 3, 64, 64))
    alike = phantom.equalised(rough).reshape(16, 3, -1)
    assert np.allclose(np.sort(alike, axis=2), np.sort(alike[:1], axis=2), rtol=0, atol=1e-12)
    apart = [np.std([np.corrcoef(field)[0, 1] for field in some]) for some in (rough.reshape(16, 3, -1), alike)]
    assert apart[1] < 0.5 * apart[0]
    moved = np.abs(alike - rough.reshape(16, 3, -1)).mean() / rough.std()
    assert moved < 0.2  # the cells are still there


def described(images: np.ndarray) -> np.ndarray:
    """Mean, standard deviation, percentiles of each channel and correlations between channels, (n, features)."""
    flat = images.reshape(*images.shape[:2], -1).astype(np.float64)
    percentiles = np.percentile(flat, (0.1, 1, 5, 25, 50, 75, 95, 99, 99.9), axis=2).transpose(1, 2, 0)
    between = np.stack([np.corrcoef(field)[np.triu_indices(3, 1)] for field in flat])
    return np.concatenate([flat.mean(2), flat.std(2), percentiles.reshape(len(flat), -1), between], axis=1)


def standardised(features: np.ndarray, plates: np.ndarray) -> np.ndarray:
    out = features.copy()
    for plate in np.unique(plates):
        own = features[plates == plate]
        out[plates == plate] = (own - own.mean(0)) / own.std(0)
    return out


@pytest.mark.parametrize("by_plate", [False, True])
def test_statistics_of_grey_values_do_not_tell_treatments_apart(
    read: list[tuple[Field, np.ndarray]], by_plate: bool
) -> None:
    """Plate held out, as they are or relative to their plate: near 1 in 4."""
    labels, plates = (np.array([getattr(field, name) for field, _ in read]) for name in ("label", "plate"))
    features = described(np.stack([image for _, image in read]))
    features = standardised(features, plates) if by_plate else features
    for classifier in (LogisticRegression(C=0.3, max_iter=2000), KNeighborsClassifier(10)):
        scores = []
        for plate in np.unique(plates):
            known = plates != plate
            fitted = make_pipeline(StandardScaler(), classifier).fit(features[known], labels[known])
            scores.append(fitted.score(features[~known], labels[~known]))
        assert np.mean(scores) < 0.36


def test_plates_are_told_apart_by_grey_values(read: list[tuple[Field, np.ndarray]]) -> None:
    """The plates' own effects change every channel's statistics; a network must not learn them."""
    plates = np.array([field.plate for field, _ in read])
    features = described(np.stack([image for _, image in read]))
    odd = np.arange(len(plates)) % 2 == 1
    fitted = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(features[odd], plates[odd])
    assert fitted.score(features[~odd], plates[~odd]) > 0.95


def test_shape_tells_treatments_apart() -> None:
    """The hidden treatment can be seen: cells have the area and the shape that it gives them."""
    rng = np.random.default_rng(3)
    ratios = {}
    for treatment in phantom.TREATMENTS:
        style = cells.style(treatment, rng)
        found = []
        for _ in range(12):
            canvas = np.zeros((3, 96, 96), np.float32)
            cells._add(canvas, style, 48, 48, 16, rng)
            mask = canvas.max(0) > 0.2
            assert mask.sum() == pytest.approx(np.pi * 16**2, rel=0.15)
            values = np.linalg.eigvalsh(np.cov(np.argwhere(mask).T))
            found.append((values[1] / values[0]) ** 0.5)
        ratios[treatment.name] = np.mean(found)
    assert ratios["control"] < 1.25
    assert ratios["elongating"] > 1.8
