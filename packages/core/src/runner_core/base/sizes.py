"""Checks of sizes that files claim, before memory is taken for them."""

from __future__ import annotations

from pathlib import Path

from runner_core.base.errors import BadInput, OutOfSpace
from runner_core.base.files import refuse_special_file, size_text
from runner_core.base.memory import available_ram

_DEFLATE = 1100
"""Most bytes that one byte can unpack to by deflate (zip, gzip)."""


def refuse_long_file(path: Path, most: int, what: str) -> Path:
    """Return `path`, or raise BadInput if it is longer than `what` ("a table") ever is, or not a file.

    Raises OSError if nothing exists there.
    """
    refuse_length(str(path), refuse_special_file(path).stat().st_size, most, what)
    return path


def refuse_length(where: str, size: int, most: int, what: str) -> None:
    """Raise BadInput if a file of `size` bytes is longer than `what` ("a table") ever is."""
    if size > most:
        raise BadInput(f"{where}: {size_text(size)}; {what} takes at most {size_text(most)}. Is it another file?")


def refuse_impossible_size(path: Path, what: str, promised: int, stored: int, packed: bool) -> None:
    """Raise BadInput if `what` ("its header") promises more bytes than `stored` ones can hold.

    `packed`: they may be compressed, by deflate.
    """
    if promised > stored * (_DEFLATE if packed else 1):
        raise BadInput(
            f"{path}: truncated or damaged: {what} promises {size_text(promised)}, which the {size_text(stored)} that "
            "are there cannot hold. Copy or write it again."
        )


def refuse_if_memory_is_short(path: Path, what: str, needed: int, remedy: str) -> None:
    """Raise OutOfSpace if `needed` bytes are more than is free. Call it before memory is taken.

    `what` is the subject with its verb ("256 × 256 voxels take"); `remedy` is advice in whole sentences.
    """
    if needed > (free := available_ram()):
        raise OutOfSpace(f"{path}: {what} {size_text(needed)} of memory, and {size_text(free)} are free. {remedy}")
