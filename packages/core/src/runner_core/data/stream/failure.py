"""Say why a file at a URL cannot be read, from obstore's errors."""

from __future__ import annotations

import re
from typing import Literal

from runner_core.base.errors import BadInput
from runner_core.base.location import Url
from runner_core.base.text import counted

Kind = Literal["missing", "corrupt", "denied", "transient"]
"""Why a file cannot be used; "transient" means that it may work later."""

_REFUSED = ("PermissionDeniedError", "UnauthenticatedError")
"""Names of obstore's exceptions."""
_PASSING = (408, 425, 429)
"""Status codes of a server that is only busy."""


class Unreachable(BadInput):
    """A file at a URL cannot be read; `everywhere` means all others there cannot either (a missing bucket, say)."""

    def __init__(self, url: Url, kind: Kind, why: str, everywhere: bool = False) -> None:
        super().__init__(f"{url}: {why}")
        self.url, self.kind, self.everywhere = url, kind, everywhere


def meant(url: Url, error: Exception, attempts: int, signed: bool, endpoint: str | None = None) -> Unreachable:
    """Convert an error of obstore.

    `attempts` is the number of attempts allowed, `signed` says if there were credentials, and `endpoint` is the server
    if it is not the provider's own.
    """
    text = str(error)
    found = re.search(r"status code: (\d+)", text)
    status = int(found[1]) if found else 0
    if "NoSuchBucket" in text:
        return Unreachable(url, "missing", "there is no such bucket; check its name and remote.endpoint", True)
    if isinstance(error, FileNotFoundError) or status == 404:
        return Unreachable(url, "missing", "there is no such file")
    if type(error).__name__ in _REFUSED or status in (401, 403):
        other = "check the credentials in the environment, or set remote.credentials to anonymous"
        remedy = other if signed else "set remote.credentials to environment (or AWS_PROFILE) where you have some"
        return Unreachable(url, "denied", f"the server denies access; {remedy}")
    if status in (301, 307) or "AuthorizationHeaderMalformed" in text:
        return Unreachable(url, "denied", "the bucket is in another region: set remote.region", True)
    if 400 <= status < 500 and status not in _PASSING:
        return Unreachable(url, "denied", f"the server refuses: {first_line(error)}")
    tried = f"it could not be read in {counted(attempts, 'attempt')}"
    return Unreachable(url, "transient", f"{tried}: {_passing(error, status, endpoint)}")


def _passing(error: Exception, status: int, endpoint: str | None) -> str:
    """Return why a request may succeed later."""
    text = str(error)
    if status:
        return f"the server answered {status}"
    if "Timeout" in text or "TimedOut" in text:
        return "nothing came for longer than remote.timeout"
    if "IncompleteBody" in text or "Interrupted" in text:
        return "the connection ended in the middle of the file"
    if "error sending request" in text:
        return f"no connection to the server{f' {endpoint} (remote.endpoint)' if endpoint else ''}"
    return first_line(error)


def first_line(error: BaseException) -> str:
    """Return the first line of an error, without obstore's debugging, shortened for readers."""
    return str(error).split("Debug source")[0].strip().partition("\n")[0][:300]
