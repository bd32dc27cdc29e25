"""Predictions and exported networks are there whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from runner_core import BadInput
from runner_core.base.writing import host_word
from runner_core.cli import main
from runner_core.output.evaluations import remove_leftovers, write_whole


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def test_files_come_to_their_places_with_their_folders(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")

    def write(folder: Path) -> Sequence[Path]:
        (folder / "sub").mkdir()
        for name in ("a", "sub/b", "untold"):
            (folder / name).write_text("new")
        return [folder / "a", folder / "sub" / "b"]

    assert write_whole(tmp_path, write) == [tmp_path / "a", tmp_path / "sub" / "b"]
    assert names(tmp_path) == {"a", "sub", "sub/b", "untold"}
    assert (tmp_path / "a").read_text() == "new"


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_full_disk_leaves_the_older_file(tmp_path: Path, wrapped: bool) -> None:
    (tmp_path / "a").write_text("old")

    def write(folder: Path) -> Sequence[Path]:
        (folder / "a").write_text("ne")
        full = OSError(errno.ENOSPC, "No space left on device", str(folder / "a"))
        if wrapped:  # as pydicom does
            raise OSError(f"With tag 7FE0,0010 got exception: {full}\nTraceback …") from full
        raise full

    with pytest.raises(OSError, match="No space left on device") as error:
        write_whole(tmp_path, write)
    assert (error.value.errno, error.value.filename) == (errno.ENOSPC, str(tmp_path))
    assert names(tmp_path) == {"a"}
    assert (tmp_path / "a").read_text() == "old"


def test_a_refusal_names_the_file_as_the_user_knows_it(tmp_path: Path) -> None:
    def write(folder: Path) -> Sequence[Path]:
        raise BadInput(f"{folder / 'a'}: cannot be written")

    with pytest.raises(BadInput) as error:
        write_whole(tmp_path, write)
    assert str(error.value) == f"{tmp_path / 'a'}: cannot be written"
    assert not names(tmp_path)


GONE = 2**22 + 1
"""No process has this number."""


def leftover(out: Path, host: str, pid: int, age: float = 0) -> str:
    """Make a folder that a process of a machine was writing, `age` seconds ago; return its name."""
    folder = out / f".runner-writing-{host}-{pid}-{age:.0f}"
    folder.mkdir()
    (folder / "a").touch()
    for path in (folder / "a", folder):
        os.utime(path, (time.time() - age,) * 2)
    return folder.name


def test_leftovers_of_a_kill_are_removed_and_those_of_a_living_process_are_not(tmp_path: Path) -> None:
    leftover(tmp_path, host_word(), GONE)
    alive = leftover(tmp_path, host_word(), os.getpid())
    descriptor = os.open(tmp_path / alive, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    remove_leftovers(tmp_path)
    os.close(descriptor)
    assert names(tmp_path) == {alive, f"{alive}/a"}


def test_another_machines_lock_may_not_be_seen(tmp_path: Path) -> None:
    """Locks of a disk may be those of one machine alone: what another one writes stays until it is a day old."""
    fresh = leftover(tmp_path, "0" * 12, GONE, 3600)
    leftover(tmp_path, "0" * 12, GONE, 2 * 86400)
    newer = leftover(tmp_path, "0" * 12, GONE, 3 * 86400)
    (tmp_path / newer / "b").touch()
    remove_leftovers(tmp_path)
    assert names(tmp_path) == {fresh, f"{fresh}/a", newer, f"{newer}/a", f"{newer}/b"}


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_locks_only_what_a_dead_process_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    leftover(tmp_path, host_word(), GONE)
    other = leftover(tmp_path, "0" * 12, GONE)

    def write(folder: Path) -> Sequence[Path]:
        remove_leftovers(tmp_path)  # as the next part does, while this one writes
        assert names(tmp_path) == {other, f"{other}/a", folder.name}
        (folder / "b").touch()
        return [folder / "b"]

    write_whole(tmp_path, write)
    assert names(tmp_path) == {other, f"{other}/a", "b"}


@pytest.mark.torch
def test_predict_and_export_on_a_full_disk(
    toy: None,
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from toy_project import Toy  # type: ignore[import-not-found]

    monkeypatch.chdir(tmp_path)
    assert main(["toy", "phantom", "data"]) == 0
    words = ["toy", "predict", str(trained), "data", "--out", "out"]
    assert main([*words[:3], "data/p1_a.npy", *words[4:]]) == 0
    before = (tmp_path / "out" / "p1_a_mask.npy").read_bytes()
    capsys.readouterr()

    def half(folder: Path) -> None:
        (folder / "half").touch()
        try:
            raise OSError(errno.ENOSPC, "No space left on device", str(folder / "half"))
        except OSError as error:
            raise ValueError("Traceback …") from error

    with monkeypatch.context() as patch:
        patch.setattr(Toy, "write", lambda self, record, prediction, out: half(out))
        patch.setattr(Toy, "export", lambda self, model, folder: half(folder))
        assert main(words) == 2
        assert capsys.readouterr().err == "runner: the disk is full: out\n"
        assert names(tmp_path / "out") == {"p1_a_mask.npy"}
        assert (tmp_path / "out" / "p1_a_mask.npy").read_bytes() == before
        assert main(["toy", "export", str(trained), "--out", "net"]) == 2
        assert capsys.readouterr().err == "runner: the disk is full: net\n"
        assert not names(tmp_path / "net")

    (tmp_path / "net" / f".runner-writing-{host_word()}-1-dead").mkdir()  # of a kill: no reason to refuse
    assert main(["toy", "export", str(trained), "--out", "net"]) == 0
