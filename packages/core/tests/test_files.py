"""Walking through data folders, and disks without room."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runner_core import BadInput, Record, refuse_special_file, walk
from runner_core.base.files import hash_file
from runner_core.base.writing import full_disk, whole_file, whole_folder, write_once
from runner_core.config.yamlfile import read_yaml
from runner_core.data.cache.identity import identify
from runner_core.data.pipeline import local


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    data, disk = tmp_path / "data", tmp_path / "disk"
    for folder in (data / "b" / "c", disk, data / ".hidden"):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    (data / "b" / "c" / ".hidden").touch()
    (data / "b" / "c" / "loop").symlink_to(data)
    (data / "self").symlink_to(data)
    (data / "linked").symlink_to(disk)
    (data / "twice").symlink_to(disk)
    (data / "broken").symlink_to(tmp_path / "nowhere")
    assert list(walk(data)) == [
        (data, ["b", "linked", "self", "twice"], ["broken"]),
        (data / "b", ["c"], []),
        (data / "b" / "c", ["loop"], ["file"]),
        (data / "linked", [], ["file"]),
        (data / "twice", [], ["file"]),
    ]


def test_folders_taken_from_the_list_are_not_entered(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    for _, folders, _ in walk(tmp_path):
        if "a" in folders:
            folders.remove("a")
            entered = folders
    assert entered == ["b"]


def test_a_folder_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def forbidding(path: Any) -> Any:  # the tests may run as root, whom permissions do not stop
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", forbidding)
    with pytest.raises(BadInput, match=r"closed: this folder cannot be read: Permission denied"):
        list(walk(tmp_path))


@pytest.mark.parametrize(
    "text, full",
    [
        ("Error while serializing: I/O error: No space left on device (os error 28)", True),
        ("unable to write (file write failed: errno = 28, error message = 'No space left on device')", True),
        ("Error while serializing: I/O error: Permission denied (os error 13)", False),
        ("28 records are damaged", False),
    ],
)
def test_a_full_disk_that_only_a_text_tells(text: str, full: bool) -> None:
    found = full_disk(RuntimeError(text))
    assert (found is not None) == full
    assert found is None or found.errno == errno.ENOSPC


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


SPECIAL: dict[str, Callable[[Path], None]] = {
    "named pipe": os.mkfifo,
    "socket": _socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_file_is_refused_before_it_is_read(tmp_path: Path, kind: str, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path is at most 107 bytes
    (tmp_path / "record").mkdir()
    path = Path("record/a")
    SPECIAL[kind](path)
    project: Any = None
    with pytest.raises(BadInput, match=f"^record/a: a {kind}.*, not a file; copy") as refused:
        refuse_special_file(path)
    for read in (
        lambda: hash_file(path),
        lambda: identify(Record("r", "g", {"folder": path.parent.absolute()})),
        lambda: local(project, Record("r", "g", {"folder": path.parent})).__enter__(),
        lambda: read_yaml(path, "settings file"),
    ):
        with pytest.raises(BadInput) as error:
            read()
        assert str(error.value).removeprefix(f"{tmp_path}/") == str(refused.value)


def test_files_and_folders_pass_and_a_nul_is_no_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for path in (tmp_path, tmp_path / "file", tmp_path / "link", tmp_path / "missing"):
        assert refuse_special_file(path) == path
    with pytest.raises(BadInput, match="NUL"):
        refuse_special_file(Path("a\0b"))


def test_a_path_that_cannot_be_looked_at_is_refused_with_the_reason() -> None:
    """Whatever is asked of such a path afterwards would be a traceback."""
    with pytest.raises(BadInput, match=r"^a{200}… cannot be read: File name too long$"):
        refuse_special_file(Path("a" * 5000))


def test_a_file_that_is_written_once_has_the_mode_of_others_and_is_kept(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        for text in ("first: é", "second"):
            write_once(tmp_path / "table.csv", text)
    finally:
        os.umask(before)
    assert (tmp_path / "table.csv").read_text(encoding="utf-8") == "first: é"
    assert (tmp_path / "table.csv").stat().st_mode & 0o777 == 0o644
    assert [file.name for file in tmp_path.iterdir()] == ["table.csv"]


def test_processes_with_one_id_on_two_machines_do_not_write_into_each_others_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 7)
    with whole_file(tmp_path / "a.npy") as one, whole_file(tmp_path / "a.npy") as other:
        assert one != other
        assert one.suffix == other.suffix == ".npy"
        one.write_text("one")
        other.write_text("other")
    assert (tmp_path / "a.npy").read_text() == "one"
    with whole_folder(tmp_path / "b") as one, whole_folder(tmp_path / "c") as other:
        assert one.parent == other.parent == tmp_path
    assert {path.name for path in tmp_path.iterdir()} == {"a.npy", "b", "c"}
