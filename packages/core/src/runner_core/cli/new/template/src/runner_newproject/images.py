"""Image files: reading them as they are, and writing them. Another format (DICOM, NIfTI, HDF5) begins here."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from PIL.ImageSequence import Iterator as frames
from runner_core import BadInput, Cropped

SUFFIXES = (".png", ".tif", ".tiff", ".bmp", ".jpg", ".jpeg", ".npy")
AS = {"1": "L", "LA": "L", "P": "RGB", "RGBA": "RGB"}  # Pillow's names of pixels, and what they are read as
KINDS = ("L", "RGB", "I", "I;16", "I;16B", "I;16L")


def read(path: Path) -> np.ndarray:
    """Return an image (H, W, C), or a volume (pages, H, W, C), as the file has it; C is 1 (grey) or 3 (RGB)."""
    if path.suffix.lower() == ".npy":
        return read_array(path)
    try:
        with Image.open(path) as file:
            mode = AS.get(file.mode, file.mode)
            pages = [np.asarray(page.convert(mode) if mode in AS.values() else page) for page in frames(file)]
        image = np.stack(pages) if len(pages) > 1 else pages[0]
        deep = mode == "RGB" and path.suffix.lower() == ".png" and path.read_bytes()[24] == 16
    except (OSError, SyntaxError, ValueError, IndexError, Image.DecompressionBombError) as error:
        raise BadInput(f"{path}: cannot be read as an image: {error}; repair it, or take it out") from error
    if mode not in KINDS or deep or not 0 <= image.min() <= image.max() < 2**16:
        what = "colours with 16 bits" if deep else f"pixels of the kind {mode}"
        raise BadInput(
            f"{path}: has {what}; wanted grey values with 8 or 16 bits, or RGB with 8: convert it, or to .npy"
        )
    if mode == "RGB":
        return image
    return image.astype(np.uint8 if mode == "L" else np.uint16)[..., None]


def read_array(path: Path) -> np.ndarray:
    """Return an array of whole or decimal numbers; its last axis is that of channels if it has 3 of them, or 1."""
    try:
        with path.open("rb") as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise BadInput(f"{path}: cannot be read as an array: {error}; save it again") from error
    array = array.astype(np.uint8) if array.dtype == bool else array
    array = array if array.ndim > 2 and array.shape[-1] in (1, 3) else array[..., None]
    if array.ndim not in (3, 4) or array.dtype.kind not in "uif" or not array.size or not np.isfinite(array).all():
        raise BadInput(
            f"{path}: holds {array.dtype} of shape {array.shape}; wanted finite numbers, (pages,) H, W (, C)"
        )
    return array


def one_kind(keys: Sequence[str], shapes: Sequence[Sequence[int]]) -> int:
    """Return the number of axes of all images, without channels; raise BadInput if they, or the channels, differ."""
    kinds = {(len(shape) - 1, shape[-1]): key for key, shape in zip(keys, shapes, strict=True)}
    if len(kinds) > 1:
        what = ", ".join(f"{key} has {axes} axes and {n} channel{'s'[: n > 1]}" for (axes, n), key in kinds.items())
        raise BadInput(f"images differ: {what}; convert them to one kind (all grey or all RGB), or take some out")
    return next(iter(kinds))[0]


def usable(cropped: Cropped, axes: int, channels: int) -> np.ndarray:
    """Return the prepared image of a record; raise BadInput if the network was trained on another kind of image."""
    image, path = cropped.prepared["image"], str(cropped.record.files["image"])
    one_kind(["each training image", path], [(*[1] * axes, channels), image.shape])
    return image


def bordered(arrays: Mapping[str, np.ndarray], patch: Sequence[int]) -> dict[str, np.ndarray]:
    """Return arrays with mirrored borders: sides that hold the patch and are multiples of 32, pages of 4."""
    sides = zip(arrays["image"].shape, patch, (4, 32, 32)[-len(patch) :], strict=False)
    border = [(0, max(side, -(-n // step) * step) - n) for n, side, step in sides]
    return {name: np.pad(x, [*border, (0, 0)][: x.ndim], "symmetric") for name, x in arrays.items()}


def side_by_side(panels: Sequence[np.ndarray]) -> np.ndarray:
    """Return a picture of an image (…, C) and of masks (…), all from 0 to 1; of a volume, the middle page."""
    axes = panels[0].ndim - 1
    panels = [panel.reshape(*panel.shape[:axes], -1) for panel in panels]
    pages = [panel if axes == 2 else panel[len(panel) // 2] for panel in panels]
    colours = [np.broadcast_to(np.clip(page, 0, 1), (*page.shape[:2], 3)) for page in pages]
    return (np.hstack(colours) * 255).astype(np.uint8)


def save(array: np.ndarray, path: Path) -> Path:
    """Write grey values (H, W), or (pages, H, W) as TIFF, and return the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    first, *others = [Image.fromarray(page) for page in array.reshape(-1, *array.shape[-2:])]
    first.save(path, **({"save_all": True, "append_images": others} if others else {}))
    return path
