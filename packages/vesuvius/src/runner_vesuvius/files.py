"""Finding volumes and their labels.

train_images/ID.tif   with train_labels/ID.tif, and train.csv (id,scroll_id) beside the two folders (the challenge's)
images/ID.tif         with labels/ID.tif, likewise; the manifest has any name
imagesTr/ID_0000.tif  with labelsTr/ID.tif (nnU-Net), likewise

at any depth, and .npy files or .zarr folders instead of tifs. Without a manifest, a file's name says its scroll: it is
what stands before the first underscore, SCROLL_ID. (What follows may hold more of them: a scroll taken too widely keeps
training and validation apart all the same, one taken too narrowly does not.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from runner_core import BadInput, Record, walk
from runner_core._files import folder_split, unique_keys

from runner_vesuvius import manifest
from runner_vesuvius.volumes import SUFFIXES

LAYOUT = (
    "train_images with train_labels and train.csv (id,scroll_id) beside them, images with labels, or imagesTr with "
    "labelsTr; in them .tif, .npy or .zarr volumes"
)
_PAIRS = {"train_images": "train_labels", "images": "labels", "imagestr": "labelstr"}
"""Folders of images, in small letters, and of their labels."""
_UNLABELLED = ("test_images", "imagests")
_TEXT = (".json", ".txt", ".csv", ".xml", ".yaml", ".md")
"""Suffixes of what is written beside volumes; nnU-Net has ID.json of each."""
_CHANNEL = ("imagestr", "imagests")
"""Folders of nnU-Net's, in whose names _0000 is the channel."""


def find_records(root: Path) -> list[Record]:
    """Every volume below `root` with its label; the group is the scroll.

    A partner that is missing is named where it should be, so that decoding says so for every record at once. Raises
    BadInput when there is nothing of the kind, and where a scroll is not known.
    """
    _must_be_folder(root)
    found: list[tuple[Path, Path, str]] = []
    for images, labels in _pairs_below(root):
        found += _paired(images, labels)
    if not found:
        other = next((path for folders in _pairs_below(root) for f in folders for path in _others(f)), None)
        there = f" {other} is not read." if other else ""
        raise BadInput(f"{root}: no volumes with labels below it. Looked for {LAYOUT}.{there}")
    keys = unique_keys([image for image, _, _ in found], root, stem)
    records = [
        Record(keys[image], scroll, {"image": image, "label": label}, folder_split(image, root))
        for image, label, scroll in found
    ]
    return sorted(records, key=lambda record: record.key)


def find_inputs(path: Path) -> list[Record]:
    """Volumes to predict: a file, or those below a folder (in folders of images, if some are named so)."""
    if path.suffix.lower() in SUFFIXES:
        volumes = [path]
    elif path.is_file():
        raise BadInput(f"{path}: not a volume; {', '.join(SUFFIXES)} are read.")
    else:
        _must_be_folder(path)
        below = list(_volumes_below(path))
        named = [p for p in below if p.parent.name.lower() in (*_PAIRS, *_UNLABELLED)]
        volumes = named or [p for p in below if p.parent.name.lower() not in _PAIRS.values()]
    if not volumes:
        raise BadInput(f"{path}: no volume below it ({', '.join(SUFFIXES)}; folders of labels are left out).")
    keys = unique_keys(volumes, path, stem)
    records = [Record(keys[p], _scroll(stem(p)) or stem(p), {"image": p}) for p in volumes]
    return sorted(records, key=lambda record: record.key)


def stem(path: Path) -> str:
    """The id: a volume's name without its suffix, and without the channel where nnU-Net's folders have one.

    >>> stem(Path("train_images/1407735.tif")), stem(Path("imagesTr/s1_12_0000.tif"))
    ('1407735', 's1_12')
    """
    return path.stem.removesuffix("_0000") if path.parent.name.lower() in _CHANNEL else path.stem


def _pairs_below(root: Path) -> Iterator[tuple[Path, Path]]:
    """Folders of images and of their labels. Raises BadInput where one of the two is missing."""
    for folder, folders, _ in walk(root):
        here = {name.lower(): folder / name for name in folders}
        for images, labels in _PAIRS.items():
            if images in here and labels in here:
                yield here[images], here[labels]
            elif (one := here.get(images) or here.get(labels)) and folder_split(one / "x", root) != "test":
                other = labels if images in here else images
                raise BadInput(f"{one}: no folder {other} beside it. Looked for {LAYOUT}.")
        folders[:] = [name for name in folders if not name.lower().endswith(".zarr")]


def _paired(images: Path, labels: Path) -> list[tuple[Path, Path, str]]:
    """Image, label and scroll of every volume of two folders."""
    here, there = _by_id(images), _by_id(labels)
    others = _others(labels)
    pairs = {
        key: (path, there.get(key) or _partner(labels / f"{key}{path.suffix}", others)) for key, path in here.items()
    }
    channel = "_0000" if images.name.lower() in _CHANNEL else ""
    others = _others(images)
    for key, path in there.items():  # labels whose image is gone
        pairs.setdefault(key, (_partner(images / f"{key}{channel}{path.suffix}", others), path))
    scrolls = _scrolls(images, list(pairs)) if pairs else {}
    return [(image, label, scrolls[key]) for key, (image, label) in pairs.items()]


def _partner(missing: Path, others: Sequence[Path]) -> Path:
    """The one of the folder's other files that is `missing` in a format that is not read, if there is one: decoding
    then says so."""
    return next((p for p in others if p.name.startswith(f"{missing.stem}.")), missing)


def _others(folder: Path) -> list[Path]:
    """What lies in a folder of volumes and may be one of a format that is not read."""
    there = [p for p in sorted(folder.iterdir()) if not p.name.startswith(".")]
    return [p for p in there if p.suffix.lower() not in (*SUFFIXES, *_TEXT)]


def _by_id(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in _volumes_in(folder):
        if (other := found.setdefault(stem(path), path)) != path:
            raise BadInput(f"{path}: {other.name} beside it has the same id, {stem(path)}. Keep one of them.")
    return found


def _scrolls(images: Path, keys: Sequence[str]) -> Mapping[str, str]:
    """The scroll of each id: of the manifest, or of the names."""
    if table := _manifest(images):
        return manifest.scrolls(table, keys)
    named = {key: _scroll(key) for key in keys}
    for key, scroll in named.items():
        if not scroll:
            how = images.parent / ("train.csv" if images.name.lower() == "train_images" else "manifest.csv")
            raise BadInput(
                f"{images}: of which scroll is {key}? Training and validation are split by scroll. Write {how} with "
                "the columns id,scroll_id and a row for each volume, or name every file SCROLL_ID, such as "
                f"PHerc1667_{key}."
            )
    return named


def _manifest(images: Path) -> Path | None:
    """The CSV file beside a folder of images; the challenge has several, of which train.csv is it."""
    tables = [p for p in sorted(images.parent.glob("*.[cC][sS][vV]")) if p.is_file() and not p.name.startswith(".")]
    if images.name.lower() == "train_images":
        tables = [p for p in tables if p.name.lower() == "train.csv"]
    if len(tables) > 1:
        shown = ", ".join(p.name for p in tables)
        raise BadInput(f"{images.parent}: which of {shown} is the manifest (id,scroll_id)? Leave only that one there.")
    return tables[0] if tables else None


def _scroll(key: str) -> str:
    """What a name says of its scroll, or nothing.

    >>> _scroll("PHerc1667_0012"), _scroll("1407735")
    ('PHerc1667', '')
    """
    scroll, _, rest = key.partition("_")
    return scroll if rest else ""


def _volumes_below(root: Path) -> Iterator[Path]:
    for folder, folders, names in walk(root):
        zarrs = [name for name in folders if name.lower().endswith(".zarr")]
        folders[:] = [name for name in folders if name not in zarrs]
        yield from (folder / name for name in sorted(zarrs + _files(names)))


def _volumes_in(folder: Path) -> list[Path]:
    return [path for path in _volumes_below(folder) if path.parent == folder]


def _files(names: Sequence[str]) -> list[str]:
    return [name for name in names if Path(name).suffix.lower() in SUFFIXES and not name.lower().endswith(".zarr")]


def _must_be_folder(path: Path) -> None:
    if not path.exists():
        raise BadInput(f"{path}: no such folder.")
    if not path.is_dir():
        raise BadInput(f"{path}: not a folder. Give the folder that holds {LAYOUT}.")
