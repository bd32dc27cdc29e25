"""Find masks named after scans: NAME_mask, NAME_brain_mask, NAME_staple (CC359), t88_masked_gfc (OASIS)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path

from runner_core import BadInput, counted, first_few, leave_out

from runner_brainunet.nifti import stem

MASK = re.compile(r"(brain.*mask|mask.*brain)$", re.IGNORECASE)
"""The end of a brain mask's name, in BIDS and NFBS."""
NO_SCAN = re.compile(r"(mask|brain|masked_gfc|[-_](staple|ss|manual)|[df]?seg|probseg|labels?)$", re.IGNORECASE)
"""The end of a name that no scan of a head has."""
_ENDING = re.compile(r"([-_](brain|bet|hd-?bet|synthstrip))?[-_]([^\W_]*mask|staple|ss|manual)$", re.IGNORECASE)
"""The ending that a mask's name adds to its scan's: _mask, _brain_mask, _bet_mask, _BrainExtractionMask, …"""
_MODALITY = re.compile(r"(?:^|[-_])(T1w?|T2w?|PDw?|FLAIR|MRA|DTI(?:-\d+)?|gfc)$", re.IGNORECASE)
"""The end of a scan's name that says its modality. gfc is OASIS's, corrected for the field."""


def pairs(root: Path, paths: Sequence[Path]) -> dict[Path, Path]:
    """Return the mask of every scan that has one, anywhere below `root`.

    A scan without a mask is included, with the expected path of its mask, if other scans of its modality in its folder
    have masks. All other files are left out, and `leave_out` gets their names. Raises BadInput if several masks could
    belong to one scan.
    """
    by_stem: defaultdict[str, list[Path]] = defaultdict(list)
    for path in paths:
        by_stem[stem(path)].append(path)
    masks: defaultdict[Path, list[Path]] = defaultdict(list)
    for path in paths:
        scan = scan_stem(stem(path), by_stem)
        if scan is not None:
            masks[_nearest(path, by_stem[scan])].append(path)
    found = {scan: _only(scan, own) for scan, own in masks.items()}
    places = {(scan.parent, _modality(scan)) for scan in found}
    used = {mask for own in masks.values() for mask in own}
    rest = [path for path in paths if path not in found and path not in used]
    for path in list(rest):
        if (path.parent, _modality(path)) in places and not NO_SCAN.search(stem(path)):
            rest.remove(path)
            found[path] = _expected(path, masks)
    if found and rest:
        names = first_few([path.relative_to(root).as_posix() for path in rest])
        leave_out(f"{root}: {counted(len(rest), 'NIfTI file')} left out, without a mask named after it: {names}")
    return found


def scan_stem(name: str, known: Collection[str] | None = None) -> str | None:
    """Return the name of the scan that a mask's name belongs to, one of `known`; None if it is no mask's name.

    >>> scan_stem("a_1_brain_mask", ("a_1", "a")), scan_stem("a_1_brain_mask"), scan_stem("a_1")
    ('a_1', 'a_1', None)
    >>> scan_stem("OAS1_0001_MR1_mpr_n4_anon_111_t88_masked_gfc")
    'OAS1_0001_MR1_mpr_n4_anon_111_t88_gfc'
    """
    if "_masked" in name:
        scan = name.replace("_masked", "")
        return scan if known is None or scan in known else None
    if known is None:
        found = _ENDING.search(name)
        return name[: found.start()] if found else None
    places = [i for i, mark in enumerate(name) if mark in "-_"]
    ends = [i for i in places if "mask" in name[i:].lower() or name[i + 1 :].lower() in ("staple", "ss", "manual")]
    return next((name[:i] for i in reversed(ends) if name[:i] in known), None)


def is_t1(path: Path) -> bool:
    """Return whether the name ends like that of a T1 scan.

    >>> is_t1(Path("IXI012-HH-1211-T1.nii.gz")), is_t1(Path("sub-1_T1w.nii")), is_t1(Path("head.nii"))
    (True, True, False)
    """
    return _modality(path) in ("t1", "t1w")


def _modality(path: Path) -> str:
    found = _MODALITY.search(stem(path))
    return found[1].lower() if found else ""


def _nearest(mask: Path, scans: Sequence[Path]) -> Path:
    """Return the scan that shares most folders with the mask."""
    return max(scans, key=lambda scan: sum(a == b for a, b in zip(scan.parts, mask.parts, strict=False)))


def _only(scan: Path, masks: Sequence[Path]) -> Path:
    if len(masks) > 1:
        name = stem(scan)
        shown = first_few([str(mask) for mask in masks], 3)
        one = f"{masks[0].parent.name}/{masks[0].name.replace(name, '{id}')}"
        raise BadInput(
            f"{scan}: {len(masks)} masks could be its own: {shown}. Choose, such as by --data.pattern "
            f"'{scan.parent.name}/{scan.name.replace(name, '{id}')}' '{one}'."
        )
    return masks[0]


def _expected(scan: Path, masks: dict[Path, list[Path]]) -> Path:
    """Return the expected path of a scan's mask, from the mask of another scan of its folder and modality."""
    other = next(p for p in masks if (p.parent, _modality(p)) == (scan.parent, _modality(scan)))
    mask = masks[other][0]
    return mask.with_name(mask.name.replace(stem(other), stem(scan)))
