"""Where images and masks lie, and which images belong together."""

from pathlib import Path

import numpy as np
from runner_core import Annotation, BadInput, Decoded, walk

from runner_newproject.config import CLASSES
from runner_newproject.images import SUFFIXES, read


def find(folder: Path) -> dict[str, Path]:
    """Return every image below `folder` by its name, with sub-folders and without suffix.

    A file is found whatever its suffix.
    """
    found = {folder.stem: folder} if folder.is_file() else {}
    for place, _, names in walk(folder) if folder.is_dir() else ():
        for path in [place / name for name in names if name.lower().endswith(SUFFIXES)]:
            name = path.relative_to(folder).with_suffix("").as_posix()
            if name in found:
                raise BadInput(f"{path}: {found[name].name} beside it has the same name; keep one of them")
            found[name] = path
    return found


def group(name: str) -> str:
    """Return the sub-folder of an image, else what precedes the first "_" of its name: a patient, a plate, a day.

    Images of one group are never divided between training and validation. One without either is a group of its own.
    """
    return name.partition("/")[0] if "/" in name else name.partition("_")[0]


def read_classes(path: Path, values: list[int], shape: tuple[int, ...]) -> np.ndarray:
    """Return the mask of an image of `shape`: class numbers (…) uint8, class k where the file holds `values[k]`."""
    mask = read(path)
    if mask.shape != (*shape[:-1], 1):
        found, wanted = (" × ".join(map(str, one[:-1])) for one in (mask.shape, shape))
        raise BadInput(
            f"{path}: has {found} pixels and {mask.shape[-1]} channel(s), its image {wanted}; masks are grey"
        )
    mask = mask[..., 0]
    if unknown := sorted(set(np.unique(mask).tolist()) - set(values)):
        raise BadInput(f"{path}: holds {unknown[:5]}, which are no class; the classes' grey values are {values}")
    return np.stack([mask == value for value in values]).argmax(0).astype(np.uint8)


def annotation(decoded: Decoded) -> Annotation:
    """Return the pixels of each class, which `check` shows for training and validation."""
    pixels = np.bincount(decoded.arrays["mask"].ravel(), minlength=len(CLASSES)).tolist()
    return Annotation(dict(zip(CLASSES, pixels, strict=True)))
