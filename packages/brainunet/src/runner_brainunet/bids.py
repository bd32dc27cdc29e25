"""Find masks of T1 scans by BIDS names, in raw trees and in derivatives such as fMRIPrep's.

A mask belongs to a scan if no entity of the two differs, if it names no entity that the scan lacks (a task, another
space), and if it does not lie in the folder of another modality. A mask may leave out an entity that the scan names
(`acq`, `run`, `ses`: fMRIPrep's mask of all sessions has no `ses`). It then belongs to the scan only if it fits no
other scan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from runner_core import BadInput, counted, first_few, leave_out

from runner_brainunet.named import MASK
from runner_brainunet.nifti import stem

_FREE = ("desc", "label", "res")
"""Entities that say what a derivative is, not which scan it comes from."""
_NATIVE = ("T1w", "orig", "native", "individual")
"""Spaces that are the scan's own."""
_MODALITIES = ("func", "dwi", "fmap", "perf", "pet", "meg", "eeg", "ieeg", "micr", "mrs", "nirs", "beh")
"""Folders of BIDS that hold no T1 scan."""
_SUFFIXES = (
    "T2w",
    "T2star",
    "T2starw",
    "FLAIR",
    "PDw",
    "bold",
    "boldref",
    "sbref",
    "dwi",
    "epi",
    "asl",
    "m0scan",
    "pet",
)
"""Suffixes of other modalities. In the name of a mask they name the modality that it was made from."""


def pairs(root: Path, paths: Sequence[Path]) -> dict[Path, Path]:
    """Return the mask of every T1 scan: by NFBS's name beside it, or by entities. Raises BadInput if several fit."""
    scans = [p for p in paths if stem(p).endswith("_T1w") and "derivatives" not in p.relative_to(root).parts[:-1]]
    masks = [p for p in paths if MASK.search(stem(p)) and not other_modality(p.relative_to(root))]
    by_person: dict[str | None, list[Path]] = {}
    for scan in scans:
        by_person.setdefault(entities(scan).get("sub"), []).append(scan)
    own = {scan: _beside(scan) for scan in scans}
    of_person: dict[str | None, list[Path]] = {}
    for mask in masks:
        of_person.setdefault(entities(mask).get("sub"), []).append(mask)
    there, nfbs = set(masks), set(own.values())
    found: dict[Path, Path] = {}
    for who, mine in by_person.items():
        others = [mask for mask in of_person.get(who, []) if mask not in nfbs] if who else []
        for scan in mine:
            found[scan] = own[scan] if own[scan] in there else _by_entities(scan, mine, others) or own[scan]
    used = set(found.values())
    for mask in masks:  # a mask whose scan is gone
        name = stem(mask)
        if mask not in used and name.endswith("_T1w_brainmask"):
            found[mask.with_name(name.removesuffix("_brainmask") + mask.name[len(name) :])] = mask
    if unused := [mask.relative_to(root).as_posix() for mask in masks if mask not in set(found.values())]:
        leave_out(f"{root}: {counted(len(unused), 'mask')} left out, of no T1 scan that is there: {first_few(unused)}")
    return found


def other_modality(path: Path) -> bool:
    """Return whether a path's folders, or its name, say that the file belongs to another modality than T1."""
    return any(part in _MODALITIES for part in path.parts[:-1]) or any(
        part in _SUFFIXES for part in stem(path).split("_")
    )


def entities(path: Path) -> dict[str, str]:
    """Return the BIDS entities of a file's name that tell scans apart.

    >>> entities(Path("sub-1_acq-a_space-T1w_desc-brain_mask.nii.gz"))
    {'sub': '1', 'acq': 'a'}
    """
    found = dict(part.split("-", 1) for part in stem(path).split("_") if "-" in part)
    if found.get("space") in _NATIVE:
        del found["space"]
    return {key: value for key, value in found.items() if key not in _FREE}


def _beside(scan: Path) -> Path:
    name = stem(scan)
    return scan.with_name(f"{name}_brainmask{scan.name[len(name) :]}")


def _by_entities(scan: Path, scans: Sequence[Path], masks: Sequence[Path]) -> Path | None:
    """Return the mask of a scan from the masks of its person. `scans` are all scans of that person."""
    fitting = [mask for mask in masks if _fits(mask, scan)]
    whole = [mask for mask in fitting if entities(mask) == entities(scan)]
    if not whole and fitting:
        _refuse_doubt(scan, scans, fitting)
    best = whole or fitting
    for near in (lambda m: m.parent == scan.parent, lambda m: "space-" not in m.name):
        best = [mask for mask in best if near(mask)] or best
    if len(best) > 1:
        raise BadInput(
            f"{scan}: {len(best)} masks could be its own: {first_few(list(map(str, best)), 3)}. Leave only one of "
            f"them, or "
            "choose by data.pattern or a table (data.manifest)."
        )
    return best[0] if best else None


def _fits(mask: Path, scan: Path) -> bool:
    """Return whether the mask names no entity that the scan lacks, and no other space."""
    named, wanted = entities(mask), entities(scan)
    return named.items() <= wanted.items() and named.get("space") == wanted.get("space")


def _refuse_doubt(scan: Path, scans: Sequence[Path], masks: Sequence[Path]) -> None:
    """Raise BadInput if a mask that names fewer entities than the scan could belong to another scan too."""
    for mask in masks:
        could = [other for other in scans if _fits(mask, other)]
        if len(could) > 1:
            names = [path.name for path in could[:3]] + (["others"] if len(could) > 3 else [])
            raise BadInput(
                f"{mask}: is it the mask of {' or of '.join(names)}? Its name does not say "
                f"{_lacking(mask, scan)}. Add that to its name, or list the pairs in a table (data.manifest)."
            )


def _lacking(mask: Path, scan: Path) -> str:
    missing: Mapping[str, str] = {k: v for k, v in entities(scan).items() if k not in entities(mask)}
    return ", ".join(f"{key}-…" for key in missing)
