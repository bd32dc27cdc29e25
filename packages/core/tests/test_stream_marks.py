"""Files at URLs that a manifest names: their size and etag are asked for, and a file that changed is never mixed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runner_core import Record
from runner_core.base.location import Url
from runner_core.config import RemoteConfig
from runner_core.data.stream import client as clients
from runner_core.data.stream import marks
from runner_core.data.stream.bad import Unreachable
from runner_core.data.stream.client import remote_client
from runner_core.data.stream.local import marked

pytest.importorskip("obstore")
pytest.importorskip("moto")
from s3server import S3


@pytest.fixture
def server():
    with S3() as s3:
        for n in range(6):
            s3.put("bucket", f"plate 1/{n}.tif", b"first" + bytes([n]))
            s3.put("bucket", f"plate 1/other/{n}.tif", b"unasked")
        yield s3


def remote(server):
    return RemoteConfig(endpoint=server.endpoint, retries=1, timeout=5)


def records(count=6):
    """Return records as a manifest names them, two files each."""
    urls = [Url(f"s3://bucket/plate 1/{n}.tif") for n in range(count)]
    return [Record(str(n), "p", {"a": urls[n], "b": urls[n + 1]}) for n in range(0, count, 2)]


@pytest.mark.parametrize("many", [1, 100])
def test_files_of_a_manifest_get_their_size_and_etag(server, tmp_path, monkeypatch, many):
    """The folder is listed, or each file is asked for."""
    monkeypatch.setattr(clients, "_MANY", many)
    said = []
    found = marked(records(), remote(server), tmp_path, said.append)
    listed = {url.text: url for url in remote_client(remote(server)).list(Url("s3://bucket/plate 1"))}
    urls = [url for record in found for url in record.files.values()]
    assert [url.text for url in urls] == [f"s3://bucket/plate 1/{n}.tif" for n in range(6)]
    assert all(url == listed[url.text] for url in urls)
    assert not said
    assert server.count("list-type") == (2 if many == 1 else 1)  # one is this test's


def test_a_file_that_changed_between_two_runs_is_fetched_anew_with_a_word(server, tmp_path):
    said = []
    before = marked(records(), remote(server), tmp_path, said.append)
    assert marked(records(), remote(server), tmp_path, said.append) == before
    assert not said
    server.put("bucket", "plate 1/3.tif", b"other!")
    after = marked(records(), remote(server), tmp_path, said.append)
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, True]
    assert "1 file changed since the last use, s3://bucket/plate 1/3.tif" in said[0]
    assert remote_client(remote(server)).read_many([after[1].files["b"]]) == [b"other!"]


def test_a_file_that_changes_while_it_is_used_is_refused(server, tmp_path):
    found = marked(records(), remote(server), tmp_path, print)
    server.put("bucket", "plate 1/3.tif", b"other!")
    with pytest.raises(Unreachable, match=r"3\.tif: it was replaced by another file") as caught:
        remote_client(remote(server)).read_many([found[1].files["b"]])
    assert caught.value.kind == "corrupt"


def test_what_cannot_be_described_is_left_to_reading(server, tmp_path):
    missing = [Record("x", "p", {"a": Url("s3://bucket/plate 1/none.tif")})]
    said = []
    assert marked(missing, remote(server), tmp_path, said.append) == missing
    assert "changes of 1 file would not be seen" in said[0]


def test_files_on_this_machine_are_nobodys_business(tmp_path):
    own = [Record("x", "p", {"a": tmp_path / "a.tif"})]
    assert marked(own, RemoteConfig(endpoint="http://127.0.0.1:9"), tmp_path, print) == own


def test_a_listing_that_is_denied_gives_way_to_single_requests(server, tmp_path, monkeypatch):
    monkeypatch.setattr(clients, "_MANY", 1)
    server.fail("denied", "list-type")
    found = marked(records(), remote(server), tmp_path, print)
    assert all(url.etag for record in found for url in record.files.values())


@pytest.mark.parametrize("content", [b"x" * 5000, b"", b"\x93NUMPY"])
def test_a_memory_that_is_damaged_is_passed_over(server, tmp_path, content):
    (tmp_path / marks.FILE).write_bytes(content)
    found = marked(records(), remote(server), tmp_path, print)
    assert all(url.etag for record in found for url in record.files.values())
    assert replace(found[0]) == found[0]


def test_the_file_of_an_earlier_version_goes_and_a_strangers_stays(tmp_path):
    for schema, stays in (("objects (url TEXT PRIMARY KEY, etag TEXT) WITHOUT ROWID", False), ("objects (a)", True)):
        with closing(sqlite3.connect(tmp_path / "objects.sqlite")) as database, database:
            database.execute(f"CREATE TABLE {schema}")
        marks.changed(tmp_path, lambda: iter([("s3://a/b", "1")]))
        assert (tmp_path / "objects.sqlite").exists() == stays


@given(st.lists(st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from("xyz")), max_size=6))
def test_changes_are_those_since_each_files_last_use(starts):
    """Starts with other files of several data sets, and with files whose content is another one than before."""
    with TemporaryDirectory() as folder:
        known = {}
        for files in starts:
            others = [url for url, etag in files.items() if known.get(url, etag) != etag]
            twice = [*files.items(), *files.items()]  # files of two records
            assert marks.changed(Path(folder), lambda twice=twice: iter(twice)) == (len(others), [*others, ""][0])
            known |= files
