"""Walking through data folders, and disks without room."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from runner_core import BadInput, walk
from runner_core._files import full_disk


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
