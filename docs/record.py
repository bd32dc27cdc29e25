"""Record a command in a terminal as an animated SVG: `python record.py OUT.svg runner ssmunet train`.

The command runs in a pseudo-terminal. What it prints is kept with the moments at which it came, and shown as frames of
the screen. Waits are shortened; then all is sped up to `LENGTH` seconds. Standard library only; not on Windows.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import struct
import sys
import termios
import time
from bisect import bisect_right
from collections.abc import Sequence
from html import escape
from pathlib import Path

COLUMNS, ROWS = 100, 28
WAIT, LENGTH, HOLD = 2.0, 30.0, 6.0
"""Seconds: the longest wait between two frames, all frames, and how long the last one stays."""
FRAMES = 50
_PARTS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n\b]|[^\x1b\r\n\b]+|\x1b")
_STYLE = """
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#1f2328;white-space:pre}
rect{fill:#f6f8fa;stroke:#d0d7de}.typed{fill:#0969da;font-weight:bold}g{visibility:hidden}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}rect{fill:#0d1117;stroke:#30363d}.typed{fill:#58a6ff}}
@media(prefers-reduced-motion:reduce){g{animation:none!important}g:last-of-type{visibility:visible}}
"""


class Screen:
    """The part of a terminal that programs with progress bars need: text, line ends, cursor up, erase."""

    def __init__(self) -> None:
        self.lines = [""]
        self.row = self.column = 0

    def feed(self, text: str) -> None:
        for part in _PARTS.findall(text):
            if part == "\r":
                self.column = 0
            elif part == "\n":
                self._down()
            elif part == "\b":
                self.column = max(0, self.column - 1)
            elif part.startswith("\x1b"):
                self._code(part)
            else:
                for character in part:
                    self._put(character)

    def _put(self, character: str) -> None:
        if self.column == COLUMNS:
            self._down()
            self.column = 0
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + character + line[self.column + 1 :]
        self.column += 1

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")

    def _code(self, code: str) -> None:
        if code.endswith("A"):
            self.row = max(0, self.row - int(code[2:-1] or 1))
        elif code.endswith("K"):
            self.lines[self.row] = "" if code[2:-1] == "2" else self.lines[self.row][: self.column]
        elif code.endswith("J"):
            del self.lines[self.row + 1 :]
            self.lines[self.row] = self.lines[self.row][: self.column]

    def seen(self) -> tuple[str, ...]:
        return tuple(line.rstrip() for line in self.lines[-ROWS:])


def record(words: Sequence[str]) -> list[tuple[float, str]]:
    """Run a command in a terminal; return what it printed, with the seconds since its start."""
    began, found = time.monotonic(), []
    child, terminal = pty.fork()
    if child == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
        os.execvp(words[0], list(words))
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # Linux says so that the other end is closed
            data = b""
        if not data:
            break
        found.append((time.monotonic() - began, decoder.decode(data)))
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{' '.join(words)} failed:\n{''.join(text for _, text in found)}")
    return found


def frames(command: str, printed: Sequence[tuple[float, str]]) -> list[tuple[float, tuple[str, ...]]]:
    """Return moments and screens: what is seen at each of `FRAMES` ticks."""
    screen, shown, now, before = Screen(), [], 0.0, 0.0
    screen.feed(f"$ {command}\r\n")
    shown.append((0.0, screen.seen()))
    for moment, text in printed:
        now, before = now + min(WAIT, moment - before), moment
        screen.feed(text)
        if screen.seen() != shown[-1][1]:
            shown.append((now, screen.seen()))
    at = [moment for moment, _ in shown]
    ticks = sorted({bisect_right(at, now * tick / FRAMES) - 1 for tick in range(FRAMES + 1)})
    kept = [shown[number] for number in ticks]
    scale = min(1.0, LENGTH / now) if now else 1.0
    return [(moment * scale, seen) for moment, seen in kept]


def svg(command: str, shown: Sequence[tuple[float, tuple[str, ...]]]) -> str:
    """Return an image that shows each screen at its moment, again and again, on light and dark pages."""
    width, height, whole = COLUMNS * 7.9 + 24, ROWS * 18 + 20, shown[-1][0] + HOLD
    rules, groups = [_STYLE], []
    ends = [moment for moment, _ in shown[1:]] + [whole]
    for number, ((begin, seen), end) in enumerate(zip(shown, ends, strict=True)):
        first, last = (f"{100 * moment / whole:.2f}%" for moment in (begin, end))
        rules.append(
            f"@keyframes f{number}{{0%,{first}{{visibility:{'visible' if not number else 'hidden'}}}"
            f"{first},{last}{{visibility:visible}}{last},100%{{visibility:hidden}}}}"
            f"#f{number}{{animation:f{number} {whole:.1f}s step-end infinite}}"
        )
        texts = (
            f'<text x="12" y="{18 * row + 22}" class="{"typed" if line.startswith("$ ") else ""}">{escape(line)}</text>'
            for row, line in enumerate(seen)
            if line
        )
        groups.append(f'<g id="f{number}">{"".join(texts)}</g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" '
        f'aria-label="A terminal: {escape(command)}"><style>{"".join(rules)}</style>'
        f'<rect x=".5" y=".5" width="{width - 1:.0f}" height="{height - 1}" rx="8"/>{"".join(groups)}</svg>\n'
    )


def main() -> None:
    out, *words = sys.argv[1:]
    command = " ".join(words)
    Path(out).write_text(svg(command, frames(command, record(words))), encoding="utf-8")


if __name__ == "__main__":
    main()
