"""Sizes that files claim are judged before memory is taken."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from runner_core import BadInput, OutOfSpace
from runner_core.base.files import refuse_if_memory_is_short, refuse_impossible_size, refuse_long_file


def test_a_file_longer_than_its_kind(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"12345")
    assert refuse_long_file(path, 5, "a table") == path
    with pytest.raises(BadInput, match=r"a\.csv: 5 B; a table takes at most 4 B\. Is it another file\?"):
        refuse_long_file(path, 4, "a table")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="a named pipe"):
        refuse_long_file(tmp_path / "pipe", 5, "a table")


@pytest.mark.parametrize("promised, packed, refused", [(10, False, False), (11, False, True), (9000, True, False)])
def test_a_promise_that_the_file_cannot_hold(promised: int, packed: bool, refused: bool) -> None:
    if not refused:
        refuse_impossible_size(Path("a.nii"), "its header", promised, 10, packed)
        return
    with pytest.raises(BadInput, match=r"a\.nii: truncated or damaged: its header promises 11 B, which the 10 B"):
        refuse_impossible_size(Path("a.nii"), "its header", promised, 10, packed)


def test_memory_that_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner_core.base.files.available_ram", lambda: 1000)
    refuse_if_memory_is_short(Path("a.tif"), "it takes", 1000, "")
    with pytest.raises(OutOfSpace, match=r"a\.tif: it takes 1\.0 kB of memory, and 1\.0 kB are free\. Cut it\."):
        refuse_if_memory_is_short(Path("a.tif"), "it takes", 1001, "Cut it.")
