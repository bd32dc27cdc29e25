"""Show which labels are probably wrong: a table, wrong-labels.csv, pictures side by side, and maps for a viewer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.base.text import counted, first_few
from runner_core.base.writing import replace_csv
from runner_core.contract import Array, Finding
from runner_core.contract.project import Project
from runner_core.contract.records import Table
from runner_core.data.pipeline import CroppedRecord, local
from runner_core.output.pictures import file_name, panels, png_bytes
from runner_core.output.report.page import Block, Note
from runner_core.output.report.sections import picture
from runner_core.tools.check.pictures import coloured, grey, is_nifti, picture_of, side_by_side
from runner_core.tools.labels.confident import probabilities
from runner_core.tools.labels.judge import FEW, Judged, Usual, WrongLabels
from runner_core.tools.labels.regions import Region, weighted
from runner_core.training.ensembles import Ensemble

CSV = "wrong-labels.csv"
MAPS = "wrong-labels"
"""Folder of the maps of the worst records."""
RULE = "wrong label"
WORST = 10
"""Number of records that the screen and the page show."""
_COLUMNS = ("record", "group", "rank", "score", "why", "networks", "region", "start", "stop")
_OF_REGION = ("voxels", "region_score", "labelled", "networks_say")


def table(found: WrongLabels) -> Table:
    rows = []
    for rank, one in enumerate(found.judged[:WORST], 1):
        region = _text(one.regions[0]) if one.regions else ""
        rows.append((one.record.key, str(rank), one.score, one.why, region))
    title = f"Labels that are most probably wrong, of {counted(len(found.judged), 'record')}"
    return Table("wrong-labels", title, ("record", "rank", "score", "what is unusual", "worst region"), rows)


def _text(region: Region) -> str:
    if not region.start:  # the whole record
        return f"labelled {region.labelled}, networks say {region.said}"
    box = ", ".join(f"{a}–{b - 1}" for a, b in zip(region.start, region.stop, strict=True))
    return f"{counted(region.size, 'voxel')} at [{box}]: labelled {region.labelled}, networks say {region.said}"


def notes(found: WrongLabels) -> Iterator[Finding]:
    """Yield what a user must know to read the table."""
    text = "no label was changed: the score says how far a label lies from what the networks say, compared with others"
    yield Finding(RULE, "note", f"{text} ({found.limit:g} is far)")
    if 0 < len(found.judged) < FEW:
        text = f"{counted(len(found.judged), 'record')} were judged: too few to know what is usual"
        yield Finding(RULE, "note", f"{text}, so scores mean little")
    for keys, why in (
        (found.seen, "not judged, because all networks were trained on it or on its group"),
        (found.unlabelled, "not judged, because it has no label"),
        (found.alone, "not judged, because no other group has its label"),
    ):
        if keys:
            yield Finding(RULE, "note", f"{counted(len(keys), 'record')} {why}: {first_few(keys)}")
    for error in found.errors:
        yield Finding(RULE, "warning", f"not judged: {error}")


def findings(found: WrongLabels) -> Iterator[tuple[str, Finding]]:
    """Yield a warning for each of the worst records whose score is high."""
    for one in found.judged[:WORST]:
        if one.score >= found.limit and len(found.judged) >= FEW:
            region = f"; {_text(one.regions[0])}" if one.regions else ""
            text = f"the label may be wrong (score {one.score:.3g}): {one.why}{region}"
            yield one.record.key, Finding(RULE, "warning", text)


def write_csv(found: WrongLabels, folder: Path) -> Path:
    """Write all judged records, the most suspicious first, with a row for each of their regions."""
    rows: list[Sequence[Any]] = [(*_COLUMNS, *_OF_REGION)]
    for rank, one in enumerate(found.judged, 1):
        head = (one.record.key, one.record.group, rank, f"{one.score:.4g}", one.why, one.networks)
        for number, region in enumerate(one.regions, 1):
            box = (" ".join(map(str, end)) for end in (region.start, region.stop))
            rows.append((*head, number, *box, region.size, f"{region.score:.4g}", region.labelled, region.said))
        if not one.regions:
            rows.append((*head, *[""] * 7))
    replace_csv(folder / CSV, rows)
    return folder / CSV


def pictures(found: WrongLabels, ensemble: Ensemble, usual: Usual | None, folder: Path) -> Iterator[Block]:
    """Yield pictures of the worst records, and write maps of them into `folder` for a viewer (not of embeddings).

    Call it while the networks' outputs are stored.
    """
    for one in found.judged[:WORST]:
        try:
            if usual is None:
                yield from _beside_nearest(one, ensemble.members[0].project)
            else:
                yield from _shown(one, ensemble, usual, folder)
        except (BadInput, OSError):  # the findings say what is wrong with it
            pass
        except Exception as error:  # the report of a long search is worth more than a picture
            yield Note(f"{one.record.key}: no picture could be drawn of it ({type(error).__name__}: {error})")


def _shown(one: Judged, ensemble: Ensemble, usual: Usual, folder: Path) -> Iterator[Block]:
    assert one.stored is not None
    member = ensemble.members_for(one.record)[0]
    soft, labels, spread = one.stored.arrays()
    margins = weighted(usual.wrong(soft, labels, spread)[0])
    with local(member.project, one.record) as here:
        cropped = CroppedRecord(member.pipeline, here)
        if (write := member.combining.write_map) is not None:
            folder.mkdir(exist_ok=True)
            write(cropped, margins, folder / file_name(one.record.key))
        decoded = cropped.decoded
        image = next(iter(decoded.arrays.values()))
        if image.shape[: labels.ndim] != labels.shape or labels.ndim not in (2, 3):
            return
        drawn = _panels(image, soft, labels, margins, decoded.spacing, is_nifti(here))
    caption = f"{one.record.key}: {one.why}. Image with the label, with what the networks say, and where they disagree"
    yield picture(png_bytes(drawn), caption)


def _beside_nearest(one: Judged, project: Project) -> Iterator[Block]:
    """Yield the record's picture, beside the nearest record with its label and the nearest with the other one."""
    own = next(iter(one.nearest))
    named = {f"this record, labelled {own}": one.record}
    named |= {f"nearest labelled {label}": near for label, near in one.nearest.items()}
    drawn = {}
    for name, record in named.items():
        with local(project, record) as here:
            image = picture_of(project, here)
        if image is None:
            return
        drawn[name] = image
    near = ", ".join(f"{record.key} (labelled {label})" for label, record in one.nearest.items())
    yield picture(
        png_bytes(panels(drawn)), f"{one.record.key}: {one.why}. Beside it the nearest of other groups: {near}"
    )


def _panels(image: Array, soft: Array, labels: Array, margins: Array, spacing: Sequence[float], turned: bool) -> Array:
    """Return the slice in which most looks wrong: with its label, with the prediction, with the disagreement."""
    if labels.dtype.kind == "i":
        first = int(len(soft) > 1)  # of one class, 0 is the rest, which has no colour
        said, label = probabilities(soft).argmax(0) + first, labels + first
    else:
        said, label = np.maximum(soft, 0), np.maximum(np.nan_to_num(labels), 0)
    planes = [label, said, margins]
    if labels.ndim == 3:
        across = int(np.argmin(labels.shape))
        # without a margin, the slice where label and prediction differ most
        weight = margins if margins.any() else np.abs(label - said.astype(np.float32))
        place = int(np.argmax(weight.sum(tuple(axis for axis in range(3) if axis != across))))
        image, *planes = (np.take(array, place, across) for array in (image, *planes))
        spacing = [mm for axis, mm in enumerate(spacing) if axis != across]
    ground = grey(image)
    return side_by_side([coloured(ground, plane) for plane in planes], spacing, turned)
