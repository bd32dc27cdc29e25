"""Settings and presets. No framework is imported here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from runner_core import AtLeast, Between, FilesConfig, PredictConfig, RunConfig, ShareBelow, Within


@dataclass
class DoseDataConfig(FilesConfig):
    manifest: Path | None = None
    """Table of the files (CSV, TSV or parquet). Each patient has a row with the column folder, or with ct, dose,
    possible_dose_mask, voxel_dimensions and a column for each region (or structures, a folder of them), and optionally
    id, group and split. Paths in the table are relative to --data or absolute; the table's own path is relative to the
    current folder. Default: the challenge's layout."""
    pattern: tuple[str, ...] = ()
    """Path patterns below --data, such as {id}/{role}.csv or {id}_{role}.csv. {id} is the patient, {role} what the file
    is (ct, dose, PTV70, parotid_r, …). {group} and {split} are optional; * matches anything. Default: the challenge's
    layout."""
    names: Path | None = None
    """Table of structures' names for patients from DICOM files (YAML or CSV): patterns of names for each region and the
    body, and prescriptions (Gy) of targets. Default: the usual names, and targets with their dose in the name."""
    phantom: Literal["csv", "dicom"] = "csv"
    """Files that `phantom` writes: the challenge's, or a CT series, RT Structure Set and RT Dose for each patient."""
    size: Literal[128, 64, 32] = 128
    """Voxels per side of the grid that the network works on. Below 128, each voxel of CT and dose is the mean of the
    voxels it replaces, and each voxel of a region their majority. Predictions are brought back to 128³, where all
    scores are computed."""
    patch: tuple[int, ...] = ()
    """Size (three numbers of voxels) of the random part of a patient in each training sample. It covers as much of the
    possible-dose mask as it can. For model.network residual; validation and prediction see whole patients. Default:
    training sees whole patients too."""
    ct_offset: float = 1024.0
    """Number to subtract from a stored CT value to get HU. The challenge's values run from 1 to 28036 and hold HU +
    1024."""
    ct_window: tuple[float, float] = (-1024.0, 1500.0)
    """HU outside the window are clipped to it: metal, and the padding around the scanner's field of view. The network
    sees the result / 1000."""
    unpack: Literal["device", "host"] = "device"
    """Where to unpack stored CT and dose (16 bits) and masks (one bit each) for the network. host: fill batches with
    float32 and one channel per mask, as the challenge's loader does. This takes eight times the memory to fill and to
    send; use it only to compare."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.names is not None:  # a run may be used from another folder
            self.names = Path(os.path.expanduser(self.names)).absolute()


@dataclass
class ModelConfig:
    network: Literal["challenge", "residual"] = "challenge"
    """challenge: the challenge's U-Net. residual: a residual U-Net without normalisation that works at half the grid's
    resolution, so that a CPU can train it on 128³; it also sees the possible-dose mask. Both have model.start; widths,
    blocks and refine are the residual's, the other settings the challenge's."""
    features: Annotated[int, Within(1, 1024)] = 64
    """Channels of the first level; the levels below have 2, 4 and 8 times as many. 64 gives the challenge's network."""
    cascade: bool = False
    """Train two networks; the second sees the dose of the first beside the images."""
    recompute: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, more time."""
    dropout: Annotated[float, ShareBelow(1)] = 0.2
    """Share of the channels that are dropped after the second and the fourth upsampling."""
    momentum: Annotated[float, Between(0, 1)] = 0.99
    """Share of the old value in BatchNorm's running statistics. At 0.99 the initial values still count after a few
    hundred steps; short trainings need 0.9."""
    start: Annotated[float, Within(0, 100)] = 0.0
    """Mean output (Gy) of an untrained network. At 0, as in the challenge's code, half of the voxels start below the
    ReLU and learn nothing. If the loss is inside the mask, a start near the mean dose there is better."""
    widths: tuple[int, ...] = (32, 64, 96, 96)
    """residual: channels of each level, from half the grid's resolution down."""
    blocks: Annotated[int, Within(1, 16)] = 1
    """residual: blocks of two convolutions at each level, on the way down and on the way up."""
    refine: Annotated[int, Within(0, 64)] = 8
    """residual: channels of the last two convolutions, which work on the whole grid and see the images once more. 0: no
    such convolutions."""

    @property
    def unit(self) -> int:
        """Number of voxels of which the sides of the residual network's input are multiples."""
        return int(2 ** len(self.widths))


@dataclass
class LossConfig:
    mae: Annotated[float, AtLeast(0)] = 1.0
    """Weight of the mean absolute error of the dose (Gy)."""
    masked: bool = False
    """Average over the possible-dose mask, as the dose score does, instead of over the whole volume."""
    regions: Annotated[float, AtLeast(0)] = 0.0
    """Weight of the mean absolute error inside organs and targets (Gy), where each of them counts as much as any other,
    however small it is."""
    dvh: Annotated[float, AtLeast(0)] = 0.0
    """Weight of the area between the dose-volume histograms of prediction and reference (Gy)."""


@dataclass
class AugmentConfig:
    """Random changes of every training sample. Amounts lie between ± the given number; 0 switches a change off."""

    flip: bool = True
    """Mirror half of the samples left to right; the parotids exchange their names."""
    rotate: Annotated[float, Within(0, 180)] = 0.0
    """Largest rotation about the patient's long axis (degrees)."""
    scale: Annotated[float, Within(0, 1)] = 0.0
    """Largest logarithm of the size factor, drawn separately for the axial plane and the long axis. The challenge's
    voxels are 2.7 to 5.4 mm wide, and the network does not see that size."""
    shift: Annotated[float, Within(0, 1)] = 0.0
    """Largest translation along each axis, as a share of the grid."""


@dataclass
class DosePredictConfig(PredictConfig):
    views: tuple[str, ...] = ("left-right",)
    """Average with predictions of other views of the patient. left-right: the mirrored patient, whose parotids change
    places; it takes twice the time. none: the patient alone."""
    goals: Path | None = None
    """Table of clinical goals (YAML) that `predict` and `evaluate` judge predicted doses by. Default: the limits of the
    trial RTOG 0225."""
    gamma: bool = False
    """Also score gamma passing rates (3 %/3 mm and 2 %/2 mm, global and local) in `evaluate`. It takes many seconds per
    patient."""

    def __post_init__(self) -> None:
        if self.goals is not None:  # a run may be used from another folder
            self.goals = Path(os.path.expanduser(self.goals)).absolute()


@dataclass
class OpenKBPConfig(RunConfig):
    """Dose prediction for head-and-neck radiotherapy."""

    data: DoseDataConfig = field(default_factory=DoseDataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    predict: DosePredictConfig = field(default_factory=DosePredictConfig)

    def faults(self) -> Iterator[str]:
        """Yield faults that the bounds of a single field cannot express."""
        data, loss = self.data, self.loss
        if self.crop.mode not in ("auto", "none"):
            yield f"crop.mode is {self.crop.mode}; the network works on the challenge's whole grid: leave it at auto"
        if data.size not in (128, 64, 32):
            yield f"data.size is {data.size}; the network works on 128, 64 or 32 voxels a side"
        if not data.ct_window[0] < data.ct_window[1]:
            yield f"data.ct_window is {data.ct_window}; its first number must be below its second"
        if not (loss.mae or loss.regions or loss.dvh):
            yield "loss.mae, loss.regions and loss.dvh are all 0: nothing would be learned"
        yield from _network_faults(data, self.model)


def _network_faults(data: DoseDataConfig, model: ModelConfig) -> Iterator[str]:
    if model.network == "challenge":
        if data.patch:
            yield "data.patch is for model.network residual; the challenge's network sees whole patients: leave it out"
        return
    if model.cascade or model.recompute:
        yield "model.cascade and model.recompute are for model.network challenge: leave them out"
    if not model.widths or min(model.widths) < 1:
        yield f"model.widths is {model.widths}; name a number of channels for each level, such as 32 64 96 96"
        return
    unit = model.unit
    if data.size % unit:
        yield f"data.size {data.size} is no multiple of {unit}, as {len(model.widths)} model.widths need: name fewer"
    if data.patch and (len(data.patch) != 3 or any(n < 1 or n > data.size or n % unit for n in data.patch)):
        yield f"data.patch is {data.patch}; name three multiples of {unit}, 2 for each level, up to {data.size}"


@dataclass
class DosePredictOptions:
    csv: bool = True
    """Write the dose as the challenge's CSV, KEY.csv (the file of a submission)."""
    nifti: bool = False
    """Also write the dose (Gy) as NIfTI, KEY_dose.nii.gz."""
    dicom: bool = False
    """Also write the dose as DICOM RTDOSE, KEY_dose.dcm."""
    figure: bool = False
    """Also draw slices of the dose with isodose lines, and its dose-volume histograms, KEY_dose.png."""
    dose_grid: Annotated[float, Within(0, 10)] = 2.5
    """Spacing (mm) of the RTDOSE of a patient that comes from DICOM files. 0: the planning CT's own grid."""
    goals: bool = False
    """Also write the clinical goals as CSV, KEY_goals.csv: limit, predicted dose, whether it is met, and the same of
    the patient's own dose if there is one."""
    reference: Path | None = None
    """Folder of the patient's DICOM CT series on the same grid. It gives RTDOSE and NIfTI their geometry, and RTDOSE
    its patient and study. Implies --dicom. Without a series the geometry is synthetic."""


def default() -> OpenKBPConfig:
    """Train the challenge's network (117 M parameters) at 128³, 100 epochs of batches of 2; for a GPU.

    The learning rate is the challenge's, 2e-4, but it warms up and falls along a cosine; `published` keeps it constant.
    """
    config = OpenKBPConfig()
    config.train.batch_size = 2
    config.train.epochs = 100
    config.train.learning_rate = 2e-4
    config.checkpoint.every, config.checkpoint.keep = 10, 5
    return config


def published() -> OpenKBPConfig:
    """Train as the challenge's own code does: default with a constant learning rate, 2e-4 from the first step on."""
    config = default()
    config.train.schedule, config.train.warmup = "constant", 0.0
    return config


def large() -> OpenKBPConfig:
    """Train a cascade of two networks at 128³, with the loss inside the mask; for a large GPU.

    It differs from default in three more ways: patients are turned, scaled and moved, and activations are computed
    again, because two networks keep twice as many.
    """
    config = default()
    config.model.cascade = True
    config.model.recompute = True
    config.model.start = 20.0
    config.loss.masked = True
    config.augment = AugmentConfig(rotate=20.0, scale=0.2, shift=0.06)
    return config


def demo() -> OpenKBPConfig:
    """Train 461 k parameters at 64³: the phantom takes about a minute on two CPU cores."""
    config = default()
    config.data.size = 64
    config.model.features = 4
    config.model.momentum = 0.9
    config.model.start = 20.0
    config.loss.masked = True
    config.augment = AugmentConfig(rotate=20.0, scale=0.2, shift=0.06)
    config.train.learning_rate = 3e-3
    config.train.epochs, config.train.steps_per_epoch = 12, 50
    config.validate.every, config.checkpoint.every = 4, 4
    config.log.every, config.log.snapshots_every = 50, 150
    return config


def small() -> OpenKBPConfig:
    """Train a residual U-Net (2.3 M parameters) on parts of patients at 128³; for two CPU cores and an hour or two.

    The built-in weights were trained with it.
    """
    config = default()
    config.data.patch = (64, 112, 48)
    config.model.network = "residual"
    config.model.start = 20.0
    config.loss.masked, config.loss.regions = True, 0.5
    config.augment = AugmentConfig(rotate=10.0, scale=0.1)
    config.train.batch_size, config.train.learning_rate, config.train.clip = 1, 1e-3, 20.0
    config.train.epochs, config.train.ema = 75, 0.998
    config.validate.every, config.checkpoint.every = 5, 5
    return config


PRESETS: dict[str, Callable[[], OpenKBPConfig]] = {
    "default": default,
    "published": published,
    "small": small,
    "large": large,
    "demo": demo,
}
