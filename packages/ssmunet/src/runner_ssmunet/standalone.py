"""The network outside runner: what exporters trace in place of `SSMUNet.infer`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from runner_core import Tensors

from runner_ssmunet.batches import ATTENDED


def infer(network: Any, batch: Tensors) -> Tensors:
    """Return what `SSMUNet.infer` does, in operations whose shapes depend on no values.

    Every pixel passes the spectral stack. `features` off the tissue are those of the spectrum 0, because spectra are 0
    there.
    """
    if "features" in batch:
        return {"prediction": network.classify(batch["features"]).float().softmax(1)}
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
