"""Why a file at a URL cannot be read: what obstore's errors mean to the user."""

from __future__ import annotations

import re
from typing import Literal

from runner_core._errors import BadInput
from runner_core._text import counted
from runner_core.location import Url

Kind = Literal["missing", "corrupt", "denied", "transient"]
"""Why a file cannot be used. transient: it might be, some other time."""

_REFUSED = ("PermissionDeniedError", "UnauthenticatedError")
"""obstore's exceptions."""
_PASSING = (408, 425, 429)
"""Refusals of a server that is only busy."""


class Unreachable(BadInput):
    """A file at a URL cannot be read. `everywhere`: neither can the others there, a bucket that does not exist say."""

    def __init__(self, url: Url, kind: Kind, why: str, everywhere: bool = False) -> None:
        super().__init__(f"{url}: {why}")
        self.url, self.kind, self.everywhere = url, kind, everywhere


def meant(url: Url, error: Exception, attempts: int, signed: bool, endpoint: str | None = None) -> Unreachable:
    """`error` of obstore's. `attempts`: how often it may be tried; `signed`: were there credentials? `endpoint`: the
    server, where it is not the provider's own."""
    said = str(error)
    found = re.search(r"status code: (\d+)", said)
    status = int(found[1]) if found else 0
    if "NoSuchBucket" in said:
        return Unreachable(url, "missing", "there is no such bucket; check its name and remote.endpoint", True)
    if isinstance(error, FileNotFoundError) or status == 404:
        return Unreachable(url, "missing", "there is no such file")
    if type(error).__name__ in _REFUSED or status in (401, 403):
        other = "check the credentials in the environment, or set remote.credentials to anonymous"
        remedy = other if signed else "set remote.credentials to environment where you have some"
        return Unreachable(url, "denied", f"the server denies access; {remedy}")
    if status in (301, 307) or "AuthorizationHeaderMalformed" in said:
        return Unreachable(url, "denied", "the bucket is in another region: set remote.region", True)
    if 400 <= status < 500 and status not in _PASSING:
        return Unreachable(url, "denied", f"the server refuses: {first_line(error)}")
    tried = f"it could not be read in {counted(attempts, 'attempt')}"
    return Unreachable(url, "transient", f"{tried}: {_passing(error, status, endpoint)}")


def _passing(error: Exception, status: int, endpoint: str | None) -> str:
    """What may be better another time."""
    said = str(error)
    if status:
        return f"the server answered {status}"
    if "Timeout" in said or "TimedOut" in said:
        return "nothing came for longer than remote.timeout"
    if "IncompleteBody" in said or "Interrupted" in said:
        return "the connection ended in the middle of the file"
    if "error sending request" in said:
        return f"no connection to the server{f' {endpoint} (remote.endpoint)' if endpoint else ''}"
    return first_line(error)


def first_line(error: BaseException) -> str:
    """Without obstore's debugging, and not longer than people read."""
    return str(error).split("Debug source")[0].strip().partition("\n")[0][:300]
