"""One manifest for all processes of a machine: they see what the first one listed, and never half of it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runner_core import Record, Url
from runner_core.contract.setup import Data, Setup
from runner_core.data import columns, table
from runner_core.data.cache import identity
from runner_core.data.cache.storage import PreparedStore
from runner_core.data.columns import Numbers
from runner_core.plugins import defaults
from runner_core.plugins.manager import Plugins
from runner_core.training.data import open_data
from runner_core.training.manifest import Manifest, manifest_place, read_manifest, release, remove_manifest
from runner_core.training.seen import read_split

sys.path.insert(0, str(Path(__file__).parent / "data_toy"))
from cache_toy import Workplace, assert_holds_what_the_pipeline_gives, flip_byte

PROJECT = Path(__file__).parent / "toy" / "project"
MANY = table.LEAST + 100


def found(count: int = MANY, word: str = "") -> Manifest:
    records = [
        Record(f"{word}{n}", f"g{n % 7}", {"dna": Url(f"s3://b/{word}{n}.tif", n, f"{n:032x}")}) for n in range(count)
    ]
    splits = {"train": list(range(0, count, 2)), "validation": list(range(1, count, 2)), "test": []}
    return Manifest(records, splits, [1, 3], {"train": 7, "validation": 7, "test": 0})


def data(manifest: Manifest) -> Data:
    return Data(manifest.records, manifest.splits, None, validated=manifest.validated, groups=manifest.groups)


def test_another_process_reads_what_the_first_one_found(tmp_path: Path) -> None:
    first = found()
    mapped = first.mapped(tmp_path / ".manifest")
    assert mapped.records[5] is first.records[5]
    release(mapped.records)
    assert mapped.records[5] is not first.records[5]
    place = json.loads(json.dumps(manifest_place(data(mapped))))  # as the team shares it
    other = read_manifest(place)
    for manifest in (mapped, other):
        assert manifest is not None
        assert list(manifest.records) == first.records
        assert manifest.splits == first.splits
        assert isinstance(manifest.splits["train"], Numbers)
        assert not manifest.splits["test"]
        assert list(manifest.validated) == [1, 3]
    assert other is not None
    assert data(other).described_split() == data(first).described_split()
    assert data(first).described_split()["train"]["groups"] == len({r.group for r in first.records[::2]})
    remove_manifest(tmp_path / ".manifest")
    assert read_manifest(place) is None
    assert list(mapped.records) == first.records  # who has mapped the files keeps them


def test_few_records_and_a_machine_without_room_keep_them_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = found(10)
    assert few.mapped(tmp_path / "few") is few
    assert manifest_place(data(few)) is None
    assert read_manifest(None) is None
    assert not (tmp_path / "few").exists()

    def full(file: Path, array: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(columns, "save_array", full)
    many = found()
    assert many.mapped(tmp_path / "many") is many
    assert not (tmp_path / "many").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from runner_core.data import columns
from test_manifest import found
plain, calls = columns.save_array, []
def save(file, array):
    calls.append(file)
    if len(calls) == {call}:
        file.write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    plain(file, array)
columns.save_array = save
found(word="old").mapped(Path({folder!r}))
"""


@pytest.mark.parametrize("call", [1, 5, 11])
def test_nothing_of_a_killed_process_is_read(call: int, tmp_path: Path) -> None:
    folder = tmp_path / ".manifest"
    code = KILLED.format(tests=str(Path(__file__).parent), call=call, folder=str(folder))
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    (own,) = folder.iterdir()
    assert list(own.iterdir())
    place = [str(own), "runner_core.contract.records:Record", {"train": 7, "validation": 7, "test": 0}, None]
    assert read_manifest(place) is None
    new = found()
    assert list(new.mapped(folder).records) == new.records
    assert len(list(folder.iterdir())) == 1
    assert not list(folder.rglob(".*"))


def test_an_earlier_starts_manifest_is_not_read_as_this_ones(tmp_path: Path) -> None:
    """Of a machine that still has one of the same run folder: the place names the folder of this start."""
    folder, elsewhere = tmp_path / ".manifest", tmp_path / "node"
    old = manifest_place(data(found(word="old").mapped(elsewhere)))
    new = manifest_place(data(found().mapped(folder)))
    assert isinstance(new, list)
    moved = [str(elsewhere / Path(str(new[0])).name), *new[1:]]
    assert read_manifest(old) is not None
    assert read_manifest(moved) is None


@pytest.mark.parametrize("mode", ["memmap", "blosc2"])
def test_another_process_opens_the_first_ones_cache_and_looks_at_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(table, "LEAST", 1)
    place = Workplace(tmp_path)
    place.capability(mode=mode)
    plugins = Plugins()
    plugins.register(defaults, "core")
    plugins.register(place.project, "rows")

    def opened(**words: Any) -> Data:
        setup = Setup(place.project, place.project.config, "demo", place.data, plugins)
        return open_data(setup, place.said.append, **words)

    first = opened(manifest=tmp_path / ".manifest")
    told = json.dumps(manifest_place(first))
    release(first.records)
    place.decoded()
    looked: list[str] = []
    stat = identity._stat
    monkeypatch.setattr(identity, "_stat", lambda path: looked.append(path) or stat(path))
    other = opened(known=read_manifest(json.loads(told)))
    assert not looked
    assert place.decoded() == ["a0"]  # compared with what the cache holds of it
    assert other.plan == first.plan
    assert isinstance(first.store, PreparedStore)
    assert isinstance(other.store, PreparedStore)
    assert (other.store.folder, other.store.identity) == (first.store.folder, first.store.identity)
    assert_holds_what_the_pipeline_gives(other.store, place.pipeline, place.records)

    other.store.close()
    first.store.close()
    folder = other.store.folder
    assert folder is not None
    for harm in (lambda: flip_byte(folder / "array-0.bin"), lambda: shutil.rmtree(place.cache)):
        harm()
        place.decoded()
        mended = opened(known=read_manifest(json.loads(told)))  # as on a machine with a cache folder of its own
        assert sorted(set(place.decoded())) == ["a0", "b1", "c2", "d3"]
        assert_holds_what_the_pipeline_gives(mended.store, place.pipeline, place.records)
        mended.store.close()


@pytest.mark.slow
@pytest.mark.torch
def test_two_processes_list_once_and_train_as_ever(
    runner: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the table, whose records and numbers are mapped, and without: the same weights, bit for bit."""
    pytest.importorskip("obstore")
    pytest.importorskip("moto")
    from runner_core.data.phantoms import write_phantom
    from s3server import S3

    monkeypatch.syspath_prepend(str(PROJECT))
    from toy_project import Toy, ToyConfig

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    mapped = tmp_path / "mapped"
    mapped.mkdir()
    (mapped / "sitecustomize.py").write_text("from runner_core.data import table\ntable.LEAST = 1\n", encoding="utf-8")
    phantom = write_phantom(Toy(ToyConfig()), tmp_path / "phantom")
    weights, listings = [], []
    with S3() as server:
        for file in sorted(phantom.iterdir()):
            server.put("cells", f"toy/{file.name}", file.read_bytes())
        words = ["--devices", "2", "--train.device", "cpu", "--train.batch-size", "4", "--train.workers", "1"]
        words += ["--data", "s3://cells/toy", "--remote.endpoint", server.endpoint, "--train.epochs", "2"]
        words += ["--train.steps-per-epoch", "4"]
        for run, installed in (("plain", (PROJECT,)), ("table", (mapped, PROJECT))):
            server.requests.clear()
            own = ["--run-dir", run, "--cache.dir", tmp_path / f"cache-{run}"]
            done = runner("toy", "train", *words, *own, installed=installed)
            assert done.returncode == 0, done.stdout + done.stderr
            listings.append(server.count("list-type=2"))
            files = sorted((tmp_path / run / "checkpoints").glob("step-*/*.safetensors"))
            weights.append([file.read_bytes() for file in files])
            assert not (tmp_path / run / ".manifest").exists()
    assert weights[0]
    assert weights[0] == weights[1]
    assert listings == [2 * listings[1], listings[1]]
    plain, table = (read_split(tmp_path / run) or {} for run in ("plain", "table"))
    assert {name: sorted(own) for name, own in plain.items()} == {name: sorted(own) for name, own in table.items()}
