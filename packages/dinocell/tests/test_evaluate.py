"""Classifiers against scikit-learn's, retrieval against its definition; nothing leaks from a plate into itself."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_core import Array, Predicted
from runner_dinocell import baseline, classical, evaluate
from runner_dinocell.config import CellPredictConfig
from runner_dinocell.evaluate import NOTHING, balanced, held_out, knn, probe, retrieval, standardised
from runner_dinocell.fields import Field
from runner_dinocell.judgement import CLASSICAL, UNTRAINED, WHAT, chosen, judge
from runner_dinocell.whole import Embedded
from sklearn.metrics import average_precision_score, balanced_accuracy_score
from sklearn.neighbors import KNeighborsClassifier


def clusters(count: int, classes: int, groups: int, apart: float = 3.0, seed: int = 0) -> tuple[Array, Array, Array]:
    """Features (N, 6) around a place for each class, labels, groups."""
    made = np.random.default_rng(seed)
    labels, plates = np.arange(count) % classes, np.arange(count) // classes % groups
    return made.normal(size=(classes, 6))[labels] * apart + made.normal(size=(count, 6)), labels, plates


# ---------------------------------------------------------------- classifiers


@pytest.mark.parametrize("neighbours", [1, 7, 20, 500])
def test_knn_is_scikit_learns_with_the_same_weights(neighbours: int) -> None:
    features, labels, _ = clusters(120, 4, 2, apart=0.6)
    taught, asked = slice(0, 80), slice(80, 120)

    def unit(values: Array) -> Array:
        return values / np.linalg.norm(values, axis=1, keepdims=True)

    def weights(distances: Array) -> Array:  # cosine distance
        return np.exp((1 - distances) / 0.07)

    peer = KNeighborsClassifier(min(neighbours, 80), weights=weights, metric="cosine", algorithm="brute")
    peer.fit(unit(features[taught]), labels[taught])
    found = knn(neighbours)(features[taught], labels[taught], labels[taught], features[asked])
    assert np.array_equal(found, peer.predict(unit(features[asked])))


def test_balanced_accuracy_is_scikit_learns() -> None:
    made = np.random.default_rng(0)
    true, found = made.integers(0, 5, 200), made.integers(0, 5, 200)
    assert balanced(true, found) == pytest.approx(balanced_accuracy_score(true, found))


@pytest.mark.parametrize("classify", [knn(20), probe])
def test_classes_that_lie_apart_are_found_and_noise_is_not(classify: evaluate.Classify) -> None:
    features, labels, plates = clusters(240, 4, 6)
    everyone = np.ones(240, bool)
    found = held_out(features, labels, plates, everyone, classify)
    assert found.value > 0.95
    assert (found.chance, found.fields, found.classes) == (0.25, 240, 4)
    noise = held_out(np.random.default_rng(1).normal(size=(240, 6)), labels, plates, everyone, classify)
    assert 0.1 < noise.value < 0.4


def test_no_plate_teaches_about_itself() -> None:
    """Labels that can be read off only within a plate: a classifier that saw it would be right, others are not."""
    made = np.random.default_rng(0)
    labels, plates = np.arange(160) % 2, np.arange(160) // 2 % 4
    signs = np.array([1, -1, 1, -1])[plates]
    features = np.stack([(2 * labels - 1) * signs, *(3 * (plates == p) for p in range(4))], 1) + made.normal(
        0, 0.1, (160, 5)
    )
    seen: list[tuple[set[int], int]] = []

    def spy(taught: Array, own: Array, groups: Array, asked: Array) -> Array:
        seen.append((set(groups.tolist()), int(asked[:, 1:].mean(0).argmax())))
        return knn(5)(taught, own, groups, asked)

    assert held_out(features, labels, plates, np.ones(160, bool), spy).value < 0.5
    assert len(seen) == 4
    assert all(plate not in taught and len(taught) == 3 for taught, plate in seen)


def test_many_plates_are_held_out_in_five_parts_and_only_where_asked() -> None:
    features, labels, plates = clusters(260, 2, 13)
    calls = []

    def spy(taught: Array, own: Array, groups: Array, asked: Array) -> Array:
        calls.append(len(asked))
        return knn(5)(taught, own, groups, asked)

    assert held_out(features, labels, plates, np.ones(260, bool), spy).fields == 260
    assert len(calls) == 5
    calls.clear()
    assert held_out(features, labels, plates, plates < 2, spy).fields == 40
    assert calls == [20, 20]


def test_what_no_other_plate_has_is_left_out() -> None:
    features, labels, plates = clusters(60, 3, 5)
    labels[plates == 0] = np.where(labels[plates == 0] == 2, 9, labels[plates == 0])
    labels[:3] = -1
    found = held_out(features, labels, plates, np.ones(60, bool), knn(5))
    assert found.fields == 60 - 3 - np.count_nonzero(labels == 9)
    assert found.classes == 4


def test_what_cannot_be_said_is_nan() -> None:
    features, labels, plates = clusters(20, 2, 2)
    everyone, none = np.ones(20, bool), np.full(20, -1)
    for classify in (knn(20), probe):
        assert held_out(features, none, plates, everyone, classify) == NOTHING
        assert held_out(features, labels, np.zeros(20, int), everyone, classify) == NOTHING
        assert held_out(features, np.zeros(20, int), plates, everyone, classify) == NOTHING
        assert held_out(features, labels, plates, ~everyone, classify) == NOTHING
        assert held_out(features[:2], labels[:2], plates[:2], everyone[:2], classify) == NOTHING


def test_the_probe_chooses_its_strength_on_training_plates_and_stands_one() -> None:
    features, labels, plates = clusters(40, 2, 1)
    found = probe(features, labels, plates, features)
    assert balanced(labels, found) > 0.9


def test_standardised_has_mean_0_deviation_1_and_constant_columns_0() -> None:
    made = np.random.default_rng(0).normal(5, [1, 100, 0], (50, 3)).astype(np.float32)
    found = standardised(made)
    np.testing.assert_allclose(found.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(found.std(0), [1, 1, 0], atol=1e-12)


# ---------------------------------------------------------------- retrieval


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-1, 4), min_size=2, max_size=25), st.integers(0, 99))
def test_retrieval_is_its_definition_field_by_field(names: list[int], seed: int) -> None:
    wells = np.array(names)
    features = np.random.default_rng(seed).normal(size=(len(wells), 4))
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    hits, precisions, chances = [], [], []
    for i, own in enumerate(wells):
        others = np.delete(np.arange(len(wells)), i)
        same = wells[others] == own
        if own >= 0 and same.any():
            similar = unit[others] @ unit[i]
            hits.append(same[similar.argmax()])
            precisions.append(average_precision_score(same, similar))
            chances.append(same.mean())
    found = retrieval(features, wells, np.ones(len(wells), bool))
    if not hits:
        assert found.hit == found.precision == NOTHING
        return
    assert found.hit.value == pytest.approx(np.mean(hits))
    assert found.hit.chance == pytest.approx(np.mean(chances))
    assert found.precision.value == pytest.approx(np.mean(precisions))
    assert found.hit.fields == len(hits)


def test_the_chance_of_average_precision_is_that_of_random_orders() -> None:
    made = np.random.default_rng(0)
    wells = np.repeat(np.arange(6), [2, 2, 3, 3, 4, 6])
    drawn = [retrieval(made.normal(size=(20, 3)), wells, np.ones(20, bool)) for _ in range(400)]
    assert np.mean([d.precision.value for d in drawn]) == pytest.approx(drawn[0].precision.chance, abs=0.01)
    assert np.mean([d.hit.value for d in drawn]) == pytest.approx(drawn[0].hit.chance, abs=0.01)


def test_fields_that_all_look_alike_score_as_chance_does() -> None:
    """Sites of a well lie beside each other in the table: that must not help a network that has collapsed."""
    wells = np.repeat(np.arange(100), 4)
    found = retrieval(np.ones((400, 5)), wells, np.ones(400, bool))
    assert found.hit.value < 0.04
    assert found.precision.value == pytest.approx(found.precision.chance, abs=0.01)


# ---------------------------------------------------------------- the judgement


def predicted(
    labels: bool = True, plates: int = 4, seen: int = 2, sites: int = 3, apart: float = 3.0
) -> list[Predicted]:
    """Fields of 6 wells a plate, of 3 compounds; the plates after the first `seen` were not trained on."""
    made = np.random.default_rng(0)
    centres = made.normal(size=(3, 8)) * apart
    found = []
    for plate in range(plates):
        for well in range(6):
            for site in range(sites):
                names: dict[str, Any] = {"plate": f"P{plate}", "well": f"A{well:02d}", "site": str(site)}
                key = "/".join(names.values())
                field = Field(
                    key=key, group=names["plate"], files={}, **names, label=f"c{well % 3}" if labels else None
                )
                windows = (centres[well % 3] + made.normal(size=(2, 8))).astype(np.float32)
                noise = made.normal(size=(2, 8)).astype(np.float32)
                corners = np.zeros((2, 2), np.int32)
                found.append(
                    Predicted(field, Embedded(windows, corners), noise[0], Embedded(noise, corners), plate >= seen)
                )
    return found


def test_classical_features_stand_beside_the_network() -> None:
    """They follow the statistics of pixels in the baseline."""
    fields = []
    for number, own in enumerate(predicted()):
        statistics = np.random.default_rng(number).normal(size=baseline.count(2))
        features = np.full(classical.count(2), float(np.asarray(own.prediction).sum()))
        features[:8] = np.asarray(own.prediction)
        assert isinstance(own.record, Field)
        record = replace(own.record, channels=("a", "b"))
        fields.append(replace(own, record=record, baseline=np.concatenate([statistics, features])))
    found = judge(fields, CellPredictConfig())
    assert found is not None
    assert found.further[CLASSICAL]["probe"] > 0.9 > 0.6 > found.baseline["probe"]
    assert CLASSICAL in found.tables[0].columns
    assert any(str(row[0]).startswith(CLASSICAL) for row in found.tables[1].rows)


def test_a_judgement_has_the_network_beside_the_others() -> None:
    found = judge(predicted(), CellPredictConfig())
    assert found is not None
    assert set(found.scores) == set(found.baseline) == set(found.further[UNTRAINED]) == set(WHAT)
    assert next(iter(found.scores)) == "probe"
    assert found.scores["probe"] > 0.9
    assert found.scores["knn"] > 0.9
    assert found.baseline["probe"] < 0.6
    assert found.further[UNTRAINED]["knn"] < 0.6
    table = found.tables[0]
    assert table.title.startswith("36 fields of 2 plates that pretraining did not see; ")
    assert list(table.columns) == ["what", "fields", "classes", "chance", "network", UNTRAINED, "pixel statistics"]
    assert table.rows[0][:4] == [WHAT["probe"], 36, 3, 1 / 3]
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert found.pictures["embeddings"].dtype == np.uint8


def test_without_unseen_plates_all_are_judged_and_the_title_says_so() -> None:
    found = judge(predicted(seen=4), CellPredictConfig())
    assert found is not None
    assert found.tables[0].title.startswith("72 fields of 4 plates, all seen by pretraining; ")
    assert found.scores["probe"] > 0.9


def test_without_labels_the_headline_is_what_can_be_said() -> None:
    found = judge(predicted(labels=False, plates=1, seen=1), CellPredictConfig())
    assert found is not None
    assert next(iter(found.scores)) == "retrieval"
    assert math.isfinite(found.scores["retrieval"])
    assert all(math.isnan(found.scores[name]) for name in ("probe", "knn", "probe_well", "knn_well", "plate", "batch"))
    assert judge(predicted(sites=1)[:2], CellPredictConfig()) is not None
    assert judge(predicted()[:1], CellPredictConfig()) is None


def test_the_same_fields_are_judged_alike_again() -> None:
    once, again = judge(predicted(apart=0.5), CellPredictConfig()), judge(predicted(apart=0.5), CellPredictConfig())
    assert once is not None
    assert again is not None
    assert once.scores == again.scores


def test_chosen_fields_are_whole_wells_of_all_plates() -> None:
    records = [p.record for p in predicted(plates=5, sites=4)]  # 5 plates of 6 wells of 4 sites
    some = chosen(records, 40)
    assert len(some) == 40
    assert len({record.group for record in some}) == 5
    wells = [record.key.rsplit("/", 1)[0] for record in some]
    assert all(wells.count(well) == 4 for well in wells)
    assert chosen(records, 1000) == records
    assert chosen(records[::-1], 40) == some
    assert len(chosen(records, 1)) == 4
