"""Settings of ssmunet and its presets. Imports no framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from runner_core import AtLeast, Between, MoreThan, PairsConfig, PredictConfig, RunConfig, ShareBelow

from runner_ssmunet.calls import CallsConfig

POLYNOMIAL = 3
"""Order of the Savitzky–Golay polynomial."""


@dataclass
class SpectraConfig(PairsConfig):
    classes: tuple[str, ...] = ()
    """Names of the classes, in the order of their labels 1, 2, … By default those of the data (classes.csv in the data
    folder, or the headers of ENVI label files), else class 1, class 2, … for all labels."""
    ignore: int | None = 0
    """Label of pixels that nobody annotated; loss, class weights, label statistics and metrics leave it out. None: no
    label is left out, and unannotated pixels are learned as a class of their own (a health rule objects)."""
    group_by: Literal["patient", "slide", "core"] = "patient"
    """Records of one patient, slide or core always stay in one split. A core whose meta does not name it is refused."""
    units: Literal["auto", "absorbance", "transmittance", "percent"] = "auto"
    """Units of the files' spectra; transmittance (0 to 1) and percent (%T) become absorbance, 4 at most. auto: what the
    file says, else absorbance."""
    low: float = 900.0
    """Lowest wavenumber kept (cm⁻¹)."""
    high: float = 1800.0
    """Highest wavenumber kept (cm⁻¹)."""
    gap: tuple[float, float] | None = (1350.0, 1490.0)
    """Wavenumbers left out because paraffin absorbs there (cm⁻¹); None: keep all. No filter, bin or baseline runs
    across the gap."""
    bin: Annotated[int, AtLeast(1)] = 1
    """Number of neighbouring wavenumbers that are averaged into one."""
    step: Annotated[float, MoreThan(0)] | None = None
    """Resample every core onto one axis of this spacing (cm⁻¹), for data from different instruments. Resampling is
    linear interpolation or, onto a coarser axis, the mean over each new point's width. By default the cores keep
    their own axis, which must be the same for all."""
    wavenumbers: tuple[Annotated[float, MoreThan(0)], ...] = ()
    """Keep only these wavenumbers (cm⁻¹), as an instrument of discrete frequencies measures them (`select-bands` finds
    some). Each is interpolated from its neighbours in the file. By default every wavenumber is kept."""
    band_width: Annotated[float, AtLeast(0)] = 0.0
    """Width (cm⁻¹) over which the file's wavenumbers are averaged for each of data.wavenumbers; 0: no averaging."""
    baseline: Literal["none", "rubberband"] = "none"
    """Baseline subtracted from each spectrum. rubberband: the lower convex hull, one on each side of the gap."""
    derivative: Literal["none", "second"] = "none"
    """second: use the negative second derivative (Savitzky and Golay) instead of the spectrum."""
    window: int = 9
    """Points of the derivative's window (odd)."""
    normalise: Literal["vector", "amide1", "none"] = "vector"
    """vector: scale each spectrum to length 1 (L2); amide1: to equal area from 1600 to 1700 cm⁻¹."""
    tissue: Literal["auto", "file", "amide1"] = "auto"
    """How tissue is found. file: by the file's mask; amide1: where the logarithm of the amide-I band's area is above
    Otsu's threshold; auto: by the file's mask if it has one, else amide1."""
    patch: int = 128
    """Side of the square patches (pixels) that the network sees at once; a multiple of 16."""
    overlap: Annotated[float, ShareBelow(1)] = 0.0
    """Share of its side by which a training patch overlaps the next."""
    unlabelled: bool = False
    """Also train on patches without any annotated pixel. They teach the network nothing but take as long."""


StepName = Literal[
    "spikes", "atmosphere", "rmies", "emsc", "rubberband", "asls", "polynomial", "savgol", "pca", "mnf", "snv",
    "vector", "area", "amide1",
]  # fmt: skip
HOST_ONLY = ("spikes", "rmies", "rubberband", "asls", "polynomial")
"""Steps that are computed once, for the cache, and not on the device."""
NEIGHBOURS = (*HOST_ONLY, "atmosphere", "savgol")
"""Steps that need a spectrum's neighbouring wavenumbers."""
FILES = ("reference", "vapour", "interferents")
"""Settings that name files of spectra."""
USES = {
    "spikes": ("spike_threshold",),
    "atmosphere": ("vapour",),
    "rmies": ("reference", "mie_components", "mie_iterations", "mie_radius", "mie_index"),
    "emsc": ("reference", "interferents", "emsc_degree", "replicates"),
    "asls": ("asls_smoothness", "asls_asymmetry"),
    "polynomial": ("polynomial_degree",),
    "savgol": ("savgol_derivative", "savgol_order", "savgol_window"),
    "pca": ("pca_components",),
    "mnf": ("mnf_components",),
}
"""Settings that each step reads."""


@dataclass
class PreprocessConfig:
    """Further preparation of the spectra, in an order of your own."""

    steps: tuple[StepName, ...] = ()
    """Steps in their order, after crop, gap, bins and resampling; they replace data.baseline, data.derivative and
    data.normalise. spikes: cosmic spikes and glitches out; atmosphere: water vapour and CO₂ out; rmies: resonant Mie
    scattering out; emsc: extended multiplicative signal correction; rubberband, asls, polynomial: baseline subtracted;
    savgol: Savitzky–Golay smoothing or derivative; pca, mnf: noise reduced; snv: standard normal variate; vector:
    length 1; area, amide1: equal area of the whole spectrum or of amide I. pca, mnf and emsc without a reference file
    are fitted to the training records."""
    spike_threshold: Annotated[float, MoreThan(0)] = 8.0
    """spikes: modified z-score from which a point is replaced."""
    vapour: Path | None = None
    """atmosphere: CSV file of a wavenumber column (cm⁻¹) and one column for each vapour spectrum of your instrument."""
    reference: Path | None = None
    """emsc, rmies: CSV file of a wavenumber and an absorbance column, the reference. By default emsc takes the mean of
    the training records' tissue, and rmies a protein's bands."""
    emsc_degree: Annotated[int, AtLeast(0)] = 2
    """emsc: degree of the polynomial over the wavenumbers."""
    interferents: Path | None = None
    """emsc: CSV file of a wavenumber column and columns that are fitted and subtracted too (paraffin, vapour)."""
    replicates: Annotated[int, AtLeast(0)] = 0
    """emsc: number of components of the variation between training cores within a class that are subtracted too."""
    mie_components: Annotated[int, AtLeast(1)] = 7
    """rmies: principal components of the scattering curves."""
    mie_iterations: Annotated[int, AtLeast(1)] = 1
    """rmies: rounds. Each round after the first takes a pixel's own corrected spectrum as its reference, which takes 70
    times as long and pays only for spectra with little noise."""
    mie_radius: tuple[float, float] = (2.0, 8.0)
    """rmies: range of the scatterers' radius (µm)."""
    mie_index: tuple[float, float] = (1.1, 1.5)
    """rmies: range of the mean refractive index, relative to the surroundings."""
    asls_smoothness: Annotated[float, MoreThan(0)] = 1e6
    """asls: weight of the baseline's squared second differences (λ)."""
    asls_asymmetry: Annotated[float, Between(0, 0.5)] = 0.01
    """asls: weight of a point above the baseline (p); one below has 1 − p."""
    polynomial_degree: Annotated[int, AtLeast(0)] = 2
    """polynomial: degree of the baseline, fitted again and again to what lies below it."""
    savgol_derivative: Annotated[int, AtLeast(0)] = 2
    """savgol: 0 smooths; 1, 2, … differentiates, per (10 cm⁻¹) to that power, in SciPy's sign."""
    savgol_order: Annotated[int, AtLeast(0)] = 3
    """savgol: order of the polynomial."""
    savgol_window: int = 9
    """savgol: points of the window (odd)."""
    pca_components: Annotated[int, AtLeast(1)] = 20
    """pca: components that are kept."""
    mnf_components: Annotated[int, AtLeast(1)] = 20
    """mnf: components that are kept, those of the highest signal-to-noise ratio first."""


@dataclass
class ModelConfig:
    filters: Annotated[int, AtLeast(1)] = 24
    """Spectral filters, at named bands first (1655, 1545, 1740, 1240, 1080, 1450, 1395, 1160 cm⁻¹)."""
    mode: Literal["band", "legacy"] = "band"
    """band: learnable windows on the wavenumber axis; legacy: convolutions with band-pass kernels (SincNet), which
    respond to a shape anywhere on the axis."""
    width: Annotated[float, MoreThan(0)] = 80.0
    """Initial width of each filter (cm⁻¹)."""
    layers: Annotated[int, AtLeast(0)] = 2
    """Mamba layers along the wavenumbers; 0: only the filters."""
    states: Annotated[int, AtLeast(1)] = 16
    """States of each Mamba channel."""
    dropout: Annotated[float, ShareBelow(1)] = 0.1
    """Dropout after each Mamba layer."""
    embed: Annotated[int, AtLeast(1)] = 24
    """Channels that enter the U-Net."""
    base: Annotated[int, AtLeast(1)] = 24
    """Channels of the U-Net's first level; each of the four below has twice as many."""
    chunk: Annotated[int, AtLeast(0)] | None = None
    """Pixels that pass the spectral layers at once. The gradient recomputes everything but their pooled features, which
    bounds the memory. By default as many as suit the device, and on a CPU nothing is computed again where less than
    1 GB is kept; 0: all at once, everything kept."""
    tissue_only: bool = True
    """Only tissue passes the spectral layers; all other pixels are one spectrum, computed once. Exact."""
    scan: Literal["auto", "triton", "mamba_ssm", "cpu", "eager", "reference"] = "auto"
    """How the Mamba layers are computed. auto: on a GPU mamba_ssm if it is installed, else triton; on a CPU cpu.
    triton: our own GPU kernels; mamba_ssm: the CUDA kernels of the package mamba-ssm; cpu: kernels that Numba
    compiles; eager: plain PyTorch, which needs no compiler; reference: the textbook loop, which keeps every state
    and is hundreds of times slower, for comparison. A trained network works with any of them."""
    features: Path | None = None
    """Folder of an exported network (`runner ssmunet export`). Its spectral layers are frozen, their features are
    cached instead of each pixel's spectrum, and only the U-Net trains."""


@dataclass
class LossConfig:
    cross_entropy: Annotated[float, AtLeast(0)] = 1.0
    """Weight of the cross-entropy."""
    dice: Annotated[float, AtLeast(0)] = 1.0
    """Weight of the soft Dice loss, over the classes with annotated pixels in a batch."""
    class_weights: Literal["balanced", "none"] = "balanced"
    """balanced: the cross-entropy weighs a class by the classes' median number of annotated pixels over its own, at
    most `loss.most_weight`, as if all classes had as many. none: every pixel weighs 1."""
    most_weight: Annotated[float, AtLeast(1)] = 10.0
    """Largest weight of a rare class under class_weights balanced; the median class has 1. Without this limit, a few
    pixels, some of them labelled wrongly, would dominate the gradient."""


@dataclass
class AugmentConfig:
    """Training only, on the device. 0 switches a part off."""

    flip: bool = True
    """Mirror half of the patches along each axis."""
    rotate90: bool = True
    """Turn patches by multiples of 90°."""
    scale: Annotated[float, AtLeast(0)] = 0.02
    """Standard deviation of a factor on each pixel's spectrum."""
    tilt: Annotated[float, AtLeast(0)] = 0.05
    """Standard deviation of a straight line over the spectrum, one per patch, in units of the z-scored channels."""
    noise: Annotated[float, AtLeast(0)] = 0.02
    """Standard deviation of the noise on each pixel and channel, in units of the z-scored channels."""


@dataclass
class SpectraPredictConfig(PredictConfig):
    overlap: Annotated[float, ShareBelow(1)] = 0.5
    """Share of its side by which a patch overlaps the next; overlaps are blended with a smooth window."""


@dataclass
class SSMConfig(RunConfig):
    """Tissue segmentation of infrared images."""

    data: SpectraConfig = field(default_factory=SpectraConfig)
    preprocess: PreprocessConfig = field(default_factory=PreprocessConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    predict: SpectraPredictConfig = field(default_factory=SpectraPredictConfig)
    calls: CallsConfig = field(default_factory=CallsConfig)

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with settings together; the bounds of each one stand at its field."""
        from runner_ssmunet import labels

        data = self.data
        yield from filter(None, (labels.wrong_settings(data.classes, data.ignore), wrong_axis(data)))
        yield from wrong_steps(self.preprocess, data)
        if data.patch < 16 or data.patch % 16:
            yield f"data.patch is {data.patch}; the U-Net halves patches four times: take a multiple of 16"
        if data.patch == 16 and self.train.batch_size == 1:
            yield (
                "data.patch 16 with train.batch_size 1 leaves the U-Net's lowest level one pixel, which batch "
                "normalisation cannot use: take a larger patch or batch"
            )
        if self.calls.negative and not self.calls.positive:
            yield "calls.negative stands against calls.positive, which is empty: name the positive classes"
        if both := [name for name in self.calls.positive if name in self.calls.negative]:
            yield f"calls.positive and calls.negative both name {both[0]}"
        if not self.loss.cross_entropy + self.loss.dice > 0:
            yield "loss.cross_entropy and loss.dice are both 0: nothing would be learned"


def default() -> SSMConfig:
    """Train on a GPU: 24 filters, patches of 128², every wavenumber, 4.39 M parameters."""
    config = SSMConfig()
    config.train.batch_size = 4
    config.train.workers = 4
    return config


def ssmunet_3() -> SSMConfig:
    """Train like default, with three filters and a U-Net of 8 channels: 0.49 M parameters.

    The filters lie at amide I, amide II and lipid ester. The source gives 0.5 M parameters and no widths: 8 for `embed`
    and `base` come to that number (24 make 4.38 M).
    """
    config = default()
    config.model.filters, config.model.embed, config.model.base = 3, 8, 8
    return config


def small() -> SSMConfig:
    """Train on a CPU: spectrum averaged by 3, 16 filters, one Mamba layer, a smaller U-Net on patches of 64²."""
    config = SSMConfig()
    config.data.bin, config.data.patch = 3, 64
    config.model.filters, config.model.layers, config.model.states = 16, 1, 8
    config.model.dropout = 0.0  # without it, threads share the pixels
    config.model.embed, config.model.base = 16, 16
    config.train.batch_size = 4
    config.train.learning_rate = 5e-3
    config.train.epochs = 40
    config.validate.every, config.checkpoint.every = 5, 5
    return config


def demo() -> SSMConfig:
    """Train on the phantom in about a minute: as small, on patches as large as its cores."""
    config = small()
    config.data.patch = 48
    config.data.validation_fraction = 0.3
    config.model.width = 40.0  # as wide as the phantom's bands
    # Fourteen cores are soon known by heart: without noise and decay the training loss fell twice as far, mIoU not.
    config.augment.tilt, config.augment.noise = 0.2, 0.3
    config.train.weight_decay = 0.1
    config.train.batch_size = 2
    config.train.learning_rate = 1e-2
    config.train.epochs = 30
    config.checkpoint.every = 30
    config.log.every = 7
    return config


PRESETS: dict[str, Callable[[], SSMConfig]] = {"default": default, "ssmunet-3": ssmunet_3, "small": small, "demo": demo}


def wrong_axis(data: SpectraConfig) -> str | None:
    """Return the fault in the settings of the axis, or None."""
    if not 0 < data.low < data.high:
        return f"data.low {data.low:g} and data.high {data.high:g} hold no wavenumbers between them"
    if data.gap is not None and not data.gap[0] < data.gap[1]:
        return f"data.gap {data.gap[0]:g} {data.gap[1]:g}: the lower wavenumber comes first"
    if data.wavenumbers:
        return wrong_wavenumbers(data)
    if data.derivative != "none" and (data.window % 2 == 0 or data.window <= POLYNOMIAL):
        return f"data.window is {data.window}; an odd number of points, {POLYNOMIAL + 2} or more, is needed"
    return None


def wrong_wavenumbers(data: SpectraConfig) -> str | None:
    """Return the fault in `data.wavenumbers`, or in a setting that needs the wavenumbers between them, or None."""
    if data.step is not None or (data.baseline, data.derivative) != ("none", "none"):
        return (
            "data.wavenumbers keeps single wavenumbers, and data.step, data.baseline and data.derivative need those "
            "between them: leave them out"
        )
    for place in data.wavenumbers:
        if not data.low <= place <= data.high:
            return f"data.wavenumbers has {place:g}, which does not lie from data.low {data.low:g} to {data.high:g}"
        if data.gap is not None and data.gap[0] <= place <= data.gap[1]:
            return f"data.wavenumbers has {place:g}, which lies in data.gap {data.gap[0]:g} {data.gap[1]:g}"
    if len({*data.wavenumbers}) < max(2, len(data.wavenumbers)):
        return "data.wavenumbers needs two wavenumbers or more, each once"
    return None


def wrong_steps(chosen: PreprocessConfig, data: SpectraConfig) -> Iterator[str]:
    """Yield what is wrong with the settings of `preprocess`."""
    steps = chosen.steps
    if steps and (data.baseline, data.derivative, data.normalise) != ("none", "none", SpectraConfig.normalise):
        yield "preprocess.steps replaces data.baseline, data.derivative and data.normalise: leave those out"
    if twice := [step for step in dict.fromkeys(steps) if steps.count(step) > 1]:
        yield f"preprocess.steps names {twice[0]} twice"
    if data.wavenumbers and (unfit := [step for step in steps if step in NEIGHBOURS]):
        yield f"preprocess.steps: {unfit[0]} needs the wavenumbers between those of data.wavenumbers: leave it out"
    fitted = [step for step in steps if is_fitted(step, chosen)]
    for step in steps[steps.index(fitted[0]) :] if fitted else ():
        if step in HOST_ONLY:
            yield f"preprocess.steps: {step} comes after {fitted[0]}, which is fitted in training: put {step} before it"
    if "atmosphere" in steps and chosen.vapour is None:
        yield "preprocess.steps: atmosphere needs the spectrum of the vapour on your instrument: set preprocess.vapour"
    for name in (*FILES, "replicates"):
        readers = [step for step, read in USES.items() if name in read]
        if getattr(chosen, name) and not set(readers) & set(steps):
            yield (
                f"preprocess.{name} is set, and no step of preprocess.steps reads it: add {' or '.join(readers)} to "
                "the steps, or leave it out"
            )
    window, order, derivative = chosen.savgol_window, chosen.savgol_order, chosen.savgol_derivative
    if window % 2 == 0 or window <= order:
        yield f"preprocess.savgol_window is {window}; an odd number of points above savgol_order ({order}) is needed"
    if derivative > order:
        yield f"preprocess.savgol_derivative is {derivative}; a polynomial of order {order} has none"
    for name, (low, high), least in (("radius", chosen.mie_radius, 0.0), ("index", chosen.mie_index, 1.01)):
        if not least < low <= high:
            yield f"preprocess.mie_{name} is {low:g} {high:g}; two ascending numbers above {least:g} are needed"


def is_fitted(step: str, chosen: PreprocessConfig) -> bool:
    """Return whether a step is fitted to the training records, so that it cannot be in the cache."""
    return step in ("pca", "mnf") or (step == "emsc" and (chosen.reference is None or chosen.replicates > 0))
