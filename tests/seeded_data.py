"""Faults in data files of ssmunet, brainunet and openkbp: what exports, copies and renamings do to them.

They are done to a copy of a phantom (`test_faults_check`). `seeded_tiffs` has those of vesuvius and dinocell.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
from runner_core import Json, Record

Array = np.ndarray[Any, np.dtype[Any]]
Change = Callable[[Array], Array]

REFUSED = 2
"""Exit code where a training would refuse the data."""


@dataclass(frozen=True)
class Data:
    """A phantom's copy in `folder`, to be damaged. `sides`: its records by side, as the sound phantom is split."""

    folder: Path
    sides: Mapping[str, Sequence[Record]]

    def of(self, side: str, role: str, number: int = 0) -> Path:
        """The file that a side's record of that number has for a role."""
        return self.sides[side][number].files[role]


@dataclass(frozen=True)
class DataFault:
    """A fault of data: `rule` must find what `damage` does to files, and `check` must end with the exit code `code`.

    `settings` by dotted name are no fault: the check without it has them too. `quick`: it is looked for whenever tests
    run. `missed`: why nothing finds it yet.
    """

    name: str
    rule: str
    damage: Callable[[Data], None]
    code: int = 0
    settings: Mapping[str, Json] = field(default_factory=dict)
    quick: bool = False
    missed: str = ""


def cut(path: Path) -> None:
    """The first two thirds of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def exchange(first: Path, second: Path) -> None:
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)


def cut_short(role: str) -> Callable[[Data], None]:
    return lambda data: cut(data.of("train", role, 1))


def exchanged(role: str) -> Callable[[Data], None]:
    """Between two training records of different groups."""

    def damage(data: Data) -> None:
        first, *others = data.sides["train"]
        other = next(record for record in others if record.group != first.group)
        exchange(first.files[role], other.files[role])

    return damage


# ---------------------------------------------------------------- ssmunet


def rewrite_core(path: Path, save: Callable[..., None] = np.savez, **values: Any) -> None:
    """Replace arrays; each is a new array, or a function of the old one."""
    with np.load(path) as archive:
        arrays = dict(archive)
    new = {key: value(arrays[key]) if callable(value) else value for key, value in values.items()}
    save(path, **{**arrays, **new})


def cores(side: str = "train", which: slice = slice(1), **values: Any) -> Callable[[Data], None]:
    """`rewrite_core` of some of a side's cores."""

    def damage(data: Data) -> None:
        for record in data.sides[side][which]:
            rewrite_core(record.files["core"], **values)

    return damage


def core_again(data: Data) -> None:
    with np.load(data.of("train", "core")) as archive:
        own = {key: archive[key] for key in ("X", "y", "tissue_mask")}
    rewrite_core(data.of("validation", "core"), np.savez_compressed, **own)


def core_labels(data: Data, both: bool) -> None:
    """Labels of one patient's core given to another's; `both`: and the other way round."""
    first, *others = data.sides["train"]
    paths = first.files["core"], next(record for record in others if record.group != first.group).files["core"]
    labels = [np.load(path)["y"] for path in paths]
    rewrite_core(paths[1], y=labels[0])
    if both:
        rewrite_core(paths[0], y=labels[1])


def core_renamed(data: Data) -> None:
    """The second core of patient P01 is of patient p-1."""
    path = next(data.folder.rglob("core_P01-2.npz"))
    rewrite_core(path, meta=lambda old: json.dumps({**json.loads(str(old)), "patient_id": "p-1"}))


def nan_in_tissue(spectra: Array) -> Array:
    spectra[20:24, 20:24, 7] = np.nan
    return spectra


def dead_pixels(spectra: Array) -> Array:
    spectra[20:28, 20:28] = spectra[20:28, 20:28, :1]
    return spectra


EVERY = slice(None)
SSMUNET = [
    DataFault("a training core again in validation, compressed", "copies", core_again, REFUSED, quick=True),
    DataFault("a core is cut short", "refused", cut_short("core"), REFUSED),
    DataFault("NaN in tissue", "decode", cores(X=nan_in_tissue), REFUSED),
    DataFault("every second wavenumber", "axes", cores(X=lambda x: x[..., ::2], wn=lambda wn: wn[::2]), REFUSED),
    DataFault("unannotated pixels are 255", "decode", cores(y=lambda y: np.where(y, y, 255)), REFUSED),
    DataFault("unannotated pixels of a core are class 1", "unannotated", cores(y=lambda y: np.where(y, y, 1))),
    DataFault(
        "unannotated pixels of the validation are class 1", "unannotated",
        cores("validation", EVERY, y=lambda y: np.where(y, y, 1)), quick=True,
    ),
    DataFault("class 1 is in no training core", "classes", cores("train", EVERY, y=lambda y: np.where(y == 1, 0, y))),
    DataFault("absorbance in thousandths", "scale", cores(X=lambda x: x * 1000), quick=True),
    DataFault("dead pixels", "flat", cores(X=dead_pixels)),
    DataFault("one core's labels are another's", "labels", lambda data: core_labels(data, both=False), quick=True),
    DataFault(
        "two cores' labels exchanged", "labels", lambda data: core_labels(data, both=True),
        missed="annotated discs lie in tissue in either core, and only a trained network knows tissues by spectra",
    ),
    DataFault(
        "a patient under two names", "groups", core_renamed, settings={"data.split": "group:P01,P02,P03"},
    ),
]  # fmt: skip

# ---------------------------------------------------------------- brainunet


def rewrite_scan(path: Path, change: Change, spacing: float = 1.0) -> None:
    """Other voxels, of another size, in the same file."""
    image = nibabel.load(path)
    affine = image.affine * np.array([spacing, spacing, spacing, 1.0])
    new = nibabel.Nifti1Image(change(np.array(image.dataobj)), affine)
    new.header.set_xyzt_units("mm", "sec")
    new.set_qform(affine, 1)
    new.set_sform(affine, 1)
    nibabel.save(new, path)


def scans(change: Change = lambda scan: scan, role: str = "image", spacing: float = 1.0) -> Callable[[Data], None]:
    """`rewrite_scan` of the first training record's."""
    return lambda data: rewrite_scan(data.of("train", role), change, spacing)


def resized(data: Data) -> None:
    for role in ("image", "mask"):
        rewrite_scan(data.of("train", role), lambda scan: scan, 5.0)


def scan_again(data: Data) -> None:
    for role in ("image", "mask"):
        content = gzip.decompress(data.of("train", role).read_bytes())
        data.of("validation", role).write_bytes(gzip.compress(content, 1))


def stripped(data: Data) -> None:
    """0 outside the brain."""
    mask = np.array(nibabel.load(data.of("train", "mask")).dataobj)
    rewrite_scan(data.of("train", "image"), lambda scan: scan * (mask > 0))


def scan_renamed(data: Data) -> None:
    """The second session of sub-P01 is of sub-p1."""
    for path in list(data.folder.rglob("sub-P01_ses-2_*")):
        path.rename(path.with_name(path.name.replace("sub-P01", "sub-p1")))


def byte(scan: Array) -> Array:
    return np.clip(scan * (255 / scan.max()), 0, 255).astype(np.uint8)


def nan_voxel(scan: Array) -> Array:
    scan = scan.astype(np.float32)
    scan[5, 5, 5] = np.nan
    return scan


def second_piece(mask: Array) -> Array:
    mask[:20, :20, :20] = 1
    return mask


BRAINUNET = [
    DataFault("a training scan again in validation, compressed anew", "copies", scan_again, REFUSED),
    DataFault("a scan is cut short", "decode", cut_short("image"), REFUSED),
    DataFault("NaN in a scan", "decode", scans(nan_voxel), REFUSED),
    DataFault("masks of two people exchanged: other shapes", "decode", exchanged("mask"), REFUSED),
    DataFault("a mask lacks a slice", "decode", scans(lambda mask: mask[:-1], "mask"), REFUSED),
    DataFault("a mask is missing", "decode", lambda data: data.of("train", "mask").unlink(), REFUSED),
    DataFault("two echoes in one file", "decode", scans(lambda scan: np.stack([scan, scan], -1)), REFUSED),
    DataFault("an empty mask", "decode", scans(np.zeros_like, "mask"), REFUSED),
    DataFault("8 bits among 16", "depth", scans(byte)),
    DataFault("spacing × 5", "spacing", resized),
    DataFault("values × 1000", "scale", scans(lambda scan: scan.astype(np.float32) * 1000)),
    DataFault("a scan without its skull", "intensity", stripped),
    DataFault("a mask of two pieces", "pieces", scans(second_piece, "mask")),
    DataFault(
        "a mask stored head over feet", "mask", scans(lambda mask: np.ascontiguousarray(mask[:, :, ::-1]), "mask"),
        missed="its size and shape are a brain's; where in a head a brain lies is nowhere compared",
    ),
    DataFault("a person under two names", "groups", scan_renamed, settings={"data.split": "group:sub-P01,sub-P02"}),
]  # fmt: skip

# ---------------------------------------------------------------- openkbp


def rewrite_csv(path: Path, change: Callable[[float], Any]) -> None:
    """Other values of the voxels that the file has."""
    header, *lines = path.read_text().splitlines()
    pairs = (line.split(",") for line in lines)
    path.write_text("\n".join([header, *(f"{index},{change(float(value))}" for index, value in pairs), ""]))


def values(role: str, change: Callable[[float], Any]) -> Callable[[Data], None]:
    """`rewrite_csv` of the first training patient's."""
    return lambda data: rewrite_csv(data.of("train", role), change)


def patient_again(data: Data) -> None:
    """Every file with its lines in the other order."""
    first, second = (data.of(side, "ct").parent for side in ("train", "validation"))
    for path in second.iterdir():
        path.unlink()
    for path in first.iterdir():
        header, *lines = path.read_text().splitlines()
        ordered = [header, *lines] if path.name == "voxel_dimensions.csv" else [header, *reversed(lines)]
        (second / path.name).write_text("\n".join([*ordered, ""]))


def voxels(times: float) -> Callable[[Data], None]:
    def damage(data: Data) -> None:
        path = data.of("train", "voxels")
        np.savetxt(path, np.loadtxt(path) * times)

    return damage


def parotids(data: Data) -> None:
    """Left for right, of the first patient that has both."""
    record = next(record for record in data.sides["train"] if {"LeftParotid", "RightParotid"} <= record.files.keys())
    exchange(record.files["LeftParotid"], record.files["RightParotid"])


def without(role: str, which: slice) -> Callable[[Data], None]:
    def damage(data: Data) -> None:
        for record in data.sides["train"][which]:
            if role in record.files:
                record.files[role].unlink()

    return damage


def patient_renamed(data: Data) -> None:
    """A validation patient is called pt_01, and pt_1 trains."""
    folder = data.of("validation", "ct").parent
    folder.rename(folder.with_name("pt_01"))


def nan_dose(data: Data) -> None:
    path = data.of("train", "dose")
    header, line, *rest = path.read_text().splitlines()
    path.write_text("\n".join([header, f"{line.split(',')[0]},nan", *rest, ""]))


OPENKBP = [
    DataFault("a training patient again in validation, lines in another order", "copies", patient_again, REFUSED),
    DataFault("a dose is cut short", "decode", cut_short("dose"), REFUSED),
    DataFault("NaN in a dose", "decode", nan_dose, REFUSED),
    DataFault("dose in cGy", "decode", values("dose", lambda gray: gray * 100), REFUSED),
    DataFault("a CT is missing", "decode", without("ct", slice(1)), REFUSED),
    DataFault("CT in Hounsfield units", "ct", values("ct", lambda ct: int(ct) - 1024)),
    DataFault(
        "8 bits of a CT", "depth", values("ct", lambda ct: int(ct) // 16 * 16),
        missed="a generated CT has 450 grey values: too few to tell 256 from, for a rule that begins at 1,024",
    ),
    DataFault("voxels in centimetres", "voxels", voxels(0.1)),
    DataFault("voxels × 5", "voxels", voxels(5)),
    DataFault("doses of two patients exchanged", "dose", exchanged("dose")),
    DataFault("targets of two patients exchanged", "targets", exchanged("PTV70")),
    DataFault("left and right parotid exchanged", "sides", parotids),
    DataFault("a patient without PTV70", "targets", without("PTV70", slice(1))),
    DataFault("no training patient has a larynx", "classes", without("Larynx", EVERY)),
    DataFault("a patient under two names", "groups", patient_renamed),
]  # fmt: skip
