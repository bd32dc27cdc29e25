"""Many records in little memory are the same records, in every process."""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runner_core import Record, Url
from runner_core.data.stream import table
from runner_core.data.stream.table import Digests, RecordTable, Same, compact, keys_of

sys.path.insert(0, str(Path(__file__).parent / "data_toy"))
from stream_toy import fields as fields_of
from stream_toy import open_fields, write_fields

text = st.text(max_size=12)
places = st.one_of(
    st.builds(Url, text.map("s3://b/".__add__), st.none() | st.integers(0, 2**60), st.none() | text),
    st.text(st.characters(exclude_characters="\0/"), min_size=1, max_size=9).map(Path),
    st.just(Path("/a/\udcff.tif")),
)
values = st.dictionaries(text, st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), text))
records = st.builds(
    Record, text, text, st.dictionaries(text, places, max_size=3), st.none() | st.just("train"), values=values
)


@dataclass(frozen=True, kw_only=True)
class Field(Record):
    plate: str
    channels: tuple[str, ...] = ()
    partial: bool = False


@dataclass(frozen=True, kw_only=True)
class Odd(Record):
    marks: frozenset = frozenset()


@given(st.lists(records, min_size=1, max_size=200))
def test_any_records(given_records):
    found = RecordTable(given_records)
    assert list(found) == given_records
    assert [found[n] for n in range(-len(found), len(found))] == given_records * 2
    assert found[1:5] == given_records[1:5]
    assert list(found.keys) == [record.key for record in given_records]
    again = pickle.loads(pickle.dumps(found))
    assert list(again) == given_records
    assert [type(v) for v in again[0].values.values()] == [type(v) for v in given_records[0].values.values()]
    with pytest.raises(IndexError):
        found[len(given_records)]


def fields(count):
    return [
        Field(
            f"p{n // 96}/w{n}",
            f"p{n // 96}",
            {"dna": Url(f"s3://b/p{n // 96}/w{n}.tif", n, f"etag{n:032x}")},
            plate=f"p{n // 96}",
            channels=("dna", "er"),
            partial=n % 2 > 0,
        )
        for n in range(count)
    ]


def test_a_class_of_its_own_and_a_tenth_of_the_memory():
    many = fields(20_000)
    found = compact(many)
    assert isinstance(found, RecordTable)
    assert found[19_999] == many[19_999]
    assert isinstance(found[0].channels, tuple)
    assert keys_of(found)[77] == many[77].key
    assert found._bytes.nbytes + found.keys._bytes.nbytes < 80 * len(many)


def test_few_records_and_those_that_json_does_not_hold_stay_objects(monkeypatch):
    few = fields(10)
    assert compact(few) is few
    monkeypatch.setattr(table, "LEAST", 1)
    assert isinstance(compact(few), RecordTable)
    sets = [Odd("a", "g", {}, marks=frozenset("x"))]
    lists = [Field("a", "g", {}, plate=["not", "text"], channels=["a"])]
    nested = [Record("a", "g", {}, values={"t": (1, 2)})]
    mixed = [*few, Record("a", "g", {})]
    late = [Record(f"{n}", "g", {}, values={"t": (1, 2) if n == 70 else 1}) for n in range(100)]
    keys = [Record(f"{n}", "g", {}, values={"t": {1: 2} if n == 70 else 1}) for n in range(100)]
    for kept in (sets, lists, nested, mixed, late, keys):
        assert compact(kept) is kept
    assert compact(found := compact(few)) is found


def test_small_columns():
    names = [f"{n:032x}" for n in range(300)]
    assert list(Digests(names)) == names
    assert Digests(names)[2:4] == names[2:4]
    assert list(Same((1, 2), 3)) == [(1, 2)] * 3
    assert Same((1, 2), 3)[-1] == (1, 2)
    with pytest.raises(IndexError):
        Same((1, 2), 3)[3]
    assert np.array([s[0] for s in Same((4, 2), 2)]).tolist() == [4, 4]


def test_a_store_whose_records_are_rows_gives_what_one_of_objects_gives(tmp_path, monkeypatch):
    write_fields(lambda name, data: (tmp_path / name).write_bytes(data), 6)
    plain = open_fields(fields_of(tmp_path, 6), tmp_path / "one", 0.01)
    monkeypatch.setattr(table, "LEAST", 1)
    rows = open_fields(fields_of(tmp_path, 6), tmp_path / "two", 0.01)
    assert isinstance(rows.records, RecordTable)
    assert list(rows.records) == list(plain.records)
    assert list(rows.keys) == list(plain.keys)
    assert rows.identity == plain.identity
    again = pickle.loads(pickle.dumps(rows))
    for store in (rows, again):
        for number in (5, 0, 3):
            assert np.array_equal(store.arrays["image"].read(number), plain.arrays["image"].read(number))
        usable = store.usable(np.array([4, 1]), np.array([0, 1]), 0, np.arange(6))
        assert usable.tolist() == [4, 1]
    for store in (plain, rows, again):
        store.close()
