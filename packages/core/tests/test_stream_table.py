"""Many records in little memory are the same records, in every process."""

from __future__ import annotations

import json
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runner_core import BadInput, Record, Url
from runner_core.base.workers import Packed, Workers
from runner_core.config import DataConfig
from runner_core.contract.records import at_url
from runner_core.data import table
from runner_core.data.blocks import Chosen
from runner_core.data.cache.identity import Identities, digest_json
from runner_core.data.columns import Digests, Numbers, Same, Shapes, kept
from runner_core.data.duplicates import find_duplicates, known_digests
from runner_core.data.splits import read_lists, split
from runner_core.data.stream import cache, local
from runner_core.data.table import (
    RecordTable,
    any_has_split,
    compact,
    groups_of,
    keys_of,
    open_table,
    same_keys,
    tabled,
    unmarked,
)
from runner_core.training import seen

sys.path.insert(0, str(Path(__file__).parent / "data_toy"))
from stream_toy import Mapped, open_fields, write_fields
from stream_toy import fields as fields_of

text = st.text(max_size=12)
places = st.one_of(
    st.builds(Url, text.map("s3://b/".__add__), st.none() | st.integers(0, 2**60), st.none() | text),
    st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=9).map(Path),
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
    assert found.nbytes + found.keys.nbytes + found.groups.nbytes < 80 * len(many)


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
    for some in (sets, lists, nested, mixed, late, keys):
        assert compact(some) is some
    assert compact(found := compact(few)) is found


def test_small_columns():
    names = [f"{n:032x}" for n in range(300)]
    assert list(Digests(names)) == names
    assert Digests(names)[2:4] == names[2:4]
    assert "".join(Digests(names * 40).joined()) == "".join(names * 40)
    assert Digests(names * 2).count_among({names[3], names[7], "f" * 32}) == 4
    assert Digests(names).count_among(set()) == Digests([]).count_among({names[3]}) == 0
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


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(records, min_size=1, max_size=200))
def test_records_that_are_mapped_are_the_same(tmp_path, given_records):
    found = RecordTable(given_records)
    found.save(tmp_path)
    mapped = open_table(tmp_path, found.kind)
    assert list(mapped) == given_records
    assert mapped[-1:] == given_records[-1:]
    assert list(mapped.keys) == list(found.keys)
    assert mapped.counts.files == sum(len(record.files) for record in given_records)
    assert (mapped.counts.remote > 0) == any(map(at_url, given_records))
    mapped.objects = given_records
    assert mapped[0] is given_records[0]
    assert pickle.loads(pickle.dumps(mapped)).objects is None


def test_only_classes_of_records_are_looked_up(tmp_path):
    RecordTable(fields(3)).save(tmp_path)
    for kind in ("os:system", "pathlib:Path", "runner_core:nothing", "runner_core:"):
        with pytest.raises(ValueError, match="no class of records"):
            open_table(tmp_path, kind)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.integers(0, 2**40), max_size=4).map(tuple), max_size=50),
    st.lists(st.integers(-(2**63), 2**63 - 1)),
)
def test_columns_that_are_mapped_are_the_same(tmp_path, shapes, numbers):
    for column, values in ((Shapes(shapes), shapes), (Numbers(numbers), numbers)):
        column.save(tmp_path, "column")
        mapped = type(column).map(tmp_path, "column")
        assert list(mapped) == list(column) == values
        assert [mapped[n] for n in range(-len(values), len(values))] == values * 2
    assert np.asarray(Numbers(numbers), np.int64).tolist() == numbers
    assert Numbers(numbers) == numbers
    assert list(Chosen("abc", Numbers([2, 0]))) == ["c", "a"]


@given(records)
def test_names_in_the_lru_are_digests_of_the_same_json(record):
    assert cache._name("settings", record) == digest_json(["settings", record.key, record.group, cache._marks(record)])


def test_a_column_is_made_once_where_it_can_be_kept(tmp_path):
    made = []

    def make():
        made.append(1)
        return Digests([f"{n:032x}" for n in range(9)])

    found = [list(kept(folder, "names", Digests, make)) for folder in (tmp_path, tmp_path, None, tmp_path / "gone")]
    assert found == [list(make())] * 4
    assert len(made) == 4


def test_workers_map_the_files_of_columns(tmp_path):
    many = [Record(f.key, f.group, f.files) for f in fields(40_000)]
    table = RecordTable(many)
    table.save(tmp_path)
    found = open_table(tmp_path, table.kind)
    numbers = found.packed[5:500_000]
    packed, workers = Packed((found, numbers)), Workers(Mapped((found, numbers)), 2, "look")
    pickled = packed.__reduce__()[1]
    assert len(pickled[0]) < 20_000
    assert sum(pickled[2]) == 0
    try:
        for _ in range(2):
            workers.submit(19_999)
        for record, files, total in (workers.receive()[1] for _ in range(2)):
            assert record == many[19_999]
            assert files == [str(tmp_path / f"records{part}.npy") for part in ("-keys.packed", ".packed")]
            assert total == int(numbers.sum())
    finally:
        workers.close()


def test_records_that_are_made_one_by_one_are_the_same(monkeypatch):
    monkeypatch.setattr(table, "LEAST", 100)
    many = fields(1000)
    found = tabled(iter(many))
    assert isinstance(found, RecordTable)
    assert list(found) == many
    assert tabled(iter(many[:99])) == many[:99]
    for place in (0, 70, 990):  # one that JSON does not hold, after others: all are objects again
        mixed = [*many[:place], Odd("a", "g", {}), *many[place:]]
        assert tabled(iter(mixed)) == mixed

    def faulty():
        yield from many
        raise TypeError("a fault of the project's own")

    with pytest.raises(TypeError, match="own"):
        tabled(faulty())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(records, min_size=1, max_size=150, unique_by=lambda record: record.key),
    st.sampled_from(["none", "auto", "list"]),
)
def test_what_is_asked_of_a_table_is_what_is_asked_of_its_records(tmp_path, given_records, rule):
    """Columns answer what the records would."""
    found, index = RecordTable(given_records), Identities(tmp_path)
    assert any_has_split(found) == any_has_split(given_records)
    assert any(r.split for r in given_records) == any_has_split(found)
    assert list(groups_of(found)) == [record.group for record in given_records]
    assert not same_keys(found)
    assert not same_keys(given_records)
    assert unmarked(found) == unmarked(given_records)
    assert sorted(local._etags(found)) == sorted(local._etags(given_records))
    assert list(cache._each_name("settings", found)) == list(cache._each_name("settings", given_records))
    digests = known_digests(index, found)
    assert list(digests) == list(known_digests(index, given_records))
    assert [digests[n] for n in range(len(found))] == list(digests)
    listed = tmp_path / "split.yaml"
    listed.write_text(json.dumps({"validation": [given_records[0].group]}))
    config = DataConfig(split=str(listed) if rule == "list" else rule)
    asked = []
    for given_ in (found, given_records):
        try:
            asked.append(split(given_, config, 0))
        except BadInput as error:
            asked.append(str(error))
    assert asked[0] == asked[1]
    if not isinstance(asked[0], str):
        found_twice = [find_duplicates(r, known_digests(index, r), asked[0]) for r in (found, given_records)]
        assert found_twice[0] == found_twice[1]


@given(st.lists(st.none() | st.sampled_from("abcde"), max_size=30))
def test_equal_texts_are_found(texts):
    places = {text: [n for n, other in enumerate(texts) if other == text] for text in texts if text is not None}
    assert table.alike(texts) == [own for own in places.values() if len(own) > 1]


def test_a_key_that_is_there_twice_is_found():
    many = [*fields(300), *fields(3)[1:2]]
    assert same_keys(RecordTable(many)) == [[1, 300]] == same_keys(many)


@pytest.mark.parametrize("many", [True, False])
def test_a_long_split_is_read_as_any_other(tmp_path, monkeypatch, many):
    names = ["plain", 'wi\'th "quotes"', "line\nbreak", "\x1b[0m", "ß漢\u2028", "- a: b", "\udcff", " x ", "x\\y"]
    names += ["tab\tin it", "\x7f\x85\u2028\ufeff", "\U000e0001\U000f0000", "\u2028"]
    own = [Record(f"{name}{n}", name, {}) for n in range(3) for name in names]
    splits = {"train": [*range(26)], "validation": [*range(26, 39)], "test": []}
    monkeypatch.setattr(seen, "LEAST", 1 if many else 100)
    monkeypatch.setattr(seen, "_LONG", 0 if many else 1 << 20)
    seen.save_split(tmp_path, own, splits)
    expected = {
        name: {text for n in numbers for text in (own[n].key, own[n].group)} for name, numbers in splits.items()
    }
    assert {name: set(texts) for name, texts in seen.read_split(tmp_path).items()} == expected
    assert (seen._read_many(tmp_path / "split.yaml") is not None) == many
    assert {name: set(texts) for name, texts in read_lists(tmp_path / "split.yaml").items()} == expected
    assert seen.kept_split(tmp_path, [*own, Record("new", "plain", {})]) == splits
    (tmp_path / "split.yaml").write_text("train: [a, b]\nvalidation: [c]\n")  # another hand's
    assert seen.read_split(tmp_path) == {"train": ["a", "b"], "validation": ["c"]}


def test_contents_of_many_records_are_those_of_few(tmp_path, monkeypatch):
    many = fields(300)
    read = []
    for name, least in (("few", 1000), ("many", 1)):
        monkeypatch.setattr(seen, "LEAST", least)
        (tmp_path / name).mkdir()
        seen.save_contents(tmp_path / name, Identities(tmp_path), RecordTable(many) if least == 1 else many, range(250))
        read.append(seen.read_contents(tmp_path / name))
    assert read[0] == read[1]
    assert len(read[0]) == 250
