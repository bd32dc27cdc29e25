"""Finds passwords and signatures in URLs, and removes them from everything that is shown or saved."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/+[^\s\"'<>`]+")
_PARTS = re.compile(r"(?P<scheme>[^:]*):/+(?P<host>[^/?#]*)(?P<path>[^?#]*)(?P<query>.*)", re.DOTALL)
_PASSWORD = re.compile(r"[^:]*:/+[^/?#@:]*:(?!\d+([/?#]|$))[^@]*@", re.DOTALL)
"""A user and a password with a character that should be escaped, such as /; not a host and its port."""
_KEYS = re.compile(r"[?&#;][^=&]*(sig|token|key|secret|password|credential)[^=&]*=", re.IGNORECASE)
_FILES = ("s3", "s3a", "gs", "file")
"""Schemes in which a file name may hold a question mark."""
HIDDEN = "***"


def without_secrets(text: str) -> str:
    """Return a text in which no URL shows a user, a password or a possible signature.

    >>> without_secrets("https://me:secret@host/a.tif: there is no such file")
    'https://***@host/a.tif: there is no such file'
    >>> without_secrets("az://account/container/a?sig=secret, s3://bucket/a?.tif")
    'az://account/container/a?***, s3://bucket/a?.tif'
    """
    return _URL.sub(_cleaned, text) if ":/" in text else text


def hold_no_secrets(value: Any) -> Any:
    """Return texts, also those in mappings and lists, `without_secrets`, and anything else unchanged."""
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, Mapping):
        return {hold_no_secrets(key): hold_no_secrets(part) for key, part in value.items()}
    return [hold_no_secrets(part) for part in value] if isinstance(value, (list, tuple)) else value


def _cleaned(found: re.Match[str]) -> str:
    url = found[0].rstrip(":;,.)]}")  # punctuation of the sentence around it
    return without_secret(url) + found[0][len(url) :]


def may_hold_secret(url: str) -> bool:
    """Return False for most URLs that hold none, at once."""
    return "@" in url or "?" in url or "#" in url


def without_secret(url: str) -> str:
    """Return one URL without its secrets; the URL itself if it has none."""
    if not may_hold_secret(url):  # millions of URLs are looked at
        return url
    if _PASSWORD.match(url):
        scheme, _, _ = url.partition(":")
        url = f"{scheme}://{HIDDEN}@{url.rpartition('@')[2]}"
    parts = _PARTS.fullmatch(url)
    if parts is None:
        return url
    user, at, _ = parts["host"].rpartition("@")
    container = parts["scheme"].lower().startswith("abfs") and ":" not in user  # abfs: CONTAINER@ACCOUNT
    if at and not container and user != HIDDEN:
        url = url.replace(f"{user}@", f"{HIDDEN}@", 1)
    query = parts["query"]
    named = parts["scheme"].lower() in _FILES or query.startswith("#")
    if query and (not named or _KEYS.search(query)):
        url = f"{url[: -len(query)]}{query[0]}{HIDDEN}"
    return url
