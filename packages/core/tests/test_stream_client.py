"""Files at URLs, through a server on loopback that is slow, breaks off, refuses or says nothing."""

from __future__ import annotations

import pickle
import sys
import time
from pathlib import Path

import pytest
from runner_core import BadInput, Record
from runner_core.base.location import Url
from runner_core.config import RemoteConfig
from runner_core.data.stream import client as clients
from runner_core.data.stream.bad import Unreachable
from runner_core.data.stream.client import remote_client
from runner_core.data.stream.local import localised

pytest.importorskip("obstore")
pytest.importorskip("moto")
from s3server import S3

DATA = bytes(range(256)) * 400
ROOT = Url("s3://bucket/plate 1")


@pytest.fixture(scope="module")
def server():
    with S3() as s3:
        for name in ("a.tif", "b.tif", "deep/c.tif", "A01_s1+x,(é)#1.tif"):
            s3.put("bucket", f"plate 1/{name}", DATA + name.encode())
        s3.put("private", "a.tif", DATA, public=False)
        yield s3


@pytest.fixture
def make(s3):
    """Makes clients of the server, which end with the test."""
    made = []

    def make(**settings):
        made.append(clients.Client(RemoteConfig(**{"endpoint": s3.endpoint, "retries": 2, "timeout": 5} | settings)))
        return made[-1]

    yield make
    for own in made:
        own.close()


def test_a_listing_has_every_file_with_size_and_etag_and_reads_them(make):
    found = {url.text: url for url in make().list(Url("s3://bucket/plate 1/"))}
    names = ("A01_s1+x,(é)#1.tif", "a.tif", "b.tif", "deep/c.tif")
    assert list(found) == [f"{ROOT}/{name}" for name in names]
    assert all(url.size == len(DATA + name.encode()) for name, url in zip(names, found.values(), strict=True))
    assert len({url.etag for url in found.values()}) == 4
    assert make().read_many(list(found.values())) == [DATA + name.encode() for name in names]


def test_all_are_requested_at_once_but_never_more_than_connections(make, s3):
    s3.latency = 0.2
    own = make(connections=3)
    assert own.read_many([ROOT / "a.tif"] * 9) == [DATA + b"a.tif"] * 9
    assert s3.most_at_once == 3
    told = own.meter.take()
    assert (told["files"], told["bytes"], told["retries"]) == (9, 9 * len(DATA + b"a.tif"), 0)
    assert told["fetched_seconds"] >= 3 * 0.2
    assert own.meter.take() == {"files": 0, "bytes": 0, "retries": 0, "fetched_seconds": 0}


@pytest.mark.parametrize("fault", ["unavailable", "truncated", "short", "dropped", "stalled"])
def test_what_fails_once_is_asked_for_again(make, s3, fault):
    s3.fail(fault, "a.tif", times=1)
    own = make(timeout=0.5)
    assert own.read_many([Url(f"{ROOT}/a.tif", len(DATA) + 5)]) == [DATA + b"a.tif"]
    assert own.meter.take()["retries"] == 1
    assert s3.count("a.tif") == 2


@pytest.mark.parametrize("fault, said", [
    ("unavailable", "in 3 attempts: the server answered 503"),
    ("truncated", "in 3 attempts: the connection ended in the middle of the file"),
    ("short", "only 51,202 of 102,405 bytes came"),
    ("dropped", r"in 3 attempts: no connection to the server http://127\.0\.0\.1:\d+ \(remote\.endpoint\)"),
    ("stalled", r"in 3 attempts: nothing came for longer than remote\.timeout"),
])  # fmt: skip
def test_what_always_fails_is_transient_after_so_many_attempts(make, s3, fault, said):
    s3.fail(fault, "a.tif")
    with pytest.raises(Unreachable, match=rf"a\.tif: .*{said}$") as caught:
        make(timeout=0.3).read_many([Url(f"{ROOT}/a.tif", len(DATA) + 5), ROOT / "b.tif"])
    assert caught.value.kind == "transient"
    assert not caught.value.everywhere
    assert s3.count("a.tif") == 3


def test_a_truncated_body_is_noticed_though_no_listing_told_its_size(make, s3):
    s3.fail("truncated", "a.tif")
    with pytest.raises(Unreachable) as caught:
        make(retries=0).read_many([ROOT / "a.tif"])
    assert caught.value.kind == "transient"


def test_waits_grow_and_are_never_the_same_for_all(make):
    own = make()
    waits = [[own._wait(attempt) for attempt in range(6)] for _ in range(8)]
    assert all(first < last for first, *_, last in waits)
    assert len({first for first, *_ in waits}) == 8
    assert max(own._wait(99) for _ in range(20)) <= 15


@pytest.mark.parametrize("url, kind, everywhere, said", [
    ("s3://bucket/plate 1/none.tif", "missing", False, "no such file"),
    ("s3://nowhere/a.tif", "missing", True, "no such bucket"),
    ("s3://private/a.tif", "denied", False, "denies access"),
])  # fmt: skip
def test_what_is_wrong_for_good_is_said_at_once(make, s3, url, kind, everywhere, said):
    with pytest.raises(Unreachable, match=said) as caught:
        make().read_many([Url(url)])
    assert (caught.value.kind, caught.value.everywhere) == (kind, everywhere)
    assert str(caught.value).startswith(url)
    assert len(s3.requests) == 1


def test_a_listing_of_a_wrong_bucket_and_one_that_breaks_off(make, s3):
    with pytest.raises(Unreachable, match="no such bucket"):
        list(make().list(Url("s3://nowhere/plate")))
    s3.fail("unavailable", "list-type", times=2)
    assert len(list(make().list(ROOT))) == 4
    s3.fail("unavailable", "list-type")
    with pytest.raises(Unreachable, match="attempts"):
        list(make(retries=1).list(ROOT))


def test_a_folder_with_nothing_below_it_is_refused(make):
    with pytest.raises(BadInput, match="s3://bucket/plate 1/none: there is no file at or below"):
        list(make().list(ROOT / "none"))


def test_nobody_there(make):
    begun = time.monotonic()
    with pytest.raises(
        Unreachable,
        match=r"s3://bucket/plate 1/a\.tif: it could not be read in 2 attempts: no connection to the server "
        r"http://127\.0\.0\.1:9 \(remote\.endpoint\)$",
    ) as caught:
        make(endpoint="http://127.0.0.1:9", retries=1).read_many([ROOT / "a.tif"])
    assert caught.value.kind == "transient"
    assert time.monotonic() - begun < 30


def test_an_endpoint_without_a_scheme_is_refused(make):
    with pytest.raises(BadInput, match=r"remote\.endpoint must begin with http:// or https://, not '127\.0\.0\.1:9'"):
        make(endpoint="127.0.0.1:9")


def test_a_panic_of_obstore_is_bad_input(make):
    """pyo3 makes it a BaseException, which would end the process with Rust's own words."""
    panic = type("PanicException", (BaseException,), {})

    def panics(*_):
        raise panic("called unwrap on a None value")

    own = make()
    own._open = panics
    with pytest.raises(BadInput, match=r"a\.tif: obstore cannot work .* called unwrap"):
        own.read_many([ROOT / "a.tif"])
    with pytest.raises(BadInput, match="plate 1: obstore cannot work"):
        list(own.list(ROOT))


def test_a_file_that_was_replaced_since_the_listing_is_refused(make):
    with pytest.raises(Unreachable, match="replaced by another file") as caught:
        make().read_many([Url(f"{ROOT}/a.tif", None, '"another"')])
    assert caught.value.kind == "corrupt"


def test_credentials_of_the_environment_open_what_is_private(make, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    private = [Url("s3://private/a.tif")]
    for credentials in ("auto", "environment"):
        assert make(credentials=credentials).read_many(private) == [DATA]
    with pytest.raises(Unreachable, match="denies access") as caught:
        make(credentials="anonymous").read_many(private)
    assert "very-secret" not in str(caught.value)


def test_web_servers_and_local_urls_are_read_too(make, s3, tmp_path):
    assert make().read_many([Url(f"{s3.endpoint}/bucket/plate%201/a.tif")]) == [DATA + b"a.tif"]
    (tmp_path / "a b.tif").write_bytes(DATA)
    assert make().read_many([Url(f"file://{tmp_path}/a b.tif")]) == [DATA]
    assert [url.text for url in make().list(Url(f"file://{tmp_path}"))] == [f"file://{tmp_path}/a b.tif"]
    with pytest.raises(BadInput, match="manifest"):
        list(make().list(Url(s3.endpoint)))
    for secret in ("http://me:word@127.0.0.1/a.tif", "https://127.0.0.1/a.tif?X-Amz-Signature=word"):
        with pytest.raises(BadInput, match="must not hold a password") as caught:
            make().read_many([Url(secret)])
        assert "word@" not in str(caught.value)
        assert "=word" not in str(caught.value)
    with pytest.raises(BadInput, match="ftp://host/a: this URL cannot be opened"):
        make().read_many([Url("ftp://host/a")])


def test_one_client_for_a_process_which_no_other_gets(s3):
    config = RemoteConfig(endpoint=s3.endpoint)
    assert remote_client(config) is remote_client(RemoteConfig(endpoint=s3.endpoint))
    assert remote_client(config) is not remote_client(RemoteConfig(endpoint=s3.endpoint, connections=2))
    with pytest.raises(TypeError, match="belongs to its process"):
        pickle.dumps(remote_client(config))


def test_without_obstore_its_command_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(BadInput, match=r"`uv pip install .obstore>="):
        clients.Client(RemoteConfig())


def test_localised_records_have_files_with_their_endings_for_as_long_as_they_are_read(s3, tmp_path):
    here = tmp_path / "mask.png"
    here.write_bytes(b"mask")
    record = Record("f", "g", {"image": ROOT / "a.tif", "deep": ROOT / "deep/c.tif", "mask": here})
    with localised(record, RemoteConfig(endpoint=s3.endpoint)) as local:
        assert {role: path.suffix for role, path in local.files.items()} == {
            "image": ".tif",
            "deep": ".tif",
            "mask": ".png",
        }
        assert local.files["image"].read_bytes() == DATA + b"a.tif"
        assert local.files["mask"] == here
        gone = local.files["image"]
    assert not gone.parent.exists()
    assert here.exists()


def test_an_error_in_a_fetched_file_names_its_url(s3):
    record = Record("f", "g", {"image": ROOT / "a.tif"})
    for error in (BadInput, OSError):
        with (
            pytest.raises(BadInput, match=r"^f: s3://bucket/plate 1/a\.tif is no image$"),
            localised(record, RemoteConfig(endpoint=s3.endpoint)) as local,
        ):
            raise error(f"f: {local.files['image']} is no image")
    with pytest.raises(BadInput, match="another"), localised(record, RemoteConfig(endpoint=s3.endpoint)):
        raise BadInput("another")


def test_local_records_are_left_alone(tmp_path):
    record = Record("f", "g", {"image": Path(tmp_path)})
    with localised(record, RemoteConfig(endpoint="http://127.0.0.1:9")) as local:
        assert local is record


def test_a_long_listing_in_several_requests_has_the_files_and_the_order_of_one(make, s3, monkeypatch):
    names = [f"p/{n:02d}/{f}/{i}.tif" for n in range(9) for f in "ab" for i in range(n % 3)]
    names += ["p/1.tif", "p/1-x/b.tif", "p/10/a.tif", "p/1/x.tif", "p/1/y/z.tif", "p/é/a.tif", "p/ü.tif", "q/other.tif"]
    for name in names:
        s3.put("tree", name, name.encode())
    one = list(make().listed(Url("s3://tree/p")))
    assert [url.text for url in one] == [f"s3://tree/{name}" for name in sorted(names)[:-1]]
    monkeypatch.setattr(clients, "_IN_A_ROW", 3)
    for threads in (1, 2, 32):
        assert list(make(connections=threads).list(Url("s3://tree/p"))) == one
    s3.requests.clear()
    s3.fail(500, "start-after", 2)
    assert list(make().list(Url("s3://tree/p"))) == one
    assert len([path for _, path in s3.requests if "start-after" in path]) > 5
    begun = make().list(Url("s3://tree/p"))
    assert next(begun) == one[0]
    begun.close()


def test_files_of_one_folder_are_listed_once(make, s3, monkeypatch):
    for n in range(12):
        s3.put("flat", f"p/{n:02d}.tif", b"1")
    monkeypatch.setattr(clients, "_IN_A_ROW", 3)
    s3.requests.clear()
    assert len(list(make().list(Url("s3://flat/p")))) == 12
    assert s3.count("list-type=2") == 2
    assert s3.count("delimiter") == 0
