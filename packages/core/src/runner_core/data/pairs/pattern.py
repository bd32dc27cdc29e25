"""Patterns of file names with named parts, such as scans/{id}.nii.gz.

They are not regular expressions. The effort of a match grows at most with the square of a name's length, so no pattern
and no name can make it run forever.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import pairwise

from runner_core.base.errors import BadInput, did_you_mean

_TOKEN = re.compile(r"\{([^{}]*)\}|(\*)|([^{}*]+)|([{}])")
_MOST = 40
"""Largest number of pieces of a pattern between two /: plain texts, names and stars."""
_ANY = ""
"""Name of an unnamed part: *."""


class Pattern:
    """A pattern of paths below a folder.

    `{name}` stands for one or more characters and `*` for zero or more; neither crosses a `/`. The pattern fits the end
    of a path, starting at a folder's name: `scans/{id}.nii` finds `train/scans/a.nii` too. A part is as short as the
    rest allows. A name that occurs twice stands for the same text twice.

    >>> Pattern("{group}_{id}.tif", ("group", "id")).match("x/P1_s2_a.tif")
    {'group': 'P1', 'id': 's2_a'}
    >>> Pattern("{id}/{id}_T1.nii", ("id",)).match("a/b_T1.nii") is None
    True
    """

    def __init__(self, text: str, known: Collection[str], required: Collection[str] = (), setting: str = "") -> None:
        """Read a pattern; raise BadInput if it cannot be used.

        `known` lists the names it may have and `required` those it must have. `setting` is its name in messages.
        """
        self.text = text
        where = f"{setting or 'the pattern'} {text!r}"
        if not text.strip("/") or "\0" in text or text.startswith("/") or ".." in text.split("/"):
            raise BadInput(f"{where}: a path below the data is needed, without a leading / and without ..")
        self._parts = [_tokens(part, where) for part in text.split("/") if part not in ("", ".")]
        self.depth = len(self._parts)
        self.names = [name for part in self._parts for name, _ in part if name]
        if max(map(len, self._parts)) > _MOST:
            raise BadInput(f"{where}: more than {_MOST} pieces between two /; use fewer {{names}} and *")
        for name in self.names:
            if name not in known:
                near = did_you_mean(name, known)
                raise BadInput(f"{where}: unknown part {{{name}}}{near} (known: {', '.join(known)})")
        for name in required:
            if name not in self.names:
                raise BadInput(f"{where}: it lacks {{{name}}}, such as 'scans/{{{name}}}.tif'")

    def match(self, path: str, ids: Collection[str] | None = None) -> dict[str, str] | None:
        """Return the named parts of a path with / between its folders, or None if the pattern does not fit.

        `ids` limits the values of {id}.
        """
        pieces = path.split("/")[-len(self._parts) :]
        if len(pieces) < len(self._parts):
            return None
        found: dict[str, str] = {}
        for part, piece in zip(reversed(self._parts), reversed(pieces), strict=True):
            known = [(_ANY, found[name]) if name in found else (name, text) for name, text in part]
            fields = _fit(known, piece, ids)
            if fields is None:
                return None
            for name, text in fields:
                if found.setdefault(name, text) != text:
                    return None
        return {name: found[name] for name in dict.fromkeys(self.names)}

    def filled(self, fields: Mapping[str, str]) -> str:
        """Return the path with these parts filled in; * stays.

        >>> Pattern("masks/{id}_*.nii", ("id",)).filled({"id": "a"})
        'masks/a_*.nii'
        """
        text = self.text
        for name, value in fields.items():
            text = text.replace(f"{{{name}}}", value)
        return text


def _tokens(part: str, where: str) -> list[tuple[str, str | None]]:
    """Return the tokens: (name, None) for a named part or *, ("", text) for plain text."""
    tokens: list[tuple[str, str | None]] = []
    for name, star, text, brace in _TOKEN.findall(part):
        if brace or (not star and not text and not name.isidentifier()):
            raise BadInput(f"{where}: braces hold a name, such as {{id}}")
        tokens.append((_ANY, text) if text else (name, None))
    for one, other in pairwise(tokens):
        if one[1] is None and other[1] is None:
            raise BadInput(f"{where}: nothing stands between two of its parts, so that one cannot tell where one ends")
    return tokens


def _fit(
    tokens: Sequence[tuple[str, str | None]], text: str, ids: Collection[str] | None
) -> list[tuple[str, str]] | None:
    """Return named parts with their text, in order, as short as possible."""

    @cache
    def ends(token: int, start: int) -> tuple[int, ...] | None:
        """Return where each token from `token` on ends if the first one begins at `start`."""
        if token == len(tokens):
            return () if start == len(text) else None
        name, plain = tokens[token]
        if plain is not None:
            stops = [start + len(plain)] if text.startswith(plain, start) else []
        else:
            stops = list(range(start + (name != _ANY), len(text) + 1))
        for stop in stops:
            if name == "id" and ids is not None and text[start:stop] not in ids:
                continue
            if (rest := ends(token + 1, stop)) is not None:
                return (stop, *rest)
        return None

    found = ends(0, 0)
    if found is None:
        return None
    starts = (0, *found)
    return [(name, text[start:stop]) for (name, _), start, stop in zip(tokens, starts, found, strict=False) if name]
