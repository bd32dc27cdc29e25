"""The finder of nuclei: it finds those that were drawn, in every size and light, and nothing in an empty field."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tifffile
from runner_dinocell.nuclei import find_nuclei, otsu


def drawn(
    side: int, radius: float, count: int, seed: int, gap: float = 2.6, dim: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return an image (side, side) uint16 of ellipses of about this radius, and their centres (n, 2)."""
    rng = np.random.default_rng(seed)
    centres: list[np.ndarray] = []
    for place in rng.uniform(radius, side - radius, (400, 2)):
        if len(centres) < count and all(np.hypot(*(place - other)) > gap * radius for other in centres):
            centres.append(place)
    y, x = np.mgrid[:side, :side]
    light = np.zeros((side, side))
    for row, column in centres:
        angle, long = rng.uniform(0, np.pi), radius * rng.uniform(1.0, 1.3)
        u = (y - row) * np.cos(angle) + (x - column) * np.sin(angle)
        v = (x - column) * np.cos(angle) - (y - row) * np.sin(angle)
        inside = np.hypot(u / long, v * long / radius**2)
        light = np.maximum(light, rng.uniform(0.4, 1.2) / (1 + np.exp((inside - 1) * radius)))
    shading = 1 - dim * x / side
    image = shading * (300 + 2500 * light) + 20 * rng.standard_normal(light.shape)
    return image.clip(0).astype(np.uint16), np.array(centres)


def agreement(found: np.ndarray, true: np.ndarray, radius: float) -> tuple[float, float]:
    """Return the share of true centres with one found centre within half a radius, and of found ones that are true."""
    apart = np.linalg.norm(found[:, None] - true[None], axis=2)
    near = apart < radius / 2
    return float((near.sum(0) == 1).mean()), float((near.sum(1) == 1).mean())


@pytest.mark.parametrize("dim", [0.0, 0.5])
@pytest.mark.parametrize(("radius", "count"), [(6.0, 40), (14.0, 30), (30.0, 12)])
def test_it_finds_what_was_drawn(radius: float, count: int, dim: float) -> None:
    image, true = drawn(400, radius, count, seed=int(radius), dim=dim)
    assert len(true) == count
    assert agreement(find_nuclei(image), true, radius) == (1.0, 1.0)


def test_it_parts_most_that_touch() -> None:
    recalls = []
    for seed in range(4):
        image, true = drawn(400, 14.0, 60, seed, gap=1.9)
        recall, precision = agreement(find_nuclei(image), true, 14.0)
        assert precision > 0.85
        recalls.append(recall)
    assert np.mean(recalls) > 0.85


def test_the_unit_of_grey_values_does_not_matter() -> None:
    image, true = drawn(256, 10.0, 20, 3)
    for other in (image * 16, image // 16, image.astype(np.float32) / 65535):
        assert len(find_nuclei(other)) == pytest.approx(len(true), abs=1)


@pytest.mark.parametrize("kind", ["noise", "constant", "saturated"])
def test_nothing_is_found_in_an_empty_field(kind: str) -> None:
    noise = np.random.default_rng(0).normal(500, 20, (300, 200)).astype(np.uint16)
    image = {"noise": noise, "constant": np.full_like(noise, 7), "saturated": np.full_like(noise, 65535)}[kind]
    assert find_nuclei(image).shape == (0, 2)


@pytest.mark.parametrize("shape", [(1, 1), (3, 500), (17, 16)])
def test_tiny_images_are_no_error(shape: tuple[int, int]) -> None:
    assert find_nuclei(np.random.default_rng(0).integers(0, 60000, shape).astype(np.uint16)).shape[1] == 2


def test_real_fields(real_plate: Path) -> None:
    """Counted by eye: 77 in this field, of which two touch."""
    found = find_nuclei(tifffile.imread(real_plate / "plate1_A14_site1_Ch1.tif"))
    assert 73 <= len(found) <= 81
    apart = np.linalg.norm(found[:, None] - found[None], axis=2) + 1e3 * np.eye(len(found))
    assert apart.min() > 8


def test_otsu_parts_two_classes() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(0, 1, 9000), rng.normal(10, 1, 1000)])
    assert 3 < otsu(values) < 7
