"""What lies below a folder or a URL, and what is in a file there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from runner_core import BadInput, walk
from runner_core.config import RemoteConfig
from runner_core.location import Location, Url


def listed(root: Location, remote: RemoteConfig) -> Iterator[tuple[str, Location]]:
    """Every file's path below `root` (with /), and where it lies. Hidden ones are left out.

    Raises BadInput for a folder that is not there, or cannot be read.
    """
    if isinstance(root, Url):
        from runner_core.stream.client import client

        above = root.text.rstrip("/") + "/"
        for url in client(remote).list(root):
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


def content(place: Location, remote: RemoteConfig) -> bytes:
    """Raises BadInput for a file that is not there, or cannot be read."""
    if isinstance(place, Url):
        from runner_core.stream.client import client

        return client(remote).read_many([place])[0]
    try:
        return place.read_bytes()
    except OSError as error:
        raise BadInput(f"{place}: cannot be read ({error.strerror}).") from error


def content_if_any(place: Location, remote: RemoteConfig) -> bytes | None:
    """None for a file that is not there (or, at a URL, denied: servers say so of what they do not list)."""
    if isinstance(place, Path):
        return content(place, remote) if place.exists() else None
    from runner_core.stream.failure import Unreachable

    try:
        return content(place, remote)
    except Unreachable as error:
        if error.kind in ("missing", "denied"):
            return None
        raise
