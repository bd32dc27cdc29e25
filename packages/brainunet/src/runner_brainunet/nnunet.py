"""nnU-Net's layouts: predictions of one of its imagesTs folders, and a command that writes a dataset.

    imagesTr/CASE_0000.nii.gz  labelsTr/CASE.nii.gz     scans and brain masks (1 is brain), on the scan's own grid
    dataset.json                                        channel, labels, number of scans
    splits_final.json                                   cross-validation by person, for nnUNet_preprocessed/DATASET
    persons.csv                                         for `--data.manifest`: runner reads the folder by persons again

With `predict --nnunet` a folder of predictions holds CASE.nii.gz and dataset.json, as nnUNetv2_predict writes them.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from runner_core import (
    BadInput,
    Record,
    counted,
    nnunet_cases,
    nnunet_said,
    refuse_full_folder,
    replace_csv,
    replace_json,
    whole_folder,
    write_nnunet_dataset,
)

from runner_brainunet import files, nifti
from runner_brainunet.config import BrainDataConfig

ENDING = ".nii.gz"
LABELS = {"background": 0, "brain": 1}


def describe_predictions(out: Path) -> Path:
    """Write the dataset.json that lies beside nnU-Net's predictions: what the masks' values mean."""
    replace_json(out / "dataset.json", {"labels": LABELS, "file_ending": ENDING})
    return out / "dataset.json"


def export_nnunet(parser: ArgumentParser, words: Sequence[str]) -> int:
    """Write scans and brain masks as a dataset of nnU-Net, with folds by person."""
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="scans with masks, as `train --data` takes them"
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="new folder, such as nnUNet_raw/Dataset001_Brains"
    )
    parser.add_argument("--channel", default="T1", help="name of the channel (default: T1); only CT means more")
    parser.add_argument("--manifest", metavar="TABLE", help="the table that names the scans, as data.manifest does")
    options = parser.parse_args(words)
    records = files.find_records(options.data, BrainDataConfig(manifest=options.manifest))
    cases = nnunet_cases({record.files["image"]: record.key for record in records})
    persons = {cases[record.files["image"]]: record.group for record in records}
    refuse_full_folder(options.out, "name another --out")
    try:
        with whole_folder(options.out) as folder:
            for record in records:
                _write_pair(record, folder, cases[record.files["image"]])
                print(cases[record.files["image"]], flush=True)
            write_nnunet_dataset(folder, persons, LABELS, options.channel, ENDING)
            rows = [
                (f"imagesTr/{case}_0000{ENDING}", f"labelsTr/{case}{ENDING}", person)
                for case, person in sorted(persons.items())
            ]
            replace_csv(folder / "persons.csv", [("image", "label", "group"), *rows])
    except OSError as error:
        raise BadInput(f"{options.out}: cannot be written: {error.strerror or error}") from error
    print(f"{options.out}: {counted(len(records), 'scan')} of {counted(len({*persons.values()}), 'person')}")
    print(nnunet_said(persons))
    return 0


def _write_pair(record: Record, folder: Path, case: str) -> None:
    path, mask = record.files["image"], record.files["mask"]
    for one, other in ((path, "mask"), (mask, "scan")):
        if not one.exists():
            raise BadInput(f"{one}: is missing, but its {other} is there.")
    image, scan = nifti.read_scan(path)
    brain = nifti.read_mask(mask, image, path)
    nifti.write_plain(image, scan, folder / "imagesTr" / f"{case}_0000{ENDING}")
    nifti.write_plain(image, brain.astype(np.uint8), folder / "labelsTr" / f"{case}{ENDING}")
