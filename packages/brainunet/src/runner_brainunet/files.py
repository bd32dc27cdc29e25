"""Finding scans and their masks: NFBS folders, BIDS trees, or any NIfTI for prediction.

NFBS    sub-X_ses-Y_T1w.nii.gz with sub-X_ses-Y_T1w_brainmask.nii.gz beside it, in folders of any depth
BIDS    sub-X/[ses-Y/]anat/sub-X[_ses-Y][_…]_T1w.nii.gz with a brain mask (sub-X[_ses-Y]…_desc-brain_mask.nii.gz)
        beside it or anywhere below derivatives/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from runner_core import BadInput, Record, walk
from runner_core._files import folder_split, unique_keys

from runner_brainunet.nifti import SUFFIXES, stem

LAYOUT = (
    "sub-X_ses-Y_T1w.nii.gz with sub-X_ses-Y_T1w_brainmask.nii.gz beside it (NFBS), or a BIDS tree with brain "
    "masks (*_desc-brain_mask.nii.gz) beside the scans or below derivatives/"
)
_MASK = re.compile(r"(brain.*mask|mask.*brain)$", re.IGNORECASE)
_NO_SCAN = re.compile(r"(mask|brain|dseg|probseg|seg|label|labels)$", re.IGNORECASE)
_SUBJECT = re.compile(r"sub-([A-Za-z0-9]+)")


def find_records(root: Path) -> list[Record]:
    """Every T1 scan below `root` with its brain mask. A partner that is missing is named where it should be, so
    that decoding says so for every record at once. Raises BadInput when there is nothing of the kind."""
    _must_be_folder(root)
    paths = list(_nifti_below(root))
    masks = [p for p in paths if _MASK.search(stem(p))]
    scans = [p for p in paths if stem(p).endswith("_T1w") and "derivatives" not in _parts(p, root)]
    pairs = {scan: _mask_of(scan, masks) for scan in scans}
    used = set(pairs.values())
    for mask in masks:  # a mask whose scan is gone
        name = stem(mask)
        if mask not in used and name.endswith("_T1w_brainmask"):
            pairs[mask.with_name(name.removesuffix("_brainmask") + mask.name[len(name) :])] = mask
    if not pairs:
        found = f" ({len(paths)} other NIfTI files there)" if paths else ""
        raise BadInput(f"{root}: no T1 scan below it{found}. Looked for {LAYOUT}.")
    keys = unique_keys(list(pairs), root, stem)
    records = [
        Record(keys[scan], subject(scan), {"image": scan, "mask": mask}, folder_split(scan, root))
        for scan, mask in pairs.items()
    ]
    return sorted(records, key=lambda record: record.key)


def find_inputs(path: Path) -> list[Record]:
    """Scans to predict: a NIfTI file, or the T1 scans below a folder (any NIfTI but masks, if none is named so)."""
    if path.is_file():
        if not path.name.endswith(SUFFIXES):
            raise BadInput(f"{path}: not a NIfTI file (.nii or .nii.gz).")
        return [Record(stem(path), subject(path), {"image": path})]
    _must_be_folder(path)
    paths = [p for p in _nifti_below(path) if not _NO_SCAN.search(stem(p))]
    raw = [p for p in paths if "derivatives" not in _parts(p, path)]
    scans = [p for p in raw if stem(p).endswith("_T1w")] or raw or paths
    if not scans:
        raise BadInput(f"{path}: no NIfTI file below it (.nii or .nii.gz; masks are left out).")
    keys = unique_keys(scans, path, stem)
    return sorted((Record(keys[p], subject(p), {"image": p}) for p in scans), key=lambda record: record.key)


def subject(path: Path) -> str:
    """The person: `sub-X` of the file's name, or of a folder above it; else the name of its folder.

    >>> subject(Path("x/sub-01/ses-2/anat/sub-01_ses-2_T1w.nii.gz"))
    'sub-01'
    """
    for part in reversed(path.parts):
        if match := _SUBJECT.search(part):
            return f"sub-{match[1]}"
    return path.parent.name or stem(path)


def _mask_of(scan: Path, masks: Sequence[Path]) -> Path:
    """The scan's mask: NFBS's name beside it, or the mask that shares most of its BIDS entities."""
    own = scan.with_name(f"{stem(scan)}_brainmask{scan.name[len(stem(scan)) :]}")
    if own in masks:
        return own
    wanted = _entities(scan)
    best: list[Path] = []
    most = -1
    for mask in masks:
        entities = _entities(mask)
        differs = any(entities.get(k, v) != v for k, v in wanted.items())
        lacks = any(k in wanted and k not in entities for k in ("sub", "ses"))
        foreign = entities.get("space", "T1w") not in ("T1w", "orig", "native")
        extra = any(k in entities and k not in wanted for k in ("ses", "run", "acq", "rec"))
        if not wanted or differs or lacks or foreign or extra:
            continue
        shared = len(wanted.keys() & entities.keys())
        if shared > most:
            best, most = [mask], shared
        elif shared == most:
            best.append(mask)
    if len(best) > 1:
        raise BadInput(
            f"{scan}: {len(best)} masks could be its own: {', '.join(map(str, best))}. Leave only one of them."
        )
    return best[0] if best else own


def _entities(path: Path) -> dict[str, str]:
    """BIDS entities of a file's name that tell scans apart."""
    pairs = (part.split("-", 1) for part in stem(path).split("_") if "-" in part)
    return {key: value for key, value in pairs if key not in ("desc", "label", "res")}


def _nifti_below(root: Path) -> Iterator[Path]:
    for folder, _, names in walk(root):
        yield from (folder / name for name in names if name.endswith(SUFFIXES))


def _parts(path: Path, root: Path) -> tuple[str, ...]:
    return path.relative_to(root).parts[:-1]


def _must_be_folder(path: Path) -> None:
    if not path.exists():
        raise BadInput(f"{path}: no such folder.")
    if not path.is_dir():
        raise BadInput(f"{path}: not a folder. Give the folder that holds the scans: {LAYOUT}.")
