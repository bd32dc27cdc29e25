"""Where a file lies: a path on this machine, or a URL."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from pathlib import Path

from runner_core._errors import BadInput

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_ONE_SLASH = re.compile(r"(s3a?|gs|az|adl|azure|abfss?|https?|file):/(?!/)")


@dataclass(frozen=True, slots=True)
class Url:
    """A file or folder at a URL. `size` (bytes) and `etag` (of its content) where a listing said them.

    >>> Url("s3://bucket/plates") / "p1" / "a.tif"
    Url(text='s3://bucket/plates/p1/a.tif', size=None, etag=None)
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
        return self.text


Location = Path | Url


def refuse_secrets(url: Url) -> None:
    """BadInput for a URL with a password or a signature, which goes into logs and run folders as it is."""
    scheme, _, rest = url.text.partition("://")
    host = rest.partition("/")[0]
    password = "@" in host and not scheme.startswith("abfs")  # there it is CONTAINER@ACCOUNT
    signature = "?" in rest and scheme not in ("s3", "s3a", "gs", "file")  # there a file may be named so
    if password or signature:
        raise BadInput(
            f"{scheme}://…: a URL must not hold a password or a signature, since logs and run folders would keep it: "
            "put keys into the environment (remote.credentials)"
        )


def location(text: str) -> Location:
    """A URL where the text has a scheme, else a path. BadInput for one that only lacks a slash.

    >>> location("data/plate1")
    PosixPath('data/plate1')
    """
    if _SCHEME.match(text):
        return Url(text)
    if _ONE_SLASH.match(text) and not Path(text).exists():
        raise BadInput(f"{text}: there is no such file or folder; did you mean {text.replace(':/', '://', 1)}?")
    return Path(text)
