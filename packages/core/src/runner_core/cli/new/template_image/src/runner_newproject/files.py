"""Image files and the table of labels: finding them and reading them as they are. Other formats begin here."""

from pathlib import Path

import numpy as np
from PIL import Image
from PIL.ImageSequence import Iterator as frames
from runner_core import BadInput, Record, read_table, walk

from runner_newproject import labels

SUFFIXES = (".png", ".tif", ".tiff", ".bmp", ".jpg", ".jpeg")
AS = {"1": "L", "LA": "L", "P": "RGB", "RGBA": "RGB"}  # Pillow's names of pixels, and what they are read as
KINDS = ("L", "RGB", "I", "I;16", "I;16B", "I;16L")


def find(folder: Path) -> dict[str, Path]:
    """Return every image below `folder` (or the file itself) by its name, with sub-folders and suffix."""
    found = {folder.name: folder} if folder.is_file() else {}
    for place, _, names in walk(folder) if folder.is_dir() else ():
        found |= {(place / n).relative_to(folder).as_posix(): place / n for n in names if n.lower().endswith(SUFFIXES)}
    return found


def labelled(root: Path) -> list[Record]:
    """Return a record for each row of labels.csv; its label is one of the record's values, not one of its files."""
    example = f"It needs the columns image and {labels.COLUMN}, and a row for each image."
    table = read_table(root / "labels.csv", example)
    names, texts = table.required("image", example=example), table.required(labels.COLUMN, example=example)
    table.refuse_repeats(names, "image")
    groups, splits = table.filled("group") or names, table.filled("split") or [None] * len(names)
    files, records = find(root / "images"), []
    for line, name, text, group, split in zip(table.lines, names, texts, groups, splits, strict=True):
        where = f"{table.path}: line {line}"
        if name not in files:
            raise BadInput(f"{where}: images/{name} is missing: restore it, or delete the line")
        values = {labels.COLUMN: labels.read(text, where)}
        records.append(Record(name, group, {"image": files[name]}, split, values=values))
    return records


def read(path: Path) -> np.ndarray:
    """Return an image (H, W, C), or a volume (pages, H, W, C), as the file has it: uint8 or uint16; C is 1 or 3."""
    try:
        with Image.open(path) as file:
            mode = AS.get(file.mode, file.mode)
            pages = [np.asarray(page.convert(mode) if mode in AS.values() else page) for page in frames(file)]
        image = np.stack(pages) if len(pages) > 1 else pages[0]
        deep = mode == "RGB" and path.suffix.lower() == ".png" and path.read_bytes()[24] == 16
    except (OSError, SyntaxError, ValueError, IndexError, Image.DecompressionBombError) as error:
        raise BadInput(f"{path}: cannot be read as an image: {error}; repair it, or take it out") from error
    if mode not in KINDS or deep or not 0 <= image.min() <= image.max() < 2**16:
        what = "colours with 16 bits" if deep else f"pixels of the kind {mode}"
        raise BadInput(f"{path}: has {what}; wanted grey values with 8 or 16 bits, or RGB with 8: convert it")
    if mode == "RGB":
        return image
    return image.astype(np.uint8 if mode == "L" else np.uint16)[..., None]


def resize(image: np.ndarray, side: int) -> np.ndarray:
    """Return an image (…, C) float32 with `side` pixels along each axis but the last; a smaller one is averaged."""
    image = image.astype(np.float32)
    for axis in range(image.ndim - 1):
        lines = np.moveaxis(image, axis, 0)
        flat = Image.fromarray(np.ascontiguousarray(lines.reshape(len(lines), -1)))
        flat = flat.resize((flat.width, side), Image.Resampling.BILINEAR)
        image = np.moveaxis(np.asarray(flat).reshape(side, *lines.shape[1:]), 0, axis)
    return image
