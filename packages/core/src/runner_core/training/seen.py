"""The data of a run's training: its split (split.yaml), its records' digests (contents.json), and the runs before it.

In other data names say little: "sub-01" is another person there, and a copy under another name is the same scan.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from runner_core.base.errors import BadInput
from runner_core.base.files import read_json
from runner_core.base.secrets import without_secrets
from runner_core.base.text import counted
from runner_core.base.writing import replace_json, whole_file
from runner_core.contract.records import AnyRecord
from runner_core.data.blocks import Chosen
from runner_core.data.cache.identity import Identities
from runner_core.data.columns import Digests, Numbers
from runner_core.data.duplicates import Etags, known_digests
from runner_core.data.splits import SPLITS, read_lists
from runner_core.data.table import LEAST, RecordTable, groups_of, hashes_of, keys_of

SPLIT_FILE = "split.yaml"

_LONG = 1 << 20
"""Bytes of a split.yaml that a YAML parser reads in some seconds."""

SavedSplit = Mapping[str, Sequence[str]]
"""Split name → groups and record keys."""


def save_split(run: Path, records: Sequence[AnyRecord], splits: Mapping[str, Sequence[int]]) -> None:
    """Write split.yaml at the run's first start; a resumed run keeps its own."""
    path = run / SPLIT_FILE
    if path.exists():
        return
    try:
        with whole_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            file.write(_FIRST_LINE)
            if len(records) < LEAST:
                names = {name: [records[n] for n in numbers] for name, numbers in splits.items()}
                file.write(
                    yaml.safe_dump(
                        {name: sorted({n for r in own for n in (r.group, r.key)}) for name, own in names.items()}
                    )
                )
            else:
                file.writelines(_yaml_lists(records, splits))
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror or error}") from error


_FIRST_LINE = "# groups and records of each split, when training began\n"


def _yaml_lists(records: Sequence[AnyRecord], splits: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Yield YAML text with a list of names for each split, groups first; PyYAML itself takes 20 µs a name."""
    keys, groups = keys_of(records), groups_of(records)
    for split, numbers in sorted(splits.items()):
        own = groups.distinct(numbers)
        yield f"{split}:{'' if own else ' []'}\n"
        names = chain(own, Chosen(keys, numbers))
        while some := list(islice(names, 1 << 12)):
            if "".join(some).isprintable():
                yield "".join([f"- {_quoted(name)}\n" for name in some])
            else:
                yield "".join([f"- {_escaped(name)}\n" for name in some])


_quoted = json.encoder.encode_basestring


def _escaped(name: str) -> str:
    """Quote a name so that JSON and YAML read the same: YAML takes no other unprintable characters as they are."""
    return "".join([c if c.isprintable() or c > "\uffff" else f"\\u{ord(c):04x}" for c in _quoted(name)])


def read_split(run: Path) -> SavedSplit | None:
    """Return the split of the run, or None if it has no split.yaml."""
    path = run / SPLIT_FILE
    if not path.exists():
        return None
    return _read_many(path) or read_lists(path)


def _read_many(path: Path) -> SavedSplit | None:
    """Return a long split.yaml as `_yaml_lists` wrote it; None for any other, which a YAML parser reads.

    A parser takes minutes for millions of names.
    """
    if path.stat().st_size < _LONG:
        return None
    found: dict[str, list[str]] = {}
    own: list[str] = []
    try:
        with path.open(encoding="utf-8") as file:
            if next(file) != _FIRST_LINE:
                return None
            while lines := list(islice(file, 1 << 12)):
                for names, some in groupby(lines, lambda line: line.startswith('- "')):
                    if names:
                        own += json.loads(f"[{','.join(line[2:] for line in some)}]")
                        continue
                    for line in some:
                        split, _, rest = line.partition(":")
                        if split not in SPLITS or rest.strip() not in ("", "[]") or split in found:
                            return None
                        own = found[split] = []
    except (OSError, ValueError):  # the other reader says what is wrong
        return None
    return found


def joined_split(splits: Sequence[SavedSplit | None]) -> SavedSplit | None:
    """Return the split of several runs together, or None if one is unknown.

    Its training records are in the training split of every run, those of the other splits in that of any.
    """
    known = [split for split in splits if split is not None]
    if len(known) < len(splits) or len(known) == 1:
        return known[0] if splits == known else None
    found = {name: set().union(*(split.get(name, ()) for split in known)) for name in SPLITS}
    found["train"] = set.intersection(*({*split.get("train", ())} for split in known))
    return {name: sorted(names) for name, names in found.items()}


def kept_split(run: Path, records: Sequence[AnyRecord]) -> dict[str, Sequence[int]] | None:
    """Return the split that a run was started with, as ascending numbers of `records`, or None if it is unknown.

    A resumed run keeps it, whatever the rule of `data.split` would give now. New records belong to no split.
    """
    saved = read_split(run)
    if saved is None:
        return None
    keys, groups = hashes_of(keys_of(records)), groups_of(records)
    kept: dict[str, Sequence[int]] = {}
    for name in SPLITS:
        names = saved.get(name, ())
        found = np.flatnonzero(np.isin(keys, hashes_of(names)) & groups.among(frozenset(names)))
        kept[name] = Numbers(found) if len(records) >= LEAST else found.tolist()
    return kept


CONTENTS_FILE = "contents.json"


def save_contents(
    run: Path,
    index: Identities,
    records: Sequence[AnyRecord],
    training: Sequence[int],
    identities: Digests | None = None,
) -> None:
    """Write digests of the training records' main files at the run's first start, as far as the cache knows them.

    `identities` are for `known_digests`.
    """
    path = run / CONTENTS_FILE
    if path.exists():
        return
    try:
        if len(training) < LEAST:
            replace_json(path, {"train": dict(_known(index, records, training, identities))})
            return
        with whole_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            known, between = _known(index, records, training, identities), '{"train": {'
            while some := dict(islice(known, 1 << 12)):
                file.write(between + without_secrets(json.dumps(some)[1:-1]))
                between = ", "
            file.write("}}\n" if between == ", " else '{"train": {}}\n')
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror or error}") from error


def _known(
    index: Identities, records: Sequence[AnyRecord], training: Sequence[int], identities: Digests | None
) -> Iterator[tuple[str, str]]:
    """Yield keys and digests of the training records whose digests are known."""
    if isinstance(records, RecordTable):
        trained = np.zeros(len(records), np.bool_)
        trained[np.asarray(training, np.int64)] = True
        digests = known_digests(index, records, identities)
        if isinstance(digests, Etags):
            for keys, own, numbers in digests.in_parts():
                wanted = trained[numbers.start : numbers.stop].tolist()
                yield from ((k, digest) for k, digest, want in zip(keys, own, wanted, strict=True) if want and digest)
        else:
            each = zip(records.keys, digests, trained.tolist(), strict=True)
            yield from ((key, digest) for key, digest, want in each if want and digest)
        return
    chosen = Chosen(records, training)
    for record, digest in zip(chosen, known_digests(index, chosen), strict=True):
        if digest:
            yield record.key, digest


def read_contents(run: Path) -> dict[str, str]:
    """Return record key → digest of the training records; empty if the run does not record them."""

    def read(found: Any) -> dict[str, str] | None:
        digests = dict(found["train"])
        return digests if all(isinstance(digest, str) for digest in digests.values()) else None

    remedy = "remove it, and training records are recognised by their names"
    return read_json(run / CONTENTS_FILE, read, remedy) or {}


@dataclass(frozen=True)
class TrainedRun:
    """The training data of one run: groups and record keys in its data (`source`), and record key → digest."""

    run: str
    source: str
    names: Sequence[str]
    contents: Mapping[str, str]


@dataclass(frozen=True)
class History:
    """The training data of a run's weights, and of those that they started from.

    Attributes:
        runs: The run and those before it.
        unknown: Runs and files of which it is not known.
    """

    runs: tuple[TrainedRun, ...] = ()
    unknown: tuple[str, ...] = ()

    @classmethod
    def of(cls, run: Path, source: str) -> History:
        """Return the history of a run that was trained on `source`, with all runs before it."""
        sides, before = read_split(run), cls.before(run)
        if sides is None:
            return cls(before.runs, (str(run.absolute()), *before.unknown))
        own = TrainedRun(str(run.absolute()), source, list(sides.get("train", ())), read_contents(run))
        return cls((own, *before.runs), before.unknown)

    @classmethod
    def before(cls, run: Path) -> History:
        """Return the history of the weights that a run started from; empty if it started from none."""
        saved = read_start(run)
        return cls() if saved is None else cls.from_json(saved["trained_on"])

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> History:
        return cls(tuple(TrainedRun(**run) for run in values["runs"]), tuple(values["unknown"]))

    def json(self) -> dict[str, Any]:
        return asdict(self)

    def foreign(self, source: str) -> bool:
        """Return whether any of the runs was trained on other data than `source`, where names mean other records."""
        return any(run.source != source for run in self.runs)

    def seen(self, records: Sequence[AnyRecord], digests: Sequence[str | None], source: str) -> Seen:
        """Return which of `records`, all those of the data `source`, were trained on by any of the runs."""
        found = [seen({"train": run.names}, run.contents, records, digests, run.source == source) for run in self.runs]
        notes = list(dict.fromkeys(note for one in found for note in one.notes))
        notes += [
            f"it is not known what {name} was trained on: records that it has seen count as unseen"
            for name in self.unknown
        ]
        keys = frozenset[str]().union(*(one.keys for one in found))
        return Seen(keys, frozenset[str]().union(*(one.groups for one in found)), notes)


START_FILE = "start.json"
"""File in the folder of a run that started from weights: which, how they fit, and what they were trained on."""


def read_start(run: Path) -> dict[str, Any] | None:
    """Return start.json of a run, or None if it started from no weights."""

    def read(found: Any) -> dict[str, Any] | None:
        History.from_json(found["trained_on"])
        return dict(found) if all(isinstance(found[name], str) for name in ("source", "digest", "about")) else None

    return read_json(run / START_FILE, read, "start a new run with --from")


@dataclass
class Seen:
    """The records to score that were trained on, and how this is known."""

    keys: frozenset[str]
    groups: frozenset[str]
    notes: list[str] = field(default_factory=list)

    def __call__(self, record: AnyRecord) -> bool:
        """Return whether the record, or another of its group, was trained on."""
        return record.key in self.keys or record.group in self.groups


def seen(
    sides: SavedSplit | None,
    contents: Mapping[str, str],
    records: Sequence[AnyRecord],
    digests: Sequence[str | None],
    own: bool,
) -> Seen:
    """Find the records that were trained on, among all `records` of the data.

    Compares by content if both contents are known, else by name. With `own` these are the data that the run was trained
    on; there the same name means the same record, or one of its group.
    """
    names, trained = frozenset((sides or {}).get("train", ())), {digest: key for key, digest in contents.items()}
    named = [r for r in records if r.key in names or r.group in names]
    same = [r for r, digest in zip(records, digests, strict=True) if digest in trained]
    unknown = {r.key for r, digest in zip(records, digests, strict=True) if digest is None or not contents}
    unknown |= {r.key for r in named if r.key in names and r.key not in contents}
    by_name = named if own else [r for r in named if r.key in unknown]
    keys = frozenset(r.key for r in (*same, *by_name))
    groups = frozenset(r.group for r in same) | frozenset(r.group for r in by_name)
    return Seen(keys, groups, _notes(named, same, by_name, keys, names))


def _notes(
    named: Sequence[AnyRecord],
    same: Sequence[AnyRecord],
    by_name: Sequence[AnyRecord],
    keys: frozenset[str],
    names: frozenset[str],
) -> list[str]:
    notes = []
    if copies := [r.key for r in same if r.key not in names and r.group not in names]:
        shown = ", ".join(copies[:3]) + ", …" * (len(copies) > 3)
        notes.append(
            f"scans that were trained on have other names in this data: {counted(len(copies), 'record')} ({shown})"
        )
    if others := [r.key for r in named if r.key not in keys]:
        notes.append(
            "names of training records or of their groups stand for other contents in this data: "
            f"{counted(len(others), 'record')}, not counted as trained on"
        )
    if by_name and not same:
        notes.append("training records are recognised by their names, because their contents are not known")
    return notes
