"""Find the tissue classes of cores with the exported network: python predict.py CORE… --out DIR.

A core is an .npz with X (rows, columns, wavenumbers), wn (cm⁻¹) and, if it is known, tissue_mask (rows, columns); or an
.npy with X alone, with its wavenumbers in --wavenumbers FILE (.npy, or text with a number a line), unless they are the
network's own. STEM.tissue.npy beside a core is its mask. Other formats (ENVI, Agilent, OPUS, MATLAB …) need runner, or
to be saved as .npz before.

Writes KEY_classes.npz for each: classes (rows, columns; labels, 0 off the tissue), probabilities (classes, rows,
columns) in 16 bits, class_names, and the network's wavenumbers. These are the arrays of `runner ssmunet predict`, but
for pixels whose two best classes the runtime's rounding exchanges. Needs NumPy and the network's runtime; bands.py,
whole.py and session.py lie beside this file. The numbers are in predict.json.

For research, not for diagnosis.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import bands
import numpy as np
import session
import whole

Array = np.ndarray[Any, np.dtype[Any]]
Infer = Callable[[dict[str, Array]], dict[str, Array]]
Settings = dict[str, Any]

_PIXELS = 16384
"""Spectra that are prepared at once."""


class Core(NamedTuple):
    """Absorbances (H, W, C) float32, ascending wavenumbers (C,), tissue (H, W) or None, and measured pixels (H, W)."""

    spectra: Array
    wavenumbers: Array
    tissue: Array | None
    measured: Array


# ---------------------------------------------------------------- from a core to classes


def predict(core: Core, infer: Infer, settings: Settings) -> dict[str, Array]:
    """Return the arrays that are written of a core. Raises ValueError if it cannot be prepared for the network."""
    data = SimpleNamespace(**settings["data"])
    tissue = tissue_of(core, data.tissue)
    box = _box(tissue, settings["crop"])
    axis = plan(core.wavenumbers, data, np.array(settings["wavenumbers"]))
    spectra = prepare(core.spectra[box], tissue[box], axis, data.normalise)
    total: Any = 0
    for view in ("", *settings["views"]):
        turns = (np.ascontiguousarray(turned(array, view)) for array in (spectra, tissue[box]))
        found, _ = whole.predict(*turns, infer, *(settings[name] for name in ("outputs", "patch", "overlap", "batch")))
        total = total + turned(found.transpose(1, 2, 0), view, back=True).transpose(2, 0, 1)
    inside = total / np.float32(1 + len(settings["views"])) if settings["views"] else total
    probabilities = np.zeros((settings["outputs"], *tissue.shape), np.float32)
    probabilities[(slice(None), *box)] = inside
    labels = np.array(settings["labels"], np.uint8)
    return {
        "classes": np.where(tissue, labels[probabilities.argmax(0)], 0).astype(np.uint8),
        "probabilities": np.where(tissue, probabilities, 0).astype(np.float16),
        "class_names": np.array(settings["class_names"]),
        "wavenumbers": np.array(settings["wavenumbers"], np.float64),
    }


def tissue_of(core: Core, mode: str) -> Array:
    """Return the tissue (H, W) bool: the core's mask, or where amide I stands out."""
    if mode == "file" and core.tissue is None:
        raise ValueError("no tissue mask in it, and none beside it")
    if mode != "amide1" and core.tissue is not None:
        return core.tissue & core.measured
    weights = bands.amide1_weights(core.wavenumbers)
    if weights is None:
        raise ValueError("its axis has no amide-I band (1600 to 1700 cm⁻¹) to find the tissue by: add a tissue mask")
    area = core.spectra @ weights.astype(np.float32)
    low, high = np.percentile(area[core.measured], (1, 99))
    if high - low < bands.CONTRAST or high <= 0:
        raise ValueError("no amide-I area stands out from the rest: no tissue is found; add a tissue mask")
    heights = np.log(area.clip(max(-low, bands.FAINT * high)))
    return np.asarray(core.measured & (heights > _otsu(heights[core.measured])))


def _otsu(values: Array) -> float:
    counts, edges = np.histogram(values, bins=256)
    centres = (edges[:-1] + edges[1:]) / 2
    below = np.cumsum(counts)[:-1].astype(np.float64)
    above = values.size - below
    moment = np.cumsum(counts * centres)
    with np.errstate(invalid="ignore", divide="ignore"):
        difference = moment[:-1] / below - (moment[-1] - moment[:-1]) / above
        variance = np.nan_to_num(below * above * difference**2, nan=-1.0, posinf=-1.0)
    return float(edges[1 + int(np.argmax(variance))])


def _box(tissue: Array, crop: Settings | None) -> tuple[slice, ...]:
    """Return the box around the tissue, so many pixels larger; the whole core without a crop or tissue."""
    everything = tuple(slice(0, length) for length in tissue.shape)
    if crop is None or not tissue.any():
        return everything
    hits = [np.flatnonzero(tissue.any(axis=1 - axis)) for axis in (0, 1)]
    margin = crop["margin"]
    return tuple(slice(max(0, int(own[0]) - margin), int(own[-1]) + 1 + margin) for own in hits)


def plan(wavenumbers: Array, data: SimpleNamespace, own: Array) -> bands.Axis:
    """Return how spectra on `wavenumbers` become those on the network's axis `own`. Raises ValueError if not."""
    stretches = [part for part in bands.segments(wavenumbers, data) if part.stop - part.start >= data.bin]
    parts = [(part, *bands.binned(wavenumbers[part], data.bin)) for part in stretches]
    if not parts:
        raise ValueError(f"nothing is left of its axis between {data.low:g} and {data.high:g} cm⁻¹")
    if data.step is not None or data.wavenumbers:
        parts = list(bands.resampled(parts, own, data))
    kept, first = [], 0
    for part, centres, matrix in parts:
        kept.append(bands.Segment(part, slice(first, first + len(centres)), matrix, None))
        first += len(centres)
    found = np.concatenate([centres for _, centres, _ in parts])
    spacing = float(np.median(np.diff(own)))
    if len(found) != len(own) or np.abs(found - own).max() > bands.SAME * spacing:
        raise ValueError(
            f"other wavenumbers than the network was trained on: {len(found)} from {found[0]:g} to {found[-1]:g} cm⁻¹ "
            f"are left of it, the network has {len(own)} from {own[0]:g} to {own[-1]:g}"
        )
    return bands.Axis(found, tuple(kept))


def prepare(spectra: Array, tissue: Array, axis: bands.Axis, how: str) -> Array:
    """Return spectra (H, W, L) float16, 0 off the tissue: binned or resampled, and normalised."""
    out = np.zeros((*tissue.shape, len(axis.wavenumbers)), np.float16)
    places = np.nonzero(tissue)
    for first in range(0, len(places[0]), _PIXELS):
        part = tuple(place[first : first + _PIXELS] for place in places)
        own = bands.on_axis(spectra[part], axis)
        out[part] = bands.normalised(own, bands.heights(own, axis) if how == "amide1" else None, how).clip(-6e4, 6e4)
    return out


def turned(array: Array, view: str, back: bool = False) -> Array:
    """Return a view of an array (H, W, …), or with `back` the array of a view."""
    kind, _, how = view.partition("-")
    if kind == "mirror":
        return np.flip(array, tuple("yx".index(axis) for axis in how))
    if kind == "turn":
        return np.rot90(array, (-1 if back else 1) * int(how) // 90)
    if kind in ("transpose", "antitranspose"):
        return np.swapaxes(np.rot90(array, 2 if kind == "antitranspose" else 0), 0, 1)
    return array


# ---------------------------------------------------------------- files


def read(path: Path, axis: Path | None, settings: Settings) -> Core:
    """Return the core of a file. Raises ValueError for what is none."""
    loaded = np.load(path, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        arrays = {"X": loaded, "wn": np.array(settings["wavenumbers"]) if axis is None else _numbers(axis)}
    else:
        with loaded as file:
            arrays = {name: file[name] for name in ("X", "wn", "tissue_mask") if name in file.files}
    if missing := {"X", "wn"} - {*arrays}:
        raise ValueError(f"no {min(missing)!r} in it")
    spectra, wavenumbers = arrays["X"], np.asarray(arrays["wn"], np.float64).ravel()
    if spectra.ndim != 3 or spectra.shape[2] != wavenumbers.size or spectra.dtype.kind not in "iuf":
        raise ValueError(
            f"spectra of shape {spectra.shape}, {spectra.dtype}, and {wavenumbers.size} wavenumbers: numbers (rows, "
            "columns, wavenumbers) are needed; --wavenumbers names the axis of an .npy"
        )
    steps = np.diff(wavenumbers)
    if not (np.isfinite(wavenumbers).all() and wavenumbers.min() >= 50 and ((steps > 0).all() or (steps < 0).all())):
        raise ValueError("its wavenumbers (cm⁻¹) neither rise nor fall")
    spectra = spectra.astype(np.float32, copy=False)
    if wavenumbers[0] > wavenumbers[-1]:
        spectra, wavenumbers = spectra[..., ::-1], wavenumbers[::-1].copy()
    if (units := settings["data"]["units"]) in ("transmittance", "percent"):
        share = spectra * np.float32(0.01) if units == "percent" else spectra
        spectra = -np.log10(np.maximum(share, np.float32(settings["opaque"])))
    tissue = _mask(path, arrays.get("tissue_mask"), spectra.shape[:2])
    return Core(*_finite(spectra, tissue, wavenumbers))


def _numbers(path: Path) -> Array:
    return np.asarray(np.load(path, allow_pickle=False) if path.suffix == ".npy" else np.loadtxt(path))


def _mask(path: Path, own: Array | None, shape: tuple[int, ...]) -> Array | None:
    beside = sorted(path.parent.glob(f"{path.stem}.tissue.*"))
    if beside and (own is not None or len(beside) > 1 or beside[0].suffix != ".npy"):
        raise ValueError(f"{beside[0].name} beside it: one mask is needed, in the .npz or as {path.stem}.tissue.npy")
    found = np.load(beside[0], allow_pickle=False) if beside else own
    if found is None:
        return None
    if found.shape != shape or found.dtype.kind not in "iufb" or not found.any():
        raise ValueError(f"a tissue mask of shape {found.shape}: one number a pixel is needed, not 0 on tissue")
    return np.asarray(found != 0)


def _finite(spectra: Array, tissue: Array | None, wavenumbers: Array) -> tuple[Array, Array, Array | None, Array]:
    """Return the parts of a core with 0 in pixels that were not measured, which are NaN."""
    finite = np.isfinite(spectra)
    measured = np.asarray(finite.all(-1))
    asked: Array = finite.any(-1) | ~np.isnan(spectra[..., 0]) if tissue is None else tissue
    if (asked & ~measured).any() or not measured.any():
        row, column = np.argwhere(~measured)[0]
        raise ValueError(f"NaN or infinite values, in row {row}, column {column} for instance")
    return np.where(measured[..., None], spectra, np.float32(0)), wavenumbers, tissue, measured


def main() -> int:
    """Predict the cores that the command line names."""
    script = session.Script(__doc__, "core", "classes", files=".npz or .npy")
    script.parser.add_argument("--wavenumbers", type=Path, help="axis (cm⁻¹) of the .npy files")
    options = script.parser.parse_args()

    def found(path: Path, infer: Infer, settings: Settings) -> dict[str, Array]:
        return predict(read(path, options.wavenumbers, settings), infer, settings)

    def written(path: Path, found: dict[str, Array]) -> str:
        np.savez_compressed(path, **found)  # type: ignore[arg-type]  # NumPy 1.26 would store allow_pickle
        return f"{np.count_nonzero(found['classes'])} pixels"

    return script.run(options, lambda path: f"{path.stem}_classes.npz", found, written)


if __name__ == "__main__":
    sys.exit(main())
