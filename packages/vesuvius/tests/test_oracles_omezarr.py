"""Written OME-Zarr against its official schema, read by ngff-zarr: `bash .ci/run oracles`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from runner_core import BlockWork, Record
from runner_vesuvius import chunked, scroll, sweep
from runner_vesuvius.config import ScrollConfig, ScrollPredictOptions
from runner_vesuvius.scroll import Scroll

ngff_zarr = pytest.importorskip("ngff_zarr", reason="ngff-zarr is not installed: it is in the group oracles")
pytest.importorskip("jsonschema")

SHAPE = (40, 37, 50)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_another_program_finds_levels_and_sizes(
    version: str, config: ScrollConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (chunked, scroll, sweep):
        monkeypatch.setattr(module, "CHUNK", 16)
    monkeypatch.setattr(scroll, "_COARSEST", 12)
    monkeypatch.setattr(scroll, "side_for", lambda *given: (16, 32))
    scan = np.random.default_rng(0).integers(1, 256, SHAPE).astype(np.uint8)
    group = zarr.create_group(tmp_path / "s1.zarr", zarr_format=2)
    group.create_array("0", shape=SHAPE, chunks=(16, 16, 16), dtype="uint8")[...] = scan
    chunked.describe(group, "s1", 1, (7.91, 7.91, 7.91), "micrometer", {})

    def answer(arrays: Any) -> Any:
        return {"prediction": arrays["image"][:, None].astype(np.float32) / 255}

    work = BlockWork(
        Record("s1", "s1", {"image": tmp_path / "s1.zarr"}), (answer,), "run", (), (1, 1), tmp_path / "out"
    )
    Scroll(work, config, ScrollPredictOptions(chunked=True, ngff=version, probability=True), 3).predict()
    for name, dtype in (("s1", "uint8"), ("s1_probability", "uint8")):
        place = tmp_path / "out" / f"{name}.zarr"
        found = ngff_zarr.from_ngff_zarr(place, validate=True)
        assert [image.data.shape for image in found.images] == [(40, 37, 50), (20, 19, 25), (10, 10, 13), (5, 5, 7)]
        first, second = found.images[:2]
        assert (first.dims, first.scale) == (("z", "y", "x"), dict.fromkeys("zyx", 7.91))
        assert set(first.axes_units.values()) == {"micrometer"}
        assert second.scale == pytest.approx(dict.fromkeys("zyx", 15.82))
        assert second.translation == pytest.approx(dict.fromkeys("zyx", 3.955))
        assert first.data.dtype == dtype
        assert np.array_equal(first.data.compute(), zarr.open_group(place, mode="r")["0"][...])
    probability = ngff_zarr.from_ngff_zarr(tmp_path / "out" / "s1_probability.zarr").images[0].data.compute()
    assert np.abs(probability.astype(int) - scan).max() <= 1
