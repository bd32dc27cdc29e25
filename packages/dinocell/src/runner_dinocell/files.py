"""Finding fields: images below a folder or a URL by their names, or as a manifest says.

One code for folders and URLs: all it knows of an image is its path below the data, and where it lies.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from runner_core import BadInput
from runner_core._errors import did_you_mean
from runner_core._text import counted
from runner_core.location import Location, location

from runner_dinocell import labels, manifest, names, sources
from runner_dinocell.config import CellConfig
from runner_dinocell.fields import Field
from runner_dinocell.manifest import Image, Table
from runner_dinocell.names import FieldName, Name

Plate = tuple[str, ...]
"""source, batch and plate."""
_Images = Mapping[FieldName, dict[str, Location]]
"""Images of fields, by channel."""

_PICTURES = (".png", ".jpg", ".jpeg")


def find_records(
    root: Location,
    config: CellConfig,
    channels: Sequence[str] = (),
    labelled: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> list[Field]:
    """Every field below `root`, a folder or a URL, or of a manifest that `root` is. `channels`: those to take (a
    network's), else `data.channels`. `labelled`: with their labels. `say` is told which images are left out.

    Names and tables are read, no image. Raises BadInput where nothing is found, where a table or a pattern is not
    usable, for a channel that no field has, and where a field has two images of one channel.
    """
    table = _manifest(root, config)
    top = root.parent if _is_table(root) else root
    if table is None:
        images = _named(root, config, say)
    else:
        images = manifest.images(table, top, config.data.label)
    found, own = _collected(str(table.where if table else root), images)
    chosen = _chosen(root, found, tuple(channels or config.data.channels))
    in_table = not labelled or (table is not None and config.data.label in table.names)
    label = own.get if in_table else _labels(top, config)
    return [_record(field, found[field], chosen, label(field)) for field in sorted(found, key=_by_number)]


def find_inputs(path: Location, config: CellConfig, channels: Sequence[str]) -> list[Field]:
    """Fields to predict, their `channels` those of the network: all below a folder or URL, or of a table, or that of
    one image. `data.manifest` is of the data that were trained on; and no label is needed."""
    config = replace(config, data=replace(config.data, manifest=None))
    if not (isinstance(path, Path) and path.is_file() and path.suffix.lower() in names.SUFFIXES):
        return find_records(path, config, channels, labelled=False)
    beside = find_records(path.parent, config, channels, labelled=False)
    fields = [field for field in beside if path in field.files.values()]
    if not fields:
        raise BadInput(f"{path}: its name does not say which field it is of, or it is of another channel.")
    return fields


def _manifest(root: Location, config: CellConfig) -> Table | None:
    named = config.data.manifest
    place = location(named) if named else root if _is_table(root) else None
    return None if place is None else Table(str(place), sources.content(place, config.remote))


def _is_table(place: Location) -> bool:
    return place.name.lower().endswith(manifest.SUFFIXES)


def _named(root: Location, config: CellConfig, say: Callable[[str], None]) -> Iterator[Image]:
    """Images below `root` that have a name of a known scheme, or one that `data.pattern` finds."""
    pattern = config.data.pattern
    read = names.own(pattern) if pattern else names.known
    above = str(root.resolve()) if isinstance(root, Path) else root.text.rstrip("/")
    known, others, pictures, example = 0, 0, 0, ""
    for path, place in sources.listed(root, config.remote):
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
        raise BadInput(
            f"{root}: {what} {known} of {counted(known + others, 'TIFF file')}, not {example} for one. Say by "
            "data.pattern what such names mean, or list the images in a table (data.manifest)."
        )
    if others and known:
        what = "not found by data.pattern" if pattern else "of no known name"
        say(f"{others} of {counted(known + others, 'TIFF file')} {'are' if others > 1 else 'is'} {what}, {example} for "
            "one: left out.")  # fmt: skip
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
    """Images of fields, and labels that came with them. `where`: what says so, for messages."""
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


def _chosen(root: Location, found: _Images, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """`wanted`, or the channels that every plate has; a plate has one that most of its fields have, so that a file
    that is missing takes no channel away from all the others."""
    if wanted:
        there = names.in_order({channel for images in found.values() for channel in images})
        for channel in wanted:
            if channel not in there:
                bare = re.sub(r"\D+0*", "", channel)  # Ch5, as file names have it, is channel 5
                near = f"; did you mean '{bare}'?" if bare in there else did_you_mean(channel, there)
                raise BadInput(f"{root}: no image of channel '{channel}'{near} (there are {', '.join(there)}).")
        return wanted
    plates = channels_of_plates((field[:3], list(images)) for field, images in found.items())
    common = set.intersection(*plates.values())
    if not common:
        shown = "; ".join(f"{_key(plate)} has {', '.join(names.in_order(own))}" for plate, own in plates.items())
        raise BadInput(f"{root}: no channel that every plate has: {shown[:400]}. Choose with data.channels.")
    return names.in_order(common)


def channels_of_plates(fields: Iterable[tuple[Plate, Iterable[str]]]) -> dict[Plate, set[str]]:
    """Channels that more than half of a plate's fields have, by plate; `fields`: plate and channels of each."""
    sites: Counter[Plate] = Counter()
    counts: defaultdict[Plate, Counter[str]] = defaultdict(Counter)
    for plate, channels in fields:
        sites[plate] += 1
        counts[plate].update(channels)
    return {plate: {name for name, n in own.items() if 2 * n > sites[plate]} for plate, own in counts.items()}


def _labels(top: Location, config: CellConfig) -> Callable[[FieldName], str | None]:
    """By labels.csv, if there is one. Raises BadInput where `data.label` asks for it and there is none."""
    wanted = config.data.label
    content = sources.content_if_any(top / labels.FILE, config.remote)
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
    """Sites in the order of their numbers."""
    *others, site = field
    return (*others, len(site), site)
