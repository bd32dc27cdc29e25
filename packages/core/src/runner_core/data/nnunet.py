"""Files that describe a dataset or predictions in nnU-Net's format; projects write images and labels themselves.

dataset.json         channel, labels, number of records
splits_final.json    cross-validation by group, to put into nnUNet_preprocessed/DATASET: nnU-Net's own split is random
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from runner_core.base.errors import BadInput
from runner_core.base.writing import replace_json

FOLDS = 5
"""Most folds: nnU-Net trains five by default."""


def nnunet_cases(names: Mapping[Path, str]) -> dict[Path, str]:
    """Return the name that each image has in a dataset of nnU-Net: the given one, as part of a file's name.

    Raises BadInput if two images would have the same name.
    """
    found = {path: name.replace("/", "_").replace(" ", "_") for path, name in names.items()}
    if repeated := [name for name, count in Counter(found.values()).items() if count > 1]:
        both = [str(path) for path, name in found.items() if name == repeated[0]]
        raise BadInput(f"{' and '.join(both)}: both would be called {repeated[0]} there. Rename one.")
    return found


def write_nnunet_dataset(
    folder: Path, groups: Mapping[str, str], labels: Mapping[str, int], channel: str, ending: str, reader: str = ""
) -> None:
    """Write dataset.json, and splits_final.json if there are several groups.

    Args:
        folder: The dataset, with imagesTr and labelsTr.
        groups: The group of each case in imagesTr: a person, a scroll.
        labels: Value of each label by its name; background is 0, and "ignore" is nnU-Net's ignore label.
        channel: Name of the channel, by which nnU-Net chooses its normalisation (CT has its own).
        ending: Of all images and labels, such as .nii.gz.
        reader: Class with which nnU-Net reads them; by default it chooses one.
    """
    replace_json(
        folder / "dataset.json",
        {
            "channel_names": {"0": channel},
            "labels": dict(labels),
            "numTraining": len(groups),
            "file_ending": ending,
            **({"overwrite_image_reader_writer": reader} if reader else {}),
        },
    )
    if len({*groups.values()}) > 1:
        replace_json(folder / "splits_final.json", nnunet_folds(groups))


def nnunet_folds(groups: Mapping[str, str]) -> list[dict[str, list[str]]]:
    """Return at most `FOLDS` splits {train, val} of cases, whole groups in each; `groups` gives each case's.

    >>> nnunet_folds({"1": "A", "2": "B", "3": "A"})
    [{'train': ['2'], 'val': ['1', '3']}, {'train': ['1', '3'], 'val': ['2']}]
    """
    sizes = Counter(groups.values())
    held: list[set[str]] = [set() for _ in range(min(FOLDS, len(sizes)))]
    for group, _ in sizes.most_common():
        min(held, key=lambda some: sum(sizes[name] for name in some)).add(group)
    return [
        {
            "train": sorted(case for case, group in groups.items() if group not in some),
            "val": sorted(case for case, group in groups.items() if group in some),
        }
        for some in held
    ]


def nnunet_said(groups: Mapping[str, str]) -> str:
    """Return what is to do with the folds, for the one who writes a dataset."""
    if len({*groups.values()}) > 1:
        return "copy splits_final.json into nnUNet_preprocessed/DATASET after planning: nnU-Net's own split is random"
    return "note: no splits_final.json, as there is one group only: nnU-Net's own split takes parts of it apart"
