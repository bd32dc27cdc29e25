"""The table of volumes and the page with pictures of all masks in a folder, the worst first."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from runner_core import (
    BadInput,
    Json,
    Markup,
    Note,
    Page,
    Table,
    counted,
    html,
    replace_csv,
    replace_text,
    walk,
)

from runner_brainunet.derivatives import DESCRIPTION, read_json, write_dataset

PAGE = "qc.html"
ENDINGS = ("_brainmask.json", "_desc-brain_mask.json")
COLUMNS = ("record", "brain_ml", "brain_sd_ml", "mask_ml", "threshold", "margin_mm", "warnings", "notes", "mask")
_PICTURE_BYTES = 5_000_000


@dataclass(frozen=True)
class Row:
    """A mask: its name, its image's path below the folder, and what its JSON file says."""

    mask: Path
    about: Mapping[str, Json]

    @property
    def name(self) -> str:
        return str(self.about["Record"])

    @property
    def ml(self) -> float:
        return float(self.about["BrainVolume"])

    @property
    def sd_ml(self) -> float:
        return float(self.about["BrainVolumeSD"])

    def texts(self, of: str) -> list[str]:
        found = self.about.get(of)
        return [str(text) for text in found] if isinstance(found, list) else []

    @property
    def doubt(self) -> tuple[int, int, float]:
        """The need to look at the mask: warnings, notes, the standard deviation as a share of the volume."""
        return len(self.texts("Warnings")), len(self.texts("Notes")), self.sd_ml / max(self.ml, 1e-9)

    def cells(self) -> list[str | float]:
        values = [
            self.about.get(name) for name in ("BrainVolume", "BrainVolumeSD", "MaskVolume", "Threshold", "Margin")
        ]
        texts = ["; ".join(self.texts(of)) for of in ("Warnings", "Notes")]
        return [self.name, *(v if isinstance(v, (int, float)) else "" for v in values), *texts, self.mask.as_posix()]


def rows(out: Path) -> list[Row]:
    """Return all masks of a folder whose volume is known, the worst first. Raises BadInput for a damaged JSON file."""
    found = []
    for folder, _, names in walk(out):
        for name in names:
            if not name.endswith(ENDINGS):
                continue
            about = read_json(folder / name)
            numbers = [about.get(key) for key in ("BrainVolume", "BrainVolumeSD")]
            if not all(isinstance(number, (int, float)) for number in numbers):
                if name.endswith(ENDINGS[0]):
                    raise BadInput(f"{folder / name}: has no BrainVolume: remove it, and predict its scan again.")
                continue  # another program's
            mask = (folder / name).with_suffix(".nii.gz")
            if mask.is_file():
                found.append(Row(mask.relative_to(out), {"Record": mask.name.removesuffix(".nii.gz"), **about}))
    return sorted(found, key=lambda row: (*(-part for part in row.doubt), row.name))


def summarise(out: Path, bids: str = "") -> list[Path]:
    """Write the table of all volumes, and the page if there are pictures or an older page, and return the files.

    `bids` is the dataset that the masks are derivatives of: `out` then becomes a dataset too, unless it is one.
    """
    found = rows(out)
    if not found:
        return []
    table = sorted((row.cells() for row in found), key=lambda cells: str(cells[0]))
    written = write_dataset(out, Path(bids), {}) if bids and not (out / DESCRIPTION).exists() else []
    if (out / DESCRIPTION).exists():
        written.append(out / "volumes.tsv")
        lines = ["\t".join(" ".join(str(cell).split()) for cell in cells) for cells in (COLUMNS, *table)]
        replace_text(written[-1], "\n".join(lines) + "\n")
    else:
        written.append(out / "volumes.csv")
        replace_csv(written[-1], [COLUMNS, *table])
    if (out / PAGE).exists() or any(row.about.get("Picture") for row in found):
        written.append(out / PAGE)
        replace_text(written[-1], html(page(out, found)))
    return written


def page(out: Path, found: Sequence[Row]) -> Page:
    """Return the page of masks, in the order of `found`."""
    warned = sum(bool(row.texts("Warnings")) for row in found)
    first = f"{counted(len(found), 'brain mask')}, {warned} with warnings. The worst come first: look at them."
    second = (
        "± is the standard deviation of the volume, if all doubtful voxels were brain together, or none. The mask's "
        "outline is red, in slices from bottom, back and left."
    )
    cells: list[list[str | float]] = [
        [row.name, row.ml, row.sd_ml, "; ".join([*row.texts("Warnings"), *row.texts("Notes")])] for row in found
    ]
    table = Table("volumes", "Volumes", ("scan", "brain (ml)", "± (ml)", "what to look at"), cells)
    return Page(
        "brain masks", "Brain masks", [Note(first), Note(second)], [("All scans", [table]), *_sections(out, found)]
    )


def _sections(out: Path, found: Sequence[Row]) -> list[tuple[str, list[Note | Markup]]]:
    sections: list[tuple[str, list[Note | Markup]]] = []
    for row in found:
        margin = row.about.get("Margin")
        mask = f"; the mask, with a margin of {margin:g} mm: {row.about.get('MaskVolume'):.0f} ml" if margin else ""
        blocks: list[Note | Markup] = [Note(f"brain {row.ml:.0f} ± {row.sd_ml:.0f} ml{mask}")]
        blocks += [Note(text, "warning", "warning:") for text in row.texts("Warnings")]
        blocks += [Note(text, "note", "note:") for text in row.texts("Notes")]
        sections.append((row.name, [*blocks, *_picture(out, row)]))
    return sections


def _picture(out: Path, row: Row) -> list[Markup]:
    """Return the picture of a mask, if it is there, lies in the folder and is a JPEG of usual size."""
    named = row.about.get("Picture")
    path = (out / str(named)).resolve()
    if not named or not path.is_relative_to(out.resolve()) or not path.is_file():
        return []
    if path.suffix != ".jpg" or path.stat().st_size > _PICTURE_BYTES:
        return []
    data = base64.b64encode(path.read_bytes()).decode()
    return [Markup(f'<figure><img alt="{escape(row.name)}" src="data:image/jpeg;base64,{data}"></figure>')]
