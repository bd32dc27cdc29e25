"""Find scans and their masks in the usual folder layouts.

table or pattern   given by data.manifest or data.pattern
NFBS               sub-X_ses-Y_T1w.nii.gz with sub-X_ses-Y_T1w_brainmask.nii.gz beside it, in folders of any depth
BIDS               sub-X/[ses-Y/]anat/sub-X[_ses-Y][_…]_T1w.nii.gz with a brain mask beside it or below derivatives/
                   (see `bids`)
two folders        images/NAME.nii.gz with masks/NAME.nii.gz or labels/NAME.nii.gz; imagesTr with labelsTr (nnU-Net)
names              NAME.nii.gz with NAME_mask.nii.gz, NAME_brain_mask, NAME_staple, NAME_ss and the like, anywhere (see
                   `named`): IXI, CC359 (Calgary-Campinas), OASIS
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from runner_core import (
    LABEL_FOLDERS,
    BadInput,
    Pair,
    Record,
    counted,
    find_folder_pairs,
    first_few,
    is_table,
    leave_out,
    list_inputs,
    list_pairs,
    split_of_folder,
    unique_keys,
    walk,
    without_channel,
)

from runner_brainunet import bids, named
from runner_brainunet.config import BrainDataConfig
from runner_brainunet.nifti import header_of, is_nifti, stem
from runner_brainunet.persons import person, persons

LAYOUT = (
    "sub-X_ses-Y_T1w.nii.gz with sub-X_ses-Y_T1w_brainmask.nii.gz beside it (NFBS); a BIDS tree with brain masks "
    "(*_desc-brain_mask.nii.gz) beside the scans or below derivatives/; folders images and masks with equal names in "
    "both; or NAME.nii.gz with NAME_mask.nii.gz (_brain_mask, _staple, _ss). Other names: "
    "`runner brainunet init-data DIR` writes a table of them to correct (data.manifest); patterns (data.pattern) do too"
)
LABELS = ("mask", "mask header")
"""Roles of the mask's files in a record."""
_OTHER_FORMATS = (".mgz", ".mgh", ".nrrd", ".nhdr", ".mha", ".mhd", ".dcm", ".ima", ".mnc")


def find_records(root: Path, data: BrainDataConfig) -> list[Record]:
    """Return every scan below `root` with its brain mask.

    `leave_out` gets messages: which files are left out, and which scans count as one person. A missing scan or mask
    stays in the record, at its expected path, so that decoding reports all missing files at once. Raises BadInput if
    there is no scan with a mask, or if several masks could belong to one scan.
    """
    pairs = list_pairs(root, data, is_nifti, stem)
    if pairs is None:
        pairs = _known_layouts(root)
    who = persons([(pair.image, pair.group) for pair in pairs], root)
    records = [Record(pair.key, group, _files(pair), pair.split) for pair, group in zip(pairs, who, strict=True)]
    return sorted(records, key=lambda record: record.key)


def find_inputs(path: Path, data: BrainDataConfig) -> list[Record]:
    """Return the scans to predict: one file, those that a table or `data.pattern` names, or all below a folder.

    In a folder where some names mark T1 scans, files without such names are left out. `leave_out` gets the files
    that are left out and the reason.
    """
    if path.is_file() and not is_table(path):
        if not is_nifti(header_of(path)[0]):
            raise BadInput(f"{path}: not a NIfTI file (.nii, .nii.gz, or .img with .hdr beside it).")
        path = header_of(path)[0]
        return [Record(stem(path), person(path) or stem(path), {"image": path})]
    _must_be_there(path)
    if (pairs := list_inputs(path, data, is_nifti, stem)) is not None:
        return [Record(pair.key, pair.group or pair.key, {"image": pair.image}) for pair in pairs]
    _must_be_folder(path)
    scans = list(_scans_alone(path))
    if not scans:
        raise BadInput(f"{path}: no NIfTI file below it (.nii, .nii.gz, or .img with .hdr; masks are left out).")
    keys = unique_keys(scans, path, _id)
    return sorted((Record(keys[p], person(p) or keys[p], {"image": p}) for p in scans), key=lambda record: record.key)


def _known_layouts(root: Path) -> list[Pair]:
    _must_be_folder(root)
    paths = list(_nifti_below(root))
    found: dict[Path, Path] = {}
    if any(stem(path).endswith(("_T1w", "_T1w_brainmask")) for path in paths):
        found = bids.pairs(root, paths)
    if not any(mask.exists() for mask in found.values()):
        if beside := find_folder_pairs(root, is_nifti, _id, _label_id):
            return beside
        found = named.pairs(root, paths) or found
    if not found:
        there = (
            f" ({counted(len(paths), 'NIfTI file')} there, none with a mask that is named after it)" if paths else ""
        )
        raise BadInput(f"{root}: no T1 scan with a brain mask below it{there}. Looked for {LAYOUT}.")
    keys = unique_keys(list(found), root, stem)
    return [Pair(keys[scan], scan, mask, None, split_of_folder(scan, root)) for scan, mask in found.items()]


def _files(pair: Pair) -> dict[str, Path]:
    """Return a pair's files by role. Headers of .img files are included, so that a change in them is noticed."""
    assert pair.label is not None
    files = {"image": pair.image, "mask": pair.label}
    headers = {f"{role} header": header for role, path in files.items() for header in header_of(path)[1:]}
    return files | headers


def _scans_alone(root: Path) -> Iterator[Path]:
    """Yield the scans to predict below `root`; `leave_out` gets the reason for all other files."""
    others = [folder / name for folder, _, names in walk(root) for name in names]
    left = [path for path in others if is_nifti(path)]
    reasons: list[tuple[str, Callable[[Path], bool]]] = [
        ("named as masks, labels or stripped brains", lambda p: bool(named.NO_SCAN.search(stem(p)))),
        ("in folders of labels", lambda p: p.parent.name.lower() in LABEL_FOLDERS),
        ("of other modalities by their folders or names", lambda p: bids.other_modality(p.relative_to(root))),
        ("below derivatives", lambda p: "derivatives" in p.relative_to(root).parts[:-1]),
        ("not named as T1 scans, as others are", lambda p: not named.is_t1(p)),
    ]
    for reason, out in reasons:
        kept = [path for path in left if not out(path)]
        if kept and len(kept) < len(left):
            _tell([path for path in left if out(path)], reason, root)
        left = kept or (left if reason != reasons[0][0] else [])
    _tell([p for p in others if p.suffix.lower() == ".img" and not is_nifti(p)], "without their .hdr", root)
    _tell([p for p in others if p.name.lower().endswith(_OTHER_FORMATS)], "not NIfTI (convert them first)", root)
    yield from left


def _tell(paths: Sequence[Path], why: str, root: Path) -> None:
    if paths:
        names = first_few([path.relative_to(root).as_posix() for path in paths])
        leave_out(f"{root}: {counted(len(paths), 'file')} left out, {why}: {names}")


def _id(path: Path) -> str:
    return without_channel(stem(path), path.parent)


def _label_id(path: Path) -> str:
    return named.scan_stem(stem(path)) or stem(path)


def _nifti_below(root: Path) -> Iterable[Path]:
    for folder, _, names in walk(root):
        yield from (folder / name for name in names if is_nifti(folder / name))


def _must_be_there(path: Path) -> None:
    if not path.exists():
        raise BadInput(f"{path}: no such folder.")


def _must_be_folder(path: Path) -> None:
    _must_be_there(path)
    if not path.is_dir():
        raise BadInput(f"{path}: not a folder. Give the folder that holds the scans: {LAYOUT}.")
