"""Training from volumes that memory cannot hold: patches are read from zarr chunk by chunk, wherever the zarr lies.

Nothing is prepared but counts (`census`); `patchstore` has the arrays that samples read, `newest` their volumes.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from runner_core import (
    AnyRecord,
    Array,
    BadInput,
    CachePlan,
    DataErrors,
    Json,
    Location,
    Lru,
    Pipeline,
    Store,
    Url,
    cache_root,
    counted,
    location,
    shape_text,
)

from runner_vesuvius import census
from runner_vesuvius.census import Census
from runner_vesuvius.chunked import Region
from runner_vesuvius.config import ScrollConfig
from runner_vesuvius.labels import OWN, values_of
from runner_vesuvius.newest import Chunks, Labels, Newest, digest, mark_of
from runner_vesuvius.patchstore import HALO, Pair, VolumeStore
from runner_vesuvius.volumes import refuse_large

MEMORY = 256_000_000
"""Bytes of decoded chunks that each process keeps."""
LARGEST_READ = 1_000_000_000
"""Most bytes that the chunks of one patch may take."""
ROLES = ("image", "label", "annotated")
_AT = "_at"
"""What follows a role in the name of a record's value that holds a URL."""
_VERSION = 1
_SHARE_OF_DISK = 0.5


def places(record: AnyRecord) -> dict[str, Location]:
    """Return where the volumes of a record lie, by role: its files, or the URLs among its values."""
    urls = {role: location(str(record.values[role + _AT])) for role in ROLES if role + _AT in record.values}
    return {**{role: record.files[role] for role in ROLES if role in record.files}, **urls}


def at(role: str) -> str:
    """Return the name of the record's value that holds the URL of a role."""
    return role + _AT


def by_chunks(config: ScrollConfig, record: AnyRecord) -> bool:
    """Return whether a labelled volume is trained from chunk by chunk because memory cannot hold it."""
    if config.cache.mode not in ("auto", "stream") or not _chunked(record):
        return False
    if any(isinstance(place, Url) for place in places(record).values()):
        return True
    try:
        refuse_large(record.files)
    except BadInput:
        return True
    return False


def cache_for(config: ScrollConfig, records: Sequence[AnyRecord]) -> VolumeCache | None:
    """Return the cache of volumes that are read chunk by chunk: if memory cannot hold one, or if it is asked for.

    Raises BadInput if others among them are no zarr volumes, or if the settings ask for another cache of URLs.
    """
    other = next((record for record in records if not _chunked(record)), None)
    if config.cache.mode == "stream" and records and other is None:
        return VolumeCache(config)
    remote = next((record for record in records if any(role + _AT in record.values for role in ROLES)), None)
    if config.cache.mode not in ("auto", "stream"):
        if remote is not None:
            raise BadInput(f"{remote.key} is at a URL: cache.mode {config.cache.mode} cannot hold it; set stream")
        return None
    if (large := next((record for record in records if by_chunks(config, record)), None)) is None:
        return None
    if other is not None:
        raise BadInput(
            f"{places(other)['image']}: memory cannot hold {large.key}, which is read chunk by chunk, and then all "
            "volumes and labels must be zarr. Write it so."
        )
    return VolumeCache(config)


def _chunked(record: AnyRecord) -> bool:
    """Return whether a record has a label and consists of zarr volumes."""
    where = places(record)
    zarr = (place.suffix.lower() == ".zarr" or isinstance(place, Url) for place in where.values())
    return "label" in where and all(zarr)


# ------------------------------------------------------------ the cache


class VolumeCache:
    """Opens volumes chunk by chunk. On disk it keeps counts of the labels, and the newest chunks of volumes at URLs."""

    def __init__(self, config: ScrollConfig) -> None:
        self._config = config
        self._root = cache_root(config.cache.dir)
        self._newest = Newest(MEMORY)

    def plan(self, pipeline: Pipeline, records: Sequence[AnyRecord]) -> CachePlan:
        """Return the plan: memory for chunks, and disk for those from URLs; nothing is written."""
        ready = sum(self._file(record).is_file() for record in records)
        remote = any(isinstance(place, Url) for record in records for place in places(record).values())
        processes = 1 + self._config.train.workers
        note = (
            "volumes are read chunk by chunk, and no target is kept; cache.mode stream asks for it, also where memory "
            "would do"
        )
        bound = self._bound() if remote else 0
        return CachePlan("stream", len(records), ready, bound, processes * MEMORY, 0, self._root, (note,))

    def open(self, pipeline: Pipeline, records: Sequence[AnyRecord], say: Callable[[str], None]) -> Store:
        """Count each label unless that was done before, and return the store; DataErrors lists all bad volumes."""
        _refuse_settings(self._config)
        pairs, faults = [], []
        for record in records:
            try:
                pairs.append(self.pair(record))
            except BadInput as error:
                faults.append(str(error))
        if faults:
            raise DataErrors(faults)
        blocks = sum(len(pair.census.blocks) for pair in pairs)
        sampled = sum(pair.census.sampled for pair in pairs)
        say(f"{counted(len(pairs), 'volume')} of {blocks:,} blocks: all labels are counted, {sampled:,} blocks of the "
            "images were read for statistics")  # fmt: skip
        named = [digest([record.key, self._identity(record)]) for record in records]
        identity = digest([dict(pipeline.settings), "chunk by chunk", _VERSION, named])
        from runner_vesuvius.batches import needed

        loss = self._config.loss
        wanted = set() if loss.targets == "step" else needed(loss)
        return VolumeStore(pairs, identity, self._config.data.tube, wanted)

    def pair(self, record: AnyRecord) -> Pair:
        """Open a labelled volume and count it, unless that was done before; raises BadInput."""
        where, remote = places(record), self._config.remote
        if len({"image", "label"} & set(where)) < 2:
            raise BadInput(f"{record.key}: training needs an image and a label")
        meanings = OWN if isinstance(where["label"], Url) else values_of(where["label"])
        image = Chunks(where["image"], remote, self._newest, None, self._disk(where["image"]))
        label = Chunks(where["label"], remote, self._newest, meanings, self._disk(where["label"]))
        if image.shape != label.shape:
            raise BadInput(
                f"{label.place}: {shape_text(label.shape)} voxels, but its image {image.place} has "
                f"{shape_text(image.shape)}. They must be of one grid: is it another volume's label?"
            )
        for volume in (image, label):
            self._refuse_chunks(volume)
        own = Labels(label, where.get("annotated"), remote)
        blocks = census.blocks_of(label.shape, label.chunks)
        file = self._file(record)
        found = Census.read(file, blocks)
        if found is None:
            found = census.take(record.key, image, own, blocks)
            file.parent.mkdir(parents=True, exist_ok=True)
            found.write(file)
        census.refuse_useless(record.key, found, image)
        return Pair(record.key, image, own, found)

    def _refuse_chunks(self, volume: Chunks) -> None:
        """Raise BadInput for a volume of which one patch decodes too much."""
        reach = [
            min(n, (-(-(side + 2 * HALO) // chunk) + 1) * chunk)
            for side, chunk, n in zip(self._config.data.patch, volume.chunks, volume.shape, strict=True)
        ]
        if math.prod(reach) > LARGEST_READ:
            raise BadInput(
                f"{volume.place}: in chunks of {shape_text(volume.chunks)} a patch decodes "
                f"{math.prod(reach) / 1e9:.2g} GB. Write the volume in smaller chunks, 128³ for example."
            )

    def _disk(self, place: Location) -> Lru | None:
        if not isinstance(place, Url):
            return None
        folder = self._root / "vesuvius-chunks"
        folder.mkdir(parents=True, exist_ok=True)
        return Lru(folder, self._bound())

    def _bound(self) -> int:
        """Return the bytes of chunks from URLs that the disk may keep: `cache.max_gb`, or half of what is free."""
        if self._config.cache.max_gb is not None:
            return int(self._config.cache.max_gb * 1e9)
        there = next(folder for folder in (self._root, *self._root.parents) if folder.exists())
        return int(shutil.disk_usage(there).free * _SHARE_OF_DISK)

    def _file(self, record: AnyRecord) -> Path:
        return self._root / "vesuvius-volumes" / f"{digest([_VERSION, self._identity(record)])}.npz"

    def _identity(self, record: AnyRecord) -> list[Json]:
        """Return what changes when the record's volumes do."""
        where = places(record)
        meanings = {} if isinstance(where.get("label", Url("")), Url) else values_of(Path(str(where["label"])))
        return [*([role, *mark_of(place, self._config.remote)] for role, place in sorted(where.items())), str(meanings)]


def piece(config: ScrollConfig, record: AnyRecord) -> tuple[dict[str, Array], Pair, Region]:
    """Return image and label of the piece of a volume that `check` looks at, the volume, and the piece's region.

    It is the block of the label with the most surface, widened to a patch if it is smaller.
    """
    pair = VolumeCache(config).pair(record)
    parts = []
    for part, side, n in zip(pair.census.densest, config.data.patch, pair.image.shape, strict=True):
        start = max(0, min(part.start, n - side))
        parts.append(slice(start, min(n, max(part.stop, start + side))))
    region = parts[0], parts[1], parts[2]
    return {"image": pair.image.read(region), "label": pair.label.read(region)}, pair, region


def _refuse_settings(config: ScrollConfig) -> None:
    if config.data.first_stage is not None:
        raise BadInput("a second stage (data.first_stage) does not train from volumes chunk by chunk: cut pieces")
    if config.crop.mode not in ("auto", "none"):
        raise BadInput(f"crop.mode {config.crop.mode}: volumes that are read chunk by chunk are not cropped")
