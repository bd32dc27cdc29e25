"""The network outside runner: what exporters trace in place of `SSMUNet.infer`, and `predict.py` with its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runner_core import Json, Standalone, Statistics, Tensors

from runner_ssmunet import bands, whole
from runner_ssmunet.classes import Classes
from runner_ssmunet.config import SSMConfig
from runner_ssmunet.labels import output_labels, output_names
from runner_ssmunet.readers.base import OPAQUE

_DATA = ("low", "high", "gap", "bin", "step", "wavenumbers", "band_width", "normalise", "tissue", "units")
"""Settings of `data` that the script follows, by their names."""
_CROPS = ("auto", "foreground", "none")


def standalone(config: SSMConfig, classes: Classes, statistics: Statistics, views: Sequence[str]) -> Standalone:
    """Return the script, the modules that it imports, and predict.json. `views`: names of all views."""
    if reasons := list(_missing(config)):
        return Standalone(infer=infer, missing=f"the script does not know {', '.join(reasons)}")
    files = (Path(__file__).with_name("predict.py"), Path(bands.__file__), Path(whole.__file__))
    return Standalone(files, _settings(config, classes, statistics, views), infer=infer)


def _missing(config: SSMConfig) -> Iterator[str]:
    """Yield the settings that the script cannot follow."""
    data = config.data
    if config.preprocess.steps:
        yield f"preprocess.steps ({', '.join(config.preprocess.steps)})"
    if config.model.features is not None:
        yield "model.features"
    for name in ("baseline", "derivative"):
        if (value := getattr(data, name)) != "none":
            yield f"data.{name} {value}"
    if config.crop.mode not in _CROPS or config.crop.threshold:
        yield f"crop.mode {config.crop.mode} with crop.threshold {config.crop.threshold:g}"


def _settings(config: SSMConfig, classes: Classes, statistics: Statistics, views: Sequence[str]) -> dict[str, Json]:
    data, predict = config.data, config.predict
    asked = () if predict.views == ("none",) else views if predict.views == ("all",) else predict.views
    names = output_names(classes.names, data.ignore)
    return {
        "about": {
            "data": "range, gap, bins, resampling, normalisation, tissue and units, as in runner's settings (bands.py)",
            "opaque": "least transmittance, where the units are transmittance or percent",
            "wavenumbers": "axis of the prepared spectra, cm⁻¹; their z-scores are within the network",
            "crop": "box around the tissue, so many pixels larger; null: the whole core",
            "outputs": "number of classes that the network tells apart",
            "class_names": "their names",
            "labels": "their numbers in `classes`",
            "patch": "side of the tiles that the U-Net sees",
            "overlap": "share of its side by which a tile overlaps the next (whole.py)",
            "batch": "tiles in one call of the network",
            "views": "mirrored or turned copies of the core whose probabilities are averaged with its own",
        },
        "data": {name: getattr(data, name) for name in _DATA},
        "opaque": OPAQUE,
        "wavenumbers": [float(place) for place in statistics.get("wavenumbers", ())],
        "crop": None if config.crop.mode == "none" else {"margin": config.crop.margin},
        "outputs": len(names),
        "class_names": list(names),
        "labels": output_labels(classes.names, data.ignore).tolist(),
        "patch": data.patch,
        "overlap": predict.overlap,
        "batch": config.validate.batch_size or config.train.batch_size,
        "views": list(dict.fromkeys(asked)),
    }


def infer(network: Any, batch: Tensors) -> Tensors:
    """Return what `SSMUNet.infer` does, in operations whose shapes depend on no values.

    Every pixel passes the spectral stack. `features` off the tissue are those of the spectrum 0, because spectra are 0
    there.
    """
    if "features" in batch:
        return {"prediction": network.classify(batch["features"]).float().softmax(1)}
    from runner_ssmunet.batches import ATTENDED

    spectra, tissue = batch["spectra"], batch["tissue"].flatten()
    with _exported(network):
        features, attention = network.stack.attend(spectra.flatten(0, 2))
    # the pixels of `batches.described`: every k-th of the tissue
    place, count = tissue.cumsum(0) - 1, tissue.sum()
    every = (count // ATTENDED).clamp(min=1)
    some = (tissue & (place % every == 0) & (place < every * ATTENDED)).to(attention.dtype)
    return {
        "features": features.unflatten(0, spectra.shape[:3]),
        "attention": (some @ attention / some.sum().clamp(min=1))[None],
    }


@contextmanager
def _exported(network: Any) -> Iterator[None]:
    """Let the network's scans be loops that exporters know."""
    from runner_ssmunet.mamba import Mamba
    from runner_ssmunet.scan import EXPORTED

    layers = [module for module in network.modules() if isinstance(module, Mamba)]
    before = [layer.scan for layer in layers]
    try:
        for layer in layers:
            layer.scan = EXPORTED
        yield
    finally:
        for layer, scan in zip(layers, before, strict=True):
            layer.scan = scan
