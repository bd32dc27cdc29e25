"""Parts of every page that the runner writes: one HTML file each, which needs no network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Any


def page(title: str, body: str) -> str:
    """Return a whole page as HTML text; `body` is HTML."""
    style = files("runner_core.output.report").joinpath("style.css").read_text(encoding="utf-8")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><style>\n{style}</style></head>\n'
        f"<body><main>{body}</main></body></html>\n"
    )


def section(title: str, body: str) -> str:
    """Return a section, or "" if `body` (HTML) is empty."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], name: str) -> str:
    """Return a table, each row with its name first; numbers have four digits."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        f"<tr><th>{escape(str(first))}</th>"
        + "".join(f"<td>{escape(c) if isinstance(c, str) else number(c)}</td>" for c in others)
        + "</tr>"
        for first, *others in rows
    )
    return (
        f'<h3>{escape(title)}</h3><div class="wide"><table id="{escape(name)}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def number(value: Any) -> str:
    return f"{value:.4g}" if is_number(value) else "–"


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
