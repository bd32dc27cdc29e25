"""A survey of what is prepared already of some records: their own cache, records in other caches, and those ahead."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runner_core.contract.records import Record
from runner_core.data.blocks import Chosen
from runner_core.data.cache.ahead import Ahead
from runner_core.data.cache.folder import Damaged, cache_folder, caches, read_meta
from runner_core.data.cache.identity import Identities
from runner_core.data.columns import Numbers, SomeDigests
from runner_core.data.table import keys_of


@dataclass(frozen=True)
class Survey:
    """The prepared arrays that exist already.

    `built` holds the finished cache of exactly these records, by storage. `ready` maps a record number to the folder
    and the number in it that hold its prepared arrays, in any cache of these settings.
    """

    parent: Path
    identities: SomeDigests
    built: Mapping[str, Path]
    ready: Mapping[int, tuple[Path, int]]
    ahead: Mapping[int, Path]
    """Record number → file of a record that was prepared ahead and is in no cache."""

    def left(self, numbers: Iterable[int]) -> list[int]:
        """Return those of the records that must be prepared."""
        return [number for number in numbers if number not in self.ready and number not in self.ahead]


class _Whole(Mapping[int, tuple[Path, int]]):
    """`Survey.ready` if a cache has exactly these records: each is there under its own number."""

    def __init__(self, folder: Path, records: int) -> None:
        self._folder, self._numbers = folder, range(records)

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __contains__(self, number: object) -> bool:
        return number in self._numbers

    def __getitem__(self, number: int) -> tuple[Path, int]:
        if number not in self._numbers:
            raise KeyError(number)
        return self._folder, number


def survey_records(
    parent: Path,
    records: Sequence[Record],
    index: Identities,
    storages: Collection[str],
    identities: SomeDigests | None = None,
    without: Container[Path] = (),
) -> Survey:
    """Find what exists below the folder of a pipeline's settings, in caches of `storages`, except those `without`.

    `identities` are from an earlier survey: only files of records that it did not know are inspected.
    """
    if identities is None:
        identities = index.identities(records)
    elif len(missing := identities.missing):
        identities = identities.filled(missing, index.identities(Chosen(records, Numbers(missing))))
    keys, built = keys_of(records), dict[str, Path]()
    if (complete := identities.complete) is not None:
        any_of_them = cache_folder(parent, keys, complete, "any")
        folders = {name: any_of_them.with_suffix(f".{name}") for name in storages}
        built = {name: folder for name, folder in folders.items() if folder.exists() and folder not in without}
    for folder in built.values():
        with suppress(Damaged):
            read_meta(folder)
            return Survey(parent, identities, built, _Whole(folder, len(records)), {})
    places: dict[tuple[str, str], tuple[Path, int]] = {}
    for folder in caches(parent):
        if storage_name(folder) not in storages or folder in without:
            continue
        with suppress(Damaged):
            meta = read_meta(folder)
            pairs = zip(meta.keys, meta.identities, strict=True)
            places |= {pair: (folder, number) for number, pair in enumerate(pairs)}
    ready = {
        number: places[key, identity]
        for number, (key, identity) in enumerate(zip(keys, identities, strict=True))
        if identity is not None and (key, identity) in places
    }
    return Survey(parent, identities, built, ready, _ahead(parent, keys, identities, ready))


def _ahead(
    parent: Path, keys: Sequence[str], identities: Sequence[str | None], ready: Container[int]
) -> dict[int, Path]:
    files, found = Ahead(parent), dict[int, Path]()
    if files.folder.is_dir():
        for number, (key, identity) in enumerate(zip(keys, identities, strict=True)):
            if identity is not None and number not in ready:
                file = files.file(key, identity)
                if file.is_file():
                    found[number] = file
    return found


def storage_name(cache: Path) -> str:
    """Return the name of the storage that wrote a cache."""
    return cache.suffix.removeprefix(".")
