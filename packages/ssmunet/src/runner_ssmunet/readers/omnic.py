"""Thermo OMNIC maps (.map): recognised, and refused with what to do instead.

The layout is not published. What is known of it (where the spectra start, and how long each one's header is) was found
by others on a few files, and gives no grid for maps without positions in their titles.
"""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from runner_core import BadInput, Json

from runner_ssmunet.readers.base import Raw, existing

_SIGNATURE = b"Spectral "


def is_core(path: Path) -> bool:
    """Return whether a file is a map of OMNIC, by its suffix and first bytes, without its export beside it."""
    if path.suffix.lower() != ".map" or not path.is_file() or path.with_suffix(".hdr").is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_SIGNATURE)) == _SIGNATURE


def parts(path: Path) -> list[Path]:
    """Raise BadInput: maps of OMNIC are not read."""
    _refuse(path)


def meta(path: Path) -> dict[str, Json]:
    """Raise BadInput: maps of OMNIC are not read."""
    _refuse(path)


def read(path: Path, spectra: bool = True) -> Raw:
    """Raise BadInput: maps of OMNIC are not read."""
    _refuse(path)


def _refuse(path: Path) -> NoReturn:
    raise BadInput(
        f"{existing(path)}: a Thermo OMNIC map, whose layout is not published. Export it as ENVI (.hdr with its data "
        "file) from OMNIC, or open it in Quasar and save wavenumbers and spectra as wn and X of a core_NAME.npz."
    )
