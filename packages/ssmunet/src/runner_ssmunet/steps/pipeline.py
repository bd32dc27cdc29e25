"""The steps of `preprocess.steps`: which are cached, which are fitted to the training records, and both in order.

Steps before the first fitted one are a function of the record alone and stored in the cache. The fitted one and all
after it are constants and arithmetic (operations.py): `fit` learns them from training records, the checkpoint keeps
them, and the device computes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from runner_core import BadInput, Json, PreparedStore, Store, plain

from runner_ssmunet.axis import plan, savgol
from runner_ssmunet.bands import AMIDE1, Axis, amide1_weights
from runner_ssmunet.config import FILES, USES, PreprocessConfig, SpectraConfig, is_fitted
from runner_ssmunet.preprocess import no_amide1, rubberband
from runner_ssmunet.statistics import Moments
from runner_ssmunet.steps import baselines, denoise, emsc, mie, spectrafile
from runner_ssmunet.steps.operations import Operation, applied
from runner_ssmunet.steps.spikes import without_spikes

Array = np.ndarray[Any, np.dtype[Any]]

_PIXELS = 16384
"""Pixels that the operations work on at once, which bounds the memory."""


class Place(NamedTuple):
    """The place where a step works: a core's `measured` axis, the kept `axis`, and the core's `name` for messages."""

    measured: Array
    axis: Axis
    name: str


@dataclass(frozen=True)
class Pipeline:
    """The chosen steps with the spectra of their files. Picklable."""

    settings: PreprocessConfig
    files: Mapping[str, spectrafile.Spectra]

    @property
    def cached(self) -> tuple[str, ...]:
        """Names of the steps whose result is stored."""
        steps = self.settings.steps
        return steps[: next((n for n, step in enumerate(steps) if is_fitted(step, self.settings)), len(steps))]

    @property
    def later(self) -> tuple[str, ...]:
        """Names of the steps from the first fitted one on."""
        return self.settings.steps[len(self.cached) :]

    @property
    def key(self) -> Mapping[str, Json]:
        """The values that the cached steps read, for the key of the cache."""
        values: dict[str, Json] = {"steps": list(self.cached)}
        for name in (name for step in self.cached for name in USES.get(step, ())):
            value = getattr(self.settings, name)
            values[name] = self.files[name].digest if name in self.files else plain(value)
        return values

    def refuse_files(self, place: Place) -> None:
        """Raise BadInput naming the setting if the spectra of a file cannot be used on a core's axis."""
        for name, own in self.files.items():
            try:
                found = own.on(place.measured, place.axis)
                if name == "vapour":
                    _atmosphere(found, place.axis, own.name)
            except BadInput as error:
                raise BadInput(f"preprocess.{name}: {error}") from error

    def on_pixels(self, pixels: Array, place: Place) -> Array:
        """Return spectra (P, L) float32 after the cached steps."""
        for step in self.cached:
            pixels = self._step(step, pixels, place)
        return pixels

    def _step(self, step: str, pixels: Array, place: Place) -> Array:
        chosen, axis = self.settings, place.axis
        if step == "rmies":
            reference = self._reference(place) if "reference" in self.files else mie.protein(axis.wavenumbers)
            return mie.corrected(
                pixels, axis.wavenumbers, reference, chosen.mie_components, chosen.mie_iterations, chosen.mie_radius,
                chosen.mie_index,
            )  # fmt: skip
        if step not in ("spikes", "rubberband", "asls", "polynomial"):
            return np.asarray(applied(pixels, [self.operation(step, place)]))
        out = np.empty_like(pixels)
        for segment in axis.segments:  # nothing reaches across the gap
            own, wavenumbers = pixels[:, segment.points], axis.wavenumbers[segment.points]
            if step == "spikes":
                out[:, segment.points] = without_spikes(own, chosen.spike_threshold)
            elif step == "rubberband":
                out[:, segment.points] = own - rubberband(own, wavenumbers)
            elif step == "asls":
                out[:, segment.points] = own - baselines.asls(own, chosen.asls_smoothness, chosen.asls_asymmetry)
            else:
                out[:, segment.points] = own - baselines.polynomial(own, wavenumbers, chosen.polynomial_degree)
        return out

    def operation(self, step: str, place: Place) -> Operation:
        """Return a step that needs no fit as an operation; raise BadInput if the axis does not allow it."""
        axis = place.axis
        if step == "savgol":
            return "product", {"matrix": self._savgol(place)}
        if step == "atmosphere":
            return _atmosphere(self.files["vapour"].on(place.measured, axis), axis, self.files["vapour"].name)
        if step == "emsc":
            return self._emsc(self._reference(place), place)
        if step == "area":
            widths = np.concatenate([_widths(axis.wavenumbers[s.points]) for s in axis.segments])
            return "area", {"weights": widths / widths.sum()}
        if step == "amide1":
            weights = amide1_weights(axis.wavenumbers)
            if weights is None:
                raise no_amide1(place.name, "amide1 of preprocess.steps", "leave it out")
            return "height", {"weights": weights / (AMIDE1[1] - AMIDE1[0])}
        return step, {}

    def _savgol(self, place: Place) -> Array:
        chosen, axis = self.settings, place.axis
        matrix = np.zeros((len(axis.wavenumbers),) * 2)
        for segment in axis.segments:
            matrix[segment.points, segment.points] = savgol(
                axis.wavenumbers[segment.points], chosen.savgol_window, chosen.savgol_order, chosen.savgol_derivative,
                place.name, "preprocess.savgol_window",
            )  # fmt: skip
        return matrix

    def _reference(self, place: Place) -> Array:
        return np.asarray(self.files["reference"].on(place.measured, place.axis)[0])

    def _emsc(self, reference: Array, place: Place, further: Sequence[Array] = ()) -> Operation:
        known = [self.files["interferents"].on(place.measured, place.axis)] if "interferents" in self.files else []
        return emsc.model(reference, place.axis.wavenumbers, self.settings.emsc_degree, [*known, *further])

    # ------------------------------------------------------------ fitted to the training records

    def fit(
        self, store: Store, training: Sequence[int], data: SpectraConfig, replicates: int | None = None
    ) -> list[Operation]:
        """Return the later steps as operations, fitted one after the other to the tissue of the records `training`.

        `replicates` is a number in place of the setting's.
        """
        if not self.later:
            return []
        meta = store.meta[training[0]]
        measured = np.array(meta["measured"], np.float64)
        place = Place(measured, plan(measured, data, str(meta["core"])), str(meta["core"]))
        found: list[Operation] = []
        for step in self.later:
            count = self.settings.replicates if replicates is None else replicates
            found.append(self._fitted(step, after(store, found), training, place, count))
        return found

    def _fitted(self, step: str, store: Store, training: Sequence[int], place: Place, replicates: int) -> Operation:
        def cores() -> Iterator[tuple[Array, Array]]:
            for record in training:
                yield store.arrays["spectra"].read(record), store.arrays["tissue"].read(record) > 0

        channels = len(place.axis.wavenumbers)
        if step == "pca":
            return denoise.pca(cores, channels, self.settings.pca_components)
        if step == "mnf":
            return denoise.mnf(cores, channels, self.settings.mnf_components)
        if step != "emsc" or not is_fitted(step, self.settings):
            return self.operation(step, place)
        reference = self._reference(place) if "reference" in self.files else _mean(cores(), channels)
        basic = self._emsc(reference, place)
        if not replicates:
            return basic
        shapes = emsc.replicate_shapes(emsc.class_means(_annotated(store, training)), basic, replicates)
        return self._emsc(reference, place, [shapes])


def opened(settings: PreprocessConfig, kept: Mapping[str, Any] | None) -> Pipeline:
    """Return the pipeline of these settings.

    Its files are read, or come from `kept`, what `saved` made for a checkpoint. Raises BadInput for a file that cannot
    be used.
    """
    used = {name for step in settings.steps for name in USES.get(step, ()) if name in FILES}
    found = {}
    for name in sorted(used):
        path = getattr(settings, name)
        if kept is not None and name in kept["files"]:
            own = kept["files"][name]
            found[name] = spectrafile.Spectra(own["name"], own["wavenumbers"], own["spectra"])
        elif path is not None:
            found[name] = read(name, path)
    return Pipeline(settings, found)


def read(setting: str, path: Path) -> spectrafile.Spectra:
    """Return the spectra of the file that `preprocess.SETTING` names; raise BadInput if it cannot be used."""
    try:
        return spectrafile.read(path, single=setting == "reference")
    except BadInput as error:
        kept = " to train, and to resume a training; predictions take its spectra from the checkpoint"
        raise BadInput(f"preprocess.{setting}: {error}{'' if path.exists() else kept}") from error


def saved(pipeline: Pipeline, operations: Iterable[Operation]) -> dict[str, Any]:
    """Return the fitted steps and the files' spectra as a checkpoint keeps them."""
    files = {
        name: {"name": own.name, "wavenumbers": own.wavenumbers, "spectra": own.spectra}
        for name, own in pipeline.files.items()
    }
    return {"files": files, "operations": [{"name": name, "constants": dict(c)} for name, c in operations]}


def operations_of(statistics: Mapping[str, Any]) -> list[Operation]:
    """Return the fitted steps that a network's statistics hold; none by default."""
    kept = statistics.get("preprocess")
    return [] if kept is None else [(own["name"], own["constants"]) for own in kept["operations"]]


def fitted_alone(
    pipeline: Pipeline, arrays: Mapping[str, Array], meta: Mapping[str, Json], data: SpectraConfig
) -> list[Operation]:
    """Return the later steps as operations, fitted to one core's prepared `arrays` instead of the training records.

    For pictures of a core before anything is trained. One core has no replicates: they are left out.
    """
    held: dict[str, Any] = {name: _Held(array) for name, array in arrays.items()}
    store = PreparedStore(["core"], [meta], held, "")
    return pipeline.fit(store, [0], data, replicates=0)


@dataclass(frozen=True)
class _Held:
    """One array in memory, as a store gives it."""

    array: Array

    @property
    def shapes(self) -> Any:
        return [self.array.shape]

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    def read(self, record: int, region: tuple[slice, ...] | None = None) -> Array:
        return self.array if region is None else self.array[region]


@dataclass(frozen=True)
class _Applied:
    """A stored array of spectra after some operations."""

    array: Any
    operations: Sequence[Operation]

    @property
    def shapes(self) -> Any:
        return self.array.shapes

    @property
    def dtype(self) -> Any:
        return np.dtype(np.float32)

    def read(self, record: int, region: tuple[slice, ...] | None = None) -> Array:
        stored = self.array.read(record, region)
        pixels = stored.reshape(-1, stored.shape[-1])
        out = np.empty(pixels.shape, np.float32)
        for first in range(0, len(pixels), _PIXELS):
            out[first : first + _PIXELS] = applied(pixels[first : first + _PIXELS], self.operations)
        return out.reshape(stored.shape)


def after(store: Store, operations: Sequence[Operation]) -> Store:
    """Return the store with its spectra after the operations."""
    if not operations:
        return store
    arrays: dict[str, Any] = {**store.arrays, "spectra": _Applied(store.arrays["spectra"], tuple(operations))}
    return PreparedStore(store.keys, store.meta, arrays, store.identity)


def _widths(wavenumbers: Array) -> Array:
    """Return the width (cm⁻¹) of each point of a segment."""
    return np.asarray(np.gradient(wavenumbers)) if len(wavenumbers) > 1 else np.ones(1)


def _mean(cores: Iterable[tuple[Array, Array]], channels: int) -> Array:
    moments = Moments(channels)
    for spectra, tissue in cores:
        moments.add(spectra[tissue])
    if not moments.mean.any():
        raise BadInput("preprocess.steps: emsc found no tissue in the training records: see data.tissue")
    return moments.mean


def _annotated(store: Store, training: Sequence[int]) -> Iterator[tuple[Array, Array]]:
    """Yield labels (H, W), 0 outside the tissue, and spectra (H, W, L) of each training core."""
    for record in training:
        labels = store.arrays["label"].read(record) * (store.arrays["tissue"].read(record) > 0)
        yield labels, store.arrays["spectra"].read(record)


def _atmosphere(vapour: Array, axis: Axis, name: str) -> Operation:
    """Return the operation that subtracts vapour spectra (K, L), each as much as its lines are seen.

    The amounts are fitted to second differences, in which the broad bands of tissue hardly show. References as in Bruun
    et al., "Correcting attenuated total reflection–Fourier transform infrared spectra for water vapor and carbon
    dioxide", Applied Spectroscopy 60, 2006.
    """
    parts = [np.diff(np.eye(s.points.stop - s.points.start), 2, axis=0).T for s in axis.segments]
    second = np.zeros((len(axis.wavenumbers), sum(part.shape[1] for part in parts)))
    column = 0
    for segment, part in zip(axis.segments, parts, strict=True):
        second[segment.points, column : column + part.shape[1]] = part
        column += part.shape[1]
    lines = vapour @ second
    if np.linalg.matrix_rank(lines) < len(lines):
        raise BadInput(f"{name}: its spectra have no lines on the kept axis, or are multiples of each other")
    return "without", {"solve": second @ np.linalg.pinv(lines), "shapes": vapour}
