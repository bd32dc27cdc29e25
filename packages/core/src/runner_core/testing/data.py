"""Check what a project promises of its settings and data, and that it reads nothing beyond what it declares."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import partial
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints
from unittest import SkipTest

import numpy as np
import yaml

from runner_core.config import RunConfig
from runner_core.config.values import overlay, overlay_named, plain
from runner_core.contract import Array, Arrays, Json, Samples, StoredArray
from runner_core.contract.project import overrides
from runner_core.contract.records import Record
from runner_core.data.cache.storage import Layout, PreparedStore, Region
from runner_core.data.loader import Loader
from runner_core.data.phantoms import write_phantom
from runner_core.data.pipeline import RecordPipeline
from runner_core.plugins import discovery
from runner_core.plugins.settings import dump, refuse_nonsense
from runner_core.testing.case import Case, assert_bad_input, assert_equal, sent

_ELSEWHERE = ("train", "validate", "checkpoint", "health", "log", "cache", "precision")
"""Sections of the core's settings that no prepared array depends on."""
_USUAL = {int: 8, float: 0.5, bool: False}
"""Values that replace settings of None."""
_ALTERED: Mapping[str, Callable[[Array], Array]] = {
    "emptied": np.zeros_like,
    "inverted": lambda array: ~array if array.dtype == bool or not array.size else array.max() - array + array.min(),
}
"""Changes of arrays; values stay in the record's own range, so labels remain labels."""


def prepare_settings_name_what_prepare_reads(case: Case) -> None:
    """Check that a changed setting which keeps the cache's key also keeps the prepared arrays.

    Each setting that is read is changed in turn.
    """
    make = case.kind.presets["demo"]
    seen = _looked_at(case, make())
    key, prepare = _prepared(case, make())
    arrays = prepare()
    if seen is None or not _alike(seen[0], arrays):  # the recording settings change the project's behaviour
        seen = arrays, frozenset(name for name, _ in _changes(make()))
    for name, change in _changes(make()):
        if name.partition(".")[0] in _ELSEWHERE or name not in seen[1]:
            continue
        try:
            config = overlay(make(), change, "the contract test")
            refuse_nonsense(config)
            other_key, prepare = _prepared(case, config)
            if other_key != key:
                continue
            others = prepare()
        except Exception:  # a value that this project cannot use
            continue
        # Both would use the same cache.
        message = f"`prepare` reads {name}, which `prepare_settings` does not name: a cache would outlive its change"
        assert _alike(arrays, others), message


def fit_reads_training_records_alone(case: Case) -> None:
    """Check that `fit` learns the same, whatever the arrays of the other records hold."""
    if not overrides(case.project, "fit"):
        return
    store, training = case.data.store, case.data.splits["train"]
    learned = case.project.fit(store, training)
    for what, change in _ALTERED.items():
        arrays = {name: _Altered(array, set(training), change) for name, array in store.arrays.items()}
        message = f"`fit` reads records that are not of `training`: with theirs {what}"
        try:
            again = case.project.fit(PreparedStore(store.keys, store.meta, arrays, store.identity), training)
        except Exception as error:
            raise AssertionError(f"{message} it raises {type(error).__name__}: {error}") from error
        if learned or again:
            assert_equal(learned, again, f"{message} it learns something else: statistics")


def _prepared(case: Case, config: RunConfig) -> tuple[Mapping[str, Json], Callable[[], Arrays]]:
    """Return the cache's key under these settings, and a function that prepares the first record's arrays."""
    project = case.kind(config)
    pipeline = RecordPipeline(project, case.plugins.first("runner_crop", project=project, config=config))
    return pipeline.settings, lambda: pipeline(case.records[0]).arrays


def _looked_at(case: Case, config: RunConfig) -> tuple[Arrays, Set[str]] | None:
    """Return the first record's arrays, and the settings read while the project was made and prepared them.

    Returns None if the project does not work with settings that record their use.
    """
    names: set[str] = set()
    try:
        _, prepare = _prepared(case, _telling(deepcopy(config), "", names))
        return prepare(), names
    except Exception:
        return None


def _telling(section: Any, prefix: str, names: set[str]) -> Any:
    """Return the settings, which from now on add to `names` every setting that is read."""
    kind, own = type(section), [field.name for field in fields(section)]
    for name in own:
        if is_dataclass(value := getattr(section, name)):
            _telling(value, f"{prefix}{name}.", names)

    def tell(self: Any, name: str) -> Any:
        names.update(f"{prefix}{field}" for field in own if name in (field, "__dict__"))
        return object.__getattribute__(self, name)

    object.__setattr__(section, "__class__", type(kind.__name__, (kind,), {"__slots__": (), "__getattribute__": tell}))
    return section


def _alike(one: Arrays, other: Arrays) -> bool:
    same = one.keys() == other.keys() and all(one[n].dtype == other[n].dtype for n in one)
    return same and all(np.array_equal(one[n], other[n], equal_nan=one[n].dtype.kind in "fc") for n in one)


def _changes(section: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the dotted name of each setting below `section`, and {name: … {name: another value}}, one at a time."""
    hints = get_type_hints(type(section))
    for field in fields(section):
        value = getattr(section, field.name)
        if is_dataclass(value):
            for name, change in _changes(value):
                yield f"{field.name}.{name}", {field.name: change}
        else:
            for other in _others(hints[field.name], plain(value)):
                yield field.name, {field.name: other}


def _others(kind: Any, value: Any) -> Iterator[Any]:
    """Yield other values of a setting of this type, near its own; none for text and paths."""
    if get_origin(kind) in (Union, UnionType):
        (kind, *_) = [option for option in get_args(kind) if option is not type(None)]
        value = _USUAL.get(kind) if value is None else value
    if get_origin(kind) is Literal:
        yield from (choice for choice in get_args(kind) if choice != value)
    elif kind is bool:
        yield not value
    elif kind is int:
        yield from (value + 1, value + 2, 2 * value)
    elif kind is float:
        yield from (1.25 * value + 0.1, value / 2)
    elif get_origin(kind) in (tuple, list) and value:
        for place, item in enumerate(value):
            kinds = get_args(kind)
            for other in _others(kinds[min(place, len(kinds) - 1) if Ellipsis not in kinds else 0], item):
                yield [*value[:place], other, *value[place + 1 :]]
        yield value[:-1]


class _Altered(Layout):
    """A stored array whose records hold something else, except those in `kept`."""

    def __init__(self, own: StoredArray, kept: set[int], change: Callable[[Array], Array]) -> None:
        super().__init__(np.dtype(own.dtype), own.shapes)
        self._own, self._kept, self._change = own, kept, change

    def read(self, record: int, region: Region | None = None) -> Array:
        array = self._own.read(record)
        array = array if record in self._kept else self._change(array)
        return array if region is None else array[region]

    def take(self, rows: Array, out: Array) -> None:
        self.row_shape()
        for record, places, own in self.by_record(rows):
            out[places] = self.read(record)[own]


_FRAMEWORKS = ("torch", "tensorflow", "keras", "jax")
_LOADED = """
import sys
from runner_core.plugins.discovery import find_project
from runner_core.data.pipeline import RecordPipeline

find_project({name!r}).entry.load().runner_project()
print("imports:", *[name for name in {frameworks!r} if name in sys.modules])
"""


def settings_survive_yaml(case: Case) -> None:
    """Check that every preset is valid, survives YAML, and is made anew each time."""
    for preset, make in case.kind.presets.items():
        config = make()
        assert isinstance(config, case.kind.Config), f"preset {preset} is no {case.kind.Config.__name__}"
        assert isinstance(config, RunConfig), f"preset {preset}: Config must subclass RunConfig"
        refuse_nonsense(config)
        again = overlay(make(), yaml.safe_load(dump(config)), f"preset {preset}")
        assert again == config, f"preset {preset} changes when it is saved and read back"
        config.train.seed += 1
        assert make() != config, f"preset {preset} returns the same object each time: it must make a new one"


def optimisations_can_be_switched_off(case: Case) -> None:
    """Check that each optimisation has its own name and switches existing settings, alone and with the others."""
    there = case.project.learning().optimisations
    names = [optimisation.name for optimisation in there]
    assert len(set(names)) == len(names), f"optimisations share a name: {', '.join(names)}"
    together = {setting: value for optimisation in there for setting, value in optimisation.off.items()}
    cases = [*((f"optimisation {o.name}", o.off) for o in there), ("all optimisations", together)]
    for preset, make in case.kind.presets.items():
        for name, off in cases:
            config = overlay_named(make(), off, f"preset {preset} without {name}")
            refuse_nonsense(config)
            case.kind(config)


def plugin_imports_no_framework(case: Case) -> None:
    """Check that loading the plugin and the project's class imports no framework.

    `config`, `--help` and the cache's workers load them, and each would wait for seconds.
    """
    plugin = discovery.find_project(case.kind.name).entry.value
    code = _LOADED.format(name=case.kind.name, frameworks=_FRAMEWORKS)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"the plugin {plugin} cannot be loaded alone:\n{done.stderr}"
    imported = done.stdout.rpartition("imports:")[2].strip()
    assert not imported, f"loading the class of {plugin} imports {imported}: import it where it is used"


def phantom_is_written_and_read(case: Case) -> None:
    """Check that the phantom is written, found, and always the same, with unique keys and at least two groups."""
    records = case.records
    second = write_phantom(case.project, case.folder / "phantom again")
    again = case.project.records(second)
    keys = [r.key for r in records]
    assert len(set(keys)) == len(keys) > 1, f"the phantom needs two records or more, with unique keys: {keys}"
    assert len({r.group for r in records}) > 1, "the phantom needs two groups, so that it can be split"
    assert [r.key for r in again] == keys, "the phantom's records differ from one writing to the next"
    for record in records:
        for role, file in record.files.items():
            assert file.exists(), f"record {record.key}: its {role} {file} does not exist"
    one, other = case.project.decode(records[0]).arrays, case.project.decode(again[0]).arrays
    assert_equal(one, other, "phantom written twice from one seed")
    shutil.rmtree(second)


def bad_input_is_refused_by_name(case: Case) -> None:
    """Check that a missing or empty folder and truncated files raise BadInput that names them."""
    project = case.project
    empty = case.folder / "empty"
    empty.mkdir()
    for folder in (empty, case.folder / "missing"):
        assert_bad_input(partial(project.records, folder), folder)
    broken = case.folder / "broken"
    roles = [role for role, file in case.records[0].files.items() if file.is_file()]
    for role in roles:
        shutil.copytree(case.phantom, broken)
        record = project.records(broken)[0]
        file = record.files[role]
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

        def read(record: Record = record) -> Any:
            return project.decode(next(r for r in project.records(broken) if r.key == record.key))

        assert_bad_input(read, file)
        shutil.rmtree(broken)
    if not roles:
        raise SkipTest(f"{case.kind.name} reads folders: no file of a record could be cut off")


def prepare_is_pure(case: Case) -> None:
    """Check that preparing a record depends on that record alone, in this process and in another (it is pickled)."""
    pipeline = RecordPipeline.of(case.setup)
    first, second = case.records[0], case.records[1]
    before = pipeline(first)
    pipeline(second)
    after = pipeline(first)
    assert_equal(before.arrays, after.arrays, "prepare, called twice on one record")
    assert before.meta == after.meta, "prepare returns other meta for the same record"
    elsewhere = sent(pipeline)(first)
    assert_equal(before.arrays, elsewhere.arrays, "prepare in another process")
    for name, array in before.arrays.items():
        assert array.dtype != object, f"prepared array {name!r} holds Python objects"
        assert array.dtype.name not in ("float64", "complex128"), (
            f"prepared array {name!r} is {array.dtype}, twice what it must be on disk and on its way to the device: "
            "return float32, or integers"
        )
    checks = case.project.checks()
    found_by = {
        "checks.record": () if checks.record is None else checks.record(first),
        "checks.records": () if checks.records is None else checks.records(case.records),
    }
    for name, found in found_by.items():
        faults = [finding for finding in found if finding.level == "error"]
        assert not faults, f"`{name}` finds errors in the phantom: {faults}"


def annotation_counts_voxels(case: Case) -> None:
    """Check that `annotation` counts the voxels of each class.

    Its counts are the same twice and no larger than the number of voxels, it does not change its input, and all records
    of the phantom have the same classes.
    """
    annotation = case.project.checks().annotation
    if annotation is None:
        raise SkipTest("the project has no `annotation`")
    names: set[tuple[str, ...]] = set()
    for record in case.records[:3]:
        decoded = RecordPipeline.of(case.setup).decode(record)
        before = {name: array.copy() for name, array in decoded.arrays.items()}
        found = annotation(decoded)
        assert_equal(before, decoded.arrays, "the arrays that `annotation` is given")
        assert found == annotation(decoded), "`annotation`, called twice, differs"
        if found is None:
            continue
        names.add(tuple(found.counts))
        largest = max(array.size for array in decoded.arrays.values())
        numbers = {**found.counts, "ignored": found.ignored or 0, "all": found.annotated + (found.ignored or 0)}
        for name, count in numbers.items():
            assert type(count) is int, f"`annotation`: {name} is {type(count).__name__}, not an int"
            assert 0 <= count <= largest, f"`annotation`: {name} is {count:,} of {largest:,} voxels"
    assert len(names) <= 1, f"`annotation` names other classes in other records (0 for those that one lacks): {names}"


def split_is_by_group(case: Case) -> None:
    """Check that no group is in two splits, and that both splits have records."""
    groups = {side: {case.records[n].group for n in numbers} for side, numbers in case.data.splits.items()}
    assert not groups["train"] & groups["validation"], f"groups on both sides: {groups}"


def samples_are_pure(case: Case) -> None:
    """Check that samples match their spec and are a pure function of (seed, epoch, index), also in another process."""
    for side, samples in case.data.samples.items():
        indices = np.arange(min(len(samples), 6), dtype=np.int64)
        assert len(indices), f"there are no {side} samples"
        one = _fill(samples, indices)
        assert_equal(one, _fill(samples, indices, before=1), f"{side} samples filled twice, into memory that differs")
        backwards = {name: array[::-1] for name, array in _fill(samples, indices[::-1]).items()}
        assert_equal(one, backwards, f"{side} samples filled in another order")
        elsewhere: Samples = sent(samples)
        assert_equal(one, _fill(elsewhere, indices), f"{side} samples in another process")


def batches_do_not_depend_on_workers(case: Case) -> None:
    """Check that training batches, with the project's host augmentation, do not depend on 0, 1 or 2 workers."""
    alone = list(_batches(case, 0))
    assert alone, "there are no training batches"
    for workers in (1, 2):
        found = list(_batches(case, workers))
        assert_equal(alone, found, f"training batches from {workers} worker{'s'[: workers > 1]}")


def _batches(case: Case, workers: int) -> Iterator[Arrays]:
    """Yield copies of three batches of two from the middle of an epoch."""
    augment = case.project.learning().augment
    loader = Loader(case.data.samples["train"], batch_size=2, seed=7, shuffle=True, steps_per_epoch=4,
                    workers=workers, augment=augment)  # fmt: skip
    try:
        for batch in loader.batches(2, first_step=1):
            yield {name: array.copy() for name, array in batch.arrays.items()}
            batch.release()
    finally:
        loader.close()


def _fill(samples: Samples, indices: Any, before: int = 0) -> Arrays:
    """Fill samples into memory that holds `before`; `fill` must overwrite all of it."""
    out = {name: np.full((len(indices), *spec.shape), before, spec.dtype) for name, spec in samples.spec.items()}
    samples.fill(indices, np.asarray(indices), 3, 5, out)
    return out
