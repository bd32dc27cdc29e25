"""Find fields: images below a folder or a URL by their names, or by a manifest.

Folders and URLs share one code: it uses only an image's path below the data, and its location.
"""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from runner_core import (
    Array,
    BadInput,
    Location,
    collect_left_out,
    counted,
    did_you_mean,
    leave_out,
    location,
    refuse_no_table,
    shell_word,
    split_named,
    tabled,
)

from runner_dinocell import labels, manifest, names, objects, sources, tiff
from runner_dinocell.config import CellConfig
from runner_dinocell.fields import Field, nuclei_channel
from runner_dinocell.manifest import Image, Table
from runner_dinocell.names import FieldName, Name

Plate = tuple[str, ...]
"""source, batch and plate."""
_Images = dict[FieldName, dict[str, Location]]
"""Images of fields, by channel."""

_PICTURES = (".png", ".jpg", ".jpeg")


def find_records(
    root: Location,
    config: CellConfig,
    channels: Sequence[str] = (),
    labelled: bool = True,
) -> Sequence[Field]:
    """Find every field below `root`, a folder or a URL, or in a manifest that `root` is.

    Names and tables are read, no image. Raises BadInput if nothing is found, if a table or a pattern is not usable, for
    a channel that no field has, and if a field has two images of one channel.

    Args:
        root: the data.
        config: the run's settings.
        channels: those to take (a network's); empty: `data.channels`.
        labelled: read labels too.
    """
    table = _manifest(root, config)
    top = root.parent if _is_table(root) else root
    if table is None:
        images = _named(root, config)
    else:
        images = manifest.images(table, top, config.data.label)
    found, own = _collected(str(table.where if table else root), images)
    mixed = config.model.channels != "stack"
    if mixed and channels:
        chosen = _places(root, found, tuple(channels), config.model.channels)
    else:
        chosen = _chosen(root, found, tuple(channels or config.data.channels), mixed)
    in_table = not labelled or (table is not None and config.data.label in table.names)
    label = own.get if in_table else _labels(top, config)
    if config.data.nuclei is not None:
        nuclei_channel(chosen, config.data.nuclei)  # a wrong one is refused once, not for each field
    fields: Iterator[Field] = (
        _record(field, found.pop(field), chosen, label(field)) for field in sorted(found, key=_by_number)
    )
    if table is not None:
        fields = _grouped(table, fields)
    if config.data.cells in (None, "find") and not mixed:
        return tabled(fields)  # millions are never around as objects all at once
    records = _with_cells(root, list(fields), config)
    if not mixed:
        return records
    if without := [record.key for record in records if not record.images]:
        count = counted(len(without), "field")
        leave_out(f"{count} with none of the channels {', '.join(chosen)}: left out, {without[0]} for one.", "warning")
    return [replace(record, partial=True) for record in records if record.images]


def _with_cells(root: Location, records: Sequence[Field], config: CellConfig) -> list[Field]:
    """Return the fields with their label images, or their centres in a table, if `data.cells` says so.

    Raises BadInput if no field has any; says how many have none.
    """
    kind = config.data.cells
    if kind in (None, "find"):
        return list(records)
    if kind == "masks":
        masks = [objects.beside(record.images) for record in records]
        found = [
            record if mask is None else replace(record, files={**record.files, objects.MASK: mask})
            for record, mask in zip(records, masks, strict=True)
        ]
        without = [record.key for record, mask in zip(records, masks, strict=True) if mask is None]
        where = "has a label image beside it (NAME_cp_masks.tif or .png, NAME_masks.tif)"
    else:
        place = location(str(kind))
        table = Table(str(place), sources.content(place, config.remote, manifest.MOST_BYTES))
        cells = objects.of_table(table)
        _refuse_shared(table, cells, records)
        found = [replace(record, centres=_centres(cells, record.name)) for record in records]
        without = [record.key for record in found if not record.centres]
        where = f"is in {table.where} (source, batch, plate, well and site must agree, as far as it has them)"
    if records and len(without) == len(records):
        raise BadInput(f"{root}: data.cells is {kind}, but no field {where}: not {without[0]} for one.")
    if without:
        leave_out(
            f"data.cells {kind} has no cells of {counted(len(without), 'field')}, {without[0]} for one: windows lie "
            "anywhere in such fields.",
            "warning",
        )
    return found


def _centres(cells: Mapping[FieldName, Array], field: FieldName) -> bytes:
    """Return the cells of a field as bytes."""
    name = _in_table(cells, field)
    return b"" if name is None else bytes(cells[name].tobytes())


def _in_table(cells: Mapping[FieldName, Array], field: FieldName) -> FieldName | None:
    """Return the name of a field in a table of cells, which may lack source and batch; None if it is not there."""
    source, batch, plate, well, site = field
    above = ((source, batch), ("", batch), (source, ""), ("", ""))
    names = ((*one, plate, well, site) for one in above)
    return next((name for name in names if name in cells), None)


def _refuse_shared(table: Table, cells: Mapping[FieldName, Array], records: Sequence[Field]) -> None:
    """Raise BadInput if cells could belong to fields of two plates, because the table does not say which."""
    owner: dict[FieldName, Field] = {}
    for record in records:
        name = _in_table(cells, record.name)
        if name is None or (other := owner.setdefault(name, record)) is record:
            continue
        lacks = [what for what in ("source", "batch") if getattr(record, what) != getattr(other, what)]
        raise BadInput(
            f"{table.where}: its cells of {_key(name)} could be those of {other.key} or of {record.key}. Add the "
            f"column {' and '.join(lacks)}."
        )


def _grouped(table: Table, records: Iterable[Field]) -> Iterator[Field]:
    """Yield the fields with the table's own group and split, if it has such columns."""
    groups, splits = manifest.of_fields(table, "group"), manifest.of_fields(table, "split")
    splits = {field: split_named(text, table.where) for field, text in splits.items()}
    for record in records:
        yield replace(record, group=groups.get(record.name, record.group), split=splits.get(record.name))


def find_inputs(path: Location, config: CellConfig, channels: Sequence[str]) -> Sequence[Field]:
    """Find fields to predict: all below a folder or URL, or in a table, or the field of one image.

    Their `channels` are the network's. `data.manifest` is ignored, because it belongs to the training data; labels are
    not needed.
    """
    pattern = None if _is_table(path) else config.data.pattern
    config = replace(config, data=replace(config.data, manifest=None, pattern=pattern))
    if not (isinstance(path, Path) and path.is_file() and path.suffix.lower() in names.SUFFIXES):
        return find_records(path, config, channels, labelled=False)
    with collect_left_out():  # nobody asked for the other images
        beside = find_records(path.parent, config, channels, labelled=False)
    fields = [field for field in beside if path in field.files.values()]
    if not fields:
        raise BadInput(f"{path}: its name does not say which field it is of, or it is of another channel.")
    return fields


def write_arrays(arrays: Mapping[str, Array], channels: Sequence[str], folder: Path) -> Path:
    """Write a field that was given as an array (C, H, W), its channels in the network's order, or by channel (H, W).

    Raises BadInput that says what is needed.
    """
    stack = arrays.get("image")
    if stack is not None:
        if stack.ndim != 3 or len(stack) != len(channels):
            raise BadInput(
                f"the array has shape {stack.shape}: a field is (C, H, W), here with the channels {', '.join(channels)}"
            )
        arrays = dict(zip(channels, stack, strict=True))
    rows = [("plate", "well", "site", "channel", "path")]
    for number, (name, image) in enumerate(arrays.items()):
        if image.ndim != 2 or image.dtype not in (np.uint8, np.uint16):
            raise BadInput(
                f"channel {name} has shape {image.shape} and type {image.dtype}: give the microscope's own "
                "grey values, (H, W) in uint16 or uint8"
            )
        tiff.write(folder / f"{number}.tif", image)
        rows.append(("array", "A01", "1", name, f"{number}.tif"))
    table = folder / "fields.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return table


def _manifest(root: Location, config: CellConfig) -> Table | None:
    named = config.data.manifest
    place = location(named) if named else root if _is_table(root) else None
    if place is not None and config.data.pattern:
        raise BadInput(f"data.pattern and the table {place} both say which files belong together: leave one out.")
    if isinstance(place, Path) and isinstance(root, Path):
        refuse_no_table(place, root)
    return None if place is None else Table(str(place), sources.content(place, config.remote, manifest.MOST_BYTES))


def _is_table(place: Location) -> bool:
    return place.name.lower().endswith(manifest.SUFFIXES)


def _named(root: Location, config: CellConfig) -> Iterator[Image]:
    """Yield images below `root` whose name follows a known scheme, or that `data.pattern` finds."""
    pattern = config.data.pattern
    read = names.own(pattern) if pattern else names.known
    above = str(root.resolve()) if isinstance(root, Path) else root.text.rstrip("/")
    known, others, pictures, example = 0, 0, 0, ""
    for path, place in sources.listed(root, config.remote):
        if objects.is_mask(path):
            continue
        if not path.lower().endswith(names.SUFFIXES):
            pictures += path.lower().endswith(_PICTURES)
            continue
        name = read(above, path)
        if name is None:
            others, example = others + 1, example or path
            continue
        known += 1
        yield name, place, ""
    if others > known:
        what = f"data.pattern {pattern!r} finds" if pattern else f"the known schemes ({names.SCHEMES}) fit"
        guessed = f", which `runner dinocell init-data {shell_word(root)}` writes." if isinstance(root, Path) else "."
        raise BadInput(
            f"{root}: {what} {known} of {counted(known + others, 'TIFF file')}, not {example} for one. Say by "
            f"data.pattern what such names mean, or list the images in a table (data.manifest){guessed}"
        )
    if others and known:
        what = "not found by data.pattern" if pattern else "of no known name"
        there = f"{others} of {counted(known + others, 'TIFF file')} {'are' if others > 1 else 'is'} {what}"
        leave_out(f"{there}, {example} for one: left out.", "warning")
    if pictures and not known:
        raise BadInput(
            f"{root}: no TIFF file below it, but {counted(pictures, 'PNG or JPEG file')}. TIFF is read, with the "
            "microscope's own 12 to 16 bits, which those have lost: export the images again."
        )
    if not known:
        raise BadInput(
            f"{root}: no image below it. Looked for {names.SCHEMES}; a table of images is given by data.manifest."
        )


def _collected(where: str, images: Iterable[Image]) -> tuple[_Images, Mapping[FieldName, str]]:
    """Return images of fields, and labels that came with them; `where` names their source in messages."""
    found: dict[FieldName, dict[str, Location]] = defaultdict(dict)
    label_of: dict[FieldName, str] = {}
    for name, place, label in images:
        if found[name[:5]].setdefault(name.channel, place) is not place:
            raise BadInput(_twice(where, name, found[name[:5]][name.channel], place))
        if label and (other := label_of.setdefault(name[:5], label)) != label:
            raise BadInput(f"{where}: {_key(name[:5])} has two labels, {other} and {label}. A field has one: mend it.")
    return found, label_of


def _twice(where: str, name: Name, one: Location, other: Location) -> str:
    return (
        f"{where}: two images of channel {name.channel} of {_key(name[:5])}: {one} and {other}. Are they of two "
        "plates, planes or times? Then say by data.pattern (or the manifest) what tells them apart: a plate's name may "
        "be that of its folder. Else keep one of them."
    )


def _chosen(root: Location, found: _Images, wanted: tuple[str, ...], mixed: bool) -> tuple[str, ...]:
    """Return `wanted`, or the channels that every plate has, without brightfield beside fluorescence.

    If plates may be `mixed`, a channel of any plate is enough. A plate has a channel if most of its fields do, so that
    one missing file does not take a channel away from all the others.
    """
    if wanted:
        there = names.in_order({channel for images in found.values() for channel in images})
        for channel in wanted:
            if channel not in there:
                bare = re.sub(r"\D+0*", "", channel)  # Ch5, as file names have it, is channel 5
                near = f"; did you mean '{bare}'?" if bare in there else did_you_mean(channel, there)
                raise BadInput(f"{root}: no image of channel '{channel}'{near} (there are {', '.join(there)}).")
        return wanted
    plates = channels_of_plates((field[:3], list(images)) for field, images in found.items())
    common = set.union(*plates.values()) if mixed else set.intersection(*plates.values())
    if not common:
        shown = "; ".join(f"{_key(plate)} has {', '.join(names.in_order(own))}" for plate, own in plates.items())
        raise BadInput(
            f"{root}: no channel that every plate has: {shown[:400]}. Choose with data.channels, or train a "
            "network for data of several kinds: model.channels bag, invariant, tokens or subset."
        )
    if light := names.in_order(_transmitted(found, common)):
        leave_out(
            f"{counted(len(light), 'channel')} of brightfield left out beside fluorescence: {', '.join(light)}. To "
            f"take {'them' if len(light) > 1 else 'it'} too: --data.channels {' '.join(names.in_order(common))}",
            "warning",
        )
    return names.in_order(common - set(light))


def _transmitted(found: _Images, channels: set[str]) -> set[str]:
    return names.transmitted(channels, (place.name for images in found.values() for place in images.values()))


def _places(root: Location, found: _Images, trained: tuple[str, ...], kind: str) -> tuple[str, ...]:
    """Return the channels to take for a network that was `trained` on others.

    They are its own if the data have them. Otherwise they are all that most fields of a plate have, each at its own
    place. A `subset` network has no more places than that; in a `tokens` network others follow the trained ones.
    """
    there = set.union(*channels_of_plates((field[:3], list(images)) for field, images in found.items()).values())
    if there >= set(trained):
        return trained
    others = [n for n in names.in_order(there - set(trained)) if n not in _transmitted(found, there)]
    if kind == "tokens":
        return (*trained, *others)
    if kind != "subset":
        return (*(name for name in trained if name in there), *others)
    if len(others) > len(set(trained) - there):
        raise BadInput(
            f"{root}: channels {', '.join(names.in_order(there))}, and the network (model.channels subset) takes "
            f"{len(trained)} at once. Name so many of them in a table (data.manifest), or train with model.channels "
            "bag."
        )
    free = iter(others)
    return tuple(name if name in there else next(free, name) for name in trained)


def channels_of_plates(fields: Iterable[tuple[Plate, Iterable[str]]]) -> dict[Plate, set[str]]:
    """Return the channels that more than half of a plate's fields have, by plate.

    `fields` holds the plate and the channels of each.
    """
    sites: Counter[Plate] = Counter()
    counts: defaultdict[Plate, Counter[str]] = defaultdict(Counter)
    for plate, channels in fields:
        sites[plate] += 1
        counts[plate].update(channels)
    return {plate: {name for name, n in own.items() if 2 * n > sites[plate]} for plate, own in counts.items()}


def _labels(top: Location, config: CellConfig) -> Callable[[FieldName], str | None]:
    """Return the reader of labels.csv if there is one; BadInput if `data.label` needs it and it is missing."""
    wanted = config.data.label
    content = sources.content_if_any(top / labels.FILE, config.remote, manifest.MOST_BYTES)
    if content is None and wanted is not None:
        raise BadInput(
            f"{top}: data.label is {wanted!r}, but there is no {labels.FILE} here, and no manifest with such a column."
        )
    return labels.reader(Table(str(top / labels.FILE), content), wanted) if content is not None else lambda field: None


def _record(field: FieldName, images: Mapping[str, Location], channels: Sequence[str], label: str | None) -> Field:
    source, batch, plate, well, site = field
    return Field(
        _key(field),
        _key(field[:3]),
        {name: images[name] for name in channels if name in images},
        plate=plate, well=well, site=site, source=source, batch=batch, label=label, channels=tuple(channels),
        unused=names.in_order(set(images) - set(channels)),
    )  # fmt: skip


def _key(parts: Sequence[str]) -> str:
    return "/".join(part for part in parts if part)


def _by_number(field: FieldName) -> tuple[object, ...]:
    """Return a sort key that puts sites in the order of their numbers."""
    *others, site = field
    return (*others, len(site), site)
