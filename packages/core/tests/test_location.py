"""Data at URLs: how they are named, which projects and caches take them, what the command line makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from runner_core import BadInput, DataSet, Record
from runner_core.base.location import Url, location, refuse_secrets
from runner_core.cli import main
from runner_core.cli.parsing import peek
from runner_core.config import CacheConfig, RunConfig
from runner_core.contract.records import at_url
from runner_core.data.cache import default_cache
from runner_core.data.cache.identity import Identities
from runner_core.data.duplicates import find_duplicates, known_digests
from runner_core.plugins.settings import refuse_nonsense


@pytest.mark.parametrize("text", ["s3://bucket/plates", "https://host/a.csv", "gs://b", "file:///data/a"])
def test_what_has_a_scheme_is_a_url(text):
    assert location(text) == Url(text)
    assert peek(["--data", text]).data == Url(text)
    assert str(location(text)) == text


@pytest.mark.parametrize("text", ["data/plate1", "/data", "C:/data", "a:b", "plate//1", "./s3:/bucket"])
def test_everything_else_is_a_path(text):
    assert location(text) == Path(text)
    assert peek(["--data", text]).data == Path(text)


def test_a_url_that_lacks_a_slash_is_refused_unless_it_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"s3:/bucket/a: there is no such .* did you mean s3://bucket/a\?"):
        peek(["--data", "s3:/bucket/a"])
    (tmp_path / "s3:").mkdir()
    (tmp_path / "s3:" / "bucket").mkdir()
    assert location("s3:/bucket") == Path("s3:/bucket")


def test_parts_of_a_url():
    url = Url("s3://bucket/plates/") / "p1" / "a.ome.tif"
    assert (url.text, url.name, url.suffix) == ("s3://bucket/plates/p1/a.ome.tif", "a.ome.tif", ".tif")
    assert url.parent == Url("s3://bucket/plates/p1")
    assert url.parent / "b" == Url("s3://bucket/plates/p1/b")


def at(text, etag=None):
    return Record(text, text[-1], {"image": Url(text, 10, etag), "mask": Url(f"{text}_mask")})


def test_a_record_is_at_a_url_if_one_of_its_files_is(tmp_path):
    assert at_url(at("s3://b/x"))
    assert at_url(Record("r", "g", {"image": tmp_path, "mask": Url("s3://b/m")}))
    assert not at_url(Record("r", "g", {"image": tmp_path}))


@pytest.mark.parametrize("mode", ["memmap", "blosc2", "memory", "device", "off"])
def test_only_streaming_takes_records_at_urls(mode, tmp_path):
    cache = default_cache(None, RunConfig(cache=CacheConfig(mode=mode, dir=tmp_path)))
    with pytest.raises(BadInput, match=f"s3://b/x: cache.mode {mode} .* set cache.mode to stream"):
        cache.plan(None, [at("s3://b/x")])


def test_auto_streams_what_is_at_urls(tmp_path):
    pytest.importorskip("obstore")
    from types import SimpleNamespace

    cache = default_cache(None, RunConfig(cache=CacheConfig(dir=tmp_path)), [at("s3://b/x")])
    assert cache.plan(SimpleNamespace(settings={}), [at("s3://b/x")]).mode == "stream"


def test_copies_at_urls_are_found_by_etag(tmp_path):
    records = [at("s3://b/x", "1"), at("s3://b/y", "2"), at("s3://b/z", "1"), at("s3://b/u")]
    digests = known_digests(Identities(tmp_path), records)
    assert digests[3] is None
    (found,) = find_duplicates(records, digests, {"train": [0, 1], "validation": [2, 3]})
    assert found.level == "error"
    assert "s3://b/x (s3://b/x), s3://b/z (s3://b/z)" in found.message


def test_known_digests_of_files_and_urls_together(tmp_path):
    file = tmp_path / "a.npy"
    file.write_bytes(b"1")
    records = [at("s3://b/x", "1"), Record("a", "g", {"image": file}), Record("none", "g", {}), at("s3://b/y")]
    assert known_digests(Identities(tmp_path), records) == ["1 10", None, None, None]


@pytest.mark.parametrize("command", ["train", "check"])
def test_a_project_that_is_not_remote_refuses_urls(command, here, monkeypatch, capsys):
    import toy_project

    monkeypatch.setattr(toy_project.Toy, "dataset", DataSet())
    assert main(["toy", command, "--data", "s3://bucket/data"]) == 2
    assert "s3://bucket/data: project toy cannot read data from a URL" in capsys.readouterr().err
    assert not (here / "runs").exists() or not any((here / "runs").rglob("config.yaml"))


@pytest.mark.parametrize(("name", "value"), [("connections", 0), ("retries", -1), ("timeout", 0.0)])
def test_nonsense_about_the_server_is_refused(name, value):
    config = RunConfig()
    setattr(config.remote, name, value)
    with pytest.raises(BadInput, match=f"remote.{name}"):
        refuse_nonsense(config)


@pytest.mark.parametrize(
    "text",
    [
        "https://me:secret@host/a.tif",
        "https://host/a.tif?X-Amz-Signature=secret",
        "https://host?secret",
        "s3://KEY:secret@bucket/a",
        "az://account/container/a?sig=secret",
    ],
)
def test_urls_with_secrets_are_refused_before_anything_is_kept(text, here, capsys):
    assert main(["toy", "train", "--data", text]) == 2
    said = capsys.readouterr()
    assert "must not hold a password or a signature" in said.err
    assert "secret" not in said.out + said.err
    assert not any(here.rglob("config.yaml"))


@pytest.mark.parametrize(
    "text", ["s3://b/what?.tif", "abfss://container@account.dfs.core.windows.net/a", "s3://b/a@2x"]
)
def test_names_that_only_look_like_secrets_are_taken(text):
    refuse_secrets(Url(text))


def test_an_endpoint_with_a_password_is_refused():
    config = RunConfig()
    config.remote.endpoint = "http://me:secret@127.0.0.1:9000"
    with pytest.raises(BadInput, match=r"remote\.endpoint holds a user name") as caught:
        refuse_nonsense(config)
    assert "secret" not in str(caught.value)
