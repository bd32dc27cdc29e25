"""Spectra in a CSV file: a reference, vapours, interferents."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from runner_core import BadInput

from runner_ssmunet.bands import Axis

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Spectra:
    """`spectra` (K, N) on `wavenumbers` (N,), ascending; `name` of the file, for messages."""

    name: str
    wavenumbers: Array
    spectra: Array

    @property
    def digest(self) -> str:
        """Checksum of the numbers, for the key of the cache."""
        return hashlib.sha256(self.wavenumbers.tobytes() + self.spectra.tobytes()).hexdigest()[:16]

    def on(self, measured: Array, axis: Axis) -> Array:
        """Return the spectra (K, L) float64 on the kept axis, averaged and resampled as the cores' own spectra are.

        Raises BadInput if the file does not reach as far as the axis.
        """
        used = measured[min(s.columns.start for s in axis.segments) : max(s.columns.stop for s in axis.segments)]
        spare = np.diff(measured).max() if len(measured) > 1 else 0
        if used[0] < self.wavenumbers[0] - spare or used[-1] > self.wavenumbers[-1] + spare:
            raise BadInput(
                f"{self.name}: it runs from {self.wavenumbers[0]:g} to {self.wavenumbers[-1]:g} cm⁻¹, the cores' axis "
                f"from {used[0]:g} to {used[-1]:g}; give a spectrum of the whole axis, or set data.low and data.high"
            )
        whole = np.stack([np.interp(measured, self.wavenumbers, row) for row in self.spectra])
        parts = [whole[:, s.columns] if s.combine is None else whole[:, s.columns] @ s.combine for s in axis.segments]
        return np.concatenate(parts, axis=1)


def read(file: Path, single: bool = False) -> Spectra:
    """Read a CSV file: wavenumbers (cm⁻¹) in the first column, one spectrum in each other; a heading is skipped.

    Raises BadInput naming the file and what is wrong; `single` refuses more than one spectrum.
    """
    try:
        lines = [line for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "this is no text"
        raise BadInput(f"{file}: {reason}; a CSV file of spectra is needed") from error
    rows = [line.replace(";", ",").replace("\t", ",").split(",") for line in lines]
    if rows and not _numbers(rows[0]):
        rows = rows[1:]
    needed = "a wavenumber (cm⁻¹) and " + ("an absorbance" if single else "one absorbance or more")
    for number, row in enumerate(rows, start=1):
        if not _numbers(row) or len(row) != len(rows[0]):
            raise BadInput(f"{file}: row {number} of its numbers is {','.join(row)[:60]!r}; each row needs {needed}")
    if len(rows) < 2 or len(rows[0]) < 2 or (single and len(rows[0]) != 2):
        raise BadInput(f"{file}: it has {len(rows)} rows of {len(rows[0]) if rows else 0} numbers; each needs {needed}")
    table = np.array([[float(cell) for cell in row] for row in rows])
    table = table[np.argsort(table[:, 0])]
    if not np.isfinite(table).all() or (np.diff(table[:, 0]) <= 0).any():
        raise BadInput(f"{file}: it has a wavenumber twice, or a value that is no finite number")
    if not table[:, 1:].any(0).all():
        raise BadInput(f"{file}: one of its spectra is 0 everywhere")
    return Spectra(str(file), table[:, 0], np.ascontiguousarray(table[:, 1:].T))


def _numbers(row: list[str]) -> bool:
    try:
        return bool([float(cell) for cell in row])
    except ValueError:
        return False
