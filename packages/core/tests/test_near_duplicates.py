"""A scan that was mirrored, resampled or saved with other grey values is found in another group."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from runner_core import Record
from runner_core.cli import main
from runner_core.contract.values import Array
from runner_core.data.fingerprints import SIDES, Fingerprint, fingerprint, resized
from runner_core.data.near_duplicates import LEAK, find_near_duplicates, near_duplicates


def scan(seed: int, axes: int = 3, side: int = 60) -> Array:
    """Return an object with details, in a margin of air."""
    rng = np.random.default_rng(seed)
    detail = resized(rng.normal(size=(side // 6,) * axes)[..., None], (side,) * axes)[..., 0]
    grid = np.meshgrid(*[np.linspace(-1, 1, side)] * axes, indexing="ij")
    sizes, middle = rng.uniform(0.6, 0.85, axes), rng.uniform(-0.1, 0.1, axes)
    inside = sum(((g - m) / size) ** 2 for g, m, size in zip(grid, middle, sizes, strict=True)) < 1
    return ((detail * 300 + 1000) * inside).astype(np.float32)


def resampled(image: Array) -> Array:
    sides = [round(side * share) for side, share in zip(image.shape, (0.8, 1.2, 0.9), strict=False)]
    return resized(image[..., None], tuple(sides))[..., 0]


def noisy(image: Array) -> Array:
    return image + np.random.default_rng(0).normal(size=image.shape) * 0.05 * image.std()


CHANGES: dict[str, tuple[Callable[[Array], Array], str]] = {
    "mirrored": (lambda image: image[::-1], "mirrored along axis 0"),
    "turned": (np.rot90, "turned (axes 1, 0"),
    "resampled": (resampled, "resampled or cut (4"),
    "8 bit": (lambda image: np.rint(image * (255 / image.max())).astype(np.uint8), "with other grey values"),
    "gain": (lambda image: image * 3 - 500, "with other grey values"),
    "gamma": (lambda image: (image / image.max()) ** 2, "with other grey values"),
    "noise": (noisy, "with other grey values"),
    "cut": (lambda image: image[tuple(slice(6, None) for _ in image.shape)], ""),
    "all": (lambda image: np.sqrt(resampled(image[:, ::-1])), "mirrored along axis 1, resampled or cut"),
}


@pytest.fixture(scope="module")
def originals() -> dict[int, list[Fingerprint | None]]:
    return {axes: [fingerprint(scan(n, axes), axes) for n in range(4)] for axes in SIDES}


@pytest.mark.parametrize("axes", SIDES)
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_copy_is_found_and_nothing_else(
    change: str, axes: int, originals: dict[int, list[Fingerprint | None]]
) -> None:
    changed, how = CHANGES[change]
    copy = fingerprint(changed(scan(2, axes)), axes)
    found = near_duplicates([*originals[axes], copy], [range(5)])
    assert [(pair.first, pair.second) for pair in found] == [(2, 4)]
    assert how in found[0].how


@pytest.mark.parametrize("axes", SIDES)
def test_a_changed_copy_in_the_same_group_is_none(axes: int, originals: dict[int, list[Fingerprint | None]]) -> None:
    copy = fingerprint(scan(2, axes)[::-1], axes)
    assert near_duplicates([*originals[axes], copy], ["abcdc", range(5)]) == []


def test_images_without_content_have_no_fingerprint() -> None:
    assert fingerprint(np.zeros((40, 40, 40)), 3) is None
    assert fingerprint(scan(0, 2, 28), 2) is None  # too small
    assert fingerprint(np.full((40, 40, 40), np.nan), 3) is None
    assert fingerprint(scan(0).astype(complex), 3) is None
    assert fingerprint(scan(0, 2), 3) is None  # its spacing has an axis more than it has
    channels = np.stack([scan(n, 2) for n in range(3)])  # an axis of three counts as channels
    assert (known := fingerprint(channels, 3)) is not None
    assert known.picture.shape == (SIDES[2],) * 2
    assert near_duplicates([None, None, known], [range(3)]) == []


def test_filler_that_is_no_value_does_not_count() -> None:
    image = scan(0)
    filled = np.where(image > 0, image, np.float32(-3.4e38))
    filled[0], filled[1] = np.nan, 3.4e38
    known, other = fingerprint(image, 3), fingerprint(filled, 3)
    assert known is not None
    assert other is not None
    np.testing.assert_array_equal(known.picture, other.picture)


def test_records_known_to_be_different_are_left_out() -> None:
    records = [Record(key, key, {"image": Path(key)}) for key in ("a", "b c")]
    pictures = [fingerprint(scan(1), 3), fingerprint(scan(1) * 2, 3)]
    (found,) = find_near_duplicates(records, pictures, [None, None], [])
    assert (found.level, found.rule) == ("error", LEAK)
    assert found.message.endswith("--different a 'b c'")
    assert find_near_duplicates(records, pictures, [None, None], ["b c", "a"]) == []
    assert find_near_duplicates(records, pictures, ["same", "same"], []) == []  # reported as exact duplicates


@pytest.mark.parametrize(("other_two", "found"), [(0.2, [(0, 1)]), (0.029, [(0, 1), (0, 2), (1, 2)])])
def test_a_pair_that_a_nearer_copy_denies_is_left_out(
    other_two: float, found: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Record 1 is a copy of 0. If 2 is like 0, but not like 1, it is another person who resembles both."""
    from runner_core.data import near_duplicates as module

    pictures = [Fingerprint(np.full((2, 2), n, np.uint8), (2, 2), 0, 1) for n in range(3)]
    distance = {(0, 1): 0.005, (0, 2): 0.028, (1, 2): other_two}
    partners = np.array([[1, 2], [2, 0], [0, 0]]), np.array([[0.9, 0.8], [0.8, -1], [-1, -1]])
    monkeypatch.setattr(module, "_partners", lambda *_: partners)
    straight = module._orientations(2)[0]
    monkeypatch.setattr(
        module, "_compared", lambda a, b: module._Pair(1 - distance[int(a[0, 0]), int(b[0, 0])], straight, 0)
    )
    pairs = near_duplicates(pictures, [range(3)])
    assert sorted((pair.first, pair.second) for pair in pairs) == found


def test_of_many_alike_records_only_so_many_pairs_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample of 4 records is compared with all their partners; then the 5 most similar pairs are. None of the pairs
    found here has a record in common with another one, so none can deny it by a further comparison."""
    compared: list[tuple[bytes, bytes]] = []

    def count(first: Array, second: Array) -> object:
        compared.append((first.tobytes(), second.tobytes()))
        return original(first, second)

    from runner_core.data import near_duplicates as module

    original = module._compared
    monkeypatch.setattr(module, "_compared", count)
    monkeypatch.setattr(module, "_PAIRS", 5)
    monkeypatch.setattr(module, "_SAMPLE", 4)
    pictures = [fingerprint(noisy(scan(n // 2, 2)) if n % 2 else scan(n // 2, 2), 2) for n in range(24)]
    assert 1 <= len(near_duplicates(pictures, [range(24)])) <= 5
    assert len({*compared}) == len(compared) <= 4 * module._PARTNERS + 5


def test_check_reports_a_near_copy_in_another_group(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def check(*words: str) -> str:
        code = main(["toy", "check", "--data", "data", "--cache.dir", "cache", *words])
        out, err = capsys.readouterr()
        return f"{code} {out}{err}"

    assert main(["toy", "phantom", "data"]) == 0
    images = {f"p{n}_a": scan(n, side=24) for n in range(4)} | {"q0_a": scan(0, side=24)[:, ::-1] * 2}
    for key, image in images.items():
        np.save(here / "data" / f"{key}.npy", np.ascontiguousarray(image))
        np.save(here / "data" / f"{key}_mask.npy", (image > 900).astype(np.uint8))
    capsys.readouterr()
    checked = check()
    assert checked.startswith("2 ")
    assert "error    p0_a (group p0) and q0_a (group q0) hold the same scan" in checked
    assert "the second is mirrored along axis 1" in checked
    assert "leak: 1 error about near copies, above. Training does not look for them" in checked
    assert "training refuses" not in checked
    assert "has copies in two groups" in Path(checked.rpartition("report: ")[2].strip()).read_text()
    known = check("--different", "p1_a", "q0_a", "p0_a")
    assert known.startswith("0 ")
    assert "same scan" not in known
    assert "--different takes the keys of two records, or of more" in check("--different", "p0_a")
    assert check("--different", "p0_a", "x").endswith("--different x: no record has this key\n")
