"""A volume from Python, and a prediction as one array."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from runner_core import BadInput
from runner_vesuvius.config import ScrollConfig
from runner_vesuvius.outputs import Detected
from runner_vesuvius.project import Vesuvius

VOLUME = np.random.default_rng(0).integers(0, 256, (40, 44, 48)).astype(np.uint8)


def test_an_array_is_decoded_like_its_file(tmp_path: Path) -> None:
    project = Vesuvius(ScrollConfig())
    (record,) = project.inputs(project.write_input({"image": VOLUME}, None, tmp_path))
    np.testing.assert_array_equal(project.decode(record).arrays["image"], VOLUME)


def test_other_arrays_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="one array"):
        Vesuvius(ScrollConfig()).write_input({"image": VOLUME, "label": VOLUME}, None, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_prediction_is_its_mask() -> None:
    np.testing.assert_array_equal(np.asarray(Detected(VOLUME, None)), VOLUME)
