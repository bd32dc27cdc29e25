"""Files that `predict` writes, and remarks on a prediction.

beside the scan's key        KEY_brainmask.nii.gz and .json, KEY_brainmask.dcm, KEY_brain.nii.gz, KEY_qc.jpg
as BIDS derivatives          sub-X/anat/…_desc-brain_mask.nii.gz and .json, … (see `derivatives`)
as nnU-Net's predictions     CASE.nii.gz, with one dataset.json (see `nnunet`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from runner_core import Array, BadInput, Finding, Record, glance, replace_json

from runner_brainunet import checks, derivatives, nifti, nnunet, segments
from runner_brainunet.config import BrainPredictConfig
from runner_brainunet.derivatives import Places
from runner_brainunet.volume import Brain

_DOUBT = 0.15
"""Standard deviation of a volume, as a share of it, from which on there is a warning."""
_OTHER = 0.01
"""Volume of pieces that were left out, as a share of the brain, from which on there is a warning."""
_QUALITY = 70
"""Of JPEG pictures."""


@dataclass
class BrainPredictOptions:
    brain: bool = False
    """Also write the scan with everything but the brain set to 0."""
    qc: bool = False
    """Also write a page with pictures of all masks, worst first: qc.html."""
    bids: str = ""
    """Folder of the BIDS dataset that the scans are of: write BIDS derivatives, named after them."""
    reference: Path | None = None
    """Folder of the DICOM series that the scan was converted from: also write the mask as DICOM SEG."""
    nnunet: bool = False
    """Write CASE.nii.gz and dataset.json alone, as nnU-Net does for a folder imagesTs."""


def refuse(options: BrainPredictOptions) -> None:
    """Raise BadInput for options that cannot be met, whatever the scan."""
    alone = ("brain", "qc", "bids", "reference")
    if options.nnunet and (others := [f"--{name}" for name in alone if getattr(options, name)]):
        raise BadInput(f"--nnunet writes masks alone, as nnU-Net does: leave out {' and '.join(others)}")
    if options.reference is not None:
        if options.bids:
            raise BadInput("--reference: BIDS derivatives hold no DICOM; leave out --bids, or --reference")
        segments.refuse_unusable(options.reference)


def write(
    prediction: Array,
    record: Record,
    folder: Path,
    options: BrainPredictOptions,
    settings: BrainPredictConfig,
    draw: Callable[[], Array],
) -> list[Path]:
    """Write the mask with the scan's grid and header, a JSON file with its volume, and what else `options` ask for.

    `draw` returns the picture for the page. A mask without a volume, as the baseline's, is written alone.
    """
    image = nifti.open_image(record.files["image"])
    if options.nnunet:
        return [nifti.write_like(image, prediction, folder / f"{record.key}{nnunet.ENDING}")]
    places = derivatives.places(record, Path(options.bids)) if options.bids else _beside(record.key)
    written = []
    if options.reference is not None:  # first, as it may be refused
        path, scan = folder / f"{record.key}_brainmask.dcm", nifti.read_data(image, record.files["image"])
        affine = np.diag([*[nifti.millimetres(image)] * 3, 1.0]) @ image.affine
        written.append(segments.write(np.asarray(prediction) > 0, scan, affine, record.key, options.reference, path))
    written.append(nifti.write_like(image, prediction, folder / places.mask))
    if options.brain:
        written.append(nifti.write_masked(image, prediction, folder / places.brain))
        if options.bids:
            written.append(folder / derivatives.sidecar(places.brain))
            replace_json(written[-1], derivatives.about_brain(places))
    if not isinstance(prediction, Brain) or prediction.volume is None:
        return written
    if options.qc:
        written.append(folder / places.picture)
        written[-1].parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw()).save(written[-1], quality=_QUALITY)
    else:
        (folder / places.picture).unlink(missing_ok=True)  # it would show an older mask
    spacing, volume = nifti.spacing(image), prediction.volume
    about = derivatives.about_mask(places) | {
        "BrainVolume": round(volume.ml, 2),
        "BrainVolumeSD": round(volume.sd_ml, 2),
        "MaskVolume": round(_ml(prediction, spacing), 2),
        "Threshold": settings.threshold,
        "Margin": settings.margin,
        "Warnings": [finding.message for finding in remarks(prediction, spacing) if finding.level == "warning"],
        "Notes": [finding.message for finding in remarks(prediction, spacing) if finding.level == "note"],
        "Record": record.key,
        "SourceContent": glance(record.files["image"]),
        "Picture": places.picture.as_posix() if options.qc else None,
    }
    written.append(folder / derivatives.sidecar(places.mask))
    try:
        replace_json(written[-1], about)
    except OSError as error:
        raise BadInput(f"{written[-1]}: cannot be written ({error.strerror}).") from error
    return written


def _beside(key: str) -> Places:
    return Places(Path(f"{key}_brainmask.nii.gz"), Path(f"{key}_brain.nii.gz"), Path(f"{key}_qc.jpg"))


def write_map(record: Record, values: Array, stem: Path) -> list[Path]:
    """Write values on the scan's grid as STEM.nii.gz (float32), with the scan's header."""
    image = nifti.open_image(record.files["image"])
    return [nifti.write_like(image, values, stem.with_name(f"{stem.name}.nii.gz"), np.float32)]


def remarks(prediction: Array, spacing: Sequence[float]) -> Iterator[Finding]:
    """Yield what looks wrong with a predicted brain (bool, voxels of `spacing` mm): size, doubt, pieces, border."""
    volume = prediction.volume if isinstance(prediction, Brain) else None
    ml = _ml(prediction, spacing) if volume is None else volume.ml
    low, high = (litres * 1e3 for litres in checks.LITRES)
    if ml == 0:
        text = "no brain was found: the mask is empty; is this a T1 scan of a head?"
        yield Finding("volume", "warning", text)
        return
    if not low <= ml <= high:
        text = f"a brain of {ml:.0f} ml (expected {low:.0f} to {high:.0f} ml): look at it before you use it"
        yield Finding("volume", "warning", text)
    if volume is not None and volume.sd_ml > _DOUBT * ml:
        text = f"the network is unsure of the volume: {ml:.0f} ± {volume.sd_ml:.0f} ml"
        yield Finding("doubt", "warning", text)
    if volume is not None and volume.other_ml > _OTHER * ml:
        text = f"pieces apart from the brain, of {volume.other_ml:.0f} ml in all, were left out"
        yield Finding("pieces", "warning", text)
    if sides := checks.borders(prediction):
        yield Finding("border", "note", f"the mask reaches the end of the field of view ({', '.join(sides)})")


def _ml(mask: Array, spacing: Sequence[float]) -> float:
    return float(np.count_nonzero(mask)) * float(np.prod(spacing)) / 1e3
