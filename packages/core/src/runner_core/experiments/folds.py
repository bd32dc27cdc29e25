"""Divide records into folds, always by group: each record is in the validation split of one fold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from runner_core.base.errors import BadInput, did_you_mean
from runner_core.base.text import counted
from runner_core.config.yamlfile import read_yaml
from runner_core.contract import Scalar
from runner_core.contract.records import AnyRecord
from runner_core.data.sampling import order

EACH_GROUP = "groups"
"""Value of --folds for one fold per group."""
COLUMN = "column:"
"""Start of a value of --folds that names a column of the data set's table."""

Folds = dict[str, list[AnyRecord]]
"""Name of a fold → the records that it validates on."""


def make_folds(
    records: Sequence[AnyRecord],
    rule: str,
    seed: int,
    *,
    group_by: str = "",
    sizes: Mapping[str, int] | None = None,
    trained_on: Callable[[AnyRecord], bool] = lambda record: False,
) -> Folds:
    """Return the folds of `records` under `rule`: a number, `groups`, `column:NAME`, or a YAML file.

    Groups of the data set's own test split belong to no fold, and neither do those that the starting weights were
    `trained_on`. `group_by` names a column whose values are used as groups; they must not divide any
    record's own group. `sizes` (record key → size) balances a number of folds by size; otherwise the number of records
    is balanced. The result does not depend on the order of the records.

    Raises BadInput if there are too few groups, or if the rule would divide a group.
    """
    kept = {record.group for record in records if trained_on(record) or record.split == "test"}
    apart = {record.values.get(group_by) for record in records if record.group in kept} if group_by else set()
    free = [r for r in records if r.group not in kept and not (group_by and r.values.get(group_by) in apart)]
    if not free:
        raise BadInput("no record is left to validate on: all are test records, or were trained on before (--from)")
    if rule.endswith((".yaml", ".yml")):
        folds = _from_file(free, Path(rule))
    elif rule.startswith(COLUMN):
        folds = _by_value(free, rule.removeprefix(COLUMN), "--folds column:")
    else:
        groups = _by_value(free, group_by, "--group-by ") if group_by else _by_group(free)
        _refuse_divided_groups(groups, f"--group-by {group_by}")
        folds = groups if rule == EACH_GROUP else _shuffled(groups, _count(rule, groups, group_by), seed, sizes)
    _refuse_divided_groups(folds, f"--folds {rule}")
    if len(folds) < 2:
        raise BadInput(f"--folds {rule} gives one fold, {next(iter(folds))!r}: there must be two or more")
    return folds


def column_of(about: Mapping[str, object]) -> str:
    """Return the column whose values a cross-validation with these options keeps together, "" for groups alone."""
    rule = str(about.get("folds") or "")
    return rule.removeprefix(COLUMN) if rule.startswith(COLUMN) else str(about.get("group_by") or "")


def groups_by(records: Sequence[AnyRecord], column: str) -> dict[str, str]:
    """Return the group of each record by its key: its value in the column, or its own group where it has none."""
    return {r.key: _text(r.values[column]) if column in r.values else r.group for r in records}


def refuse_ambiguous(records: Sequence[AnyRecord]) -> None:
    """Raise BadInput for a record that has the name of a group which is not its own: split files name both."""
    groups = {record.group for record in records}
    for record in records:
        if record.key in groups and record.key != record.group:
            raise BadInput(
                f"record {record.key} of group {record.group} has the name of another group, so that a file of a split "
                "could mean either: rename one of them"
            )


def _by_group(records: Sequence[AnyRecord]) -> Folds:
    found: Folds = {}
    for record in sorted(records, key=lambda r: (r.group, r.key)):
        found.setdefault(record.group, []).append(record)
    return found


def _by_value(records: Sequence[AnyRecord], column: str, option: str) -> Folds:
    """Return the records by their value in a column of the data set's table."""
    found: Folds = {}
    for record in sorted(records, key=lambda r: r.key):
        if column not in record.values:
            known = sorted({name for r in records for name in r.values})
            has = f"its table has {', '.join(known)}" if known else "its table has no further columns (data.manifest)"
            raise BadInput(
                f"{option}{column}: record {record.key} has no such value{did_you_mean(column, known)}; {has}"
            )
        found.setdefault(_text(record.values[column]), []).append(record)
    return dict(sorted(found.items()))


def _text(value: Scalar) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _count(rule: str, groups: Folds, group_by: str) -> int:
    if not rule.isdecimal() or int(rule) < 2:
        raise BadInput(
            f"--folds is {rule!r}; it can be a number from 2, {EACH_GROUP} (leave one group out), {COLUMN}NAME (a "
            "column of your table), or a .yaml file"
        )
    if int(rule) > len(groups):
        what = f"value of {group_by}" if group_by else "group"
        raise BadInput(
            f"--folds {rule}: there {'is' if len(groups) == 1 else 'are'} only {counted(len(groups), what)}, and a "
            f"group is never divided; --folds {EACH_GROUP} makes a fold of each"
        )
    return int(rule)


def balanced(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """Return the names in `count` parts of about equal size: each name, the largest first, joins the smallest part."""
    parts: list[list[str]] = [[] for _ in range(count)]
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        min(parts, key=lambda part: (sum(sizes[n] for n in part), len(part))).append(name)
    return parts


def _shuffled(groups: Folds, count: int, seed: int, sizes: Mapping[str, int] | None) -> Folds:
    """Return `count` folds of about equal size; groups of equal size are in an order of the seed's."""
    names = [*groups]
    shuffled = [names[i] for i in order(seed, 3, len(names), len(names), shuffle=True)]
    size = {name: sum(1 if sizes is None else sizes[r.key] for r in groups[name]) for name in shuffled}
    parts = balanced(size, count)
    return {str(number): [r for name in sorted(part) for r in groups[name]] for number, part in enumerate(parts, 1)}


def _from_file(records: Sequence[AnyRecord], path: Path) -> Folds:
    """Return the folds of a YAML file: fold name → groups or record keys. Records it leaves out train in every fold."""
    content = read_yaml(path, "file of --folds", names=True)
    if not isinstance(content, Mapping) or not all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in content.values()
    ):
        raise BadInput(f"{path}: expected the name of each fold, and below it a list of groups or records")
    folds: Folds = {}
    taken: dict[str, str] = {}
    known = {record.key for record in records} | {record.group for record in records}
    for fold, names in content.items():
        for name in names:
            if name not in known:
                raise BadInput(f"{path}: unknown group or record {name!r}{did_you_mean(name, known)}")
        wanted = set(names)
        found = [r for r in sorted(records, key=lambda r: r.key) if r.key in wanted or r.group in wanted]
        for record in found:
            if taken.setdefault(record.key, str(fold)) != str(fold):
                raise BadInput(f"{path}: record {record.key} is in the folds {taken[record.key]} and {fold}")
        folds[str(fold)] = found
    if empty := [fold for fold, found in folds.items() if not found]:
        raise BadInput(f"{path}: fold {empty[0]} has no record")
    return folds


def _refuse_divided_groups(parts: Folds, option: str) -> None:
    first: dict[str, str] = {}
    for part, records in parts.items():
        for record in records:
            if first.setdefault(record.group, part) != part:
                raise BadInput(
                    f"{option}: group {record.group} would be in {first[record.group]} and in {part}; the scores would "
                    "be those of data seen in training. A fold must hold whole groups"
                )
