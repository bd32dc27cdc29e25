"""The challenge's submission: a zip file with a KEY.tif for each test volume, as `predict` writes it; its checks."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
import zlib
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from runner_core import Array, BadInput, Record, counted, did_you_mean, first_few, shape_text, whole_file

from runner_vesuvius import files, volumes

NAME = "submission.zip"
_DATE = (1980, 1, 1, 0, 0, 0)
"""Date of every file in the zip, so that equal masks make equal bytes."""
_SHOWN = 20


def write(masks: Sequence[Path], out: Path) -> Path:
    """Write `masks` into the file `out`, without folders, whole or not at all."""
    with whole_file(out) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for mask in masks:
            about = zipfile.ZipInfo(mask.name, _DATE)
            about.compress_type = zipfile.ZIP_DEFLATED
            with mask.open("rb") as source, archive.open(about, "w", force_zip64=True) as target:
                shutil.copyfileobj(source, target)
    return out


def refuse_repeats(place: Path, records: Sequence[Record]) -> None:
    """Raise BadInput if volumes have the same name: the mask of each must have its volume's."""
    if odd := next((record for record in records if record.key != files.stem(record.files["image"])), None):
        name = files.stem(odd.files["image"])
        raise BadInput(f"{place}: several volumes are called {name}, and {NAME} has one {name}.tif: name one folder")


def validate_submission(parser: ArgumentParser, words: Sequence[str]) -> int:
    """Check a submission.zip: names, shapes, type and values of its volumes.

    Prints a line for each volume. Raises BadInput with every fault that was found.
    """
    parser.add_argument("submission", type=Path, metavar="ZIP", help="the file to hand in")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="the challenge's folder, or its test_images: their names and shapes are what the submission must have",
    )
    options = parser.parse_args(words)
    expected = None if options.data is None else _expected(options.data)
    with tempfile.TemporaryDirectory() as folder, _opened(options.submission) as archive:
        members, faults = _members(archive, expected)
        for key, member in members.items():
            try:
                mask = _mask(archive, member, Path(folder))
            except BadInput as error:
                faults.append(f"{member.filename}: {error}")
                continue
            wrong = list(_wrong(mask, None if expected is None else expected[key]))
            if wrong:
                faults.append(f"{member.filename}: {'; '.join(wrong)}")
            else:
                print(f"{member.filename}: {shape_text(mask.shape)}, {np.mean(mask):.2%} surface")
    if faults:
        lines = "".join(f"\n  {fault}" for fault in faults[:_SHOWN])
        more = f"\n  and {len(faults) - _SHOWN} more" if faults[_SHOWN:] else ""
        raise BadInput(f"{options.submission}: {counted(len(faults), 'fault')}:{lines}{more}")
    print(f"{options.submission}: {counted(len(members), 'volume')}, no fault was found")
    if expected is None:
        print("names and shapes were not compared with the test volumes: name their folder with --data")
    return 0


def _expected(data: Path) -> Mapping[str, Path]:
    """Return the test volumes by id: those of test_images, in the folder or itself, and those that test.csv lists."""
    folder = data / "test_images" if (data / "test_images").is_dir() else data
    return {record.key: record.files["image"] for record in files.find_inputs(folder)}


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except FileNotFoundError as error:
        raise BadInput(f"{path}: there is no such file; `predict` with --zip writes {NAME}") from error
    except IsADirectoryError as error:
        raise BadInput(f"{path} is a folder: name the {NAME} in it") from error
    except (OSError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path}: is not a zip file that can be read: {error}") from error


def _members(
    archive: zipfile.ZipFile, expected: Mapping[str, Path] | None
) -> tuple[dict[str, zipfile.ZipInfo], list[str]]:
    """Return the masks of the archive by id, and what is wrong with its names."""
    found: dict[str, zipfile.ZipInfo] = {}
    faults = []
    for member in archive.infolist():
        key, _, suffix = member.filename.rpartition(".")
        if "/" in member.filename or "\\" in member.filename:
            faults.append(f"{member.filename}: lies in a folder; the masks lie side by side in the zip, as KEY.tif")
        elif suffix != "tif" or not key:
            faults.append(f"{member.filename}: is not named KEY.tif")
        elif key in found:
            faults.append(f"{member.filename}: is there twice")
        elif expected is not None and key not in expected:
            faults.append(f"{member.filename}: there is no test volume {key}{did_you_mean(key, expected)}")
        else:
            found[key] = member
    if missing := sorted({*(expected or ())} - {*found}):
        faults.append(f"{counted(len(missing), 'volume')} missing: {first_few([f'{key}.tif' for key in missing])}")
    if not archive.infolist():
        faults.append("it is empty")
    return found, faults


def _mask(archive: zipfile.ZipFile, member: zipfile.ZipInfo, folder: Path) -> Array:
    """Return a mask as it is stored, or raise BadInput."""
    path = folder / "mask.tif"
    try:
        with archive.open(member) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target)
        return volumes.read_stored(path)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise BadInput(f"cannot be unpacked: {error}") from error
    except BadInput as error:
        raise BadInput(str(error).removeprefix(f"{path}: ")) from error


def _wrong(mask: Array, image: Path | None) -> Iterator[str]:
    """Say what is wrong with a mask."""
    if mask.dtype != np.uint8:
        yield f"is {mask.dtype}, and must be uint8"
    if image is not None and mask.shape != (shape := volumes.outline(image)[0]):
        yield f"has {shape_text(mask.shape)} voxels, and its volume {shape_text(shape)}"
    if not np.isin(mask, (0, 1)).all():
        yield f"holds values from {mask.min():g} to {mask.max():g}; 0 is background and 1 is surface, and nothing else"
