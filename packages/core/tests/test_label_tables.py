"""Tables of labels for ITK-SNAP and 3D Slicer, read back as those programs' own sources read them."""

from __future__ import annotations

from pathlib import Path

import pytest
from runner_core import BadInput, Label
from runner_core.output.label_tables import write_label_tables

LABELS = [Label(1, "brain", (230, 159, 0)), Label(7, 'the "odd" one', (0, 0, 255)), Label(255, "#9 éè", (1, 2, 3))]


def itksnap(path: Path) -> dict[int, tuple[tuple[int, ...], float, str]]:
    """Read a table as ITK-SNAP does (`ColorLabelTable::LoadFromFile`).

    A line that begins with # is a comment; then seven numbers, and the name between the first two quotation marks. A
    line without them stops the whole import.
    """
    found = {}
    for line in path.read_text("utf-8").splitlines():
        if not line or line[0] == "#":
            continue
        index, red, green, blue, alpha, visible, mesh, rest = line.split(maxsplit=7)
        assert (int(visible), int(mesh)) in ((1, 1), (0, 0))
        name = rest[rest.index('"') + 1 :].split('"')[0]
        assert name, "ITK-SNAP refuses an empty name"
        if int(index) > 0:
            found[int(index)] = (int(red), int(green), int(blue)), float(alpha), name
    return found


def slicer(path: Path) -> dict[int, tuple[tuple[int, ...], str]]:
    """Read a table as 3D Slicer does (`vtkMRMLColorTableStorageNode`): number, name, red, green, blue, alpha by spaces.

    The underscores of a name are shown as spaces.
    """
    found = {}
    for line in path.read_text("utf-8").splitlines():
        if line and line[0] != "#":
            index, name, *colour = line.split(" ")
            assert len(colour) == 4
            found[int(index)] = tuple(map(int, colour)), name.replace("_", " ")
    return found


def test_both_programs_read_names_and_colours(tmp_path: Path) -> None:
    written = write_label_tables(LABELS, tmp_path)
    assert [path.name for path in written] == ["labels_itksnap.txt", "labels_slicer.ctbl"]
    assert itksnap(written[0]) == {
        1: ((230, 159, 0), 1.0, "brain"), 7: ((0, 0, 255), 1.0, "the 'odd' one"), 255: ((1, 2, 3), 1.0, "#9 éè")
    }  # fmt: skip
    found = slicer(written[1])
    assert found.pop(0) == ((0, 0, 0, 0), "Background")
    assert found == {label.value: ((*label.colour, 255), label.name) for label in LABELS}


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="file: tables of labels cannot be written"):
        write_label_tables(LABELS, tmp_path / "file")
