"""A field from Python: channels in the network's order, or by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from runner_core import BadInput
from runner_dinocell.config import CellConfig
from runner_dinocell.project import DinoCell
from runner_dinocell.whole import Embedded

FIELD = np.random.default_rng(0).integers(0, 60000, (2, 30, 40)).astype(np.uint16)


def project() -> DinoCell:
    found = DinoCell(CellConfig())
    found.statistics = {"channels": ["1", "DNA"]}
    return found


@pytest.mark.parametrize("arrays", [{"image": FIELD}, {"DNA": FIELD[1], "1": FIELD[0]}])
def test_an_array_is_one_field(arrays: dict, tmp_path: Path) -> None:
    own = project()
    (record,) = own.inputs(own.write_input(arrays, None, tmp_path))
    found = own.decode(record)
    np.testing.assert_array_equal(found.arrays["image"], FIELD)
    assert found.meta["channels"] == ["1", "DNA"]


def test_what_is_needed_is_said(tmp_path: Path) -> None:
    for arrays, message in (
        ({"image": FIELD[:1]}, "channels 1, DNA"),
        ({"image": FIELD[0]}, r"\(C, H, W\)"),
        ({"image": FIELD / 60000}, "own grey values"),
    ):
        with pytest.raises(BadInput, match=message):
            project().write_input(arrays, None, tmp_path)


def test_a_prediction_is_the_fields_embedding() -> None:
    windows = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(np.asarray(Embedded(windows, np.zeros((2, 2), np.int32))), [1.5, 2.5, 3.5])
