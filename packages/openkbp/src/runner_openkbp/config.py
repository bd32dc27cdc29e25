"""Settings of openkbp and its presets. Imports no framework."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from runner_core.config import DataConfig, RunConfig


@dataclass
class DoseDataConfig(DataConfig):
    size: Literal[128, 64, 32] = 128
    """Voxels per side of the grid that the network works on. Below 128, CT and dose are the means and the ROIs the
    majority of the voxels they replace; predictions are brought back to 128³, where all scores are computed."""
    ct_offset: float = 1024.0
    """HU = stored CT value − ct_offset. The challenge's values run from 1 to 28036 and hold HU + 1024."""
    ct_window: tuple[float, float] = (-1024.0, 1500.0)
    """HU outside the window are clipped to it: metal and the padding around the scanner's field of view. The network
    sees the result / 1000."""
    unpack: Literal["device", "host"] = "device"
    """Where 16-bit CT and dose and a bit a mask become what the network reads. host: batches are filled with float32,
    a channel a mask, as the challenge's loader does: eight times the memory to fill and to send; to compare with."""


@dataclass
class ModelConfig:
    features: int = 64
    """Channels of the first level; the levels below have 2, 4 and 8 times as many. 64 gives the challenge's network."""
    cascade: bool = False
    """Two networks: the second sees the first one's dose beside the images, and both are trained."""
    recompute: bool = False
    """Compute activations again in the backward pass rather than keep them: less memory, more time."""
    dropout: float = 0.2
    """Share of the channels dropped after the second and the fourth upsampling."""
    momentum: float = 0.99
    """Share of the old value in BatchNorm's running statistics. At 0.99 a few hundred steps leave the initial values
    in; short trainings need 0.9."""
    start: float = 0.0
    """Dose (Gy) around which an untrained network's output lies. At 0, as in the challenge's code, half of the voxels
    start below the ReLU and learn nothing; with the loss inside the mask a start near its mean dose is better."""


@dataclass
class LossConfig:
    mae: float = 1.0
    """Weight of the mean absolute error of the dose (Gy)."""
    masked: bool = False
    """Mean over the voxels of the possible-dose mask, as the dose score has it, instead of the whole volume."""
    dvh: float = 0.0
    """Weight of the area between the dose-volume histograms of prediction and reference (Gy)."""


@dataclass
class AugmentConfig:
    """Training only. Every sample is changed, by amounts between ± the numbers given; 0 switches a part off."""

    flip: bool = True
    """Mirror left and right in half of the samples; the parotids change names."""
    rotate: float = 0.0
    """Largest turn about the patient's long axis (degrees)."""
    scale: float = 0.0
    """Largest logarithm of the size factor, of the axial plane and of the long axis separately. The challenge's voxels
    are from 2.7 to 5.4 mm wide, which the network is not told."""
    shift: float = 0.0
    """Largest translation along each axis, as a share of the grid."""


@dataclass
class PredictConfig:
    flip: bool = True
    """Average with the prediction of the mirrored patient; takes twice the time."""


@dataclass
class OpenKBPConfig(RunConfig):
    """Dose prediction for head-and-neck radiotherapy."""

    data: DoseDataConfig = field(default_factory=DoseDataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    predict: PredictConfig = field(default_factory=PredictConfig)


def wrong_settings(config: OpenKBPConfig) -> str | None:
    """What is wrong with the settings and what they may be; None: nothing."""
    data, model, loss, augment = config.data, config.model, config.loss, config.augment
    faults = {
        f"crop.mode is {config.crop.mode}; the network works on the challenge's whole grid: leave it at auto": (
            config.crop.mode not in ("auto", "none")
        ),
        f"data.size is {data.size}; the network works on 128, 64 or 32 voxels a side": data.size not in (128, 64, 32),
        f"data.ct_window is {data.ct_window}; its first number must be below its second": (
            not data.ct_window[0] < data.ct_window[1]
        ),
        f"model.features is {model.features}; at least 1 channel": model.features < 1,
        f"model.dropout is {model.dropout}; a share from 0 to below 1": not 0 <= model.dropout < 1,
        f"model.momentum is {model.momentum}; a share above 0 and below 1": not 0 < model.momentum < 1,
        f"model.start is {model.start}; a dose from 0 to 100 Gy": not 0 <= model.start <= 100,
        f"loss.mae is {loss.mae} and loss.dvh {loss.dvh}; weights cannot be negative": min(loss.mae, loss.dvh) < 0,
        "loss.mae and loss.dvh are both 0: nothing would be learned": not (loss.mae or loss.dvh),
        f"augment.rotate is {augment.rotate}; degrees from 0 to 180": not 0 <= augment.rotate <= 180,
        f"augment.scale is {augment.scale}; a logarithm from 0 to 1": not 0 <= augment.scale <= 1,
        f"augment.shift is {augment.shift}; a share from 0 to 1": not 0 <= augment.shift <= 1,
    }
    return next((fault for fault, found in faults.items() if found), None)


@dataclass
class DosePredictOptions:
    csv: bool = True
    """Write the dose as the challenge's CSV, KEY.csv (the file of a submission)."""
    nifti: bool = False
    """Also write the dose (Gy) as NIfTI, KEY_dose.nii.gz."""
    dicom: bool = False
    """Also write the dose as DICOM RTDOSE, KEY_dose.dcm."""
    figure: bool = False
    """Also draw slices of the dose and its dose-volume histograms, KEY_dose.png."""
    reference: Path | None = None
    """Folder of the patient's DICOM CT series on the same grid: gives RTDOSE and NIfTI their geometry, and RTDOSE its
    patient and study. Implies --dicom. Without one the geometry is synthetic."""


def default() -> OpenKBPConfig:
    """The challenge's network (117 M parameters) at 128³, 100 epochs of batches of 2; for a GPU."""
    config = OpenKBPConfig()
    config.train.batch_size = 2
    config.train.epochs = 100
    config.train.learning_rate = 2e-4
    config.checkpoint.every, config.checkpoint.keep = 10, 5
    return config


def large() -> OpenKBPConfig:
    """As default, with a cascade of two networks, the loss inside the mask, and patients turned, of other sizes and
    places; activations are computed again, for two networks keep twice as many. For a large GPU."""
    config = default()
    config.model.cascade = True
    config.model.recompute = True
    config.model.start = 20.0
    config.loss.masked = True
    config.augment = AugmentConfig(rotate=20.0, scale=0.2, shift=0.06)
    return config


def demo() -> OpenKBPConfig:
    """64³ and 461 k parameters: the phantom in about a minute on two CPU cores."""
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
    config.log.every = 50
    return config


PRESETS: dict[str, Callable[[], OpenKBPConfig]] = {
    "default": default,
    "large": large,
    "demo": demo,
}
