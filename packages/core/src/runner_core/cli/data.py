"""From a Setup to data: where it lies, its records, their split and their cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from runner_core._errors import BadInput, DataErrors, OutOfSpace
from runner_core._files import size_text
from runner_core._text import counted
from runner_core.audit.start import warn
from runner_core.cache.folder import cache_root
from runner_core.cache.identity import Identities
from runner_core.cache.place import is_streaming
from runner_core.copies import find_copies, known_digests, suspected_digests
from runner_core.location import Location
from runner_core.phantoms import phantom_folder
from runner_core.project import AnyRecord, Project
from runner_core.protocols import CachePlan, Device
from runner_core.setup import Data, Setup
from runner_core.splits import split

Say = Callable[[str], None]


def data_folder(setup: Setup, say: Say) -> Location:
    """The user's data, or the phantom (made on first use)."""
    return setup.source or phantom_folder(setup.project, say)


def read_records(setup: Setup, folder: Location) -> Sequence[AnyRecord]:
    """Every record below `folder`; BadInput when there is none, or when two have one key."""
    with kept_phantom(setup, folder):
        records = setup.project.records(folder)
    if not records:
        raise BadInput(f"{folder}: there are no {setup.name} records here")
    seen: dict[str, AnyRecord] = {}
    for record in records:
        if record.key in seen:
            raise BadInput(f"{folder}: two records have the name {record.key!r}: {_files(seen[record.key], record)}")
        seen[record.key] = record
    return records


@contextmanager
def kept_phantom(setup: Setup, folder: Location) -> Iterator[None]:
    """What is refused inside is refused of data: where they are the phantom, which nobody has written by hand, say
    what may be wrong with it."""
    try:
        yield
    except BadInput as error:
        if setup.source is None and not isinstance(error, OutOfSpace):
            hint = f"this is the generated phantom kept in {folder}: if `phantom` was changed, raise phantom_version"
            error.args = (f"{error}\n{hint}",)
        raise


def open_data(setup: Setup, say: Say) -> Data:
    """Records, split, cache (announced, then built where it is missing) and statistics of the training records."""
    folder = data_folder(setup, say)
    records = read_records(setup, folder)
    splits = split(records, setup.config.data, setup.config.train.seed)
    for line in describe_split(setup.project, records, splits):
        say(line)
    plan = setup.cache.plan(setup.pipeline, records)
    if plan.device_bytes:
        refuse_what_no_device_holds(plan, setup.device)
    say(describe_plan(plan))
    try:
        store = setup.cache.open(setup.pipeline, records, say)
    except DataErrors:  # others are of the cache, not of the data
        with kept_phantom(setup, folder):
            raise
    for line in refuse_copies(setup, records, splits):
        say(line)
    used = [records[n] for side in ("train", "validation") for n in splits[side]]
    if plan.mode == "stream":  # nobody knows whether they are new, and none is fetched for a check
        warn(setup, used, say, each=False)
    elif plan.ready < plan.records and plan.mode != "off":  # they are new: with every start it would tire
        warn(setup, used, say)
    with kept_phantom(setup, folder):
        statistics = setup.project.fit(store, splits["train"])
    return Data(records, splits, store, statistics, plan=plan)


def refuse_copies(setup: Setup, records: Sequence[AnyRecord], splits: dict[str, list[int]]) -> list[str]:
    """Warnings of scans that are there twice; BadInput where that puts one on both sides of the split. Knows the
    files that the cache has read; of streamed ones, of which it has read none, only those that are alike are read."""
    index = Identities(cache_root(setup.config.cache.dir))
    digests = (suspected_digests if is_streaming(setup.config, records) else known_digests)(index, records)
    found = find_copies(records, digests, splits)
    if errors := [finding.message for finding in found if finding.level == "error"]:
        raise BadInput("\n".join(errors))
    return [f"{finding.level}: {finding.message}" for finding in found]


def refuse_what_no_device_holds(plan: CachePlan, device: Device) -> None:
    """Raises BadInput when there is no GPU to hold the set, OutOfSpace when its memory is smaller than the set."""
    if device.kind == "cpu":
        raise BadInput("cache.mode device keeps the data on a GPU, and this run computes on the CPU: use memory")
    if 0 < device.memory_bytes < plan.device_bytes:
        raise OutOfSpace(
            f"cache.mode device takes {size_text(plan.device_bytes)}, {device.name or device.kind} has "
            f"{size_text(device.memory_bytes)}: set cache.mode memmap"
        )


def describe_split(project: Project, records: Sequence[AnyRecord], splits: dict[str, list[int]]) -> list[str]:
    """A line for each side: how many records and which groups; and what it means when nothing validates."""
    lines = []
    for name, numbers in splits.items():
        groups = sorted({records[n].group for n in numbers})
        shown = ", ".join(groups[:8]) + (f", … ({len(groups)} in all)" if len(groups) > 8 else "")
        if numbers:
            lines.append(f"{name}: {counted(len(numbers), 'record')} of {counted(len(groups), 'group')}: {shown}")
    if not splits.get("validation"):
        sides = {name: [records[n] for n in numbers] for name, numbers in splits.items()}
        scored, seen = project.scored(sides), {record.key for record in sides["train"]}
        trained = sum(record.key in seen for record in scored)
        which = f"{trained:,} of the {counted(len(scored), 'record')} scored at the end are trained on"
        lines.append(
            "NOTE: nothing validates: no metric will choose the best checkpoint (the newest is used), and "
            f"{which if scored else 'no record is scored'}. To validate, name groups with "
            "--data.split group:NAME[,NAME], or a YAML file with your own split"
        )
    return lines


def describe_plan(plan: CachePlan) -> str:
    """What the cache will take, in one line."""
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
