"""Windows cover the field; a table of embeddings is read back by anyone, by key."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runner_core import Arrays, BadInput
from runner_dinocell import outputs
from runner_dinocell.config import CellConfig
from runner_dinocell.fields import Field
from runner_dinocell.whole import Embedded, predict, side
from runner_dinocell.windows import corners

SETTINGS = {"window": 8, "channels": ["Ch1", "Ch2"]}


def field(well: str = "A01", site: str = "1") -> Field:
    return Field(key=f"s/b/P1/{well}/{site}", group="s/b/P1", files={}, source="s", batch="b", plate="P1", well=well,
                 site=site)  # fmt: skip


def embedded(seed: int = 0) -> Embedded:
    made = np.random.default_rng(seed)
    return Embedded(made.normal(size=(4, 6)).astype(np.float32), corners((16, 16), 8, 1.0))


@given(st.integers(8, 60), st.integers(8, 60), st.integers(1, 8), st.floats(0.1, 1))
def test_windows_cover_the_field(height: int, width: int, window: int, stride: float) -> None:
    places = corners((height, width), window, stride)
    seen = np.zeros((height, width), bool)
    for y, x in places:
        assert min(y, x) >= 0
        assert seen[y : y + window, x : x + window].shape == (window, window)
        seen[y : y + window, x : x + window] = True
    assert seen.all()
    for axis, length in enumerate((height, width)):
        steps = np.diff(np.unique(places[:, axis]))
        assert steps.size == 0 or steps.max() <= np.ceil(max(1, stride * window))
        assert len(np.unique(places[:, axis])) <= np.ceil((length - window) / max(1, stride * window)) + 1


def test_cells_are_as_large_as_in_training() -> None:
    config = CellConfig()
    config.data.window, config.augment.global_scale = 100, (0.3, 0.7)
    assert side(config) == 71


def test_each_window_is_embedded_with_its_fields_levels() -> None:
    image = np.arange(2 * 20 * 24, dtype=np.uint16).reshape(2, 20, 24)
    levels = np.array([[1, 2], [3, 4]], np.float32)
    batches: list[int] = []

    def infer(arrays: Arrays) -> Arrays:
        assert arrays["image"].dtype == np.uint16
        batches.append(len(arrays["image"]))
        first, last = arrays["image"][:, 0, 0, 0], arrays["image"][:, 1, -1, -1]
        return {"embedding": np.stack([first, last, arrays["levels"][:, 1, 1]], 1).astype(np.float32)}

    windows = predict({"image": image, "levels": levels}, infer, 8, 1.0, 4, "P1/A01/1")
    found = Embedded(windows, corners((20, 24), 8, 1.0))
    assert batches == [4, 4, 1]
    assert found.corners.tolist() == [[y, x] for y in (0, 6, 12) for x in (0, 8, 16)]
    for (y, x), row in zip(found.corners, found.windows, strict=True):
        assert row.tolist() == [image[0, y, x], image[1, y + 7, x + 7], 4]
    np.testing.assert_allclose(found.field, found.windows.astype(np.float64).mean(0), rtol=1e-6)
    with pytest.raises(BadInput, match=r"P1/A01/1: 24 × 20 pixels, smaller than the windows .*32"):
        predict({"image": image, "levels": levels}, infer, 32, 1.0, 4, "P1/A01/1")


def test_fields_are_a_row_each_in_one_file(tmp_path: Path) -> None:
    parts = []
    for number, site in enumerate("123"):
        parts += outputs.write(
            outputs.rows(field(site=site), embedded(number), "field", SETTINGS), f"k{site}", tmp_path
        )
    path, _ = outputs.collect(parts, tmp_path)
    table = pq.read_table(path)
    assert path.name == "embeddings.parquet"
    assert table.schema.names == [*outputs.KEYS, "window_y", "window_x", "embedding"]
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 6)
    assert table["site"].to_pylist() == ["1", "2", "3"]
    assert table["plate"].to_pylist() == ["P1"] * 3
    assert table["window_y"].null_count == table["window_x"].null_count == 3
    found = np.stack(table["embedding"].to_numpy())
    np.testing.assert_array_equal(found, np.stack([embedded(number).field for number in range(3)]))
    assert json.loads(table.schema.metadata[outputs.METADATA]) == SETTINGS


def test_windows_are_a_row_each_with_their_places(tmp_path: Path) -> None:
    outputs.write(outputs.rows(field(), embedded(), "window", SETTINGS), "k", tmp_path)
    table = pyarrow.dataset.dataset(tmp_path).to_table()
    places = np.stack([table["window_y"].to_numpy(), table["window_x"].to_numpy()], 1)
    assert places.tolist() == [[0, 0], [0, 8], [8, 0], [8, 8]]
    np.testing.assert_array_equal(np.stack(table["embedding"].to_numpy()), embedded().windows)


def test_keys_alike_to_a_disk_have_files_of_their_own(tmp_path: Path) -> None:
    for key in ("a/b_c", "a_b/c", "a/b/c", "../c"):
        (path,) = outputs.write(outputs.rows(field(), embedded(), "field", SETTINGS), key, tmp_path)
        assert path.parent == tmp_path
    assert len(list(tmp_path.iterdir())) == 4


def test_more_files_than_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "_TOGETHER", 2)
    parts = [
        outputs.write(outputs.rows(field(site=str(n)), embedded(n), "field", {}), str(n), tmp_path)[0] for n in range(5)
    ]
    path, _ = outputs.collect(parts, tmp_path)
    assert pq.read_table(path)["site"].to_pylist() == list("01234")
