"""Bytes of a cache that changed without a trace: found at open or while training, and never trained on in silence."""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from runner_core.cli import main
from runner_core.data.cache import folder, manage
from runner_core.data.cache.folder import Block, Checksums, Damaged, content_blocks, content_checksums
from runner_core.data.cache.prepared import PreparedCache
from runner_core.data.cache.verification import PLACE, Verification
from runner_core.training.signals import DAMAGED, AgreedSignals, Signals

sys.path.insert(0, str(Path(__file__).parent / "data_toy"))
from cache_toy import Folders, Workplace, assert_holds_what_the_pipeline_gives, flip_byte


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


@pytest.fixture
def blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Block]:
    """Forty blocks of a file of a cache."""
    monkeypatch.setattr(folder, "BLOCK", 100)
    file = tmp_path / "array-0.bin"
    file.write_bytes(np.random.default_rng(0).bytes(4000))
    return content_blocks(file, content_checksums(file))


@pytest.mark.parametrize("mode", ["memmap", "blosc2", "memory", "device"])
def test_flipped_bytes_are_found_when_the_cache_is_opened(place: Workplace, mode: str) -> None:
    place.open(mode=mode).close()
    (cache,) = place.folders()
    flip_byte(cache / "array-0.bin")
    store = place.open(mode=mode)
    (found,) = [said for said in place.said if "array-0.bin has changed" in said]
    assert found.endswith("differs. It was deleted and is built again; this run uses none of it")
    assert_holds_what_the_pipeline_gives(store, place.pipeline, place.records)


def test_flipped_bytes_in_an_extensions_storage_too(place: Workplace) -> None:
    place.capability()
    for _ in range(2):
        store = PreparedCache(place.project.config.cache, Folders()).open(
            place.pipeline, place.records, place.said.append
        )
        assert_holds_what_the_pipeline_gives(store, place.pipeline, place.records)
        store.close()
        (cache,) = place.folders()
        flip_byte(cache / "array-1.bin" / "2.npy", -3)
    assert any("array-1.bin/2.npy has changed" in said for said in place.said)


def test_checksums_are_of_whole_blocks_however_the_bytes_come(tmp_path: Path, blocks: list[Block]) -> None:
    data = memoryview(blocks[0].file.read_bytes())
    for size in (1, 99, 100, 101, 4000):
        sums = Checksums()
        for begin in range(0, 4000, size):
            sums.update(data[begin : begin + size])
        assert sums.text() == "".join(block.checksum for block in blocks)


def _found(verification: Verification) -> list[str]:
    """Return what the thread finds in the rest."""
    found: list[str] = []
    verification.begin(found.append)
    if verification._thread is not None:
        verification._thread.join(60)
        assert not verification._thread.is_alive()
    return found


def test_each_run_goes_on_where_the_last_one_ended(tmp_path: Path, blocks: list[Block], monkeypatch) -> None:
    (tmp_path / PLACE).write_text("0")
    read: list[int] = []
    monkeypatch.setattr(Block, "sound", lambda block: read.append(block.begin // 100) or True)
    clock = iter(range(10**6))
    monkeypatch.setattr("runner_core.data.cache.verification.time.monotonic", lambda: next(clock))
    for run in range(8):
        Verification(tmp_path, blocks).for_seconds(6)
        assert read == list(range(5 * (run + 1)))
    read.clear()
    Verification(tmp_path, blocks).for_seconds(float("inf"))
    assert read == list(range(40))


def test_without_a_place_of_its_own_it_begins_anywhere(tmp_path: Path, blocks: list[Block], monkeypatch) -> None:
    """A cache that this user cannot write, and a torn place."""
    begun = set()
    for text in ["", "x", "7" * 5000, *["-"] * 20]:
        (tmp_path / PLACE).write_text(text)
        verification = Verification(tmp_path, blocks)
        begun.add(verification._next)
        assert not _found(verification)
    assert len(begun) > 5
    (tmp_path / PLACE).unlink()
    (tmp_path / PLACE).mkdir()  # cannot be written, not even by root
    Verification(tmp_path, blocks).for_seconds()


def test_the_thread_reads_all_that_is_left_and_names_the_block(tmp_path: Path, blocks: list[Block]) -> None:
    (tmp_path / PLACE).write_text("30")
    assert _found(Verification(tmp_path, blocks)) == []
    flip_byte(blocks[17].file, 1750)
    (message,) = _found(Verification(tmp_path, blocks))
    assert "array-0.bin has changed since it was written: the checksum of its bytes 1,700 to 1,800 differs" in message
    assert (tmp_path / "damaged").read_text() == message


def test_an_error_of_the_disk_is_damage_at_once(tmp_path: Path, blocks: list[Block], monkeypatch) -> None:
    def fails(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", fails)
    with pytest.raises(Damaged, match=r"array-0.bin cannot be read at bytes .*: Input/output error"):
        Verification(tmp_path, blocks).for_seconds()


def test_files_that_somebody_deleted_end_it_quietly(tmp_path: Path, blocks: list[Block]) -> None:
    verification = Verification(tmp_path, blocks)
    blocks[0].file.unlink()
    assert _found(verification) == []


def test_closing_ends_the_thread(tmp_path: Path, blocks: list[Block], monkeypatch) -> None:
    monkeypatch.setattr(
        "runner_core.data.cache.verification._BUSY", 1e-9
    )  # after the first blocks it would wait for hours
    verification = Verification(tmp_path, blocks)
    begun, first = threading.Event(), Block.sound
    monkeypatch.setattr(Block, "sound", lambda block: begun.set() or first(block))
    verification.begin(lambda message: None)
    assert begun.wait(60)
    thread = verification._thread
    assert thread is not None
    verification.close()
    assert not thread.is_alive()


def test_damage_goes_before_every_signal_and_to_every_process() -> None:
    class Two:
        """The team as its second process sees it, when the first has found damage."""

        def noticed(self, number: int) -> int:
            return max(number, DAMAGED)

        def stepping(self, now: bool) -> None:
            return None

        def every(self, value: str) -> list[str]:
            return ["array-0.bin has changed", value]

    agreed = AgreedSignals(Signals(), Two())  # type: ignore[arg-type]
    assert list(agreed.between(iter([1]))) == [1]
    assert agreed.pending == DAMAGED
    assert agreed.damage == "array-0.bin has changed"
    own = Signals()
    own._handle(15, None)
    assert own.pending == 15
    own.damaged("x")
    assert own.pending == DAMAGED
    own._handle(15, None)
    assert own.pending == DAMAGED
    assert "pending" in vars(own), "every step looks at it: no property"


@pytest.mark.torch
def test_a_training_stops_with_the_file_and_the_next_one_is_sound(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The damage lies in a part that is not read at open, as in a set of many gigabytes."""
    # many steps, so that the thread which verifies finds the damage before the end, however busy the machine is
    train = ["toy", "train", "--train.epochs", "1", "--train.steps-per-epoch", "100", "--run-dir"]
    assert main([*train, "sound"]) == 0
    (cache,) = [entry.folder for entry in manage.entries()]
    flip_byte(cache / "array-0.bin", -1)
    monkeypatch.setattr("runner_core.data.cache.prepared.AT_OPEN", 0.0)
    capsys.readouterr()
    assert main([*train, "damaged"]) == 2
    said = capsys.readouterr()
    assert "array-0.bin has changed since it was written" in said.err
    assert "start again to be sure, or continue from the newest with --resume" in said.err
    assert "Traceback" not in said.out + said.err
    summary = json.loads((here / "damaged" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert "array-0.bin has changed" in summary["reason"]
    gc.collect()  # a process of its own would have ended, and let go of the cache
    assert main(["toy", "train", "--resume", "damaged"]) == 0
    assert "It was deleted and is built again" in capsys.readouterr().out
    assert manage.verify() == []
    assert not [thread for thread in threading.enumerate() if thread.name == "cache verification"]


@pytest.mark.parametrize(("number", "again"), [(signal.SIGTERM, False), (signal.SIGINT, True)])
def test_a_signal_is_answered_at_once(capfd: pytest.CaptureFixture[str], number: signal.Signals, again: bool) -> None:
    with Signals(answers=True) as signals:
        signal.raise_signal(number)
    said = capfd.readouterr().err
    assert f"runner: {number.name} received: the run ends after this step" in said
    assert ("a second Ctrl-C" in said) == again
    assert signals.pending == number
    with Signals() as signals:  # another process than the first
        signal.raise_signal(number)
    assert capfd.readouterr().err == ""
