"""Doses of a planning system: RT Dose files as volumes in Gy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from runner_core import BadInput

from runner_openkbp.dicom.series import Volume, canonical, directions
from runner_openkbp.geometry import SAME_MM, Geometry
from runner_openkbp.rois import refuse_other_unit


def read_dose(path: Path, frame_of_reference: str) -> Volume:
    """Read an RT Dose of a whole plan in Gy (float32). Raises BadInput for another kind, unit or frame."""
    import pydicom

    try:
        found = pydicom.dcmread(path)
        values = found.pixel_array.astype(np.float32) * np.float32(found.DoseGridScaling)
        offsets = np.array(found.GridFrameOffsetVector, float)
        origin, spacing = np.array(found.ImagePositionPatient, float), [float(mm) for mm in found.PixelSpacing]
    except (OSError, ValueError, TypeError, AttributeError, NotImplementedError, RuntimeError) as error:
        raise BadInput(
            f"{path}: the RT Dose cannot be read ({str(error)[:200]}); export it again, as a grid"
        ) from error
    for name, wanted, remedy in (
        ("DoseUnits", ("GY",), "export it in Gy, not in per cent"),
        ("DoseType", ("PHYSICAL", "EFFECTIVE"), "export the plan's dose"),
        ("DoseSummationType", ("PLAN", "MULTI_PLAN", "PLAN_OVERVIEW"), "export the dose of the whole plan"),
    ):
        if (value := str(found.get(name, ""))) not in wanted:
            raise BadInput(f"{path}: {name} is {value or 'missing'}; {remedy}")
    if str(found.get("FrameOfReferenceUID", "")) != frame_of_reference:
        raise BadInput(f"{path}: the dose lies in another frame of reference than the CT; export both from one plan")
    refuse_other_unit(path, float(values.max(initial=0)))
    if values.ndim != 3 or len(offsets) != len(values) or len(values) < 2:
        raise BadInput(f"{path}: holds {len(values)} planes and {len(offsets)} offsets; export the whole dose grid")
    across, down = directions(found, str(path))
    steps = np.diff(offsets)
    if np.abs(steps - steps[0]).max() > SAME_MM or abs(steps[0]) < SAME_MM:
        raise BadInput(f"{path}: the planes of the dose are unevenly spaced; export an even grid")
    normal = np.cross(across, down)
    if abs(offsets[0]) > SAME_MM:  # the other form: heights of the planes along z (PS3.3 C.8.8.3.2)
        if abs(normal[2]) < 0.5 or abs(offsets[0] - origin[2]) > SAME_MM:
            raise BadInput(
                f"{path}: GridFrameOffsetVector begins at {offsets[0]:g} mm, neither at 0 nor at the position"
            )
        normal = np.array([0.0, 0, 1])
    axes = np.stack([normal * steps.mean(), down * spacing[0], across * spacing[1]], axis=1)
    grid, values = canonical(Geometry(origin, axes), values)
    return Volume(values, grid)
