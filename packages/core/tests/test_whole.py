"""Predictions and exported networks are there whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from runner_core import BadInput
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


def test_leftovers_of_a_kill_are_removed_and_those_of_a_living_process_are_not(tmp_path: Path) -> None:
    for name in ("dead", "alive"):
        (tmp_path / f".runner-writing-{name}").mkdir()
        (tmp_path / f".runner-writing-{name}" / "a").touch()
    descriptor = os.open(tmp_path / ".runner-writing-alive", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    remove_leftovers(tmp_path)
    os.close(descriptor)
    assert names(tmp_path) == {".runner-writing-alive", ".runner-writing-alive/a"}


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

    (tmp_path / "net" / ".runner-writing-dead").mkdir()  # of a kill: no reason to refuse
    assert main(["toy", "export", str(trained), "--out", "net"]) == 0
