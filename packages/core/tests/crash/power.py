"""In which states a folder may be after the power was lost: a model of what file systems promise.

Of what was done until then is certain what was brought to the disk (fsync) since: the content of a file by its own
fsync, names in a folder by that of the folder. All else may have come to the disk or not, in any order:

- bytes: each write whole, in some of its sectors, not at all, or as zeros or noise in a file that has grown;
- names: with a journal in their order up to some point, and up to any fsync; without one, each by itself, but those of
  one name in their order. A rename is one change.

After T. S. Pillai et al., All File Systems Are Not Created Equal, OSDI 2014.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from disk import Disk, Node, Op

_SECTOR = 512

Tree = Mapping[str, "bytes | Tree"]


def crash(disk: Disk, count: int, rng: random.Random) -> Tree:
    """A state of `disk` whose power was lost after `count` operations of its log."""
    log = disk.log[:count]
    synced = {op.node: number for number, op in enumerate(log) if op.kind == "sync"}
    names = _names_journaled(log, synced, rng) if rng.random() < 0.5 else _names_free(log, synced, rng)
    entries = {node: dict(inside) for node, inside in disk.before.items()}
    for number in sorted(names):
        _rename(entries, log[number])
    content = _contents(log, synced, rng)
    return _tree(disk.top, entries, content)


def write(tree: Tree, folder: Path) -> None:
    """Make such a folder."""
    folder.mkdir(exist_ok=True)
    for name, inside in tree.items():
        if isinstance(inside, bytes):
            (folder / name).write_bytes(inside)
        else:
            write(inside, folder / name)


def _names_journaled(log: Sequence[Op], synced: Mapping[Node, int], rng: random.Random) -> set[int]:
    """Return the numbers of the names on the disk if every fsync writes all changes that came before."""
    return {n for n in range(rng.randint(max(synced.values(), default=-1) + 1, len(log))) if log[n].names}


def _names_free(log: Sequence[Op], synced: Mapping[Node, int], rng: random.Random) -> set[int]:
    """Return the numbers like `_names_journaled`, where only the folder's own fsync keeps them."""
    chance, chosen, wanted = rng.choice((0.0, 0.3, 0.7, 1.0)), set[int](), set[tuple[Node, str]]()
    for number in reversed(range(len(log))):
        op = log[number]
        if not op.names:
            continue
        certain = synced.get(op.names[-1][0], -1) > number
        if certain or wanted.intersection(op.names) or rng.random() < chance:
            chosen.add(number)
            wanted.update(op.names)
    return chosen


def _rename(entries: dict[Node, dict[str, Node]], op: Op) -> None:
    """Apply a change of names."""
    if op.kind == "mkdir":
        entries.setdefault(op.node, {})
    for number, (folder, name) in enumerate(op.names):
        there = entries.setdefault(folder, {})
        if op.kind == "unlink" or (op.kind == "rename" and number == 0):
            there.pop(name, None)
        else:
            there[name] = op.node


def _contents(log: Sequence[Op], synced: Mapping[Node, int], rng: random.Random) -> dict[Node, bytes]:
    found: dict[Node, bytearray] = {}
    habit: dict[Node, str] = {}
    for number, op in enumerate(log):
        if op.kind not in ("write", "resize"):
            continue
        content = found.setdefault(op.node, bytearray(op.node.content))
        how = habit.setdefault(op.node, rng.choice(("all", "nothing", "mixed", "torn", "zeros", "noise")))
        if synced.get(op.node, -1) > number:
            how = "all"
        elif how == "mixed":
            how = rng.choice(("all", "nothing", "torn"))
        if op.kind == "resize":
            if how != "nothing":
                del content[op.at :]
                content.extend(bytes(op.at - len(content)))
        elif how != "nothing":
            _write(content, op, how, rng)
    return {node: bytes(content) for node, content in found.items()}


def _write(content: bytearray, op: Op, how: str, rng: random.Random) -> None:
    end = op.at + len(op.data)
    if how == "torn":
        end = rng.randint(op.at, end)  # the file may be shorter, too
    grown = max(0, end - len(content))
    content.extend(rng.randbytes(grown) if how == "noise" else bytes(grown))
    if how in ("zeros", "noise"):
        return
    for begin in range(0, end - op.at, _SECTOR):
        if how == "all" or rng.random() < 0.7:
            part = op.data[begin : min(begin + _SECTOR, end - op.at)]
            content[op.at + begin : op.at + begin + len(part)] = part


def _tree(node: Node, entries: Mapping[Node, Mapping[str, Node]], content: Mapping[Node, bytes]) -> Tree:
    return {
        name: _tree(inside, entries, content) if inside.entries is not None else content.get(inside, inside.content)
        for name, inside in entries.get(node, {}).items()
    }
