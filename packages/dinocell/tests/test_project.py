"""The project: what a whole field takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from runner_core import Arrays, Decoded
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


def test_a_field_is_drawn_with_a_colour_for_each_channel(config: CellConfig) -> None:
    """A channel that is dark everywhere adds nothing, and one well carries the label of all its fields."""
    project = DinoCell(config)
    draw, carrier = project.pictures().image, project.combining().carrier
    assert draw is not None
    image = np.zeros((2, 30, 40), np.uint16)
    image[0, :15], image[1, 20:] = 900, 9000
    drawn = draw(Decoded({"image": image}, (1.0, 1.0, 1.0), "image"))
    assert drawn is not None
    assert (drawn.shape, drawn.dtype) == ((30, 40, 3), np.uint8)
    above, between, below = (drawn[row, 0].tolist() for row in (0, 17, 29))
    assert between == [0, 0, 0] != above != below != between
    assert carrier is not None
    one, other, far = (fields.Field(f"p/{w}/{s}", "p", {}, plate="p", well=w, site=s) for w, s in ("a1", "a2", "b1"))
    assert carrier(one) == carrier(other) != carrier(far)
