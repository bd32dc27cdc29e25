"""Values of the voxels of a label, and those that an nnU-Net dataset's dataset.json gives them."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from runner_core import BadInput, refuse_special_file

BACKGROUND, SURFACE, IGNORE = 0, 1, 2
"""An ignored voxel is not annotated: it may be surface or not."""
OWN = {value: value for value in (BACKGROUND, SURFACE, IGNORE)}


def values_of(label: Path) -> dict[int, int]:
    """Return what each value in a label file means: `OWN`, or what the dataset.json of an nnU-Net dataset says.

    It lies beside the folder labelsTr and names a background, one other label (the surface), and often ignore.
    """
    table = label.parent.parent / "dataset.json"
    if label.parent.name.lower() not in ("labelstr", "labelsts") or not refuse_special_file(table).is_file():
        return OWN
    labels = _read(table).get("labels")
    if labels is None:
        return OWN
    if not isinstance(labels, dict) or not all(type(value) is int for value in labels.values()):
        raise BadInput(f"{table}: labels must give one number for each name: background, surface, ignore")
    named = {name.lower(): value for name, value in labels.items()}
    if "background" not in named:
        raise BadInput(f"{table}: labels has no background. Mend it.")
    found = {named.pop("background"): BACKGROUND}
    if (ignore := named.pop("ignore", None)) is not None:
        found[ignore] = IGNORE
    if len(named) != 1:
        raise BadInput(
            f"{table}: beside background and ignore, labels has {', '.join(named) or 'nothing'}; one is needed, the "
            "surface. Join or remove the others in labelsTr."
        )
    found.update(dict.fromkeys(named.values(), SURFACE))
    if len(found) != len(labels):
        raise BadInput(f"{table}: two of the labels have the same number. Mend it.")
    return found


def refuse_dataset(images: Path, suffixes: Collection[str]) -> None:
    """Raise BadInput if images are an nnU-Net dataset's, and it has several channels or a format that is not read."""
    table = images.parent / "dataset.json"
    if images.name.lower() != "imagestr" or not refuse_special_file(table).is_file():
        return
    found = _read(table)
    ending, channels = found.get("file_ending", ""), found.get("channel_names", found.get("modality", {}))
    if ending and str(ending).lower() not in suffixes:
        raise BadInput(f"{table}: file_ending is {ending}; {', '.join(suffixes)} are read. Convert the volumes.")
    if not isinstance(channels, dict):
        raise BadInput(f'{table}: channel_names must give a name for each channel, as in {{"0": "CT"}}. Mend it.')
    if len(channels) > 1:
        raise BadInput(f"{table}: {len(channels)} channels ({', '.join(map(str, channels.values()))}); one is read.")


def _read(table: Path) -> dict[str, Any]:
    try:
        text = table.read_text(encoding="utf-8")
        found = json.loads(text) if text.strip() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{table}: cannot be read: {error}. Mend it, or remove it.") from error
    if not isinstance(found, dict):
        raise BadInput(f"{table}: holds no names and values. Mend it, or remove it.")
    return found
