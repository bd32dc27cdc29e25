"""Folds: every record validates once, groups stay whole, sizes are balanced, whatever the order of the records."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runner_core import BadInput, Record
from runner_core.experiments.folds import make_folds, refuse_ambiguous


def records(sizes: dict[str, int], **values: dict[str, str]) -> list[Record]:
    """Return so many records of each group; `values` are by column, then by group."""
    return [
        Record(f"{group}-{n}", group, {}, values={name: of[group] for name, of in values.items()})
        for group, count in sizes.items()
        for n in range(count)
    ]


groups = st.dictionaries(st.text("abc12", min_size=1, max_size=4), st.integers(1, 9), min_size=2, max_size=12)


@given(groups, st.integers(2, 5), st.integers(0, 99), st.randoms())
def test_every_record_validates_once_with_its_whole_group(
    sizes: dict[str, int], count: int, seed: int, shuffled: object
) -> None:
    found = records(sizes)
    if count > len(sizes):
        with pytest.raises(BadInput, match="a group is never divided"):
            make_folds(found, str(count), seed)
        return
    folds = make_folds(found, str(count), seed)
    assert [*folds] == [str(n) for n in range(1, count + 1)]
    assert sorted(r.key for fold in folds.values() for r in fold) == sorted(r.key for r in found)
    assert sum(len({r.group for r in fold}) for fold in folds.values()) == len(sizes)
    again = list(found)
    shuffled.shuffle(again)  # type: ignore[attr-defined]
    assert make_folds(again, str(count), seed) == folds


@given(groups, st.integers(2, 5), st.integers(0, 99))
def test_folds_are_balanced_by_records(sizes: dict[str, int], count: int, seed: int) -> None:
    if count > len(sizes):
        return
    found = [len(fold) for fold in make_folds(records(sizes), str(count), seed).values()]
    assert max(found) - min(found) <= max(sizes.values())


def test_ten_equal_groups_make_equal_folds_that_depend_on_the_seed() -> None:
    found = records({f"p{n}": 2 for n in range(10)})
    one, other = make_folds(found, "5", 0), make_folds(found, "5", 1)
    assert {len(fold) for fold in one.values()} == {4}
    assert one != other


def test_folds_are_balanced_by_voxels() -> None:
    found = records({"a": 1, "b": 1, "c": 1, "d": 1})
    sizes = {"a-0": 300, "b-0": 100, "c-0": 100, "d-0": 100}
    folds = make_folds(found, "2", 0, sizes=sizes)
    assert sorted(sum(sizes[r.key] for r in fold) for fold in folds.values()) == [300, 300]


def test_one_group_is_left_out_at_a_time() -> None:
    folds = make_folds(records({"a": 2, "b": 1, "c": 3}), "groups", 0)
    assert {name: len(fold) for name, fold in folds.items()} == {"a": 2, "b": 1, "c": 3}


def test_groups_of_one_plate_stay_together() -> None:
    found = records({"a": 1, "b": 1, "c": 1, "d": 1}, plate={"a": "x", "b": "x", "c": "y", "d": "z"})
    for fold in make_folds(found, "3", 0, group_by="plate").values():
        assert len({r.values["plate"] for r in fold}) == 1
    assert [*make_folds(found, "column:plate", 0)] == ["x", "y", "z"]
    with pytest.raises(BadInput, match=r"no such value; did you mean 'plate'"):
        make_folds(found, "2", 0, group_by="plat")


def test_a_column_that_divides_a_group_is_refused() -> None:
    found = [Record(f"a{n}", "a", {}, values={"day": n}) for n in range(3)] + [Record("b", "b", {}, values={"day": 9})]
    with pytest.raises(BadInput, match=r"group a would be in 0 and in 1; the scores"):
        make_folds(found, "column:day", 0)
    with pytest.raises(BadInput, match="--group-by day: group a"):
        make_folds(found, "2", 0, group_by="day")


def test_a_record_with_the_name_of_another_group_is_refused_before_anything_trains() -> None:
    own = [Record("p1", "p1", {}), Record("a", "p2", {})]
    refuse_ambiguous(own)
    with pytest.raises(BadInput, match="record p1 of group p2 has the name of another group"):
        refuse_ambiguous([*own, Record("p1", "p2", {})])


def test_test_records_and_records_seen_before_validate_nowhere() -> None:
    found = [*records({"a": 1, "b": 1, "c": 1}), Record("t", "t", {}, split="test")]
    folds = make_folds(found, "2", 0, trained_on=lambda r: r.group == "a")
    assert sorted(r.key for fold in folds.values() for r in fold) == ["b-0", "c-0"]
    with pytest.raises(BadInput, match="no record is left to validate on"):
        make_folds(found, "2", 0, trained_on=lambda r: True)


def test_a_file_gives_the_folds(tmp_path: Path) -> None:
    file = tmp_path / "folds.yaml"
    file.write_text("A: [a]\nB: [b-0, b-1]\n")
    found = records({"a": 2, "b": 2, "c": 1})
    assert {name: [r.key for r in fold] for name, fold in make_folds(found, str(file), 0).items()} == {
        "A": ["a-0", "a-1"],
        "B": ["b-0", "b-1"],
    }
    for text, message in (
        ("A: [a]\nB: [x]\n", "unknown group or record 'x'"),
        ("A: [a]\nB: [a-0]\n", "record a-0 is in the folds A and B"),
        ("A: [a, b-0]\nB: [b-1]\n", "group b would be in A and in B"),
        ("A: [a]\nB: []\n", "fold B has no record"),
        ("A: [a]\n", "gives one fold, 'A'"),
        ("A: a\n", "expected the name of each fold"),
    ):
        file.write_text(text)
        with pytest.raises(BadInput, match=message):
            make_folds(found, str(file), 0)


@pytest.mark.parametrize("rule", ["1", "0", "x", "-2", "2.5"])
def test_other_rules_are_refused(rule: str) -> None:
    with pytest.raises(BadInput, match="it can be a number from 2"):
        make_folds(records({"a": 1, "b": 1}), rule, 0)
