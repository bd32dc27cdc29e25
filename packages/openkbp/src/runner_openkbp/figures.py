"""Picture of a patient: slices of the dose over the CT, and dose-volume histograms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw
from runner_core import Label, Layer, panels

from runner_openkbp import drawing, dvh
from runner_openkbp.drawing import Colour, Curve, Plot, Scale, shadowed, text
from runner_openkbp.rois import OARS, POSSIBLE, ROIS, TARGETS, Array, Patient, unpack
from runner_openkbp.scores import OAR_METRICS, TARGET_METRICS, dvh_metrics, patient_scores

WIDTH = 1200
HOT = 80.0
"""Gy at the top of the colour scale and at the right end of the histograms."""
DOSES = Scale(0, HOT, drawing.DOSE_COLOURS, range(0, 81, 10))
COLD = 5.0
"""Gy below which the CT is shown without colour."""
ISODOSES = (20.0, 40.0, 0.95 * 56, 0.95 * 63, 0.95 * 70)
"""Gy at the white lines over a dose: two for organs, and 95 % of each target's prescription."""
LIMITS = (5.0, 10.0, 20.0, 40.0, 80.0)
"""Gy at the ends of the difference's scale; the first one that holds 95 % of the voxels is used."""
SOFT_TISSUE = (1024 - 160.0, 1024 + 240.0)
"""CT window in stored values, HU + 1024."""
COLOURS: dict[str, Colour] = {
    "PTV70": (200, 20, 30),
    "PTV63": (240, 120, 0),
    "PTV56": (190, 150, 0),
    "Brainstem": (40, 80, 220),
    "SpinalCord": (20, 150, 60),
    "RightParotid": (0, 165, 190),
    "LeftParotid": (150, 60, 200),
    "Esophagus": (130, 85, 40),
    "Larynx": (225, 60, 160),
    "Mandible": (110, 120, 130),
}
_SHARES = (0.15, 0.5, 0.85)
"""Each slice that is shown has one of these shares of the targets' voxels above it."""
_HEAD, _NAMES, _GAP = 62, 24, 8
_TALLEST = 0.85
"""Largest height of a tile, as a share of its width."""
_PLOT = 700
"""Width of the histograms; the legend takes the rest."""


def layers(patient: Patient, prediction: Array | None) -> list[Layer]:
    """Return what a viewer shows of a patient: CT, doses, and regions, a target where it overlaps an organ.

    The slices are axial, from the head downwards, with the front above and the patient's right side at the left.
    """
    spacing = tuple(float(patient.voxel_mm[axis]) for axis in (2, 0, 1))
    regions = np.zeros(patient.masks.shape, np.uint8)
    for value, roi in enumerate(ROIS, 1):
        regions[unpack(patient.masks, roi)] = value
    named = tuple(Label(value, roi, COLOURS[roi]) for value, roi in enumerate(ROIS, 1))
    wanted = {"dose (Gy)": patient.dose, "predicted dose (Gy)": prediction}
    doses = {name: dose for name, dose in wanted.items() if dose is not None}
    axial = {name: np.asarray(dose).transpose(2, 0, 1) for name, dose in doses.items()}
    shown = [*doses][-1:]  # both at once would be added up
    return [
        Layer("CT", patient.ct.transpose(2, 0, 1), spacing, limits=SOFT_TISSUE),
        *(
            Layer(name, dose, spacing, colours="inferno", limits=(0, HOT), visible=name in shown)
            for name, dose in axial.items()
        ),
        Layer("regions", regions.transpose(2, 0, 1), spacing, labels=named, visible=False),
    ]


def figure(patient: Patient, prediction: Array, key: str) -> Array:
    """Draw axial slices and the histograms of every ROI: (H, 1200, 3) uint8.

    Slices show reference, prediction and difference, or the prediction alone if the patient has no dose. Histograms are
    solid for the reference and dashed for the prediction.

    Args:
        patient: the patient.
        prediction: (128, 128, 128), Gy; it is shown as 0 outside the possible-dose mask.
        key: the patient's key, for the title.
    """
    title = f"{key}: {_title(patient, prediction)}"
    prediction = np.nan_to_num(np.where(unpack(patient.masks, POSSIBLE), prediction, 0).astype(np.float32))
    slices, histograms = _slices(patient, prediction), _histograms(patient, prediction)
    picture = Image.new("RGB", (WIDTH, _HEAD + slices.height + histograms.height), drawing.WHITE)
    draw = ImageDraw.Draw(picture)
    text(draw, (_GAP, 10), title, 20)
    text(
        draw,
        (_GAP, 38),
        "Axial slices, the topmost nearest to the head; R: the patient's right. White lines: 20 and 40 Gy, and 95 % of "
        "56, 63 and 70 Gy",
        14,
        colour=drawing.SOFT,
    )
    picture.paste(slices, (0, _HEAD))
    picture.paste(histograms, (0, _HEAD + slices.height))
    return np.asarray(picture)


def snapshot(ct: Array, prediction: Array, dose: Array) -> Array:
    """Draw the axial slice with the highest mean dose, with reference, prediction and difference: (H, W, 3) uint8.

    All are (S, S, S): `ct` in HU / 1000, the doses in Gy. The difference's scale is ±20 Gy in every picture.
    """
    place = int(dose.mean(axis=(0, 1)).argmax())
    low, high = (np.array(SOFT_TISSUE) - 1024) / 1000
    grey = np.repeat((np.clip((ct[:, :, place] - low) / (high - low), 0, 1) * 255)[..., None], 3, axis=-1)
    true, found = dose[:, :, place], prediction[:, :, place]
    scale = Scale(-20, 20, drawing.DIFFERENCE_COLOURS, ())
    tiles = {
        "reference (0 to 80 Gy)": _over(grey, DOSES.colour(true), true > COLD),
        "prediction": _over(grey, DOSES.colour(found), found > COLD),
        "prediction - reference (20 Gy)": _over(grey, scale.colour(found - true), np.abs(found - true) > 1),
    }
    return panels(tiles)


def _over(grey: Array, colours: Array, where: Array) -> Array:
    return np.where(where[..., None], 0.4 * grey + 0.6 * colours, grey).astype(np.uint8)


def _title(patient: Patient, prediction: Array) -> str:
    if patient.dose is None:
        return f"predicted dose, {prediction.max():.1f} Gy at most"
    scores = patient_scores(patient, prediction)
    return f"dose score {scores['dose_score']:.2f} Gy, DVH score {scores['dvh_score']:.2f} Gy"


# ---------------------------------------------------------------- slices


def _slices(patient: Patient, prediction: Array) -> Image.Image:
    """Draw reference, prediction and difference in one row per slice; without a reference, predictions in one row."""
    places = _places(patient)
    if patient.dose is None:
        view = _View.of(patient, places, bars=1)
        row = [view.dose(place, prediction) for place in places]
        return _grid(["Prediction"] * len(places), [row], {2: DOSES})
    view = _View.of(patient, places, bars=2)
    difference = prediction - patient.dose
    scale = _difference_scale(difference[unpack(patient.masks, POSSIBLE)])
    rows = [
        [view.dose(p, patient.dose), view.dose(p, prediction), view.difference(p, difference, scale)] for p in places
    ]
    return _grid(["Reference", "Prediction", "Prediction minus reference"], rows, {1: DOSES, 2: scale})


def _grid(names: Sequence[str], rows: Sequence[Sequence[Array]], scales: dict[int, Scale]) -> Image.Image:
    """Arrange pictures of one size in rows.

    Each column has its name above it, and its colour scale to its right if it has one.
    """
    high, wide = rows[0][0].shape[:2]
    picture = Image.new("RGB", (WIDTH, _NAMES + len(rows) * (high + _GAP)), drawing.WHITE)
    draw = ImageDraw.Draw(picture)
    x = _GAP
    for column, name in enumerate(names):
        text(draw, (x + wide / 2, 2), name, 16, anchor="ma")
        for number, row in enumerate(rows):
            picture.paste(Image.fromarray(row[column]), (x, _NAMES + number * (high + _GAP)))
        x += wide + _GAP
        if column in scales:
            picture.paste(scales[column].bar(high), (x, _NAMES))
            x += drawing.BAR
    return picture


def _places(patient: Patient) -> list[int]:
    """Return the numbers of the slices through the targets, from head to feet."""
    targets = np.logical_or.reduce([unpack(patient.masks, roi) for roi in TARGETS])
    shown = targets if targets.any() else unpack(patient.masks, POSSIBLE)
    above = np.cumsum(shown.sum(axis=(0, 1))) / shown.sum()
    return [int(np.searchsorted(above, share)) for share in _SHARES]


def _difference_scale(difference: Array) -> Scale:
    most = float(np.percentile(np.abs(difference), 95))
    limit = next((limit for limit in LIMITS if limit >= most), LIMITS[-1])
    return Scale(-limit, limit, drawing.DIFFERENCE_COLOURS, np.linspace(-limit, limit, 5).tolist())


@dataclass(frozen=True)
class _View:
    """Slices cut to the body, enlarged to `size` (width, height) and put on black tiles `wide` × `high` pixels."""

    patient: Patient
    box: tuple[slice, slice]
    size: tuple[int, int]
    wide: int
    high: int

    @classmethod
    def of(cls, patient: Patient, places: Sequence[int], bars: int) -> _View:
        """Return the view in which three tiles and `bars` colour scales fill the picture's width."""
        from scipy import ndimage

        body = ndimage.binary_opening(patient.ct[:, :, places].max(axis=2) > 500, iterations=2)
        body |= unpack(patient.masks[:, :, places], POSSIBLE).any(axis=2)
        hits = [np.flatnonzero(body.any(axis=axis)) for axis in (1, 0)]
        rows, columns = (slice(max(0, int(h[0]) - 3), min(128, int(h[-1]) + 4)) for h in hits)
        deep, broad = (
            (s.stop - s.start) * float(mm) for s, mm in zip((rows, columns), patient.voxel_mm[:2], strict=True)
        )
        wide = (WIDTH - 4 * _GAP - bars * drawing.BAR) // 3
        zoom = min(wide / broad, _TALLEST * wide / deep)  # pixels per mm
        size = (round(broad * zoom), round(deep * zoom))
        return cls(patient, (rows, columns), size, wide, max(size[1], wide // 2))

    def dose(self, place: int, dose: Array) -> Array:
        """Draw a dose in colour over the CT with isodose lines and the outlines of the ROIs: (high, wide, 3) uint8."""
        gy = self._enlarged(dose[:, :, place])
        colours, opacity = DOSES.colour(gy), 0.55 * np.clip((gy - COLD) / 2 + 0.5, 0, 1)
        for level in ISODOSES:
            line = _outline(gy >= level, 1)
            colours[line], opacity[line] = drawing.WHITE, 1
        return self._tile(place, colours, opacity)

    def difference(self, place: int, difference: Array, scale: Scale) -> Array:
        """Draw a difference of doses over the CT; the smaller it is, the more transparent."""
        gy = self._enlarged(difference[:, :, place])
        return self._tile(place, scale.colour(gy), 0.8 * np.clip(np.abs(gy) / (0.1 * scale.high) - 0.5, 0, 1))

    def _tile(self, place: int, colours: Array, opacity: Array) -> Array:
        low, high = SOFT_TISSUE
        grey = np.clip((self._enlarged(self.patient.ct[:, :, place]) - low) / (high - low), 0, 1) * 255
        picture = grey[..., None] * (1 - opacity[..., None]) + colours * opacity[..., None]
        for roi in ROIS:
            mask = unpack(self.patient.masks[:, :, place], roi)
            if mask.any():
                picture[_outline(self._enlarged(mask) > 0.5)] = COLOURS[roi]
        tile = Image.new("RGB", (self.wide, self.high))
        corner = ((self.wide - self.size[0]) // 2, (self.high - self.size[1]) // 2)
        tile.paste(Image.fromarray(picture.astype(np.uint8)), corner)
        draw = ImageDraw.Draw(tile)
        shadowed(draw, (6, 4), f"slice {place}")
        shadowed(draw, (6, self.high / 2), "R", anchor="lm")
        shadowed(draw, (self.wide - 6, self.high / 2), "L", anchor="rm")
        return np.asarray(tile)

    def _enlarged(self, plane: Array) -> Array:
        """Return one slice (128, 128), cut and enlarged smoothly, as float32."""
        cut = Image.fromarray(plane[self.box].astype(np.float32))
        return np.asarray(cut.resize(self.size, Image.Resampling.BILINEAR))


def _outline(mask: Array, width: int = 2) -> Array:
    """Return the mask's outline, `width` pixels wide, inside the mask."""
    from scipy import ndimage

    return mask & ~np.asarray(ndimage.binary_erosion(mask, iterations=width, border_value=1))


# ---------------------------------------------------------------- histograms


def _histograms(patient: Patient, prediction: Array) -> Image.Image:
    doses = np.arange(0, HOT + 0.01, 0.25)
    drawn = []
    if patient.dose is not None:
        drawn += [(dvh.curves(patient.dose, patient.masks, doses), False)]
    drawn += [(dvh.curves(prediction, patient.masks, doses), True)]
    lines = [
        Curve(list(zip(doses.tolist(), curve.tolist(), strict=True)), COLOURS[roi], dashed)
        for found, dashed in drawn
        for roi, curve in found.items()
    ]
    legend = _legend(patient, prediction)
    plot = Plot(_PLOT, max(legend.height, 470), HOT, 100, "Dose (Gy)", "Volume (%)").draw(lines)
    picture = Image.new("RGB", (WIDTH, plot.height + _GAP), drawing.WHITE)
    picture.paste(plot, (0, 0))
    picture.paste(legend, (_PLOT, 0))
    return picture


def _legend(patient: Patient, prediction: Array) -> Image.Image:
    """Draw the colour and name of each ROI with its metrics for reference and prediction."""
    found = [roi for roi in (*TARGETS[::-1], *OARS) if unpack(patient.masks, roi).any()]
    predicted = dvh_metrics(prediction, patient.masks, patient.voxel_mm)
    reference = None if patient.dose is None else dvh_metrics(patient.dose, patient.masks, patient.voxel_mm)
    picture = Image.new("RGB", (WIDTH - _PLOT, 96 + 38 * len(found)), drawing.WHITE)
    draw = ImageDraw.Draw(picture)
    y = 10
    for words, dashed in (("reference", False), ("prediction", True)):
        if dashed or reference is not None:
            line = [(16.0, y + 9.0), (64.0, y + 9.0)]
            for piece in drawing.dashes(line) if dashed else [line]:
                draw.line(piece, fill=drawing.INK, width=2)
            text(draw, (74, y), words, 15)
            y += 22
    both = "" if reference is None else "reference / "
    text(draw, (16, y + 4), f"Gy: {both}prediction", 13, colour=drawing.SOFT)
    y += 30
    for roi in found:
        draw.rectangle((16, y + 2, 30, y + 14), fill=COLOURS[roi])
        text(draw, (38, y - 1), roi, 15)
        for number, metric in enumerate(TARGET_METRICS if roi in TARGETS else OAR_METRICS):
            value = f"{predicted[roi, metric]:.1f}"
            if reference is not None:
                value = f"{reference[roi, metric]:.1f} / {value}"
            value = "-" if "nan" in value else value
            text(draw, (38 + number * 154, y + 17), f"{_short(metric)}  {value}", 13, colour=drawing.SOFT)
        y += 38
    return picture


def _short(metric: str) -> str:
    """Return the short name of a metric.

    >>> [_short(metric) for metric in ("D_0.1_cc", "mean", "D_95")]
    ['D0.1cc', 'mean', 'D95']
    """
    return metric.replace("_", "")
