"""Embed fields of cells with the exported network: python predict.py FIELD… --out DIR.

A field is an .npy with its image (channels, rows, columns), the channels in the order that predict.json names, or an
.npz with an image (rows, columns) for each channel, by its name. Pixels are the microscope's own grey values, uint16 or
uint8. TIFF, PNG and other files need runner, or a reader of your own (such as tifffile) and numpy.savez before.

Writes KEY_embeddings.npz for each: field (D,), the mean over its windows; windows (n, D); corners (n, 2), their upper
left pixels (y, x); and the names of the channels. `runner dinocell predict` writes the same numbers as a table, but for
the runtime's rounding. Plates, wells and sites are not asked for, nor are profiles of wells made. Needs NumPy and the
network's runtime; windows.py and session.py lie beside this file. The numbers are in predict.json.

For research, not for diagnosis.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import session
import windows

Array = np.ndarray[Any, np.dtype[Any]]
Infer = Callable[[dict[str, Array]], dict[str, Array]]
Settings = dict[str, Any]


def predict(image: Array, missing: list[int], infer: Infer, settings: Settings) -> dict[str, Array]:
    """Return the arrays that are written of an image (C, H, W). Raises ValueError for one that is too small.

    `missing` are the places of channels that the field lacks; they are 0.
    """
    height, width = image.shape[1:]
    window = settings["window"]
    if min(height, width) < window:
        raise ValueError(f"{width} × {height} pixels, smaller than the windows that the network reads ({window})")
    prepared = windows.prepare(image, settings["percentiles"], missing)
    if settings["levels"] is not None:
        levels = windows.usable(np.array(settings["levels"], np.float32), prepared["levels"])
        prepared["levels"] = levels.astype(np.float32)
    at = windows.corners((height, width), window, settings["stride"])
    found = windows.embedded(prepared, at, infer, window, settings["batch"])
    return {
        "field": found.mean(0, dtype=np.float64).astype(np.float32),
        "windows": found,
        "corners": at,
        "channels": np.array(settings["channels"]),
    }


def read(path: Path, settings: Settings) -> tuple[Array, list[int]]:
    """Return a field's image (C, H, W), 0 in channels that it lacks, and their places, or raise ValueError."""
    names = settings["channels"]
    loaded = np.load(path, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        if loaded.ndim != 3 or len(loaded) != len(names):
            raise ValueError(f"an array of shape {loaded.shape}: (C, H, W) is needed, with {', '.join(names)}")
        images = dict(zip(names, loaded, strict=True))
    else:
        with loaded as file:
            images = {name: file[name] for name in names if name in file.files}
    missing = [place for place, name in enumerate(names) if name not in images]
    if missing and not (settings["partial"] and images):
        raise ValueError(f"no channel {names[missing[0]]!r} in it; the network reads {', '.join(names)}")
    shape, dtype = next((one.shape, one.dtype) for one in images.values())
    for name, one in images.items():
        if one.ndim != 2 or one.dtype not in (np.uint8, np.uint16):
            raise ValueError(
                f"channel {name} has shape {one.shape} and type {one.dtype}: give the microscope's own grey values, "
                "(H, W) in uint16 or uint8"
            )
        if (one.shape, one.dtype) != (shape, dtype):
            raise ValueError(f"channel {name} is {one.shape} {one.dtype}, another is {shape} {dtype}: all are alike")
    empty = np.zeros(shape, dtype)
    return np.stack([images.get(name, empty) for name in names]), missing


def main() -> int:
    """Embed the fields that the command line names."""

    def found(path: Path, infer: Infer, settings: Settings) -> dict[str, Array]:
        return predict(*read(path, settings), infer, settings)

    def written(path: Path, found: dict[str, Array]) -> str:
        np.savez_compressed(path, **found)  # type: ignore[arg-type]  # NumPy 1.26 would store allow_pickle
        return f"{len(found['windows'])} windows"

    script = session.Script(__doc__, "field", "embeddings", files=".npy or .npz", done="embedded")
    return script.run(script.parser.parse_args(), lambda path: f"{path.stem}_embeddings.npz", found, written)


if __name__ == "__main__":
    sys.exit(main())
