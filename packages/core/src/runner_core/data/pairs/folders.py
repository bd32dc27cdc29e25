"""Find pairs in two folders side by side, one of images and one of labels, by equal names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from runner_core.base.errors import BadInput
from runner_core.base.files import split_of_folder, unique_keys, walk
from runner_core.data.pairs.listing import Pair

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
