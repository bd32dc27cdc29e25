"""Open the data of a Setup: records, their split, their cache, statistics, and warnings of what looks wrong.

A run keeps the split that it was trained with in split.yaml, in the format that `data.split` takes: one computed anew
would call training records "validation" as soon as the folder has other records than then.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runner_core.base.calling import runner
from runner_core.base.errors import BadInput, DataErrors, OutOfSpace
from runner_core.base.files import size_text
from runner_core.base.location import Location, Url, refuse_secrets, shell_word
from runner_core.base.progress import progress
from runner_core.base.text import about, counted
from runner_core.config import DataConfig
from runner_core.config.values import flat
from runner_core.contract import LEFT_OUT, CachePlan, Device, Finding, Store
from runner_core.contract.project import Project
from runner_core.contract.records import AnyRecord
from runner_core.contract.run import collect_left_out
from runner_core.contract.setup import Data, Setup
from runner_core.data.blocks import Chosen
from runner_core.data.cache import is_streaming
from runner_core.data.cache.build import run_all
from runner_core.data.cache.folder import cache_root
from runner_core.data.cache.identity import Identities
from runner_core.data.cache.prepared import PreparedCache
from runner_core.data.cache.storage import identities_of
from runner_core.data.columns import Numbers
from runner_core.data.duplicates import find_duplicates, known_digests, read_digests, suspected_digests
from runner_core.data.phantoms import phantom_folder
from runner_core.data.pipeline import RecordPipeline, local
from runner_core.data.splits import split, spread
from runner_core.data.table import (
    RecordTable,
    any_at_url,
    any_has_split,
    compact,
    groups_of,
    keys_of,
    same_keys,
)
from runner_core.plugins.settings import PHANTOM
from runner_core.training.manifest import Manifest
from runner_core.training.seen import History, Seen, kept_split

_MOST_RECORDS = 500
"""Largest number of records to check; more would take minutes."""
_SHOWN = 10


@dataclass(frozen=True)
class _Check:
    """Find faults in one record that deserve a warning; picklable."""

    pipeline: RecordPipeline

    def __call__(self, task: tuple[int, AnyRecord]) -> tuple[int, list[str]]:
        number, record = task
        project: Project = self.pipeline.project
        check = project.checks().record
        if check is None:
            return number, []
        try:
            with local(project, record) as here:
                return number, [f.message for f in check(here) if f.level != "note"]
        except (BadInput, OSError) as error:
            return number, [str(error)]


def warn(
    setup: Setup,
    records: Sequence[AnyRecord],
    left_out: Sequence[Finding],
    say: Callable[[str], None],
    *,
    each: bool = True,
) -> None:
    """Print which data are left out, the first warnings, and the command that lists all of them.

    `each` adds the warnings of each single record.
    """
    checks = setup.project.checks()
    if setup.source is None or (checks.record is None and checks.records is None and not left_out):
        return
    command = f"{runner()} {setup.name} check --data {shell_word(setup.source)}"
    of_set = [*left_out, *set_faults(setup.project, records)]
    for finding in of_set:
        if finding.rule == LEFT_OUT and finding.level == "note":
            say(f"NOTE: {finding.message}")
    lines = [finding.message for finding in of_set if finding.level != "note"]
    if each and len(records) > _MOST_RECORDS:
        say(f"NOTE: {counted(len(records), 'record')} are not checked one by one here; use {command}")
    elif each and checks.record is not None:
        lines += _lines(setup, records, say)
    for line in lines[:_SHOWN]:
        say(f"WARNING: {line}")
    if len(lines) > _SHOWN:
        say(f"{len(lines) - _SHOWN} more: {command}")


def set_faults(project: Project, records: Sequence[AnyRecord]) -> list[Finding]:
    """Return faults of the records as a set; failing to read them is an error too."""
    check = project.checks().records
    try:
        return list(check(records)) if records and check is not None else []
    except (BadInput, OSError) as error:
        return [Finding("checks.records", "error", str(error))]


def _lines(setup: Setup, records: Sequence[AnyRecord], say: Callable[[str], None]) -> Iterator[str]:
    processes = setup.config.cache.workers or len(os.sched_getaffinity(0))
    found: dict[int, list[str]] = {}
    with (
        progress("checking records", len(records), say) as advance,
        run_all(_Check(RecordPipeline.of(setup)), enumerate(records), min(processes, len(records) // 4)) as results,
    ):
        for number, messages in results:
            found[number] = messages
            advance()
    for number, record in enumerate(records):
        yield from (about(record.key, message) for message in found[number])


Say = Callable[[str], None]


def data_folder(setup: Setup, say: Say) -> Location:
    """Return the user's data, or the phantom, which is made on first use.

    Raises BadInput if settings name the files to read but not the folder they are in; the phantom needs neither.
    """
    if setup.source is not None:
        return setup.source
    settings = flat(setup.config)
    if table := settings.get("data.manifest"):
        raise BadInput(
            "data.manifest is set, and --data is not: name the folder of its files (--data FOLDER), or the table "
            f"itself (--data {shell_word(Path(table))})"
        )
    if settings.get("data.pattern"):
        raise BadInput("data.pattern is set, and --data is not: name the folder of the files (--data FOLDER)")
    return phantom_folder(setup.project, say)


def read_records(setup: Setup, folder: Location, say: Say) -> Sequence[AnyRecord]:
    """Return every record below `folder`, with today's size and etag for files at URLs.

    Raises BadInput if there are no records, if two records have the same key, or if a value is none that JSON has.
    """
    with kept_phantom(setup, folder):
        records = setup.project.records(folder)
    if not len(records):
        raise BadInput(f"{folder}: there are no {setup.name} records here")
    if any_at_url(records):
        records = compact(records)
    _refuse_what_is_kept_nowhere(setup.name, records)
    keys = keys_of(records)
    if twice := same_keys(records):
        one, other = twice[0][:2]
        raise BadInput(f"{folder}: two records have the name {keys[one]!r}: {_files(records[one], records[other])}")
    if any_at_url(records):
        from runner_core.data.stream.local import marked

        return marked(records, setup.config.remote, cache_root(setup.config.cache.dir), say)
    return records


def _refuse_what_is_kept_nowhere(project: str, records: Sequence[AnyRecord]) -> None:
    """Raise BadInput for a URL with a secret, and for values that JSON does not have."""
    if isinstance(records, RecordTable) and not records.counts.doubtful:
        return
    for record in records:
        for place in record.files.values():
            if isinstance(place, Url):
                refuse_secrets(place)
        _refuse_values(project, record)


def _refuse_values(project: str, record: AnyRecord) -> None:
    """Raise BadInput unless the record's values are text, finite numbers, bools or None, under names that are text."""
    for name, value in record.values.items():
        plain = value is None or type(value) in (str, int, float, bool)
        if not isinstance(name, str) or not plain or (isinstance(value, float) and not math.isfinite(value)):
            raise BadInput(
                f"project {project}: record {record.key!r} has the value {name!r}: {value!r} ({type(value).__name__}); "
                "values are text, finite numbers, bools or None of Python itself (float(…), int(…), str(…) convert)"
            )


@contextmanager
def kept_phantom(setup: Setup, folder: Location) -> Iterator[None]:
    """Add a hint to BadInput raised inside if the data are the phantom, which the user did not write.

    A message that begins with the name of a setting is about the setting, not the data.
    """
    try:
        yield
    except BadInput as error:
        of_setting = str(error).partition(" ")[0].rstrip(":") in flat(setup.config)
        if setup.source is None and not of_setting and not isinstance(error, OutOfSpace):
            hint = f"this is the generated phantom kept in {folder}: if `phantom` was changed, raise phantom_version"
            error.args = (f"{error}\n{hint}",)
        raise


def open_data(
    setup: Setup,
    say: Say,
    run: Path | None = None,
    before: History | None = None,
    *,
    manifest: Path | None = None,
    known: Manifest | None = None,
) -> Data:
    """Return the records, their split, their cache and the statistics of the training records.

    The cache is announced first, then built as far as it is missing. `run` is the folder of a resumed run, which keeps
    its own split. `before` is what the weights that training starts from were trained on; such records do not validate.
    Many records are written into the folder `manifest` and mapped from there; call `release` when all of them were
    needed for the last time. `known` is what another process found: then nothing is listed or checked.
    """
    folder = data_folder(setup, say)
    left_out: list[Finding] = []
    found = known
    if found is None:
        with collect_left_out() as left_out:
            records = read_records(setup, folder, say)
        found = _divided(setup, say, records, run, before)
        if manifest is not None:
            found = found.mapped(manifest)
    plan, store = _stored(setup, say, found, folder)
    if known is None:
        _warn_of_faults(setup, say, found, store, plan, left_out)
    with kept_phantom(setup, folder):
        statistics = setup.project.fit(store, found.splits["train"])
    records = getattr(store, "records", found.records)  # a streamed store has them in less memory
    return Data(records, found.splits, store, statistics, validated=found.validated, plan=plan, groups=found.groups)


def _divided(
    setup: Setup, say: Say, records: Sequence[AnyRecord], run: Path | None, before: History | None
) -> Manifest:
    """Return the records and their split, and say what it is."""
    config = setup.config
    kept = None if run is None else kept_split(run, records)
    seen = None if before is None or kept is not None else records_seen(setup, before, records, say)
    splits = split(records, config.data, config.train.seed, seen) if kept is None else kept
    validated = spread(records, splits["validation"], config.validate.records, config.train.seed)
    for line in describe_split(setup.project, records, splits, len(validated)):
        say(line)
    of_records = groups_of(records)
    groups = {name: len(of_records.distinct(numbers)) for name, numbers in splits.items()}
    return Manifest(records, splits, validated, groups)


def _stored(setup: Setup, say: Say, found: Manifest, folder: Location) -> tuple[CachePlan, Store]:
    """Announce, build and open the cache of the records, or open the one that another process has opened."""
    records = found.records
    cache, pipeline = setup.cache(records), RecordPipeline.of(setup)
    if found.opened is not None and isinstance(cache, PreparedCache):
        if found.opened.plan.device_bytes:
            refuse_what_no_device_holds(found.opened.plan, setup.device)
        if (store := cache.reopen(pipeline, records, found.opened)) is not None:
            return found.opened.plan, store
    plan = cache.plan(pipeline, records)
    if plan.device_bytes:
        refuse_what_no_device_holds(plan, setup.device)
    say(describe_plan(plan))
    try:
        return plan, cache.open(pipeline, records, say)
    except DataErrors:  # other errors concern the cache, not the data
        with kept_phantom(setup, folder):
            raise


def _warn_of_faults(
    setup: Setup, say: Say, found: Manifest, store: Store, plan: CachePlan, left_out: Sequence[Finding]
) -> None:
    """Refuse or report duplicates, and warn of what looks wrong."""
    for line in refuse_duplicates(setup, found.records, found.splits, store):
        say(line)
    numbers = np.concatenate([np.asarray(found.splits[side], np.int64) for side in ("train", "validation")])
    used = Chosen(found.records, Numbers(numbers))
    if plan.mode == "stream":  # it is unknown if they are new, and none is fetched for a check
        warn(setup, used, left_out, say, each=False)
    elif plan.ready < plan.records and plan.mode != "off":  # new records only: a warning at every start would annoy
        warn(setup, used, left_out, say)


def records_seen(setup: Setup, before: History, records: Sequence[AnyRecord], say: Say) -> Seen:
    """Return which records the weights were trained on before, and say how many.

    In other data names say nothing, so files that no cache has read yet are read, unless they are streamed.
    """
    index, source = Identities(cache_root(setup.config.cache.dir)), str(setup.source or PHANTOM)
    reads = before.foreign(source) and not is_streaming(setup.config, records)
    found = before.seen(records, (read_digests if reads else known_digests)(index, records), source)
    for note in found.notes:
        say(f"NOTE: {note}")
    if count := sum(map(found, records)):
        say(
            f"the weights of --from were trained on {count:,} of these {counted(len(records), 'record')} or others of "
            "their groups: they do not validate"
        )
    return found


def refuse_duplicates(
    setup: Setup, records: Sequence[AnyRecord], splits: Mapping[str, Sequence[int]], store: Store
) -> list[str]:
    """Return warnings about duplicate scans; raise BadInput if duplicates are in different splits.

    This uses digests of files that the cache has already read. Streamed files have not been read yet, so only those
    that look alike are read.
    """
    index = Identities(cache_root(setup.config.cache.dir))
    if is_streaming(setup.config, records):
        digests = suspected_digests(index, records)
    else:
        digests = known_digests(index, records, identities_of(store))
    found = find_duplicates(records, digests, splits)
    if errors := [finding.message for finding in found if finding.level == "error"]:
        raise BadInput("\n".join(errors))
    return [f"{finding.level}: {finding.message}" for finding in found]


def refuse_what_no_device_holds(plan: CachePlan, device: Device) -> None:
    """Raise BadInput if there is no GPU to hold the data, OutOfSpace if its memory is too small."""
    if device.kind == "cpu":
        raise BadInput("cache.mode device keeps the data on a GPU, and this run computes on the CPU: use memory")
    if 0 < device.memory_bytes < plan.device_bytes:
        raise OutOfSpace(
            f"cache.mode device takes {size_text(plan.device_bytes)}, {device.name or device.kind} has "
            f"{size_text(device.memory_bytes)}: set cache.mode memmap"
        )


def describe_split(
    project: Project, records: Sequence[AnyRecord], splits: Mapping[str, Sequence[int]], validated: int
) -> list[str]:
    """Return one line for each split: its number of records and its groups.

    The lines also say how many records are `validated`, if not all are, and what it means if no record validates.
    """
    lines, of_records = [], groups_of(records)
    for name, numbers in splits.items():
        groups = of_records.distinct(numbers)
        shown = ", ".join(groups[:8]) + (f", … ({len(groups)} in all)" if len(groups) > 8 else "")
        if numbers:
            share = _share(project, records, len(numbers)) if name == "validation" else ""
            of = f"{counted(len(numbers), 'record')} of {counted(len(groups), 'group')}"
            lines.append(f"{name}: {of}: {shown}{share}")
    if validated < (there := len(splits.get("validation", ()))):
        lines.append(
            f"validations and the final scores use {counted(validated, 'record')} of these {there} (validate.records); "
            "`evaluate` takes all"
        )
    if not splits.get("validation"):
        by_split = {name: Chosen(records, numbers) for name, numbers in splits.items()}
        scored, seen = project.judging().to_score(by_split), {record.key for record in by_split["train"]}
        trained = sum(record.key in seen for record in scored)
        which = f"{trained:,} of the {counted(len(scored), 'record')} scored at the end are training records"
        lines.append(
            "NOTE: there are no validation records, so no metric chooses the best checkpoint (the newest is used), and "
            f"{which if scored else 'no record is scored'}. To validate, name groups with "
            "--data.split group:NAME[,NAME], or a YAML file with your own split"
        )
    return lines


def _share(project: Project, records: Sequence[AnyRecord], validation: int) -> str:
    """Return the share of records used for validation, and the requested share if whole groups cannot match it."""
    data: DataConfig = project.config.data
    share, asked = f"{validation / len(records):.0%}", f"{data.validation_fraction:.0%}"
    chosen = data.split == "auto" and not any_has_split(records)
    if not chosen or share == asked:
        return f" ({share} of the records)"
    return f" ({share} of the records; data.validation_fraction asks for {asked}, whole groups come no closer)"


def describe_plan(plan: CachePlan) -> str:
    """Return one line about the space that the cache will take."""
    most = "at most " if plan.mode == "stream" else ""
    parts = [
        f"{most}{size_text(size)} {where}"
        for size, where in ((plan.disk_bytes, "on disk"), (plan.ram_bytes, "RAM"), (plan.device_bytes, "device memory"))
        if size
    ]
    ready = f", {plan.ready} of {counted(plan.records, 'record')} ready" if plan.ready else ""
    place = f" in {plan.folder}" if plan.folder else ""
    notes = "".join(f"\n  {note}" for note in plan.notes)
    return f"cache ({plan.mode}): {', '.join(parts) or 'takes nothing'}{ready}{place}{notes}"


def _files(*records: AnyRecord) -> str:
    return " and ".join(str(next(iter(record.files.values()), "?")) for record in records)
