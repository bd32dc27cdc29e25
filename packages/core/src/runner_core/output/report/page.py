"""Pages that the runner writes, and what they are made of; the same notes and tables appear on the screen.

A `Page` has sections of blocks: notes, tables, charts, texts. `html` renders it as one file that needs no network,
`lines` renders blocks for the screen. The JSON file beside a page holds the numbers themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from runner_core.base.text import aligned, decimal
from runner_core.contract.records import Table


@dataclass(frozen=True)
class Note:
    """A paragraph. With a `kind` (good, note, warning, error) it is marked; a `label` precedes the text in bold."""

    text: str
    kind: str = ""
    label: str = ""


@dataclass(frozen=True)
class Markup:
    """A chart as SVG text, from `report.charts`, or pictures as HTML text; the screen does not show it."""

    text: str


@dataclass(frozen=True)
class Code:
    """A text in its own layout, such as a settings file; with a `summary` it is folded."""

    text: str
    summary: str = ""


Block = Note | Table | Markup | Code
Blocks = Iterable[Block]


@dataclass(frozen=True)
class Page:
    """A page: `about` stands below its `heading`, then come the sections; a section without blocks is left out."""

    title: str
    heading: str
    about: Sequence[Block]
    sections: Sequence[tuple[str, Sequence[Block]]]
    status: tuple[str, str] | None = None
    """Class in the style sheet, and text, of a mark beside the heading."""
    reload: int | None = None
    """Seconds after which the page loads itself again; None: never."""


def html(page: Page) -> str:
    """Return the whole page as HTML text."""
    style, script = map(_own_file, ("style.css", "page.js"))
    mark = ""
    if page.status is not None:
        kind, text = map(escape, page.status)
        mark = f' <span class="status {kind}">{text}</span>'
    head = f"<header><h1>{escape(page.heading)}{mark}</h1>{_html(page.about)}</header>"
    body = head + "".join(_section(title, _html(blocks)) for title, blocks in page.sections)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(page.title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><style>\n{style}</style></head>\n'
        f'<body data-reload="{page.reload or ""}"><main>{body}</main>'
        f"<script>\n{script}</script></body></html>\n"
    )


@cache
def _own_file(name: str) -> str:
    return files("runner_core.output.report").joinpath(name).read_text(encoding="utf-8")


def fragment(blocks: Blocks) -> str:
    """Return blocks as HTML text without a page around it, for a notebook, which has its own style."""
    return _html(blocks)


def lines(blocks: Blocks) -> Iterator[str]:
    """Yield the lines of blocks for the screen."""
    for block in blocks:
        match block:
            case Note(text, _, label):
                yield f"{label}: {text}" if label else text
            case Code(text):
                yield text
            case Table(columns=columns, rows=rows):
                yield from aligned([columns, *([_cell(cell) for cell in row] for row in rows)])


def markdown(page: Page) -> str:
    """Return the page as Markdown, without its charts."""
    body = [f"# {page.heading}", *_markdown(page.about)]
    for title, blocks in page.sections:
        if text := [*_markdown(blocks)]:
            body += [f"## {title}", *text]
    return "\n\n".join(body) + "\n"


def _markdown(blocks: Blocks) -> Iterator[str]:
    for block in blocks:
        match block:
            case Note(text, _, label):
                yield f"**{label}**: {text}" if label else text
            case Code(text):
                yield f"```\n{text.rstrip()}\n```"
            case Table(columns=columns, rows=rows):
                cells = [[_cell(cell).replace("|", "\\|") for cell in row] for row in (columns, *rows)]
                marks = ["---"] * len(columns)
                yield "\n".join(f"| {' | '.join(row)} |" for row in (cells[0], marks, *cells[1:]))


def number(value: Any) -> str:
    return f"{value:.4g}" if is_number(value) else "–"


def decimal_or_dash(value: Any) -> str:
    """Return a number as tables of scores show it, – where there is none."""
    return decimal(value) if is_number(value) else "–"


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number that a chart can show."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max


def _section(title: str, body: str) -> str:
    """Return a section, or "" if `body` (HTML) is empty; without a title, the body stands by itself."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body and title else body


def _html(blocks: Blocks) -> str:
    return "".join(map(_block, blocks))


def _block(block: Block) -> str:
    match block:
        case Note(text, kind, label):
            mark = f' class="finding {escape(kind)}"' if kind else ""
            return f"<p{mark}>{f'<b>{escape(label)}</b> ' if label else ''}{escape(text)}</p>"
        case Code(text, summary):
            pre = f"<pre>{escape(text)}</pre>"
            return f"<details><summary>{escape(summary)}</summary>{pre}</details>" if summary else pre
        case Markup(text):
            return text
        case Table():
            return _table(block)


def _table(found: Table) -> str:
    """Return a table, each row with its name first; numbers have four digits."""
    head = "".join(f"<th>{escape(column)}</th>" for column in found.columns)
    body = "".join(
        f"<tr><th>{escape(str(first))}</th>{''.join(f'<td>{escape(_cell(cell))}</td>' for cell in others)}</tr>"
        for first, *others in found.rows
    )
    return (
        f'<h3>{escape(found.title)}</h3><div class="wide"><table id="{escape(found.name)}">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(cell: Any) -> str:
    return cell if isinstance(cell, str) else number(cell)
