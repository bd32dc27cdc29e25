"""Tables of labels for viewers: a name and a colour for each value of a mask.

labels_itksnap.txt    ITK-SNAP: Segmentation, Import Label Descriptions
labels_slicer.ctbl    3D Slicer: add it as a color table, then choose it for the label map
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner_core.base.errors import BadInput
from runner_core.base.writing import replace_text
from runner_core.contract.layers import Label

ITKSNAP, SLICER = "labels_itksnap.txt", "labels_slicer.ctbl"
_HEAD = """\
################################################
# ITK-SnAP Label Description File
# IDX   -R-  -G-  -B-  -A--  VIS MSH  LABEL
################################################
    0     0    0    0        0  0  0    "Clear Label"
"""


def write_label_tables(labels: Sequence[Label], folder: Path) -> list[Path]:
    """Write both tables into a folder, and return them. Raises BadInput if they cannot be written."""
    written = [folder / ITKSNAP, folder / SLICER]
    try:
        for path, text in zip(written, (_itksnap(labels), _slicer(labels)), strict=True):
            replace_text(path, text)
    except OSError as error:
        raise BadInput(f"{folder}: tables of labels cannot be written ({error.strerror or error}).") from error
    return written


def _itksnap(labels: Sequence[Label]) -> str:
    """Return the table of ITK-SNAP, which reads a name up to the next quotation mark."""
    lines = []
    for label in labels:
        red, green, blue = label.colour
        name = label.name.replace('"', "'")
        lines.append(f'{label.value:5}  {red:4} {green:4} {blue:4}        1  1  1    "{name}"\n')
    return _HEAD + "".join(lines)


def _slicer(labels: Sequence[Label]) -> str:
    """Return the table of 3D Slicer, which separates columns by spaces and shows _ as a space."""
    rows = ["0 Background 0 0 0 0"]
    for label in labels:
        red, green, blue = label.colour
        rows.append(f"{label.value} {'_'.join(label.name.split())} {red} {green} {blue} 255")
    return "# Color table file\n# " + f"{len(rows)} values\n" + "".join(f"{row}\n" for row in rows)
