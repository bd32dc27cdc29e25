"""Prove that a killed and resumed run equals an uninterrupted one: find where two runs first differ, bit for bit.

Compared are the log's lines, every checkpoint (weights, optimizer, generators, counters), the pictures drawn during
training, and the summary. What depends on the clock is left out: "timing", events "speed", timed findings. `campaign`
trains, kills and compares; `killable` is a training in its own process, which reports its progress.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from runner_core.base.text import counted
from runner_core.contract import Json, State
from runner_core.contract.values import as_array
from runner_core.output.runfolder import RunFolder

TIMED_EVENT = "speed"
"""Event of log lines that depend entirely on the clock."""
SUMMARY = ("status", "epochs", "steps", "stopped_early", "metrics", "best_step", "health")
"""Compared parts of summary.json."""

_NOTHING = "nothing"
"""Stands for a line, a value or a tensor that one of the two runs does not have."""
_GROUPS = ("model", "ema", "optimizer")
"""Groups of a checkpoint that are reported first."""

Read = Callable[[Path], State]
"""Reads a checkpoint's folder (`CheckpointFormat.read`)."""


@dataclass(frozen=True)
class Difference:
    """A difference between a resumed run and an uninterrupted one.

    `where` is log, checkpoint, picture or summary, and `what` the value in it. `reference` and `here` are that value in
    the two runs, as text. `extent` says how much else differs there.
    """

    where: str
    step: int
    what: str
    reference: str
    here: str
    extent: str = ""

    def text(self) -> str:
        values = f"{self.reference} in the reference, {self.here} here"
        return f"{self.where}, step {self.step}: {self.what}: {values}" + (f" ({self.extent})" if self.extent else "")

    def json(self) -> dict[str, Json]:
        return asdict(self)


def differences(reference: Path, other: Path, read: Read) -> list[Difference]:
    """Return the first differences of logs, checkpoints, pictures and summaries of two run folders.

    They are sorted by step; the list is empty if the runs are equal.
    """
    one, two = RunFolder(reference), RunFolder(other)
    parts = (_logs(one, two), _checkpoints(one, two, read), _pictures(one, two), _summaries(one, two))
    found = [first for part in parts if (first := next(part, None)) is not None]
    return sorted(found, key=lambda difference: difference.step)


def lines(run: RunFolder) -> list[dict[str, Any]]:
    """Return the log without what depends on the clock."""
    events = [event for event in run.events() if event.get("event") != TIMED_EVENT and not event.get("timed")]
    return [_untimed(event) for event in events]


def _untimed(value: Json) -> Json:
    """Return the value without what is under "timing", at any depth."""
    if isinstance(value, Mapping):
        return {key: _untimed(part) for key, part in value.items() if key != "timing"}
    return [_untimed(part) for part in value] if isinstance(value, list) else value


# ------------------------------------------------------------ log and summary


def _logs(one: RunFolder, two: RunFolder) -> Iterator[Difference]:
    for line, other in zip_longest(lines(one), lines(two)):
        event = line or other
        for path, a, b in _values(line, other, ""):
            what = f"line {event.get('event')!r}" + (f", {path}" if path else "")
            yield Difference("log", int(event.get("step", 0)), what, a, b)


def _summaries(one: RunFolder, two: RunFolder) -> Iterator[Difference]:
    ours, theirs = (_compared(run.read_summary()) for run in (one, two))
    for path, a, b in _values(ours, theirs, ""):
        yield Difference("summary", int(ours.get("steps", 0)), path, a, b)


def _compared(summary: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: summary[name] for name in SUMMARY if name in summary}
    kept["health"] = [finding for finding in kept.get("health") or () if not finding.get("timed")]
    return kept


def _pictures(one: RunFolder, two: RunFolder) -> Iterator[Difference]:
    """Yield differences of the pictures that the log names, in its order."""
    for event in lines(one):
        if event.get("event") == "figure":
            ours, theirs = (_bytes(run.figures / event["file"]) for run in (one, two))
            if ours != theirs:
                content = (_NOTHING if content is None else f"{len(content):,} bytes" for content in (ours, theirs))
                yield Difference("picture", event["step"], event["file"], *content)


def _bytes(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None


def _values(one: Json, other: Json, path: str) -> Iterator[tuple[str, str, str]]:
    """Yield (path, value, other value) of every leaf that differs; NaN equals itself."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in {**one, **other}:
            inner = f"{path}.{key}" if path else str(key)
            yield from _values(one.get(key, _NOTHING), other.get(key, _NOTHING), inner)
    elif isinstance(one, Sequence) and isinstance(other, Sequence) and not isinstance(one, str | bytes):
        for number, (a, b) in enumerate(zip_longest(one, other, fillvalue=_NOTHING)):
            yield from _values(a, b, f"{path}[{number}]")
    elif type(one) is not type(other) or (one != other and not (_is_nan(one) and _is_nan(other))):
        yield path, _shown(one), _shown(other)


def _is_nan(value: Json) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _shown(value: Json) -> str:
    if value is None or value is _NOTHING:
        return _NOTHING
    text = json.dumps(value) if isinstance(value, dict | list) else repr(value)
    return text if len(text) < 100 else f"{text[:97]}…"


# ------------------------------------------------------------ checkpoints


def _checkpoints(one: RunFolder, two: RunFolder, read: Read) -> Iterator[Difference]:
    ours, theirs = (_folders(run) for run in (one, two))
    for step in sorted({*ours, *theirs}):
        if step not in ours or step not in theirs:
            there, missing = "there", _NOTHING
            yield Difference("checkpoint", step, "the whole", *((there, missing) if step in ours else (missing, there)))
            continue
        yield from _states(step, read(ours[step]), read(theirs[step]))
    best, other = (_read_json(run.checkpoints / "best.json") for run in (one, two))
    for path, a, b in _values(best, other, ""):
        yield Difference("checkpoint", max(ours, default=0), f"best.json, {path}", a, b)


def _folders(run: RunFolder) -> dict[int, Path]:
    found = run.checkpoints.glob("step-*")
    return {int(path.name.removeprefix("step-")): path for path in found if path.name.removeprefix("step-").isdigit()}


def _states(step: int, one: State, other: State) -> Iterator[Difference]:
    """Yield differing tensors, the network's first, then counters and the like."""
    different = [name for name in {**one.tensors, **other.tensors} if not _same(one, other, name)]
    different.sort(key=_rank)
    if different:
        first = different[0]
        yield Difference("checkpoint", step, *_tensor(one, other, first), _extent(different, one.tensors))
    for path, a, b in _values(_untimed(one.values), _untimed(other.values), ""):
        yield Difference("checkpoint", step, path, a, b)


def _rank(name: str) -> int:
    group = _group(name)
    return _GROUPS.index(group) if group in _GROUPS else len(_GROUPS)


def _group(name: str) -> str:
    """Return the group of a tensor: the first word of its name."""
    return name.partition(".")[0]


def _same(one: State, other: State, name: str) -> bool:
    if name not in one.tensors or name not in other.tensors:
        return False
    a, b = as_array(one.tensors[name]), as_array(other.tensors[name])
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _tensor(one: State, other: State, name: str) -> tuple[str, str, str]:
    """Return (name with the first index that differs, value there, other value there)."""
    if name not in one.tensors or name not in other.tensors:
        there, missing = "there", _NOTHING
        return (name, there, missing) if name in one.tensors else (name, missing, there)
    a, b = as_array(one.tensors[name]), as_array(other.tensors[name])
    if a.dtype != b.dtype or a.shape != b.shape:
        return name, f"{a.dtype} {a.shape}", f"{b.dtype} {b.shape}"
    width = a.dtype.itemsize
    bits, others = (np.frombuffer(c.tobytes(), np.uint8).reshape(-1, width) for c in (a, b))
    first = int(np.flatnonzero((bits != others).any(axis=1))[0])
    index = ", ".join(str(i) for i in np.unravel_index(first, a.shape))
    return f"{name}[{index}]", repr(a.flat[first].item()), repr(b.flat[first].item())


def _extent(different: Sequence[str], tensors: Mapping[str, Any]) -> str:
    """Return how many tensors differ, by group."""
    every, wrong = Counter(map(_group, tensors)), Counter(map(_group, different))
    return "differing: " + ", ".join(
        f"{number} of {counted(max(every[group], number), 'tensor')} of {group}" for group, number in wrong.items()
    )


def _read_json(file: Path) -> Json:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
