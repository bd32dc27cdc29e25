"""Splits are by group, and one that leaks is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_core import BadInput, Record
from runner_core.config import DataConfig
from runner_core.splits import split


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
    assert len(sides[1]) == min(max(1, round(fraction * len(set(groups)))), len(set(groups)) - 1)
    assert found == split(rs, DataConfig(validation_fraction=fraction), seed)


def test_auto_does_not_depend_on_the_order_of_records():
    rs = records("abcdefgh")
    chosen = {rs[i].key for i in split(rs, DataConfig(), 3)["validation"]}
    turned = rs[::-1]
    assert chosen == {turned[i].key for i in split(turned, DataConfig(), 3)["validation"]}


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
    with pytest.raises(BadInput, match="1 group would sit on both sides"):
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
        ("train: [a-0]\nvalidation: [a-1]", "both sides"),
        ("train: [a]\nvalidation: [a]", "listed under both"),
        ("train: [a]\nvalidation: [a-1]", "different splits"),
        ("trian: [a]", "unknown split 'trian'; did you mean 'train'"),
        ("train: [nobody]", "unknown group or record 'nobody'"),
        ("train: a", "expected lists"),
        ("train: [a", "line 1, column 10: not valid YAML"),
        ("train: [a]\nvalidation: [b]\ntrain: [c]", "line 3, column 1: .*'train' stands here twice"),
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
