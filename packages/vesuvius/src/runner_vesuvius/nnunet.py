"""Datasets in nnU-Net's format: a command that writes one of the volumes that runner finds.

    imagesTr/ID_0000.tif  labelsTr/ID.tif    volumes and labels, each with ID.json, the size of a voxel
    imagesTs/ID_0000.tif                     volumes of test_images, if there are any (with --format nii.gz, all of
                                             these are ID….nii.gz, which hold the size of a voxel themselves)
    dataset.json                             channel, labels (2 is nnU-Net's ignore label), number of volumes
    splits_final.json                        cross-validation by scroll, to put into nnUNet_preprocessed/DATASET
    scrolls.csv                              the scroll of each volume: runner reads the folder as --data again

`labels` reads the labels' values from a dataset.json.
"""

from __future__ import annotations

import csv
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner_core import (
    Array,
    BadInput,
    Record,
    counted,
    nnunet_cases,
    nnunet_said,
    refuse_full_folder,
    replace_json,
    whole_folder,
    write_nnunet_dataset,
)

from runner_vesuvius import files, nifti, volumes
from runner_vesuvius.labels import BACKGROUND, IGNORE, SURFACE

FORMATS = ("tif", "nii.gz")
_SPACING = {"spacing": [1.0, 1.0, 1.0]}


def export_nnunet(parser: ArgumentParser, words: Sequence[str]) -> int:
    """Write volumes and labels as a dataset of nnU-Net, with folds by scroll."""
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="volumes with labels, as `train --data` takes them"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="new folder, such as nnUNet_raw/Dataset001_Scrolls"
    )
    parser.add_argument(
        "--channel",
        default="CT",
        help="name of the channel, by which nnU-Net chooses its normalisation. CT (default): over the data set, as "
        "data.normalise set does; any other name: volume by volume",
    )
    parser.add_argument(
        "--format", choices=FORMATS, default=FORMATS[0], help="of volumes and labels (default: tif); nnU-Net reads both"
    )
    options = parser.parse_args(words)
    records = files.find_records(options.data)
    test = options.data / "test_images"
    inputs = files.find_inputs(test) if test.is_dir() else []
    names = _names([*records, *inputs])
    refuse_full_folder(options.out, "name another --out")
    try:
        with whole_folder(options.out) as folder:
            _write(folder, records, inputs, names, options.channel, f".{options.format}")
    except OSError as error:
        raise BadInput(f"{options.out}: cannot be written: {error.strerror or error}") from error
    scrolls = {record.key: record.group for record in records}
    print(f"{options.out}: {counted(len(records), 'volume')} of {counted(len({*scrolls.values()}), 'scroll')}")
    print(nnunet_said(scrolls))
    return 0


def _names(records: Sequence[Record]) -> dict[Path, str]:
    """Return the id of each image's path in the dataset: its key, behind its scroll's name unless that is there."""
    names = {}
    for record in records:
        key, scroll = record.key, record.group
        joined = key if scroll == key or key.startswith(f"{scroll}_") else f"{scroll}_{key}"
        names[record.files["image"]] = joined
    return nnunet_cases(names)


def _write(
    folder: Path,
    records: Sequence[Record],
    inputs: Sequence[Record],
    names: Mapping[Path, str],
    channel: str,
    ending: str,
) -> None:
    for record in records:
        name, image = names[record.files["image"]], volumes.read_image(record.files["image"])
        label = volumes.read_truth(record.files, image.shape)
        _write_volume(folder / "imagesTr", name, image, f"_0000{ending}")
        _write_volume(folder / "labelsTr", name, label, ending)
        print(name, flush=True)
    for record in inputs:
        name = names[record.files["image"]]
        _write_volume(folder / "imagesTs", name, volumes.read_image(record.files["image"]), f"_0000{ending}")
    scrolls = {names[record.files["image"]]: record.group for record in records}
    labels = {"background": BACKGROUND, "surface": SURFACE, "ignore": IGNORE}
    reader = "Tiff3DIO" if ending == ".tif" else ""  # nnU-Net would try to read a picture first
    write_nnunet_dataset(folder, scrolls, labels, channel, ending, reader)
    with (folder / "scrolls.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([("id", "scroll_id"), *sorted(scrolls.items())])


def _write_volume(folder: Path, name: str, volume: Array, ending: str) -> None:
    folder.mkdir(exist_ok=True)
    if ending.endswith(".tif"):
        volumes.write_tif(folder / f"{name}{ending}", volume)
        replace_json(folder / f"{name}.json", _SPACING)
    else:
        nifti.write(folder / f"{name}{ending}", volume)
