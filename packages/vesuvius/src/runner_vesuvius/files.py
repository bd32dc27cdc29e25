"""Find volumes and their labels.

train_images/ID.tif   with train_labels/ID.tif, and train.csv (id,scroll_id) beside the two folders (the challenge's;
                      volumes in deprecated_train_images, which its hosts took back, are left out)
images/ID.tif         with labels/ID.tif, likewise; the manifest has any name
imagesTr/ID_0000.tif  with labelsTr/ID.tif and dataset.json (nnU-Net), likewise
any others            by a table of pairs (data.manifest) or by patterns (data.pattern)

The folders may lie at any depth and hold .npy or .nii.gz files or .zarr folders instead of tifs. Without a manifest,
the part of a file's name before the first underscore is its scroll: SCROLL_ID. (The rest may hold more underscores: a
scroll taken too widely still keeps training and validation apart, a scroll taken too narrowly does not.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from runner_core import (
    IMAGE_FOLDERS,
    LABEL_FOLDERS,
    SIDECAR_SUFFIXES,
    AnyRecord,
    BadInput,
    Pair,
    PairsConfig,
    Record,
    Url,
    counted,
    first_few,
    is_table,
    leave_out,
    list_inputs,
    list_pairs,
    location,
    match_by_name,
    refuse_special_file,
    split_of_folder,
    unique_keys,
    walk,
    without_channel,
)

from runner_vesuvius import manifest
from runner_vesuvius.labels import OWN, refuse_dataset, values_of
from runner_vesuvius.volumes import SUFFIXES, suffix

LAYOUT = (
    "train_images with train_labels and train.csv (id,scroll_id) beside them, images with labels, or imagesTr with "
    "labelsTr; in them .tif, .npy, .nii.gz or .zarr volumes"
)
_UNLABELLED = ("test_images", "imagests")
_DEPRECATED = "deprecated_"
"""Prefix of the folders with volumes and labels that the challenge's hosts took back."""


def find_records(root: Path, data: PairsConfig | None = None) -> list[AnyRecord]:
    """Find every volume with its label below `root`, or in a table or by patterns (`data`); the group is the scroll.

    A missing partner is listed where it should be, so that decoding reports it for every record at once. `leave_out`
    receives a note if a train.csv is not read. Raises BadInput if there is no such volume, or if a scroll is not known.
    """
    if (table := named_table(root, data)) is not None and (at_urls := manifest.url_rows(table)) is not None:
        return [_url_pair(row) for row in at_urls]
    if (pairs := list_pairs(root, data or PairsConfig(), is_volume, stem)) is not None:
        for text in dict.fromkeys(_unread(own.image) for own in pairs if own.group is None):
            if text:
                leave_out(f"{text} The files' names say the scrolls.")
        return [
            Record(own.key, own.group or _named_scroll(own.image), _with_mask(own, own.label, root, data), own.split)
            for own in pairs
            if own.label is not None
        ]
    _must_be_folder(root)
    found: list[tuple[Path, Path, str]] = []
    for images, labels in _pairs_below(root):
        found += _paired(images, labels)
    if not found:
        other = next((path for folders in _pairs_below(root) for f in folders for path in _others(f)), None)
        there = f" {other} is not read." if other else ""
        if root.name.lower().removeprefix(_DEPRECATED) in (*IMAGE_FOLDERS, *LABEL_FOLDERS):
            there += f" Did you mean {root.absolute().parent}, in which {root.name} lies?"
        raise BadInput(f"{root}: no volumes with labels below it. Looked for {LAYOUT}.{there}")
    keys = unique_keys([image for image, _, _ in found], root, stem)
    records = [
        Record(
            keys[image], scroll, {"image": image, "label": label}, split_of_folder(image, root), values=_values(label)
        )
        for image, label, scroll in found
    ]
    return sorted(records, key=lambda record: record.key)


def _url_pair(row: Mapping[str, str]) -> AnyRecord:
    """Return the record of a table's row that names volumes at URLs: they stand among its values, as they are no files.

    Raises BadInput for an image that is no zarr volume, and without a scroll.
    """
    image = location(row["image"])
    key = row["id"] or (url_record(image).key if isinstance(image, Url) else stem(image))
    scroll = row["scroll"] or _scroll(key)
    if not scroll:
        raise BadInput(f"{image}: of which scroll is it? Add a column scroll to the table.")
    values = {f"{role}_at": row[role] for role in ("image", "label", "annotated") if row[role]}
    return Record(key, scroll, {}, row["split"] or None, values=values)


def _with_mask(pair: Pair, label: Path, root: Path, data: PairsConfig | None) -> dict[str, Path]:
    """Return a pair's files, with the mask that a table's column `annotated` names beside them."""
    files = {"image": pair.image, "label": label}
    if not (named := pair.values.get("annotated")):
        return files
    table = named_table(root, data)
    mask = Path(str(named))
    if ".." in mask.parts:
        raise BadInput(f"{table}: the path {named} has `..` in it. Write it in full.")
    below = root.parent if table == root else root
    if not (path := below / mask).exists():
        raise BadInput(f"{table}: {path}: no such mask (column annotated).")
    return {**files, "annotated": path}


def _values(label: Path) -> dict[str, str]:
    """Return the values that mean other things than here: with another dataset.json, it is another record."""
    meanings = values_of(label)
    return {} if meanings.items() <= OWN.items() else {"label_values": str(sorted(meanings.items()))}


def find_inputs(path: Path, data: PairsConfig | None = None) -> list[Record]:
    """Find volumes to predict: a file, the files of a table or of `data.pattern`, or the volumes below a folder.

    If some volumes below a folder lie in folders of images, the others are left out: `leave_out` receives a note.
    """
    if (own := list_inputs(path, data or PairsConfig(), is_volume, stem)) is not None:
        return [Record(pair.key, pair.group or pair.key, {"image": pair.image}) for pair in own]
    if suffix(path.name):
        volumes = [path]
    elif path.is_file():
        raise BadInput(f"{path}: not a volume; {', '.join(SUFFIXES)} are read.")
    else:
        _must_be_folder(path)
        below = list(_volumes_below(path))
        named = [p for p in below if p.parent.name.lower() in (*IMAGE_FOLDERS, *_UNLABELLED)]
        volumes = named or [p for p in below if not p.parent.name.lower().endswith(LABEL_FOLDERS)]
        if left := [p.relative_to(path).as_posix() for p in below if p not in set(volumes)]:
            why = "in no folder of images" if named else "in folders of labels"
            leave_out(f"{path}: {counted(len(left), 'volume')} left out, {why}: {first_few(left)}")
        volumes += _missing_tests(volumes)
    if not volumes:
        raise BadInput(f"{path}: no volume below it ({', '.join(SUFFIXES)}; folders of labels are left out).")
    keys = unique_keys(volumes, path, stem)
    records = [Record(keys[p], _scroll(stem(p)) or stem(p), {"image": p}) for p in volumes]
    return sorted(records, key=lambda record: record.key)


def url_record(url: Url) -> AnyRecord:
    """Return the zarr volume at a URL, named after the folder that ends in .zarr and what follows it.

    >>> url_record(Url("s3://scrolls/PHercParis4.zarr/0/")).key
    'PHercParis4_0'
    """
    names = [name for name in url.text.partition("://")[2].split("/") if name]
    first = next((n for n, name in enumerate(names) if name.lower().endswith(".zarr")), None)
    if first is None:
        raise BadInput(f"{url}: not a zarr volume (URL/NAME.zarr); only these are read from a URL.")
    key = "_".join([names[first][: -len(".zarr")], *names[first + 1 :]])
    return Record(key, _scroll(key) or key, {"image": url})


def named_table(root: Path, data: PairsConfig | None) -> Path | None:
    """Return the table that lists the volumes, None if there is none."""
    return (data and data.manifest) or (root if is_table(root) else None)


def deprecated(records: Sequence[Record]) -> list[str]:
    """Return the ids that have their files only in a deprecated folder beside the records' own folders, sorted."""
    used = {record.files["image"] for record in records if "image" in record.files}
    folders = {path.parent for path in used}
    return sorted({key for folder in folders for key in _deprecated(folder)} - {stem(path) for path in used})


def stem(path: Path) -> str:
    """Return the id: a volume's name without its suffix and, in nnU-Net's folders, without the channel.

    >>> stem(Path("train_images/1407735.tif")), stem(Path("imagesTr/s1_12_0000.nii.gz"))
    ('1407735', 's1_12')
    """
    end = suffix(path.name)
    return without_channel(path.name[: -len(end)] if end else path.stem, path.parent)


def _pairs_below(root: Path) -> Iterator[tuple[Path, Path]]:
    """Yield folders of images with their folders of labels; raise BadInput if one of the two is missing."""
    for folder, folders, _ in walk(root):
        here = {name.lower(): folder / name for name in folders}
        for name in folders:
            if here[name.lower()].name != name and name.lower() in (*IMAGE_FOLDERS, *LABEL_FOLDERS):
                raise BadInput(f"{folder / name}: {here[name.lower()].name} lies beside it. Which is it? Keep one.")
        for images, names in IMAGE_FOLDERS.items():
            labels = next((name for name in names if name in here), names[0])
            if images in here and labels in here:
                yield here[images], here[labels]
            elif (one := here.get(images) or here.get(labels)) and split_of_folder(one / "x", root) != "test":
                other = labels if images in here else images
                raise BadInput(f"{one}: no folder {other} beside it. Looked for {LAYOUT}.")
        folders[:] = [name for name in folders if not name.lower().endswith(".zarr")]


def _paired(images: Path, labels: Path) -> list[tuple[Path, Path, str]]:
    """Return image, label and scroll of every volume of two folders."""
    refuse_dataset(images, SUFFIXES)
    pairs = match_by_name(images, labels, is_volume, stem, stem)
    keys = [stem(image) for image, _ in pairs]
    scrolls = _scrolls(images, keys) if pairs else {}
    return [(image, label, scrolls[key]) for key, (image, label) in zip(keys, pairs, strict=True)]


def _others(folder: Path) -> list[Path]:
    """Return the files in a folder of volumes that may have a format that is not read."""
    there = [p for p in sorted(folder.iterdir()) if not p.name.startswith(".")]
    return [p for p in there if not suffix(p.name) and p.suffix.lower() not in SIDECAR_SUFFIXES]


def _scrolls(images: Path, keys: Sequence[str]) -> Mapping[str, str]:
    """Return the scroll of each id, from the manifest or the names."""
    if table := _manifest(images):
        return manifest.scrolls(table, keys, _deprecated(images))
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


def _deprecated(images: Path) -> set[str]:
    """Return the ids of the deprecated volumes beside a folder of images."""
    folder = images.with_name(_DEPRECATED + images.name)
    return {stem(path) for path in _volumes_below(folder) if path.parent == folder} if folder.is_dir() else set()


def _missing_tests(volumes: Sequence[Path]) -> list[Path]:
    """Return the expected paths of volumes that test.csv lists and test_images lacks: predicting names each."""
    missing: list[Path] = []
    for folder in {path.parent for path in volumes if path.parent.name.lower() == "test_images"}:
        table = folder.with_name("test.csv")
        here = {stem(path) for path in volumes if path.parent == folder}
        if refuse_special_file(table).is_file():
            missing += [folder / f"{key}.tif" for key in manifest.ids(table) if key not in here]
    return missing


def _manifest(images: Path) -> Path | None:
    """Return the CSV file beside a folder of images; the challenge has several, and train.csv is the manifest."""
    there = [p for p in sorted(images.parent.glob("*.[cC][sS][vV]")) if not p.name.startswith(".")]
    tables = [p for p in there if not p.is_dir()]
    if images.name.lower() == "train_images":
        tables = [p for p in tables if p.name.lower() == "train.csv"]
    if len(tables) > 1:
        shown = ", ".join(p.name for p in tables)
        raise BadInput(f"{images.parent}: which of {shown} is the manifest (id,scroll_id)? Leave only that one there.")
    return refuse_special_file(tables[0]) if tables else None


def _named_scroll(volume: Path) -> str:
    """Return the scroll that a volume's name gives, or raise BadInput."""
    if scroll := _scroll(stem(volume)):
        return scroll
    raise BadInput(
        f"{volume}: of which scroll is it? Training and validation are split by scroll. Add a column scroll to the "
        f"table, or {{group}} to data.pattern, or name every file SCROLL_ID. {_unread(volume)}".rstrip()
    )


def _unread(volume: Path) -> str:
    """Return a note that the challenge's manifest beside a volume's folder is not read; "" without a manifest."""
    table = volume.parent.parent / "train.csv"
    how = "is not read with data.pattern or data.manifest; a table with the columns id,image,label,scroll is."
    return f"{table} {how}" if table.is_file() else ""


def is_volume(path: Path) -> bool:
    """Return whether the name of a file or folder (.zarr) is that of a volume that can be read."""
    end = suffix(path.name)
    return bool(end) and (end == ".zarr") == path.is_dir()


def _scroll(key: str) -> str:
    """Return the scroll that a name gives, or "".

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


def _files(names: Sequence[str]) -> list[str]:
    return [name for name in names if suffix(name) not in ("", ".zarr")]


def _must_be_folder(path: Path) -> None:
    if not path.exists():
        raise BadInput(f"{path}: no such folder.")
    if not path.is_dir():
        raise BadInput(f"{path}: not a folder. Give the folder that holds {LAYOUT}.")
