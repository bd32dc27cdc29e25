"""Image files: finding them and reading them as they are. Another format (DICOM, NIfTI, HDF5) begins here."""

from pathlib import Path

import numpy as np
from PIL import Image
from runner_core import Annotation, BadInput, Decoded, walk

from runner_newproject.config import CLASSES

SUFFIXES = (".png", ".tif", ".tiff", ".bmp")
GREY = ("1", "L", "I", "I;16", "I;16B", "I;16L")  # Pillow's names of grey pixels; not P, whose numbers mean colours


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


def read(path: Path) -> np.ndarray:
    """Grey values (H, W) as the file has them, uint8 or uint16."""
    try:
        with Image.open(path) as file:
            pages, mode = getattr(file, "n_frames", 1), file.mode
            image = np.asarray(file.convert("L") if mode == "1" else file)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadInput(f"{path}: cannot be read as an image: {error}; repair it, or take it out") from error
    if pages > 1 or mode not in GREY or not 0 <= image.min() <= image.max() < 2**16:
        what = f"{pages} pages" if pages > 1 else f"pixels of the kind {mode}"
        raise BadInput(f"{path}: has {what}; wanted one page of grey values with 8 or 16 bits: convert it")
    return image.astype(np.uint8 if mode in ("1", "L") else np.uint16)


def read_classes(path: Path, values: list[int], shape: tuple[int, ...]) -> np.ndarray:
    """Return the mask of an image of `shape`: class numbers (H, W) uint8, class k where the file holds `values[k]`."""
    mask = read(path)
    if mask.shape != shape:
        raise BadInput(f"{path}: has {mask.shape[0]} × {mask.shape[1]} pixels, its image {shape[0]} × {shape[1]}")
    if unknown := sorted(set(np.unique(mask).tolist()) - set(values)):
        raise BadInput(f"{path}: holds {unknown[:5]}, which are no class; the classes' grey values are {values}")
    return np.stack([mask == value for value in values]).argmax(0).astype(np.uint8)


def annotation(decoded: Decoded) -> Annotation:
    """Return the pixels of each class, which `check` shows for training and validation."""
    pixels = np.bincount(decoded.arrays["mask"].ravel(), minlength=len(CLASSES)).tolist()
    return Annotation(dict(zip(CLASSES, pixels, strict=True)))
