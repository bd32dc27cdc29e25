"""Splits are by group, and one that leaks is refused."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_core import BadInput, Record
from runner_core.config import DataConfig
from runner_core.data import splits
from runner_core.data.splits import split, spread


def records(groups, own=None):
    own = own or [None] * len(groups)
    return [
        Record(f"{g}-{i}", g, {"image": Path(f"{i}.nii")}, s) for i, (g, s) in enumerate(zip(groups, own, strict=True))
    ]


@settings(deadline=None)  # the machine is shared
@given(
    groups=st.lists(st.sampled_from("abcdefgh"), min_size=2, max_size=40).filter(lambda g: len(set(g)) > 1),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**32),
)
def test_auto_never_cuts_a_group_and_uses_every_record(groups, fraction, seed):
    rs = records(groups)
    found = split(rs, DataConfig(validation_fraction=fraction), seed)
    assert sorted(found["train"] + found["validation"]) == list(range(len(rs)))
    sides = [{rs[i].group for i in found[s]} for s in ("train", "validation")]
    assert not sides[0] & sides[1]
    wanted = fraction * len(rs)
    assert abs(len(found["validation"]) - wanted) == min(abs(s - wanted) for s in some_but_not_all(groups))
    assert found == split(rs, DataConfig(validation_fraction=fraction), seed)


def some_but_not_all(groups):
    """Numbers of records that some groups hold, each combination tried."""
    sizes = Counter(groups)
    return {
        sum(sizes[g] for g in chosen) for count in range(1, len(sizes)) for chosen in combinations(sorted(sizes), count)
    }


@settings(deadline=None)
@given(st.lists(st.sampled_from("abcdefgh"), min_size=2, max_size=20).filter(lambda g: len(set(g)) > 1), st.randoms())
def test_auto_does_not_depend_on_the_order_of_records(groups, random):
    rs = records(groups)
    turned = random.sample(rs, len(rs))
    for side in ("train", "validation"):
        chosen = {rs[i].key for i in split(rs, DataConfig(), 3)[side]}
        assert chosen == {turned[i].key for i in split(turned, DataConfig(), 3)[side]}


SCROLLS = "a" * 376 + "b" * 130 + "c" * 120 + "d" * 80 + "e" * 50 + "f" * 30
"""Six scrolls of very different size."""


@pytest.mark.parametrize("seed", range(5))
def test_a_share_of_records_not_of_groups(seed):
    """With a share of groups, one of six scrolls would be taken: 48 % of the volumes if it is the largest."""
    found = split(records(SCROLLS), DataConfig(validation_fraction=0.2), seed)
    assert len(found["validation"]) == 160  # b and f, or d, e and f; 157.2 are wanted


def test_seeds_differ_where_several_choices_are_as_near():
    def chosen(groups, seed):
        found = split(records(groups), DataConfig(), seed)
        return frozenset(groups[i] for i in found["validation"])

    assert {chosen(SCROLLS, seed) for seed in range(20)} == {frozenset("bf"), frozenset("def")}
    assert len({chosen("abcdefghijklmnopqrstuvwxyz" * 3, seed) for seed in range(20)}) == 20
    assert {len(chosen("abc" * 5 + "d", seed)) for seed in range(20)} == {1}
    sizes = {len(split(records("a" * 3 + "b" * 3 + "c" * 6), DataConfig(validation_fraction=0.375), s)["validation"])
             for s in range(20)}  # fmt: skip
    assert sizes == {3, 6}, "4.5 lies in the middle"


@settings(deadline=None, max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=2, max_size=60),
    fraction=st.floats(0.01, 0.99),
    bits=st.sampled_from([1, 500, 5_000]),
)
def test_beyond_what_is_searched_the_share_is_off_by_less_than_the_largest_group(sizes, fraction, bits):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splits, "_EXACT_BITS", bits)
        chosen = splits.nearest_share(sizes, fraction * sum(sizes))
    assert 0 < len(chosen) < len(sizes)
    assert len(set(chosen)) == len(chosen)
    held, alone = sum(sizes[i] for i in chosen), len(chosen) in (1, len(sizes) - 1)
    assert abs(held - fraction * sum(sizes)) < max(sizes) or alone


def test_many_small_groups_are_split_at_once():
    """100,000 groups: the search would take 1.2 GB."""
    sizes = [1 + n % 3 for n in range(100_000)]
    assert sum(sizes[i] for i in splits.nearest_share(sizes, 0.2 * sum(sizes))) == round(0.2 * sum(sizes))


@settings(deadline=None)
@given(
    groups=st.lists(st.sampled_from("abcd"), min_size=1, max_size=30),
    count=st.integers(1, 35),
    seed=st.integers(0, 2**32),
    random=st.randoms(),
)
def test_a_cap_takes_from_each_group_in_turn(groups, count, seed, random):
    rs = records(groups)
    found = spread(rs, range(len(rs)), count, seed)
    assert found == sorted(set(found))
    assert len(found) == min(count, len(rs))
    taken, there = Counter(rs[i].group for i in found), Counter(groups)
    for group, size in there.items():  # none has one more than another that had more to give
        assert taken[group] >= min(size, max(taken.values()) - 1)
    turned = random.sample(rs, len(rs))
    assert {rs[i].key for i in found} == {turned[i].key for i in spread(turned, range(len(rs)), count, seed)}


def test_a_cap_follows_the_seed():
    rs = records("a" * 50)
    assert len({tuple(spread(rs, range(50), 5, seed)) for seed in range(10)}) == 10
    assert spread(rs, range(50), None, 0) == list(range(50))


def test_one_group_needs_an_explicit_split():
    with pytest.raises(BadInput, match=r"all 2 records belong to one group \(p1\).*data\.split"):
        split(records(["p1", "p1"]), DataConfig(), 0)
    with pytest.raises(BadInput, match="the only record belongs to one group"):
        split(records(["p1"]), DataConfig(), 0)
    assert split(records(["p1", "p1"]), DataConfig(split="none"), 0)["train"] == [0, 1]


def test_named_groups():
    assert split(records("aabbc"), DataConfig(split="group:b, c"), 0) == {
        "train": [0, 1],
        "validation": [2, 3, 4],
        "test": [],
    }
    with pytest.raises(BadInput, match="unknown group 'sub-openms1'; did you mean 'sub-openms01'"):
        split(records(["sub-openms01", "x"]), DataConfig(split="group:sub-openms1"), 0)
    with pytest.raises(BadInput, match="no record to train on"):
        split(records("ab"), DataConfig(split="group:a,b"), 0)


def test_a_group_whose_name_has_a_comma():
    scans = records(["Doe, J", "x", "y"])
    assert split(scans, DataConfig(split="group:Doe, J"), 0)["validation"] == [0]
    with pytest.raises(BadInput, match=r"unknown group 'Doe'\. Some groups have a comma.*YAML file"):
        split(scans, DataConfig(split="group:Doe, J,x"), 0)


def test_the_folders_own_split():
    found = split(records("abc", ["train", "validation", "test"]), DataConfig(), 0)
    assert found == {"train": [0], "validation": [1], "test": [2]}
    with pytest.raises(BadInput, match="1 group would be in two splits"):
        split(records("aab", ["train", "validation", "train"]), DataConfig(), 0)
    with pytest.raises(BadInput, match="has split 'None'"):
        split(records("abc", ["train", None, "test"]), DataConfig(), 0)


def test_split_file(tmp_path):
    file = tmp_path / "split.yaml"
    config = DataConfig(split=str(file))
    file.write_text("validation: [b]\ntest: [c-4]\n")
    assert split(records("aabbc"), config, 0) == {"train": [0, 1], "validation": [2, 3], "test": [4]}
    file.write_text("train: [a]\nvalidation: [b]\n")  # c is left out
    assert split(records("aabbc"), config, 0) == {"train": [0, 1], "validation": [2, 3], "test": []}


@pytest.mark.parametrize(
    "text, message",
    [
        ("train: [a-0]\nvalidation: [a-1]", "in two splits"),
        ("train: [a]\nvalidation: [a]", "listed under both"),
        ("train: [a]\nvalidation: [a-1]", "different splits"),
        ("trian: [a]", "unknown split 'trian'; did you mean 'train'"),
        ("train: [nobody]", "unknown group or record 'nobody'"),
        ("train: a", "expected lists"),
        ("train: [a", "line 1, column 10: not valid YAML: expected ',' or ']'"),
        ("train: [a]\nvalidation: [b]\ntrain: [c]", "line 3, column 1: .*'train' appears here twice"),
        ("!!python/object/apply:os.system ['true']", "not valid YAML"),
    ],
)
def test_split_file_faults(tmp_path, text, message):
    file = tmp_path / "split.yaml"
    file.write_text(text)
    with pytest.raises(BadInput, match=message):
        split(records("aabb"), DataConfig(split=str(file)), 0)


def test_missing_file_unknown_rule_and_double_key():
    with pytest.raises(BadInput, match=r"absent\.yaml: the file of data.split cannot be read"):
        split(records("ab"), DataConfig(split="absent.yaml"), 0)
    with pytest.raises(BadInput, match=r"data\.split is 'random'"):
        split(records("ab"), DataConfig(split="random"), 0)
    twins = [Record("k", g, {}) for g in "ab"]
    with pytest.raises(BadInput, match="share the key 'k'"):
        split(twins, DataConfig(), 0)
