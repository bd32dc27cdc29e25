"""The roles of a patient's files, by their names: the challenge's own, and the usual other ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from runner_core import BadInput

from runner_openkbp.rois import POSSIBLE, ROIS

REQUIRED = {"ct": "ct.csv", POSSIBLE: f"{POSSIBLE}.csv", "voxels": "voxel_dimensions.csv"}
"""Files that every patient must have, by role; `dose` too, except for prediction."""
DOSE = "dose.csv"
FILES = {"ct": "ct.csv", "dose": DOSE, **REQUIRED, **{roi: f"{roi}.csv" for roi in ROIS}}
"""The challenge's name of each file, by role."""
_WORDS = {
    "ct": "ct image scan planningct",
    "dose": "dose rtdose plandose",
    POSSIBLE: "possibledosemask possibledose dosemask",
    "voxels": "voxeldimensions voxels voxelsize voxelspacing spacing",
    "Brainstem": "brainstem",
    "SpinalCord": "spinalcord cord",
    "RightParotid": "rightparotid parotidright parotidr rparotid",
    "LeftParotid": "leftparotid parotidleft parotidl lparotid",
    "Esophagus": "esophagus oesophagus",
    "Larynx": "larynx",
    "Mandible": "mandible bonemandible",
    "PTV56": "ptv56 ptv5600 ptvlow",
    "PTV63": "ptv63 ptv6300 ptvmid",
    "PTV70": "ptv70 ptv7000 ptvhigh",
}
"""Names of each role in small letters and digits alone. Those of TG-263 (Parotid_R, Bone_Mandible) are among them."""
_ROLE = {word: role for role, words in _WORDS.items() for word in words.split()}
_SPLIT = re.compile(r"(?P<name>train|training|val|valid|validation|test|testing)([-_ ](pats|patients|data))?$", re.I)
_SPLITS = {"tr": "train", "va": "validation", "te": "test"}


def role_of(name: str) -> str | None:
    """Return the role that a name stands for, in letters of any size and with any marks between words.

    >>> role_of("spinal_cord"), role_of("Parotid_R"), role_of("voxel_dimensions"), role_of("lung")
    ('SpinalCord', 'RightParotid', 'voxels', None)
    """
    return _ROLE.get(re.sub(r"[^a-z0-9]", "", name.lower()))


class KnownRoles:
    """All names that `role_of` knows: `"cord" in KnownRoles()`."""

    def __contains__(self, name: object) -> bool:
        return role_of(str(name)) is not None


def by_role(files: Iterable[tuple[str, Path]], of: str) -> dict[str, Path]:
    """Return a patient's files by role; the challenge's own name is preferred.

    Raises BadInput, which begins with `of`, for two other names of one role.
    """
    found: dict[str, Path] = {}
    for role, path in sorted(files, key=lambda pair: (pair[1].name != FILES[pair[0]], str(pair[1]))):
        other = found.setdefault(role, path)
        if other != path and other.name != FILES[role]:
            raise BadInput(f"{of}: {other.name} and {path.name} are both its {role}. Keep one of them.")
    return found


def split_of(folders: Sequence[str]) -> str | None:
    """Return the split that the innermost such folder above a patient's names.

    >>> split_of(("provided-data", "validation-pats"))
    'validation'
    """
    names = (_SPLIT.match(part) for part in reversed(folders))
    return next((_SPLITS[found["name"][:2].lower()] for found in names if found), None)
