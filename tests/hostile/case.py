"""One case: a data set with one thing wrong in it, a command that reads it, and what must hold of how that ends."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from runner_core.testing.forked import Forked

from hostile.child import USAGE
from hostile.mutations import Changed, Draw, Mutate, another, cut, damage, pick

SECONDS = 20
"""CPU time that a command may take. Wall time is no measure: the machine may be busy."""
HANGS = 180
"""Seconds after which it hangs, on a machine however busy."""
MEMORY = 2 << 30
"""Bytes by which it may grow."""
ALLOWED = ("out", "runs", "usage")
"""Paths in the folder of the case that a command may write."""
TESTS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Format:
    """A valid data set, and what reads it.

    `make` writes it into a folder. `files`: what may be wrong in which of them, by path below that folder. `words`: the
    command lines, of which each case runs one; {data} is the folder, {file} the file that was changed, {flags} what is
    in it. `torn`: the share of a file's bytes without which it is refused (0: a shorter file may be a whole one).
    `ends`: exit codes.
    """

    name: str
    make: Callable[[Path], None]
    files: Mapping[str, Mutate]
    words: Sequence[str]
    torn: float = 0.0
    ends: tuple[int, ...] = (0, 2)
    share: int = 1
    """Cases of it, to those of others."""
    writes: tuple[str, ...] = ()
    """Folders below the data that commands may change: the run that is looked at, a cache."""
    whole: bool = True
    """Is the valid data set one that the command takes?"""
    only: bool = False
    """Are its structures all that changes: not its bytes, nor what the file is?"""
    prepare: Sequence[str] = ()
    """Command lines that add to the valid data set: a trained run, a cache."""
    after: Callable[[Path], None] | None = None
    """Runs when the file was changed: a checkpoint is sealed anew."""
    find: bool = False
    """Are `files` patterns, of files somewhere below the folder?"""


@dataclass
class Outcome:
    """How a case ended."""

    what: str
    words: str
    code: int | None
    output: str
    faults: list[str] = field(default_factory=list)
    seconds: float = 0.0
    growth: int = 0


def change(format: Format, folder: Path, draw: Draw) -> tuple[str, str, bool]:
    """Change one file below `folder`: its name, what was done, and whether that must be refused."""
    pattern = pick(draw, sorted(name for name in format.files if not format.find or any(folder.rglob(name))))
    name = pattern
    if format.find:
        name = pick(draw, sorted(str(path.relative_to(folder)) for path in folder.rglob(pattern) if path.is_file()))
    path = folder / name
    others = [] if format.only else ["bytes", "bytes", "cut", "cut", "another", "special"]
    kind = pick(draw, ["structure"] * 7 + others)
    content = path.read_bytes()
    refuse = False
    if kind == "special":
        what = _special(draw, path)
        if format.after:
            format.after(folder)
        return name, what, False
    if kind == "cut":
        what, changed = cut(draw, content)
        refuse = len(changed) < format.torn * len(content)
    else:
        ways: dict[str, Callable[[Draw, bytes], Changed]] = {"bytes": damage, "another": another}
        what, changed = ways.get(kind, format.files[pattern])(draw, content)
    path.write_bytes(changed)
    if format.after:
        format.after(folder)
    return name, what, refuse


def _special(draw: Draw, path: Path) -> str:
    """The file is none."""
    how = pick(draw, ("gone", "folder", "pipe", "socket", "link to itself", "link to nothing", "/dev/zero", "/dev/full",
                      "link to a folder", "link out", "twice in another case"))  # fmt: skip
    if how == "twice in another case":
        shutil.copyfile(path, path.with_name(path.name.upper()))
        return how
    outside = path.with_name(f"{path.name}.kept")
    path.rename(outside)
    if how == "gone":
        outside.unlink()
    elif how == "folder":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "socket":
        with socket.socket(socket.AF_UNIX) as listener, _inside(path.parent):
            listener.bind(path.name)  # a socket's path may have 107 bytes only
    else:
        targets = {"link to itself": path.name, "link to nothing": "nothing", "link out": outside.name,
                   "link to a folder": "."}  # fmt: skip
        path.symlink_to(targets.get(how, how))
    return how


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def run(
    forked: Forked, words: Sequence[str], folder: Path, home: Path
) -> tuple[int | None, str, str, dict[str, float]]:
    """Exit code (None: it hung), standard output and error, and usage of a command in `folder`; `home`:
    where compiled kernels and the like are kept from one case to the next."""
    environment = {
        **os.environ, "XDG_CACHE_HOME": str(home), "HOME": str(folder / "home"), "COLUMNS": "200",
        "TMPDIR": str(folder / "tmp"), "PYTHONPATH": str(TESTS), USAGE: str(folder / "usage"),
    }  # fmt: skip
    try:
        done = forked.run([*words], folder, environment, HANGS, "hostile.child:main")
    except subprocess.TimeoutExpired:
        return None, "", "", {}
    except UnicodeDecodeError:
        return 1, "", "its output is not text", {}
    usage = folder / "usage"
    return done.returncode, done.stdout, done.stderr, json.loads(usage.read_text()) if usage.is_file() else {}


def stated(folder: Path, without: Sequence[str]) -> dict[str, str]:
    """Every file below a folder, with a digest of its content; but for what lies in some of its folders."""
    found = {}
    for parent, folders, names in os.walk(folder):
        here = os.path.relpath(parent, folder)
        folders[:] = [name for name in folders if os.path.normpath(os.path.join(here, name)) not in without]
        for name in [*names, *folders]:
            path = Path(parent, name)
            where = os.path.normpath(os.path.join(here, name))
            if where in without:
                continue
            if path.is_symlink() or not path.is_file():
                found[where] = "link" if path.is_symlink() else "folder" if path.is_dir() else "special"
            else:
                found[where] = hashlib.sha1(path.read_bytes()).hexdigest()
    return found


_REFUSED = re.compile(r"^runner: (?!warning)", re.MULTILINE)
_CHECKED = re.compile(r"^(?:training refuses: |DAMAGED )", re.MULTILINE)
_NOISE = re.compile(r"^.*(?:\w+Warning: |^Exception ignored|^\w+Error: |Traceback).*$", re.MULTILINE)


def judge(format: Format, outcome: Outcome, out: str, err: str, usage: Mapping[str, float], refuse: bool) -> None:
    """Add what is wrong with how a command ended."""
    faults = outcome.faults
    if outcome.code is None:
        faults.append(f"hangs: not done after {HANGS} s")
        return
    if outcome.code not in format.ends:
        faults.append(f"exit code {outcome.code}")
    if noise := _NOISE.search(out + "\n" + err):
        faults.append(f"shows the library's own words: {noise[0][:200]}")
    messages = len(_REFUSED.findall(err)) or min(1, len(_CHECKED.findall(out))) or int("─" in err or "usage: " in err)
    if outcome.code == 2 and messages != 1:
        faults.append(f"{messages} messages")
    if outcome.code == 0 and refuse:
        faults.append("a torn file is accepted")
    outcome.seconds, outcome.growth = usage.get("cpu", 0.0), int(usage.get("growth", 0))
    if outcome.seconds > SECONDS:
        faults.append(f"takes {outcome.seconds:.0f} s")
    if outcome.growth > MEMORY:
        faults.append(f"takes {outcome.growth / 1e9:.1f} GB")
