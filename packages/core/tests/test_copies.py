"""Two records of the same scan are reported, and refused if the split would part them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from runner_core import Record
from runner_core.data.cache.identity import Identities, identify
from runner_core.data.duplicates import find_duplicates, known_digests, suspected_digests

Runner = Callable[..., subprocess.CompletedProcess[str]]


def record(folder: Path, key: str, image: str, mask: str = "m") -> Record:
    files = {"image": folder / f"{key}.npy", "mask": folder / f"{key}_mask.npy"}
    for path, content in zip(files.values(), (image, mask), strict=True):
        path.write_text(content)
    return Record(key, key.split("_", maxsplit=1)[0], files)


def read_digest(record: Record) -> str:
    return identify(replace(record, files={"image": record.files["image"]})).identity


def found(records: list[Record], **splits: list[int]) -> list[tuple[str, bool]]:
    findings = find_duplicates(records, [read_digest(r) for r in records], splits)
    return [(f.level, "on both sides" in f.message) for f in findings]


def test_only_the_main_files_count(tmp_path: Path) -> None:
    records = [record(tmp_path, "a_1", "one"), record(tmp_path, "b_1", "two")]
    assert found(records, train=[0], validation=[1]) == []  # equal masks
    records.append(record(tmp_path, "c_1", "one", "another mask"))
    assert found(records, train=[0, 1], validation=[2]) == [("error", True)]
    assert found(records, train=[0, 1, 2]) == [("warning", False)]
    assert found(records, train=[0], validation=[1]) == [("warning", False)]  # c takes no part
    assert found([records[0], record(tmp_path, "a_2", "one")]) == [("note", False)]


def test_several_records_of_one_file_are_no_copies(tmp_path: Path) -> None:
    one = record(tmp_path, "a_1", "one")
    other = Record("b_1", "b", one.files)
    assert found([one, other], train=[0], validation=[1]) == []


def test_what_the_cache_has_read_is_known(tmp_path: Path) -> None:
    records = [record(tmp_path, key, "one") for key in ("a_1", "b_1")]
    index = Identities(tmp_path)
    assert known_digests(index, records) == [None, None]
    index.remember(identify(records[0]).marks)
    assert known_digests(index, records) == [read_digest(records[0]), None]
    assert find_duplicates(records, [None, None], {}) == []


def test_of_files_that_none_has_read_only_those_alike_are_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = {"a_1": "scan" * 9999, "b_1": "scan" * 9999, "c_1": "s" * 39996, "d_1": "can" * 9999, "gone_1": "x"}
    records = [record(tmp_path, key, content) for key, content in contents.items()]
    records.append(Record("a_again", "e", records[0].files))
    records[4].files["image"].unlink()
    other = "!" + contents["a_1"][1:]  # alike in size and middle, another scan
    records.append(record(tmp_path, "f_1", other))
    read: list[str] = []

    def hash_file(path: Path) -> str:
        read.append(path.name)
        return path.read_text()[0]

    monkeypatch.setattr("runner_core.data.cache.identity.hash_file", hash_file)
    index = Identities(tmp_path)
    digests = suspected_digests(index, records)
    assert sorted(read) == ["a_1.npy", "b_1.npy", "f_1.npy"]
    assert [n for n, digest in enumerate(digests) if digest is not None] == [0, 1, 5, 6]
    assert digests[0] == digests[1] == digests[5] != digests[6]
    assert suspected_digests(index, records) == digests
    assert len(read) == 3  # remembered


@pytest.mark.torch
@pytest.mark.parametrize("mode", ["memmap", "memory", "stream"])
def test_a_copy_on_the_other_side_is_refused_before_training(mode: str, runner: Runner, tmp_path: Path) -> None:
    assert runner("toy", "phantom", "data").returncode == 0
    for end in ("", "_mask"):
        shutil.copy(tmp_path / "data" / f"p0_a{end}.npy", tmp_path / "data" / f"q0_a{end}.npy")
    here = ["--data", "data", "--cache.mode", mode, "--cache.dir", "cache"]
    apart = [*here, "--data.split", "group:q0"]
    told = "2 records hold the same scan: p0_a ("
    checked = runner("toy", "check", *apart)
    assert checked.returncode == 2
    assert f"error    {told}" in checked.stdout
    trained = runner("toy", "train", *apart, "--run-dir", "run")
    assert trained.returncode == 2
    assert told in trained.stderr
    assert "q0_a.npy" in trained.stderr
    assert "on both sides of the split (train, validation)" in trained.stderr
    assert not (tmp_path / "run").exists()

    together = [*here, "--data.split", "group:p1"]
    checked = runner("toy", "check", *together)
    assert checked.returncode == 0
    assert f"warning  {told}" in checked.stdout
    assert "0 faulty records, 0 errors, 1 warning" in checked.stdout
    if mode == "memory":
        short = ["--train.epochs", "1", "--train.steps-per-epoch", "2"]
        trained = runner("toy", "train", *together, "--run-dir", "run", *short)
        assert trained.returncode == 0, trained.stderr
        assert f"warning: {told}" in trained.stdout
