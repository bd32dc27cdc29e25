"""The cache capability: find what exists, report its size, build what is missing, open it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Container, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from runner_core.base.errors import BadInput, DataErrors, RunnerError
from runner_core.base.files import size_text
from runner_core.base.location import Url
from runner_core.base.parts import Part, missing_parts
from runner_core.base.progress import progress
from runner_core.base.resources import available_ram
from runner_core.base.text import counted
from runner_core.contract import CachePlan, Pipeline, Store
from runner_core.contract.records import AnyRecord, Record, at_url
from runner_core.data.blocks import Chosen
from runner_core.data.cache.ahead import Ahead, prepare_ahead, read_ahead
from runner_core.data.cache.build import BLOSC2, FLAT, Builder, Prepare, Task, run_all
from runner_core.data.cache.choose import STORAGES, Estimator, Size, choose_mode
from runner_core.data.cache.folder import (
    Damaged,
    Say,
    build_lock,
    cache_root,
    caches,
    read_meta,
    remove,
    remove_leftovers,
    settings_folder,
    verify,
)
from runner_core.data.cache.identity import FileMark, Identities, Known, identify
from runner_core.data.cache.storage import LiveArray, LiveRecords, PreparedStore, Storage, store_identity
from runner_core.data.cache.survey import Survey, storage_name, survey_records
from runner_core.data.cache.verification import AT_OPEN, differing, stale
from runner_core.data.columns import Numbers, SomeDigests
from runner_core.data.table import RecordTable, any_at_url

if TYPE_CHECKING:
    from runner_core.config import CacheConfig


_SECONDS_TO_START = 3.0
"""Seconds that starting workers may cost.

A new process needs one to two seconds to import a project and its readers.
"""


class Opened(NamedTuple):
    """A cache that a process has opened, for others that train on the same records."""

    folder: Path
    identity: str
    plan: CachePlan


def _kept(records: Sequence[Record]) -> Sequence[Record]:
    """Return what `_same` can compare later, whatever becomes of a list of records meanwhile."""
    return records if isinstance(records, RecordTable) else list(records)


def _same(kept: Sequence[Record], records: Sequence[Record]) -> bool:
    return kept is records if isinstance(records, RecordTable) else kept == list(records)


class _Planned(NamedTuple):
    records: Sequence[Record]
    survey: Survey
    plan: CachePlan
    size: Size


class PreparedCache:
    """Carries out `config.cache`; a given `storage` keeps the arrays, whatever `cache.mode` says."""

    def __init__(self, config: CacheConfig, storage: Storage | None = None) -> None:
        if storage is not None and (
            storage.name in (*STORAGES, FLAT.name) or not re.fullmatch("[a-z0-9]+", storage.name)
        ):
            raise RunnerError(
                f"a storage's name is made of small letters and digits, and its own: {storage.name!r} is not"
            )
        self._config, self._own = config, storage
        self._storages = {s.name: s for s in (FLAT, BLOSC2, storage) if s is not None}
        """Storages whose caches can be opened here."""
        self._root = cache_root(config.dir)
        self._index = Identities(self._root)
        self._estimator = Estimator()
        self._planned: _Planned | None = None

    def plan(self, pipeline: Pipeline, records: Sequence[Record]) -> CachePlan:
        """Return what `open` will take; raise OutOfSpace, with the number and the setting, if it is not available."""
        self._refuse_urls(records)
        if self._live_mode:
            return CachePlan("off", len(records), 0, 0, 0, 0, None, ("every read prepares its record anew: slow",))
        survey = self._survey(pipeline, records)
        size = self._size(pipeline, records, survey)
        mode, why = choose_mode(self._config, survey.parent, survey.built, size, self._own)
        plan = CachePlan(
            mode=mode,
            records=len(records),
            ready=len(survey.ready) + len(survey.ahead),
            disk_bytes=size.kept_by(self._storage(mode)),
            ram_bytes=size.plain if mode == "memory" else 0,
            device_bytes=size.plain if mode == "device" else 0,
            folder=survey.parent,
            notes=(why,) if why else (),
        )
        self._planned = _Planned(_kept(records), survey, plan, size)
        return plan

    def open(self, pipeline: Pipeline, records: Sequence[Record], say: Say) -> Store:
        """Build what is missing and open it; raise OutOfSpace, DataErrors or BadInput (folder not writable)."""
        if self._live_mode:
            return self._live(pipeline, records, say)
        _, survey, plan, _ = self._take_plan(pipeline, records)
        store = self._open_built(pipeline, records, survey, plan.mode, say)
        if store is not None:
            return store
        parent = survey.parent
        with build_lock(parent, say):
            remove_leftovers(parent)
            survey = self._survey(pipeline, records, survey.identities)
            if None in survey.identities and (caches(parent) or Ahead(parent).folder.is_dir()):
                survey = self._read_unknown(pipeline, records, survey, say)
            # another process may have built it meanwhile
            store = self._open_built(pipeline, records, survey, plan.mode, say)
            if store is None:
                store = self._open(self._build(pipeline, records, survey, plan, say), plan.mode)
            return store

    def reopen(self, pipeline: Pipeline, records: Sequence[Record], opened: Opened) -> PreparedStore | None:
        """Open the cache that another process has opened for these records, without looking at the records' files.

        Return None if it is not there, not the same, or damaged: `plan` and `open` then do all the work.
        """
        folder = opened.folder
        if folder.parent != settings_folder(self._root, pipeline.settings):
            return None
        if self._storage(opened.plan.mode).name != storage_name(folder):
            return None
        if opened.plan.ram_bytes > available_ram():  # another machine, with less
            return None
        try:
            store = self._open_checked(pipeline, records, folder, opened.plan.mode)
        except (Damaged, OSError):
            return None
        if store.identity != opened.identity:
            store.close()
            return None
        return store

    @property
    def prepares_ahead(self) -> bool:
        """True if there is anything to build ahead of a training."""
        return not self._live_mode

    def build(
        self, pipeline: Pipeline, records: Sequence[Record], part: Part, say: Say
    ) -> tuple[Path | None, list[str]]:
        """Prepare the records of a part, and build the cache of all if none is missing.

        Return its folder, or None and the parts that are missing. Nothing is opened. A killed process loses the records
        at which it worked, and no others. Raises OutOfSpace, BadInput (folder not writable), or DataErrors, after all
        records of the part that are sound.
        """
        _, survey, plan, size = self._take_plan(pipeline, records)
        name, numbers = self._storage(plan.mode).name, range(len(records))
        if name not in survey.built:
            own = part.share(numbers)
            left = survey.left(own)
            if done := len(own) - len(left):
                say(f"{done} of {counted(len(own), 'record')} ready already")
            known = self._known(records, survey, left)
            tasks = [Task(number, records[number], known.get(number)) for number in left]
            processes = min(self._processes(len(left)), len(left))
            space = size.plain * len(left) // len(records), plan.disk_bytes
            prepare_ahead(survey.parent, pipeline, tasks, processes, space, self._index, say)
        with build_lock(survey.parent, say):
            remove_leftovers(survey.parent)
            survey = self._survey(pipeline, records)
            there = len(survey.ready) + len(Ahead(survey.parent).files())
            if None in survey.identities and there >= len(records):  # prepared elsewhere, maybe by other paths
                survey = self._read_unknown(pipeline, records, survey, say)
            if name in survey.built:
                return survey.built[name], []
            if absent := frozenset(survey.left(numbers)):
                return None, missing_parts(part.count, numbers, lambda number: number not in absent)
            return self._build(pipeline, records, survey, plan, say), []

    def _refuse_urls(self, records: Sequence[AnyRecord]) -> None:
        if any_at_url(records):
            remote = next(filter(at_url, records))
            url = next(place for place in remote.files.values() if isinstance(place, Url))
            cache = "the cache of an extension" if self._own else f"cache.mode {self._config.mode}"
            raise BadInput(
                f"{url}: {cache} prepares every record before training; files at URLs are streamed: set cache.mode to "
                "stream, or copy them to this machine"
            )

    @property
    def _live_mode(self) -> bool:
        return self._own is None and self._config.mode == "off"

    def _storage(self, mode: str) -> Storage:
        return self._own or STORAGES[mode]

    def _open(self, folder: Path, mode: str) -> PreparedStore:
        return PreparedStore.open(folder, self._storage(mode), device=mode == "device")

    # ------------------------------------------------------------ what is there

    def _take_plan(self, pipeline: Pipeline, records: Sequence[Record]) -> _Planned:
        """Return the last plan, once, if it is for these records, so that their files are not inspected again."""
        parent = settings_folder(self._root, pipeline.settings)
        planned, self._planned = self._planned, None
        if planned is None or planned.survey.parent != parent or not _same(planned.records, records):
            self.plan(pipeline, records)
            planned, self._planned = self._planned, None
            assert planned is not None
        return planned

    def _survey(
        self,
        pipeline: Pipeline,
        records: Sequence[Record],
        identities: SomeDigests | None = None,
        without: Container[Path] = (),
    ) -> Survey:
        parent = settings_folder(self._root, pipeline.settings)
        return survey_records(parent, records, self._index, self._storages, identities, without)

    def _known(self, records: Sequence[Record], survey: Survey, numbers: Iterable[int]) -> dict[int, Known]:
        """Return what is known of records that must be prepared, by their numbers."""
        there = [number for number in numbers if survey.identities[number] is not None]
        known = self._index.lookup(Chosen(records, there))
        return {number: own for number, own in zip(there, known, strict=True) if own is not None}

    def _size(self, pipeline: Pipeline, records: Sequence[Record], survey: Survey) -> Size:
        for name, folder in survey.built.items():
            with suppress(Damaged, OSError):
                return self._estimator.of_cache(folder, read_meta(folder), self._storages[name])
        return self._estimator.of_records(pipeline, records)

    def _open_built(
        self, pipeline: Pipeline, records: Sequence[Record], survey: Survey, mode: str, say: Say
    ) -> PreparedStore | None:
        folder = survey.built.get(self._storage(mode).name)
        if folder is None:
            return None
        try:
            return self._open_checked(pipeline, records, folder, mode)
        except Damaged as error:
            if why_not := remove(folder):
                raise BadInput(
                    f"{error} (it was not deleted: {why_not}); or set cache.dir to another folder"
                ) from error
            say(f"{error.fault}. It was deleted and is built again; this run uses none of it")
        except OSError:  # pruned by another process since the survey
            pass
        return None

    def _open_checked(self, pipeline: Pipeline, records: Sequence[Record], folder: Path, mode: str) -> PreparedStore:
        """Open a cache and begin to verify it; raise Damaged, OSError, or BadInput if its arrays are not today's."""
        store = self._open(folder, mode)
        try:
            if store.verification is not None:
                store.verification.for_seconds(math.inf if store.device else AT_OPEN)
            _refuse_stale(pipeline, records[0], store, 0)
        except BaseException:
            store.close()
            raise
        return store

    def _read_unknown(self, pipeline: Pipeline, records: Sequence[Record], survey: Survey, say: Say) -> Survey:
        """Hash files whose time or path changed, because their content may already be in a cache."""
        unknown = Chosen(records, Numbers(survey.identities.missing))
        with progress("reading files", len(unknown), say) as advance, ThreadPoolExecutor(4) as threads:
            for marks in threads.map(_marks_if_readable, unknown):
                self._index.remember(marks)
                advance()
        return self._survey(pipeline, records, survey.identities)

    # ------------------------------------------------------------ building

    def _build(self, pipeline: Pipeline, records: Sequence[Record], survey: Survey, plan: CachePlan, say: Say) -> Path:
        survey, stores = self._sources(pipeline, records, survey, say)
        reuse = {n: (stores[folder], there) for n, (folder, there) in survey.ready.items()}
        if reuse:
            are = "is" if len(reuse) == 1 else "are"
            say(f"{len(reuse)} of {counted(len(records), 'record')} {are} copied from a cache with the same settings")
        builder = Builder(
            parent=survey.parent,
            pipeline=pipeline,
            records=records,
            identities=list(survey.identities),
            known=self._known(records, survey, [n for n in range(len(records)) if n not in reuse]),
            reuse=reuse,
            ahead={number: partial(read_ahead, file) for number, file in survey.ahead.items()},
            storage=self._storage(plan.mode),
            processes=self._processes(len(records) - len(reuse) - len(survey.ahead)),
            index=self._index,
            max_bytes=math.inf if self._config.max_gb is None else self._config.max_gb * 1e9,
            needs=size_text(plan.disk_bytes),
        )
        try:
            for number, (store, there) in islice(reuse.items(), 1):
                _refuse_stale(pipeline, records[number], store, there)
            for number, file in islice(survey.ahead.items(), 1):
                _refuse_stale_ahead(pipeline, records[number], file)
            folder = builder.build(say)
            Ahead(survey.parent).discard(survey.ahead.values())
            return folder
        finally:
            for store in stores.values():
                store.close()

    def _sources(
        self, pipeline: Pipeline, records: Sequence[Record], survey: Survey, say: Say
    ) -> tuple[Survey, dict[Path, PreparedStore]]:
        """Return the opened caches to copy from, and the survey of what they and no damaged ones hold.

        Their checksums are verified first, because a copy would hide damage for good.
        """
        stores, lost = dict[Path, PreparedStore](), set[Path]()
        while folders := {folder for folder, _ in survey.ready.values()} - stores.keys():
            for folder in folders:
                try:
                    verify(folder)
                    stores[folder] = PreparedStore.open(folder, self._storages[storage_name(folder)])
                except Damaged as error:
                    say(f"{error}. Nothing is copied from it")
                    lost.add(folder)
                except OSError:  # pruned by another process since the survey
                    lost.add(folder)
            if lost:  # the same records may be in other caches
                survey = self._survey(pipeline, records, survey.identities, lost)
        return survey, stores

    def _processes(self, records: int) -> int:
        """Return `cache.workers`, or one process per core, or 1 if the work is done before others have started."""
        if self._config.workers:
            return self._config.workers
        return 1 if records * self._estimator.seconds < _SECONDS_TO_START else len(os.sched_getaffinity(0))

    def _live(self, pipeline: Pipeline, records: Sequence[Record], say: Say) -> PreparedStore:
        """Return the store of cache.mode off: every record is prepared once now for its shapes, then at every read."""
        say("cache.mode off: every record is prepared once to learn its shape, and again at every read")
        known = self._index.lookup(records)
        tasks = [Task(i, record, k) for i, (record, k) in enumerate(zip(records, known, strict=True))]
        processes = min(self._processes(len(tasks)), len(tasks))
        outcomes = []
        with (
            progress("preparing records", len(tasks), say) as advance,
            run_all(Prepare(pipeline, None), tasks, processes) as results,
        ):
            for outcome in results:
                outcomes.append(outcome)
                advance()
        outcomes.sort(key=lambda o: o.number)
        if errors := [o.error for o in outcomes if o.error]:
            raise DataErrors(errors)
        found = [o.known for o in outcomes if o.known]
        self._index.remember(mark for known in found for mark in known.marks)
        live = LiveRecords(pipeline, records)
        arrays = {
            name: LiveArray(live, name, np.dtype(part.dtype), [o.parts[name].shape for o in outcomes])
            for name, part in outcomes[0].parts.items()
        }
        keys = [r.key for r in records]
        identity = store_identity(pipeline.settings, keys, [known.identity for known in found])
        return PreparedStore(keys, [o.meta for o in outcomes], arrays, identity)


def _refuse_stale_ahead(pipeline: Pipeline, record: Record, file: Path) -> None:
    """Raise BadInput if `record` gives other arrays today than those that were prepared ahead."""
    found = read_ahead(file)
    try:
        prepared = pipeline(record).arrays
    except (BadInput, OSError):
        return
    if found is not None and (other := differing(prepared, found.arrays)):
        raise stale(file.parent.parent, pipeline, record, other)


def _marks_if_readable(record: Record) -> Sequence[FileMark]:
    try:
        return identify(record).marks
    except BadInput:
        return []  # preparing it reports the fault


def _refuse_stale(pipeline: Pipeline, record: Record, store: PreparedStore, number: int) -> None:
    """Raise BadInput if `record`, number `number` of the cache `store`, gives other arrays today.

    Raises Damaged if the cache's files cause the difference. A record whose files cannot be read is ignored.
    """
    try:
        prepared = pipeline(record).arrays
    except (BadInput, OSError):
        return
    stored = {name: array.read(number) for name, array in store.arrays.items()}
    if other := differing(prepared, stored):
        assert store.folder is not None
        verify(store.folder)
        raise stale(store.folder, pipeline, record, other)
