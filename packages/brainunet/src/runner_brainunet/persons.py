"""Find the person of each scan by its name, so that all scans of a person stay in one split."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from runner_core import IMAGE_FOLDERS, first_few, leave_out

from runner_brainunet.nifti import stem

_KNOWN = re.compile(r"(sub-[A-Za-z0-9]+)|\b(IXI\d{3,})|\b(OAS\d_\d{4})|\b(OAS\d{5})|(?:\b|_)(CC\d{4})(?=_)")
"""Names of persons in BIDS and NFBS, IXI, OASIS 1 and 2, OASIS 3 and 4, and CC359."""
_SAY = "If that is wrong, name them: {group} in data.pattern, or a column group in a table (data.manifest)."


def person(path: Path) -> str | None:
    """Return the person by the file's name, or by a folder above it; None if no name is of a known kind.

    >>> person(Path("x/sub-01/ses-2/anat/sub-01_ses-2_T1w.nii.gz")), person(Path("OAS1_0001_MR2_gfc.img"))
    ('sub-01', 'OAS1_0001')
    """
    for part in reversed(path.parts):
        if found := _KNOWN.search(part):
            return next(text for text in found.groups() if text)
    return None


def persons(scans: Sequence[tuple[Path, str | None]], root: Path) -> list[str]:
    """Return the person of every scan: the given one, else one by a known kind of name, else a guess.

    The guess is the folder of each scan, or its name up to the first _ or -. If that is equal for all scans, each scan
    is a person of its own. `leave_out` gets the guess.
    """
    found = [group or person(path) for path, group in scans]
    unknown = [path for (path, _), who in zip(scans, found, strict=True) if who is None]
    if not unknown:
        return [who for who in found if who]
    names = _by_folder(unknown, root)
    how = "the folder that a scan lies in counts as its person"
    if names is None:
        names = {path: re.split(r"[-_]", stem(path))[0] or stem(path) for path in unknown}
        how = "what names have before their first _ or - counts as the person"
    if len(set(names.values())) < 2 and len(unknown) > 1:
        names = {path: stem(path) for path in unknown}
        how = "each scan counts as a person of its own, since no name says whose it is"
    if len(unknown) > 1:
        leave_out(f"{root}: {how} ({first_few(sorted(set(names.values())), 3)}). {_SAY}")
    return [who or names[path] for (path, _), who in zip(scans, found, strict=True)]


def _by_folder(paths: Sequence[Path], root: Path) -> dict[Path, str] | None:
    """Return the folder of each scan; None if one folder holds more than half of them, or is a folder of images."""
    folders = Counter(path.parent for path in paths)
    plain = any(folder == root or folder.name.lower() in IMAGE_FOLDERS for folder in folders)
    if plain or len(folders) < 2 or max(folders.values()) > len(paths) / 2:
        return None
    return {
        path: path.parent.relative_to(root).as_posix() if root in path.parents else str(path.parent) for path in paths
    }
