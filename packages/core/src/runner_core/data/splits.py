"""Split records into train, validation and test, always by group (patient, scroll, plate)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runner_core.base.errors import BadInput, did_you_mean
from runner_core.base.text import counted
from runner_core.config.yamlfile import read_yaml
from runner_core.contract import Array
from runner_core.data.blocks import Coded
from runner_core.data.columns import Numbers
from runner_core.data.sampling import order
from runner_core.data.table import LEAST, any_has_split, groups_of, keys_of, same_keys

if TYPE_CHECKING:
    from runner_core.config import DataConfig
    from runner_core.contract.records import AnyRecord


_EXACT_BITS = 1 << 28
"""Largest number of bits (32 MB) of the exact search: groups times records.

16,000 patients with one scan each are below it.
"""


def nearest_share(sizes: Sequence[int], wanted: float, *, round_up: bool = False) -> list[int]:
    """Return places of some of `sizes`, but not of all, whose sum is as near to `wanted` as possible.

    Sizes that come first are taken first, so a shuffled order gives a random one of several such choices. If one sum
    lies as far below as another above, `round_up` decides. Beyond `_EXACT_BITS` only the last sizes are chosen exactly;
    the others are taken in order while they fit, so the sum is off by less than the largest size.

    >>> nearest_share([376, 130, 120, 80, 50, 30], 157.2)
    [1, 5]
    """
    total = sum(sizes)
    first = max(0, len(sizes) - max(2, _EXACT_BITS // total))
    taken, held = _while_they_fit(sizes[:first], wanted)
    reach = [1]  # for the sizes from each place on: bit s is set if some of them add up to s
    for size in reversed(sizes[first:]):
        reach.append(reach[-1] | reach[-1] << size)
    reach.reverse()
    missing = _nearest(_without_all_or_none(reach[0], held, total), wanted - held, round_up)
    for place, size in enumerate(sizes[first:]):
        if missing >= size and reach[place + 1] >> (missing - size) & 1:
            taken.append(first + place)
            missing -= size
    return taken


def _while_they_fit(sizes: Sequence[int], wanted: float) -> tuple[list[int], int]:
    taken, held = [], 0
    for place, size in enumerate(sizes):
        if held + size <= wanted:
            taken.append(place)
            held += size
    return taken, held


def _without_all_or_none(sums: int, held: int, total: int) -> int:
    """Return the sums without those that would leave one of the two splits empty."""
    return sums & ~(1 << (total - held)) & ~(0 if held else 1)


def _nearest(sums: int, wanted: float, round_up: bool) -> int:
    """Return the set bit nearest to `wanted`."""
    middle = max(0, int(wanted))
    below = sums & ((2 << middle) - 1)
    above = sums >> (middle + 1)
    found = [below.bit_length() - 1] if below else []
    if above:
        found.append(middle + (above & -above).bit_length())
    return min(found, key=lambda s: (abs(s - wanted), -s if round_up else s))


SPLITS = ("train", "validation", "test")


def split(
    records: Sequence[AnyRecord], config: DataConfig, seed: int, seen: Callable[[AnyRecord], bool] | None = None
) -> dict[str, Sequence[int]]:
    """Return record numbers of `train`, `validation` and `test`, each ascending; `data.split` describes the rules.

    This is a pure function of the settings, the seed and the records, whatever their order. A record for which `seen`
    is true was trained on before, so only training may have it.

    Raises BadInput if a group would be in two splits, if nothing is left to train on, if a name is unknown, or if a
    rule takes a seen record to validate or test.
    """
    known = frozenset(r.group for r in records if seen(r)) if seen is not None else frozenset[str]()
    keys, groups = keys_of(records), groups_of(records)
    if twice := same_keys(records):
        raise BadInput(f"two records share the key '{keys[twice[0][0]]}'; keys must be unique")
    rule = config.split
    if rule == "none":
        chosen = np.zeros(len(records), np.int8)
    elif rule == "auto" and any_has_split(records):
        chosen = _folders(records)
    elif rule == "auto":
        chosen = _validate(groups, _random_groups(groups, config.validation_fraction, seed, known))
    elif rule.startswith("group:"):
        chosen = _validate(groups, _named_groups(groups, rule.removeprefix("group:")))
    elif rule.endswith((".yaml", ".yml")):
        chosen = _from_file(keys, groups, Path(rule))
    else:
        raise BadInput(f"data.split is '{rule}'; it can be auto, none, group:NAME[,NAME] or a .yaml file")
    result = {name: np.flatnonzero(chosen == number) for number, name in enumerate(SPLITS)}
    _refuse_leaks(groups, result, rule)
    _refuse_seen(groups, result, known, rule)
    if not len(result["train"]):
        raise BadInput(f"data.split {rule} leaves no record to train on")
    return {name: Numbers(numbers) if len(records) >= LEAST else numbers.tolist() for name, numbers in result.items()}


_UNUSED = len(SPLITS)


def _folders(records: Sequence[AnyRecord]) -> Array:
    """Return the number of each record's split, which is the data set's own, from its folders."""
    for r in records:
        if r.split not in SPLITS:
            raise BadInput(
                f"record {r.key} has split '{r.split}', others have one of {', '.join(SPLITS)}; set data.split"
            )
    return np.fromiter((SPLITS.index(str(r.split)) for r in records), np.int8, len(records))


def _random_groups(of_records: Coded, fraction: float, seed: int, seen: frozenset[str] = frozenset()) -> set[str]:
    """Return random groups with this share of the records; if some were `seen`, of the others alone."""
    groups = sorted(of_records.names)
    if len(groups) < 2:
        raise BadInput(
            f"{_all(len(of_records))} to one group ({groups[0] if groups else 'none'}), so none can validate "
            "without leaking: add records of another group, or train on everything, without validation, with "
            "--data.split none"
        )
    if not 0 < fraction < 1:
        raise BadInput(f"data.validation_fraction is {fraction}; it must lie between 0 and 1")
    sizes = dict(zip(of_records.names, np.bincount(of_records.codes).tolist(), strict=True))
    shuffled = [groups[i] for i in order(seed, 0, len(groups), len(groups), shuffle=True)]
    upwards = bool(order(seed, 1, 2, 1, shuffle=True)[0])
    places = nearest_share([sizes[group] for group in shuffled], fraction * len(of_records), round_up=upwards)
    chosen = {shuffled[place] for place in places}
    return _unseen(shuffled, sizes, fraction * len(of_records), seen) if chosen & seen else chosen


def _unseen(groups: Sequence[str], sizes: Mapping[str, int], wanted: float, seen: frozenset[str]) -> set[str]:
    """Return unseen groups with about `wanted` records, or all if they have no more."""
    left = [group for group in groups if group not in seen]
    if not left:
        raise BadInput(
            "all groups of these data were trained on before (--from), so none can validate: add data that were not, "
            "or train without validation (data.split none)"
        )
    if sum(sizes[group] for group in left) <= wanted or len(left) == 1:
        return set(left)
    return {left[place] for place in nearest_share([sizes[group] for group in left], wanted)}


def spread(records: Sequence[AnyRecord], numbers: Sequence[int], count: int | None, seed: int) -> Sequence[int]:
    """Return `count` of the record `numbers` (None: all), ascending, from each group in turn, chosen by the seed.

    Many `numbers` are ascending already, as `split` returns them. The result does not depend on the order of the
    records.
    """
    if count is None or count >= len(numbers):
        return numbers if isinstance(numbers, Numbers) else sorted(numbers)
    by_key = sorted(numbers, key=lambda n: records[n].key)
    turn: Counter[str] = Counter()
    places = []
    for position, place in enumerate(order(seed, 2, len(by_key), len(by_key), shuffle=True)):
        group = records[by_key[place]].group
        places.append((turn[group], position, by_key[place]))
        turn[group] += 1
    return sorted(number for _, _, number in sorted(places)[:count])


def _all(records: int) -> str:
    return "the only record belongs" if records == 1 else f"all {records} records belong"


def _named_groups(groups: Coded, names: str) -> set[str]:
    known = sorted(groups.names)
    if names in known:  # a name may contain a comma
        return {names}
    wanted = [n.strip() for n in names.split(",") if n.strip()]
    if not wanted:
        raise BadInput("data.split group: names no group; write group:NAME[,NAME]")
    for name in wanted:
        if name not in known and any("," in group for group in known):
            raise BadInput(
                f"data.split: unknown group '{name}'. Some groups have a comma in their names: give one such name "
                "alone, as group:NAME, or list them in a YAML file (data.split FILE.yaml)"
            )
        _require(name, known, "data.split", "group")
    return set(wanted)


def _validate(groups: Coded, validating: set[str]) -> Array:
    return groups.among(validating).astype(np.int8)


def _from_file(keys: Sequence[str], groups: Coded, path: Path) -> Array:
    """Return the number of each record's split, from a YAML file.

    It has the keys train, validation, test and lists of groups or record keys.

    Without the key train, everything that is not listed trains; with it, what is not listed is left out.
    """
    lists = read_lists(path)
    known = {*groups.names, *keys}
    named: dict[str, str] = {}
    for side, names in lists.items():
        for name in names:
            _require(name, known, str(path), "group or record")
            if named.setdefault(name, side) != side:
                raise BadInput(f"{path}: '{name}' is listed under both {named[name]} and {side}")
    rest = _UNUSED if "train" in lists else SPLITS.index("train")
    chosen = []
    for key, group in zip(keys, groups, strict=True):
        found_in = {named[name] for name in (key, group) if name in named}
        if len(found_in) > 1:
            raise BadInput(f"{path}: record {key} and its group {group} are listed under different splits")
        chosen.append(SPLITS.index(found_in.pop()) if found_in else rest)
    return np.array(chosen, np.int8)


def read_lists(path: Path) -> dict[str, list[str]]:
    """Read a split file: split name → groups and record keys."""
    content = read_yaml(path, "file of data.split", names=True)
    if not isinstance(content, Mapping) or not all(isinstance(v, list) for v in content.values()):
        raise BadInput(f"{path}: expected lists of groups or record keys under {', '.join(SPLITS)}")
    for side in content:
        _require(str(side), SPLITS, str(path), "split")
    if any(not isinstance(name, str) for names in content.values() for name in names):
        raise BadInput(f"{path}: expected names of groups or records, not lists or sections of them")
    return {str(side): list(names) for side, names in content.items()}


def _require(name: str, known: Collection[str], where: str, what: str) -> None:
    if name not in known:
        shown = ", ".join(sorted(known)[:8]) + (", …" if len(known) > 8 else "")
        raise BadInput(f"{where}: unknown {what} '{name}'{did_you_mean(name, known)} (known: {shown})")


def _refuse_leaks(groups: Coded, splits: Mapping[str, Array], rule: str) -> None:
    found = Counter(group for numbers in splits.values() for group in groups.distinct(numbers))
    leaking = sorted(group for group, count in found.items() if count > 1)
    if leaking:
        shown = ", ".join(leaking[:5]) + (", …" if len(leaking) > 5 else "")
        raise BadInput(
            f"data.split {rule}: {counted(len(leaking), 'group')} would be in two splits ({shown}); the "
            "scores would be those of data seen in training. Put each group into one split"
        )


def _refuse_seen(groups: Coded, splits: Mapping[str, Array], seen: frozenset[str], rule: str) -> None:
    again = sorted({group for name in SPLITS[1:] for group in groups.distinct(splits[name]) if group in seen})
    if again:
        shown = ", ".join(again[:5]) + (", …" if len(again) > 5 else "")
        raise BadInput(
            f"data.split {rule}: the weights of --from were trained on {counted(len(again), 'group')} that would "
            f"validate or test ({shown}); the scores would be those of data seen in training. Choose other groups, or "
            "data.split auto"
        )
