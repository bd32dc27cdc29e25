"""The place of a file: a path on this machine, or a URL."""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from runner_core.base.errors import BadInput
from runner_core.base.secrets import without_secret

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_ONE_SLASH = re.compile(r"(s3a?|gs|az|adl|azure|abfss?|https?|file):/(?!/)")


@dataclass(frozen=True, slots=True)
class Url:
    """A file or folder at a URL.

    `size` (bytes) and `etag` (of its content) are set if the server sent them: a file that has changed since is not
    read.

    >>> Url("s3://bucket/plates") / "p1" / "a.tif"
    Url('s3://bucket/plates/p1/a.tif')
    """

    text: str
    size: int | None = None
    etag: str | None = None

    @property
    def name(self) -> str:
        return posixpath.basename(self.text.rstrip("/"))

    @property
    def suffix(self) -> str:
        return posixpath.splitext(self.name)[1]

    @property
    def parent(self) -> Url:
        return Url(posixpath.dirname(self.text.rstrip("/")))

    def __truediv__(self, name: str) -> Url:
        return Url(f"{self.text.rstrip('/')}/{name}")

    def __str__(self) -> str:
        """Return the address for display and storage; requests use `text`."""
        return without_secret(self.text)

    def __repr__(self) -> str:
        listed = "" if self.size is None and self.etag is None else f", size={self.size}, etag={self.etag!r}"
        return f"Url({str(self)!r}{listed})"


Location = Path | Url


def refuse_secrets(url: Url) -> None:
    """Raise BadInput for a URL with a password or a signature, because logs and run folders would keep it."""
    if str(url) != url.text:
        raise BadInput(
            f"{url}: a URL must not hold a password or a signature, since logs and run folders would keep it: put keys "
            "into the environment (remote.credentials)"
        )


def location(text: str) -> Location:
    """Return a URL if the text has a scheme, else a path. Raises BadInput for a URL that lacks a slash.

    >>> location("data/plate1")
    PosixPath('data/plate1')
    """
    if _SCHEME.match(text):
        return Url(text)
    if _ONE_SLASH.match(text) and not Path(text).exists():
        raise BadInput(f"{text}: there is no such file or folder; did you mean {text.replace(':/', '://', 1)}?")
    return Path(text)


def shell_word(path: Location) -> str:
    """Return a path or URL as typed on a command line.

    >>> from pathlib import Path
    >>> shell_word(Path("my data"))
    "'my data'"
    """
    return shlex.quote(str(path))
