"""A whole scroll from S3 to S3, in two parts, on a server that fails now and then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

pytest.importorskip("obstore")
pytest.importorskip("moto")
from runner_core import BlockWork, Record, RemoteConfig, Url
from runner_vesuvius import chunked, scroll, sweep
from runner_vesuvius.config import ScrollPredictOptions, demo
from runner_vesuvius.scroll import Scroll
from s3server import S3


def bright(arrays: Any) -> Any:
    return {"prediction": arrays["image"][:, None].astype(np.float32) / 255}


def test_parts_share_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from runner_vesuvius.files import url_record

    for module in (chunked, scroll, sweep):
        monkeypatch.setattr(module, "CHUNK", 16)
    monkeypatch.setattr(scroll, "_COARSEST", 16)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    scan = np.random.default_rng(0).integers(1, 255, (20, 24, 20)).astype(np.uint8)
    zarr.create_array(tmp_path / "s1.zarr", data=scan, chunks=(16, 16, 16))
    config = demo()
    config.data.patch, config.predict.min_size = (16, 16, 16), 10
    with S3() as s3:
        for file in (tmp_path / "s1.zarr").rglob("*"):
            if file.is_file():
                s3.put("scrolls", f"s1.zarr/{file.relative_to(tmp_path / 's1.zarr')}", file.read_bytes())
        config.remote = RemoteConfig(endpoint=s3.endpoint, retries=3, timeout=5)
        record = url_record(Url("s3://scrolls/s1.zarr"))
        options = ScrollPredictOptions(store="s3://scrolls/out")
        s3.fail("unavailable", "out/", times=3)
        written = []
        for part in ((1, 2), (2, 2)):
            work = BlockWork(record, [bright], "run/step-1", (), part, tmp_path)
            written.append(Scroll(work, config, options, 4).predict())
        assert written == [[], [Url("s3://scrolls/out/s1.zarr")]]
        found = chunked.Volume(Url("s3://scrolls/out/s1.zarr"), config.remote)
        mask = found.read((slice(0, 20), slice(0, 24), slice(0, 20)))
        assert (chunked.Folder(Url("s3://scrolls/out"), config.remote) / "s1.work.zarr").existing() is None
    config.remote = RemoteConfig()
    local = Record("s1", "s1", {"image": tmp_path / "s1.zarr"})
    here = BlockWork(local, [bright], "run/step-1", (), (1, 1), tmp_path / "local")
    Scroll(here, config, ScrollPredictOptions(chunked=True), 4).predict()
    assert np.array_equal(mask, zarr.open_group(tmp_path / "local" / "s1.zarr", mode="r")["0"][...])
    assert mask.any()
