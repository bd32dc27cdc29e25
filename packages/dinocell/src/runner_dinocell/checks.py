"""Checks of `runner dinocell check`, for fields that can be read."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import cast

import numpy as np
from runner_core import AnyRecord, Array, BadInput, Finding, Record, counted, shape_text

from runner_dinocell import tiff
from runner_dinocell.brightness import brightness
from runner_dinocell.config import CellDataConfig
from runner_dinocell.fields import Field, cells, decode, nuclei_channel
from runner_dinocell.objects import MASK, known
from runner_dinocell.statistics import pairs, spread
from runner_dinocell.whole import Embedded
from runner_dinocell.windows import histogram, prepare

FEW = 32
"""With fewer grey values there is no texture to learn from."""
BYTE = 256
SCALED = 4 * BYTE
"""If 16-bit values exceed this range but are no more than a byte has, they are a scaled byte."""
SATURATED = 0.01
"""Largest share of the pixels at the brightest value before detail is lost."""
NOISE = 5.0
"""Smallest variance of structures of 4 to 8 pixels, relative to noise, that shows structure; cells have hundreds."""
SHARP = 0.02
"""Smallest variance of structures of 1 to 2 pixels, relative to those of 4 to 8, of a field in focus: 0.06 to 1 in
focus, 0.01 when blurred by 6 pixels."""
_MIDDLE = 512
"""Side (pixels) of the part in the middle of a field that is searched for structures."""
_RIM = 16
"""Pixels at the edges of that part that blurring distorts."""
_SHOWN = 5
_FIELDS = 16
"""Fields whose cells are counted."""


def findings(record: Record, settings: CellDataConfig) -> Iterator[Finding]:
    """Yield what looks wrong in one field of a data set with these settings.

    Raises BadInput as decoding does.
    """
    decoded, window = decode(record), settings.window
    if settings.cells is not None and not len(known(cells(decoded, settings, settings.cells))):
        yield _warning("cells", "no cell in this field: windows lie anywhere in it.")
    image = decoded.arrays["image"][[name in _images(record) for name in decoded.meta["channels"]]]
    if min(size := image.shape[1:]) < window:
        text = f"{shape_text(size)} pixels, smaller than a window of {window}²: set data.window to a side that fits."
        yield Finding("window", "error", text)
    if image.dtype == np.uint8:
        yield Finding("depth", "note", "8 bits a pixel, where a microscope's own images have 12 to 16.")
    yield from _grey_values(record, image)
    twins = [
        f"{one} and {other}"
        for (one, first), (other, second) in combinations(zip(_images(record), image, strict=True), 2)
        if np.array_equal(first, second)
    ]
    if twins:
        yield _warning("channels", f"channels {', '.join(twins)} are the same image: is one of them there twice?")
    yield from _structure(record, image)


def _images(record: Record) -> Mapping[str, Path]:
    """Return a field's images by channel."""
    return {name: place for name, place in record.files.items() if name != MASK}


_Fault = tuple[str, str]
"""The rule, and its meaning: how a message ends."""
_CONSTANT: _Fault = ("grey", ": there is nothing to see.")
_FEW: _Fault = ("grey", ".")
_SCALED: _Fault = ("depth", ", as of 8 bits that were scaled up. Export the camera's own 16 bits.")
_NARROW: _Fault = ("depth", ", as of 8 bits in a 16-bit file. Export the camera's own.")
_SATURATED: _Fault = ("saturated", ": saturated.")


def _grey_values(record: Record, image: Array) -> Iterator[Finding]:
    """Yield one finding per fault, because a plate has thousands of fields."""
    found: defaultdict[_Fault, list[str]] = defaultdict(list)
    for name, channel in zip(_images(record), image, strict=True):
        for fault, text in _faults(channel):
            found[fault].append(f"channel {name}: {text}")
    for (rule, end), texts in found.items():
        yield _warning(rule, "; ".join(texts) + end)


def _faults(channel: Array) -> Iterator[tuple[_Fault, str]]:
    counts = histogram(channel)
    values = np.flatnonzero(counts)
    low, high = int(values[0]), int(values[-1])
    if low == high:
        yield _CONSTANT, f"every pixel is {low}"
        return
    if len(values) <= BYTE and high - low >= SCALED:
        yield _SCALED, f"only {len(values)} grey values between {low} and {high}"
    elif channel.dtype != np.uint8 and high < BYTE:
        yield _NARROW, f"no value above {high}"
    elif len(values) < FEW:
        yield _FEW, f"only {len(values)} grey values, from {low} to {high}"
    share = counts[high] / channel.size
    if share > SATURATED:
        yield _SATURATED, f"{share:.1%} of the pixels have the brightest value, {high}"


def _structure(record: Record, image: Array) -> Iterator[Finding]:
    """Yield findings about fields without structure or out of focus."""
    found = {name: structure(channel) for name, channel in zip(_images(record), image, strict=True)}
    empty = [name for name, (signal, _) in found.items() if signal < NOISE]
    if len(empty) == len(found):
        yield _warning("empty", "no channel shows more than noise: there are no cells in this field.")
    elif empty:
        yield _warning("empty", f"nothing but noise in channel {', '.join(empty)}.")
    elif max(sharp for _, sharp in found.values()) < SHARP:
        yield _warning("focus", "no channel has fine structures: the field is out of focus.")


def structure(channel: Array) -> tuple[float, float]:
    """Return two variances of structures in the middle of an image (H, W).

    The first is that of structures of 4 to 8 pixels relative to white noise there. The second, without that noise, is
    that of structures of 1 to 2 pixels relative to those of 4 to 8. The finest differences, below 1 pixel, give the
    amount of noise; bands are differences of Gaussians.
    """
    from scipy import ndimage  # slow to import, and other commands do not need it

    top, left = (max(0, (n - _MIDDLE) // 2) for n in channel.shape)
    part = channel[top : top + _MIDDLE, left : left + _MIDDLE].astype(np.float32)
    inner = tuple(slice(min(_RIM, n // 4), n - min(_RIM, n // 4)) for n in part.shape)
    blurred = {sigma: ndimage.gaussian_filter(part, sigma)[inner] for sigma in (1, 2, 4, 8)}
    noise = float((part[inner] - blurred[1]).var()) / (1 - 3 / (4 * math.pi))
    if not noise:
        return 0.0, 0.0
    (fine, fine_noise), (coarse, coarse_noise) = (
        (float((blurred[a] - blurred[b]).var()), noise * _passed(a, b)) for a, b in ((1, 2), (4, 8))
    )
    sharp = max(0.0, fine - fine_noise) / max(coarse - coarse_noise, 1e-6 * noise)
    return coarse / coarse_noise, sharp


def _passed(small: int, large: int) -> float:
    """Return the share of white noise's variance that passes a difference of two Gaussians."""
    return (1 / small**2 + 1 / large**2) / (4 * math.pi) - 1 / (math.pi * (small**2 + large**2))


def set_findings(records: Sequence[AnyRecord], config: CellDataConfig | None = None) -> Iterator[Finding]:
    """Yield what no single field shows: channels, depths and sizes that differ, labels, brightness.

    It reads a header of each field whose files are on this machine, and with `config` the images of at most
    `statistics.FIELDS` of them. Fields that cannot be read are left out (`findings` names them).
    """
    fields = [record for record in records if isinstance(record, Field)]
    yield from _channels(fields)
    yield from _outlines(fields)
    yield from _labels(fields)
    if config is not None and config.cells is not None:
        yield from _cells(fields, config)
    if config is not None:
        yield from _brightness(fields, config)


def _cells(fields: Sequence[Field], config: CellDataConfig) -> Iterator[Finding]:
    """Say how many cells the fields have, so that a finder's result can be compared with one's own."""
    here = [field for field in fields if all(isinstance(place, Path) for place in field.files.values())]
    counts, how = [], f"data.cells {config.cells}"
    for number in spread([field.key for field in here], range(len(here)), _FIELDS):
        try:
            decoded = decode(cast("Record", here[number]))
            counts.append(len(known(cells(decoded, config, config.cells or "find"))))
        except BadInput:
            continue
        if config.cells == "find":
            how = f"data.cells find, in channel {nuclei_channel(decoded.meta['channels'], config.nuclei)}"
    if counts:
        most = (
            f"; of more than data.most_cells {config.most_cells} some are left out"
            if config.most_cells in counts
            else ""
        )
        text = f"{min(counts)} to {max(counts)} cells in {counted(len(counts), 'field')}, median {np.median(counts):g}"
        yield Finding("cells", "note", f"{text} ({how}){most}.")


def _brightness(fields: Sequence[Field], config: CellDataConfig) -> Iterator[Finding]:
    """Say whether brightness tells wells apart, what `data.scale` makes of it, and what to set if that is wrong."""
    here = [field for field in fields if all(isinstance(place, Path) for place in field.files.values())]
    levels, keys = [], []
    for number in pairs([field.key for field in here], range(len(here))):
        try:
            image = decode(cast("Record", here[number])).arrays["image"]
        except BadInput:
            continue
        levels.append(prepare(image, config.percentiles)["levels"])
        keys.append(here[number].key)
    if not levels:
        return
    found = brightness(np.stack(levels), keys)
    text = f"{found}. data.scale auto takes {found.scale} for such fields"
    if config.scale in ("auto", found.scale):
        yield Finding("brightness", "note", f"{text}.")
        return
    lost = "throws away brightness that tells wells apart" if config.scale == "field" else "keeps the plates' own light"
    yield _warning("brightness", f"{text}; data.scale {config.scale} {lost}.")


def _channels(fields: Sequence[Field]) -> Iterator[Finding]:
    unused = {name for field in fields for name in field.unused}
    for name in sorted(unused):
        plates = sorted({field.whole_plate for field in fields if name in field.unused})
        text = f"channel {name} is not used; {counted(len(plates), 'plate')} with it: {_some(plates)}."
        yield Finding("channels", "note", text)
    for name in fields[0].channels if fields else ():
        if lacking := [field.key for field in fields if name not in field.files]:
            text = f"{counted(len(lacking), 'field')} without channel {name}: {_some(lacking)}."
            yield Finding("channels", "note" if fields[0].partial else "warning", text)


def of_prediction(field: Field, prediction: Embedded, trained: Sequence[str]) -> Iterator[Finding]:
    """Say what is odd about an embedded field: its stains, and that it has no cells."""
    yield from stains(field, trained)
    if prediction.cells is not None and not len(prediction.cells):
        yield Finding("cells", "note", "no cell in this field; its embedding is the mean of windows that cover it")


def stains(field: Field, trained: Sequence[str]) -> Iterator[Finding]:
    """Say which stains of a field the network did not see in training, and which the field lacks."""
    new = [name for name in field.images if name not in trained]
    lacking = [name for name in trained if name not in field.files]
    parts = [f"{what} {', '.join(own)}" for what, own in (("not trained on", new), ("missing", lacking)) if own]
    if parts:
        yield Finding("stains", "note", f"channels {'; '.join(parts)}")


def _outlines(fields: Sequence[Field]) -> Iterator[Finding]:
    """Yield findings about depths and sizes that differ from field to field."""
    found: dict[str, tuple[tuple[int, ...], int]] = {}
    for field in fields:
        place = next(iter(field.images.values()), None)
        if isinstance(place, Path):
            try:
                found[str(place)] = tiff.outline(place)
            except BadInput:
                continue
    depths = {place: bits for place, (_, bits) in found.items()}
    if narrow := [place for place, bits in depths.items() if bits < max(depths.values())]:
        text = f"{counted(len(narrow), 'field')} of 8 bits a pixel among those of 16: {_some(narrow)}"
        yield Finding("depth", "error", f"{text}. Their grey values were lost on the way: export them again.")
    sizes = {place: size for place, (size, _) in found.items()}
    if len(set(sizes.values())) > 1:
        usual = Counter(sizes.values()).most_common(1)[0][0]
        others = [f"{place} ({shape_text(size)})" for place, size in sizes.items() if size != usual]
        text = f"{counted(len(others), 'field')} of another size than {shape_text(usual)} pixels: {_some(others)}"
        yield _warning("size", f"{text}. Streamed, they cannot be used (cache.mode stream).")


def _labels(fields: Sequence[Field]) -> Iterator[Finding]:
    """Yield findings about labels that are of little use to evaluation."""
    labelled = [field for field in fields if field.label is not None]
    if not labelled:
        return
    if len(labelled) < len(fields):
        text = f"{len(labelled)} of {counted(len(fields), 'field')} have a label."
        yield Finding("labels", "note", text)
    plates = _by((field.label or "", field.whole_plate) for field in labelled)
    single = sorted(label for label, own in plates.items() if len(own) == 1)
    if len({field.whole_plate for field in labelled}) > 1 and single:
        text = f"{counted(len(single), 'label')} on one plate only: {_some(single)}; no other plate can confirm them."
        yield Finding("labels", "warning" if len(single) == len(plates) else "note", text)


def _by(pairs: Iterable[tuple[str, str]]) -> Mapping[str, set[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for key, value in pairs:
        found[key].add(value)
    return found


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


def _warning(rule: str, message: str) -> Finding:
    return Finding(rule, "warning", message)
