"""Zip archives: unpack what a client sent, which may be hostile, and pack what is sent back."""

from __future__ import annotations

import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from runner_core import BadInput

_MOST_FILES = 20_000
_DEEPEST = 32
_LONGEST = 200
"""Bytes of a name; file systems take 255."""
_CHUNK = 1 << 20
_TIME = (1980, 1, 1, 0, 0, 0)
"""Of files in an archive that is sent back, so that the same prediction is the same archive."""
_NOT_DATA = ("__MACOSX", ".DS_Store")
_DAMAGE = (
    *(zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, EOFError, struct.error, UnicodeError),
    *(NotImplementedError, RuntimeError, ValueError, OSError),
)


def unpack(archive: Path, folder: Path, most: int) -> None:
    """Unpack an archive into a new folder. Its names are the only ones of the client that become paths.

    Raises BadInput for one that is damaged or encrypted, has more than `most` bytes or names that leave the folder,
    links, or names twice.
    """
    folder.mkdir()
    try:
        with zipfile.ZipFile(archive) as opened:
            members = [one for one in opened.infolist() if not {*_NOT_DATA} & {*one.filename.split("/")}]
            if len(members) > _MOST_FILES:
                raise BadInput(f"the archive has {len(members):,} files; {_MOST_FILES:,} are the most that are taken")
            _refuse_size(sum(one.file_size for one in members), most)
            for one in members:
                most -= _unpack_one(opened, one, folder, most)
    except _DAMAGE as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
        raise BadInput(f"the archive is damaged, or of a kind that is not read ({reason})") from error


def _unpack_one(opened: zipfile.ZipFile, one: zipfile.ZipInfo, folder: Path, most: int) -> int:
    """Unpack a file or folder, and return its size; a header may say a smaller one than there is."""
    place = folder.joinpath(*_parts(one))
    if one.is_dir():
        place.mkdir(parents=True, exist_ok=True)
        return 0
    place.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with opened.open(one) as source, place.open("xb") as target:
        while part := source.read(_CHUNK):
            size += len(part)
            _refuse_size(size, most)
            target.write(part)
    return size


def _parts(one: zipfile.ZipInfo) -> list[str]:
    """Return the parts of a name that stays in its folder. Raises BadInput for any other, and for a link."""
    kind = stat.S_IFMT(one.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or one.flag_bits & 1:
        raise BadInput("the archive has links, special files or encrypted ones: send plain files")
    parts = one.filename.rstrip("/").split("/")
    wrong = any(part in ("", ".", "..") or len(part.encode()) > _LONGEST or "\\" in part for part in parts)
    if wrong or len(parts) > _DEEPEST or not one.filename.isprintable():
        raise BadInput(f"the archive has a name that is not taken: {one.filename[:80]!r}")
    return parts


def _refuse_size(size: int, most: int) -> None:
    if size > most:
        raise BadInput("the archive holds more than this server takes (--max-megabytes)")


def pack(files: Sequence[Path], folder: Path, archive: Path) -> None:
    """Write files and folders below `folder` into a new archive; the same files give the same bytes."""
    below = [one for file in files for one in ([file] if file.is_file() else file.rglob("*")) if one.is_file()]
    with zipfile.ZipFile(archive, "x", zipfile.ZIP_DEFLATED) as opened:
        for file in sorted(below):
            about = zipfile.ZipInfo(file.relative_to(folder).as_posix(), _TIME)
            about.compress_type, about.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            with file.open("rb") as source, opened.open(about, "w", force_zip64=True) as target:
                shutil.copyfileobj(source, target, _CHUNK)
