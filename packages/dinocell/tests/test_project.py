"""The project: what a whole field takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from runner_core import Arrays
from runner_core.testing import cropped
from runner_dinocell import fields, files
from runner_dinocell.config import CellConfig
from runner_dinocell.project import DinoCell


def infer(arrays: Arrays) -> Arrays:
    return {"embedding": arrays["image"].mean((2, 3), dtype=np.float32)}


def test_a_field_is_read_once_for_all_that_ask_for_it(
    config: CellConfig, small_phantom: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Network, untrained network and baseline each ask for it; another record is another field, of the same key too."""
    config.data.window = 48
    project = DinoCell(config)
    first, second = files.find_records(small_phantom, config)[:2]
    read: list[str] = []
    decode = fields.decode
    monkeypatch.setattr(fields, "decode", lambda record: read.append(record.key) or decode(record))
    field = cropped(project, first)
    one = project.predict(field, infer)
    assert np.array_equal(one.windows, project.predict(field, infer).windows)
    statistics = project.baseline(field)
    assert read == [first.key]
    assert not np.array_equal(statistics, project.baseline(cropped(project, second)))
    assert np.array_equal(statistics, project.baseline(cropped(project, first)))
    assert read == [first.key, second.key, first.key]
