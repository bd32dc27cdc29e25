"""Where images and the table of their labels lie; the size that images are brought to."""

from pathlib import Path

import numpy as np
from PIL import Image
from runner_core import BadInput, Record, read_table, walk

from runner_newproject import labels
from runner_newproject.images import SUFFIXES


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


def resize(image: np.ndarray, side: int) -> np.ndarray:
    """Return an image (…, C) float32 with `side` pixels along each axis but the last; a smaller one is averaged."""
    image = image.astype(np.float32)
    for axis in range(image.ndim - 1):
        lines = np.moveaxis(image, axis, 0)
        flat = Image.fromarray(np.ascontiguousarray(lines.reshape(len(lines), -1)))
        flat = flat.resize((flat.width, side), Image.Resampling.BILINEAR)
        image = np.moveaxis(np.asarray(flat).reshape(side, *lines.shape[1:]), 0, axis)
    return image
