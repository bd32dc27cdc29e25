"""Names and descriptions of BIDS derivatives, as the specification of BIDS 1.10 has them.

    dataset_description.json  README.md  .bidsignore
    sub-X/[ses-Y/]anat/sub-X[_ses-Y][_…]_desc-brain_mask.nii.gz and .json      the mask, on the scan's own grid
    sub-X/[ses-Y/]anat/sub-X[_ses-Y][_…]_desc-brain_T1w.nii.gz and .json       the scan without the skull
    sub-X/[ses-Y/]figures/…_desc-brain_mask.jpg  volumes.tsv  qc.html          not part of BIDS: in .bidsignore

A mask on its scan's own grid has the scan's entities and no `space`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from runner_core import BadInput, Json, Record, replace_json, replace_text

from runner_brainunet.nifti import stem

DESCRIPTION = "dataset_description.json"
NAME = "runner-brainunet"
BIDS_VERSION = "1.10.0"
_SCAN = re.compile(
    r"(?P<sub>sub-[a-zA-Z0-9]+)(?:_(?P<ses>ses-[a-zA-Z0-9]+))?"
    r"(?:_(?:task|acq|ce|rec|run|echo|part|chunk)-[a-zA-Z0-9]+)*_T1w"
)
_IGNORED = "figures/\n**/figures/\n*.jpg\nqc.html\nvolumes.tsv\nlabels_itksnap.txt\nlabels_slicer.ctbl\n"
_README = (
    "# Brain masks\n\nWritten by {name} {version}. `volumes.tsv` has the volume of each brain; `qc.html` shows the "
    "masks, the most doubtful first.\n"
)


@dataclass(frozen=True)
class Places:
    """The places of one record's files below the folder of predictions."""

    mask: Path
    brain: Path
    picture: Path
    source: str = ""
    """The scan as a BIDS URI."""


def places(record: Record, root: Path) -> Places:
    """Return the places of a scan's derivatives. Raises BadInput if its name or place is not BIDS's."""
    if not root.is_dir():
        raise BadInput(f"{root}: there is no such folder; --bids names that of the BIDS dataset")
    path = record.files["image"]
    found = _SCAN.fullmatch(stem(path))
    try:
        source = path.resolve().relative_to(root.resolve())
    except ValueError:
        raise BadInput(f"{path}: does not lie below {root}, the BIDS dataset.") from None
    if found is None:
        raise BadInput(
            f"{path}: not the name of a raw T1 scan in BIDS (sub-X[_ses-Y][_acq-A][_run-1]_T1w.nii.gz), after which "
            "its derivatives could be named. Rename it, or leave out --bids."
        )
    folder = Path(found["sub"]) / (found["ses"] or "")
    name = stem(path).removesuffix("_T1w")
    return Places(
        mask=folder / "anat" / f"{name}_desc-brain_mask.nii.gz",
        brain=folder / "anat" / f"{name}_desc-brain_T1w.nii.gz",
        picture=folder / "figures" / f"{name}_desc-brain_mask.jpg",
        source=f"bids:raw:{source.as_posix()}",
    )


def sidecar(path: Path) -> Path:
    """Return the JSON file of an image.

    >>> sidecar(Path("a/sub-1_desc-brain_mask.nii.gz")).name
    'sub-1_desc-brain_mask.json'
    """
    return path.with_name(f"{stem(path)}.json")


def about_mask(places: Places) -> dict[str, Json]:
    """Return what BIDS wants to know of a mask."""
    about: dict[str, Json] = {"Type": "Brain", "Description": "Brain mask on the grid of the T1-weighted scan"}
    return about | ({"Sources": [places.source], "SpatialReference": "orig"} if places.source else {})


def about_brain(places: Places) -> dict[str, Json]:
    """Return what BIDS wants to know of a scan without its skull."""
    return {
        "Description": "T1-weighted scan with everything but the brain set to 0",
        "SkullStripped": True,
        "Sources": [places.source, f"bids::{places.mask.as_posix()}"],
    }


def write_dataset(out: Path, root: Path, how: Mapping[str, Json]) -> list[Path]:
    """Write the files that make `out` a dataset of derivatives of the BIDS dataset `root`.

    `how` says by which network the masks are made. Raises BadInput if `out` is the raw dataset itself, or holds a
    dataset of another program or of another network.
    """
    if out.resolve() == root.resolve():
        raise BadInput(f"{out} is the BIDS dataset itself: name another folder, such as {root / 'derivatives' / NAME}")
    own = {"Name": NAME, "Version": version(NAME), **how}
    if (wrong := _differs(out / DESCRIPTION, own)) is not None:
        raise BadInput(f"{out} holds derivatives of {wrong}, not of {_text(own)}: name another folder")
    uri = root.resolve().as_uri()
    replace_json(
        out / DESCRIPTION,
        {
            "Name": "Brain masks",
            "BIDSVersion": BIDS_VERSION,
            "DatasetType": "derivative",
            "GeneratedBy": [own],
            "SourceDatasets": [{"URL": uri}],
            "DatasetLinks": {"raw": uri},
        },
    )
    replace_text(out / ".bidsignore", _IGNORED)
    if not (out / "README.md").exists():
        replace_text(out / "README.md", _README.format(name=NAME, version=own["Version"]))
    return [out / name for name in (DESCRIPTION, ".bidsignore", "README.md")]


def _differs(path: Path, own: Mapping[str, Json]) -> str | None:
    """Return what an older description says its files are made by, if that is not the same network; else None."""
    if not path.exists():
        return None
    about = read_json(path)
    made = about.get("GeneratedBy")
    by = made[0] if isinstance(made, list) and made and isinstance(made[0], dict) else {}
    same = all(by.get(name) == value for name, value in own.items() if name != "Version")
    return None if same else _text(by)


def _text(by: Mapping[str, Json]) -> str:
    return f"{by.get('Name', 'an unknown program')} ({by.get('Description', 'no description')})"


def read_json(path: Path) -> dict[str, Json]:
    """Return the object in a JSON file. Raises BadInput that names the file."""
    import json

    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path}: cannot be read as JSON ({str(error).splitlines()[0][:120]}).") from error
    if not isinstance(found, dict):
        raise BadInput(f"{path}: holds no JSON object.")
    return found
