"""Fields that lack channels: the embeddings that are made, and the table of their scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from runner_core import Array, Predicted
from runner_dinocell.baseline import baseline, columns
from runner_dinocell.config import CellPredictConfig
from runner_dinocell.dropped import embedded, variants
from runner_dinocell.fields import Field
from runner_dinocell.judgement import judge
from runner_dinocell.whole import Embedded

CHANNELS = ("DNA", "ER", "Mito")


def test_variants_are_without_each_and_each_alone() -> None:
    found = [(variant.name, set(variant.kept)) for variant in variants(CHANNELS)]
    assert found[0] == ("without DNA", {"ER", "Mito"})
    assert found[3] == ("only DNA", {"DNA"})
    assert len(found) == 6
    assert [variant.name for variant in variants(("DNA", "ER"))] == ["without DNA", "without ER"]
    assert not variants(("DNA",))


def test_a_variant_hides_channels_by_name_and_one_that_shows_nothing_is_nan() -> None:
    """The field has other channels, in another order, than the network was trained with."""

    def embed(prepared: Any) -> Array:
        return np.stack([prepared["grey"], prepared["grey"] + 2])  # two windows

    prepared = {"image": np.zeros((3, 4, 4)), "levels": np.zeros((3, 2)), "grey": np.array([5, 0, 7])}
    found = embedded(prepared, ("Mito", "ER", "DNA"), CHANNELS, embed)
    assert found.dtype == np.float32
    assert found.tolist()[:3] == [[6, 1, 1], [6, 1, 8], [1, 1, 8]]
    assert found.tolist()[3] == [1, 1, 8]
    assert np.isnan(found[4]).all()
    assert prepared["grey"].tolist() == [5, 0, 7]


@pytest.mark.parametrize("kept", [[0], [1, 2], [0, 1, 2], []])
def test_columns_of_the_pixel_statistics_are_those_of_the_channels_alone(kept: list[int]) -> None:
    image = np.random.default_rng(0).integers(0, 900, (3, 8, 8)).astype(np.uint16)
    levels = np.array([[0, 500], [10, 600], [20, 700]], np.float32)
    found = baseline(image, levels)[columns(3, kept)]
    wanted = baseline(image[kept], levels[kept]) if kept else np.zeros(0)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def predicted(robust: bool) -> list[Predicted]:
    """Fields of three compounds. Without ER a robust network says the same; another says something of its own."""
    made = np.random.default_rng(0)
    centres = made.normal(size=(3, 8)) * 4
    found = []
    for plate, well, site in np.ndindex(4, 6, 2):
        names: dict[str, Any] = {"plate": f"P{plate}", "well": f"A{well:02d}", "site": str(site)}
        field = Field(key="/".join(names.values()), group=f"P{plate}", files={}, **names, label=f"c{well % 3}")
        field = replace(field, channels=CHANNELS)
        full = (centres[well % 3] + made.normal(size=(1, 8))).astype(np.float32)
        dropped = np.repeat(full, 6, 0)
        if not robust:
            dropped[1] = np.roll(dropped[1], 3) - 7
        dropped[3] = np.nan if plate == 0 else dropped[3]
        statistics = baseline(made.integers(0, 900, (3, 8, 8)), np.tile([0.0, 500], (3, 1)))
        other = Embedded(made.normal(size=(1, 8)), np.zeros((1, 2)), made.normal(size=(6, 8)))
        found.append(Predicted(field, Embedded(full, np.zeros((1, 2)), dropped), statistics, other, plate == 3))
    return found


def rows(robust: bool) -> dict[str, dict[str, float]]:
    judgement = judge(predicted(robust), CellPredictConfig(neighbours=5), CHANNELS)
    assert judgement is not None
    table = next(table for table in judgement.tables if table.name == "channels")
    return {str(row[0]): dict(zip(table.columns[1:], row[1:], strict=True)) for row in table.rows}  # type: ignore[arg-type]


def test_the_table_tells_a_robust_network_from_one_that_needs_the_channel() -> None:
    robust, other = rows(robust=True), rows(robust=False)
    assert list(robust) == ["all channels", *(variant.name for variant in variants(CHANNELS))]
    for found in (robust, other):
        assert found["all channels"]["label, network"] == found["all channels"]["label*"] > 0.9
        assert found["without ER"]["label, network"] > 0.9  # what learned from such fields can use them
        assert found["without ER"]["label, untrained network"] < 0.6
    assert robust["without ER"]["label*"] == robust["all channels"]["label*"]
    assert robust["without ER"]["well*"] == pytest.approx(robust["all channels"]["well*"])
    assert other["without ER"]["label*"] < 0.6
    assert robust["only DNA"]["label, network"] > 0.9  # scored where it shows something


def test_there_is_no_table_unless_it_was_asked_for() -> None:
    plain = [replace(p, prediction=replace(p.prediction, dropped=None)) for p in predicted(True)]
    judgement = judge(plain, CellPredictConfig(neighbours=5), CHANNELS)
    assert judgement is not None
    assert [table.name for table in judgement.tables] == ["embeddings", "profiles"]
