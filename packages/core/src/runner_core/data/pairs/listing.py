"""Read pairs that the user lists: in a table, or by patterns of the files' names."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner_core.base.errors import BadInput
from runner_core.base.files import split_named, split_of_folder, unique_keys, walk
from runner_core.base.text import counted
from runner_core.config import PairsConfig
from runner_core.contract.run import leave_out
from runner_core.contract.values import Scalar
from runner_core.data.pairs.rows import is_table, named_table, read_rows, record_key
from runner_core.data.pairs.table import Pattern

_PARTS = ("id", "group", "split")
_ROLES = {
    **dict.fromkeys(("image", "scan", "volume", "core"), "image"),
    **dict.fromkeys(("label", "labels", "mask"), "label"),
}
"""Columns of a table, and the file that each names."""


@dataclass(frozen=True)
class Pair:
    """An image and its label; `key` is unique in the data.

    `label` is None if the table has none. A partner that should exist but is missing has the expected path. `group`
    (person, scroll) and `split` are None if nothing gives them. `values` are those of a table's other columns (a class,
    an age), for `Record.values`.
    """

    key: str
    image: Path
    label: Path | None
    group: str | None = None
    split: str | None = None
    values: Mapping[str, Scalar] = field(default_factory=dict)


def list_pairs(
    root: Path,
    config: PairsConfig,
    is_image: Callable[[Path], bool],
    stem: Callable[[Path], str],
    labelled: bool = True,
) -> list[Pair] | None:
    """Return pairs by `data.manifest`, by `data.pattern`, or from the table `root`; None if the user names none.

    `is_image` tells by name if the project reads a file or folder. `stem` returns a file's name without its suffix.
    `labelled` refuses pairs without a label. Raises BadInput with the table and line, or the pattern, and a remedy.
    """
    table = named_table(root, config)
    if table is not None:
        pairs = _from_table(table, root.parent if table == root else root, is_image, stem)
    elif config.pattern:
        pairs = _from_patterns(root, config.pattern, is_image, stem)
    else:
        return None
    if labelled and (without := [pair for pair in pairs if pair.label is None]):
        raise BadInput(
            f"{without[0].image}: {table or 'data.pattern'} names no label for it ({len(without):,} of "
            f"{counted(len(pairs), 'image')}). Training and evaluation need one: a column label, or a second pattern."
        )
    return pairs


def list_inputs(
    path: Path,
    config: PairsConfig,
    is_image: Callable[[Path], bool],
    stem: Callable[[Path], str],
) -> list[Pair] | None:
    """Return images to predict from the table `path` or by `data.pattern`; None if the project should find them itself.

    The pattern may belong to the folder that the network was trained on; if it fits nothing, `leave_out` says so.
    """
    if is_table(path):
        return list_pairs(path, PairsConfig(), is_image, stem, labelled=False)
    try:
        return list_pairs(path, PairsConfig(pattern=config.pattern[:1]), is_image, stem, labelled=False)
    except BadInput as error:
        leave_out(f"{error} Images are found by their names instead.")
        return None


# ---------------------------------------------------------------- tables


def _from_table(path: Path, root: Path, is_image: Callable[[Path], bool], stem: Callable[[Path], str]) -> list[Pair]:
    example = "It needs the columns image and label; id, group and split if wanted; and a row for each image."
    rows = read_rows(path, root, _ROLES.get, is_image, example, "image")
    for row in rows:
        if row.files["image"] == row.files.get("label"):
            raise BadInput(
                f"{path}: line {row.line}: {row.files['image']} is the image and its own label. Name its label's file."
            )
    images = [row.files["image"] for row in rows]
    unique = unique_keys(images, Path(os.path.commonpath([image.parent for image in images])), stem)
    return [
        Pair(
            unique[image] if row.key is None else row.key,
            image,
            row.files.get("label"),
            row.group,
            row.split,
            row.values,
        )
        for row, image in zip(rows, images, strict=True)
    ]


# ---------------------------------------------------------------- patterns


def _from_patterns(
    root: Path, texts: Sequence[str], is_image: Callable[[Path], bool], stem: Callable[[Path], str]
) -> list[Pair]:
    if len(texts) > 2:
        raise BadInput(f"data.pattern has {len(texts)} patterns; it takes two: of the images, and of the labels")
    patterns = [Pattern(text, _PARTS, ("id",), "data.pattern") for text in texts]
    if not root.is_dir():
        raise BadInput(f"{root}: no such folder; data.pattern looks for files below one.")
    names = {path: path.relative_to(root).as_posix() for path in _below(root, is_image)}
    images = {path: fields for path, name in names.items() if (fields := patterns[0].match(name))}
    if not images:
        raise BadInput(
            f"{root}: data.pattern {texts[0]!r} fits none of the {len(names):,} files below it that could be read. It "
            "is the end of a path: folders and name, {id} for what images and labels share."
        )
    ids = {fields["id"] for fields in images.values()}
    labels: dict[Path, dict[str, str]] = {}
    for path, name in names.items() if len(patterns) > 1 else ():
        # "{id}.nii" fits a_mask.nii too: it is a label where the pattern of labels makes it that of an image
        fields = patterns[1].match(name, {"id": ids}) or (None if path in images else patterns[1].match(name))
        if fields:
            labels[path] = fields
            images.pop(path, None)
    return _joined(root, (images, labels), patterns, stem)


def _below(root: Path, is_image: Callable[[Path], bool]) -> list[Path]:
    """Return files that could be read, without entering folders that are files of the project (.zarr)."""
    found = []
    for folder, folders, names in walk(root):
        own = [name for name in folders if is_image(folder / name)]
        folders[:] = [name for name in folders if name not in own]
        found += [folder / name for name in [*own, *names] if is_image(folder / name)]
    return found


def _joined(
    root: Path,
    found: Sequence[Mapping[Path, Mapping[str, str]]],
    patterns: Sequence[Pattern],
    stem: Callable[[Path], str],
) -> list[Pair]:
    images, labels = found
    by_id: defaultdict[str, list[Path]] = defaultdict(list)
    for path, fields in labels.items():
        by_id[fields["id"]].append(path)
    partner: dict[Path, Path | None] = dict.fromkeys(images)
    if len(patterns) > 1:
        for image, fields in images.items():
            own = [p for p in by_id[fields["id"]] if _agree(fields, labels[p])]
            expected = _expected(image, root, patterns, fields)
            partner[image] = _nearest(image, own) if own else expected
    used = set(partner.values())
    if lost := [path for path in labels if path not in used]:
        more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        raise BadInput(
            f"{lost[0]}: its image, '{patterns[0].filled(labels[lost[0]])}', is missing{more}. Restore it, or take the "
            "label out."
        )
    count = Counter(fields["id"] for fields in images.values())
    unique = unique_keys(list(images), root, stem)
    return [
        Pair(
            unique[image] if count[fields["id"]] > 1 else record_key(fields["id"], str(image)),
            image,
            partner[image],
            fields.get("group"),
            split_named(fields["split"], str(image)) if "split" in fields else split_of_folder(image, root),
        )
        for image, fields in sorted(images.items())
    ]


def _agree(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    return all(other.get(name, value) == value for name, value in one.items())


def _nearest(image: Path, labels: Sequence[Path]) -> Path:
    """Return the label that shares most folders with the image; raise BadInput if two share equally many."""
    shared = [len(os.path.commonpath([image, label])) for label in labels]
    best = [label for label, size in zip(labels, shared, strict=True) if size == max(shared)]
    if len(best) > 1:
        raise BadInput(
            f"{image}: {len(best)} labels fit data.pattern: {', '.join(map(str, best[:3]))}. Write more of "
            "their folders into the pattern, or list the pairs in a table (data.manifest)."
        )
    return best[0]


def _expected(image: Path, root: Path, patterns: Sequence[Pattern], fields: Mapping[str, str]) -> Path:
    """Return the path where the label of an image should be."""
    above = image.relative_to(root).parts[: -patterns[0].depth]
    return root.joinpath(*above, patterns[1].filled(fields))


IMAGE_FOLDERS: Mapping[str, tuple[str, ...]] = {
    "images": ("labels", "masks"),
    "train_images": ("train_labels", "train_masks"),
    "imagestr": ("labelstr",),
}
"""Folders of images, in small letters, and folders of their labels."""
SIDECAR_SUFFIXES = (".json", ".txt", ".csv", ".tsv", ".xml", ".yaml", ".md")
"""Suffixes of files beside images; nnU-Net writes ID.json for each image."""
LABEL_FOLDERS = tuple(name for names in IMAGE_FOLDERS.values() for name in names)
_CHANNEL = ("imagestr", "imagests")
"""Folders of nnU-Net, in whose file names _0000 is the channel."""


def without_channel(name: str, folder: Path) -> str:
    """Return a file's name without the channel that file names in nnU-Net's image folders have.

    >>> without_channel("s1_12_0000", Path("imagesTr")), without_channel("s1_0000", Path("images"))
    ('s1_12', 's1_0000')
    """
    return name.removesuffix("_0000") if folder.name.lower() in _CHANNEL else name


def find_folder_pairs(
    root: Path,
    is_image: Callable[[Path], bool],
    stem: Callable[[Path], str],
    label_stem: Callable[[Path], str] | None = None,
) -> list[Pair]:
    """Return the pairs of all folders below `root` that are named as in `IMAGE_FOLDERS`; [] if there are none.

    A file's partner has the same `stem` (labels: `label_stem`). Raises BadInput if one folder has two files with the
    same stem, or if an image's folder has two folders of labels.
    """
    found: list[tuple[Path, Path]] = []
    for images, labels in _folders(root, is_image):
        found += match_by_name(images, labels, is_image, stem, label_stem or stem)
    keys = unique_keys([image for image, _ in found], root, stem)
    return [Pair(keys[image], image, label, None, split_of_folder(image, root)) for image, label in sorted(found)]


def _folders(root: Path, is_image: Callable[[Path], bool]) -> Iterator[tuple[Path, Path]]:
    for folder, folders, _ in walk(root):
        here = {name.lower(): folder / name for name in folders}
        for images, names in IMAGE_FOLDERS.items():
            labels = [here[name] for name in names if name in here]
            if images in here and len(labels) > 1:
                both = " and ".join(path.name for path in labels)
                raise BadInput(
                    f"{here[images]}: {both} lie beside it. Move one of them elsewhere, or choose by data.pattern."
                )
            if images in here and labels:
                yield here[images], labels[0]
        folders[:] = [name for name in folders if not is_image(folder / name)]


def match_by_name(
    images: Path,
    labels: Path,
    is_image: Callable[[Path], bool],
    stem: Callable[[Path], str],
    label_stem: Callable[[Path], str],
) -> list[tuple[Path, Path]]:
    """Return images and labels with equal stems in two folders; a missing partner has its expected path."""
    here, there = _by_stem(images, is_image, stem), _by_stem(labels, is_image, label_stem)
    pairs = [(path, there.get(key) or _missing(labels, key, path, stem)) for key, path in here.items()]
    lost = [(_missing(images, key, path, label_stem), path) for key, path in there.items() if key not in here]
    return [*pairs, *lost]


def _missing(folder: Path, key: str, partner: Path, stem: Callable[[Path], str]) -> Path:
    """Return the path where a file's partner should be.

    A file of another format there is taken for the partner; reading it then reports the format.
    """
    there = [
        p for p in sorted(folder.iterdir()) if p.name.startswith(f"{key}.") and p.suffix.lower() not in SIDECAR_SUFFIXES
    ]
    channel = "_0000" if folder.name.lower() in _CHANNEL else ""
    ending = partner.name[len(stem(partner)) :].removeprefix("_0000")
    return there[0] if there else folder / (key + channel + ending)


def _by_stem(folder: Path, is_image: Callable[[Path], bool], stem: Callable[[Path], str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(p for p in folder.iterdir() if not p.name.startswith(".") and is_image(p)):
        if (other := found.setdefault(stem(path), path)) != path:
            raise BadInput(f"{path}: {other.name} beside it has the same id, {stem(path)}. Keep one of them.")
    return found
