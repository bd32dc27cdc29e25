"""Files below a folder or a URL, and their content."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from runner_core import BadInput, Location, RemoteConfig, Url, refuse_length, refuse_long_file, walk

_TABLE = "a table"


def listed(root: Location, remote: RemoteConfig) -> Iterator[tuple[str, Location]]:
    """Yield every file's path below `root` (with /) and its location, without hidden files.

    Raises BadInput for a folder that does not exist or cannot be read.
    """
    if isinstance(root, Url):
        from runner_core import remote_client

        above = root.text.rstrip("/") + "/"
        for url in remote_client(remote).list(root):
            path = url.text.removeprefix(above)
            if not path.startswith(".") and "/." not in path:
                yield path, url
        return
    if not root.is_dir():
        raise BadInput(f"{root}: {'not a folder' if root.exists() else 'no such folder'}. Give the folder of images.")
    skip = len(str(root)) + 1
    for folder, _, files in walk(root):
        above = f"{str(folder)[skip:]}/" if folder != root else ""
        for name in files:
            yield above + name, folder / name


def content(place: Location, remote: RemoteConfig, most: int) -> bytes:
    """Return a file's content.

    Raises BadInput if it does not exist, cannot be read, or has more bytes than `most`.
    """
    if isinstance(place, Url):
        from runner_core import remote_client

        (place,) = remote_client(remote).describe([place])
        refuse_length(str(place), place.size or 0, most, _TABLE)
        return remote_client(remote).read_many([place])[0]
    try:
        return refuse_long_file(place, most, _TABLE).read_bytes()
    except OSError as error:
        raise BadInput(f"{place}: cannot be read ({error.strerror}).") from error


def content_if_any(place: Location, remote: RemoteConfig, most: int) -> bytes | None:
    """Return a file's content, None if it does not exist.

    At a URL, access denied counts as missing: servers answer so for files that they do not list.
    """
    if isinstance(place, Path):
        return content(place, remote, most) if place.exists() else None
    from runner_core import Unreachable

    try:
        return content(place, remote, most)
    except Unreachable as error:
        if error.kind in ("missing", "denied"):
            return None
        raise
