"""Several trained networks as one: what each makes of a record is averaged, and one decision is made of the mean.

The networks of all members are loaded, and the members take turns on each record. So one member's output and the sum
are in memory, however many members there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from runner_core.base.errors import BadInput
from runner_core.base.progress import Estimate, RecordBar
from runner_core.config.values import flat
from runner_core.contract import Array, Arrays, Cropped, Infer
from runner_core.contract.facets import Combining
from runner_core.contract.project import Project, views_of
from runner_core.contract.records import AnyRecord
from runner_core.contract.views import averaged, mean
from runner_core.data.pipeline import RecordPipeline

MOST = 256
"""Members that the sum of 8-bit probabilities has room for."""


@dataclass(frozen=True)
class Member:
    """A trained run: its name, the pipeline of its own project, its network, and the records that it was trained on."""

    name: str
    pipeline: RecordPipeline
    infer: Infer
    trained_on: Callable[[AnyRecord], bool] = lambda record: False

    @property
    def project(self) -> Project:
        return self.pipeline.project

    @property
    def combining(self) -> Combining:
        """Return the facet. Raises BadInput if the project does not declare it."""
        found = self.project.combining()
        if found is None:
            raise BadInput(
                f"project {self.project.name} predicts with one network only: it declares no `combining`, which says "
                "what of its predictions may be averaged"
            )
        return found


class Ensemble:
    """Members that fit together. Raises BadInput, with the reason, for members that do not.

    A record that some members were trained on is predicted by the others. If all were, all predict it.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        if len(members) > MOST:
            raise BadInput(f"{len(members)} runs are more than can be averaged at once ({MOST})")
        for other in members[1:]:
            _refuse_unfit(members[0], other)
        self.members = members

    @property
    def combining(self) -> Combining:
        """The first member's facet: it decides."""
        return self.members[0].combining

    def counting(self, bar: RecordBar | Estimate) -> Ensemble:
        """Return the same ensemble, with networks whose calls are shown or timed."""
        return self._with([replace(member, infer=bar.counting(member.infer)) for member in self.members])

    def knowing(self, trained_on: Sequence[Callable[[AnyRecord], bool]]) -> Ensemble:
        """Return the same ensemble, whose members were trained on these records."""
        pairs = zip(self.members, trained_on, strict=True)
        return self._with([replace(member, trained_on=seen) for member, seen in pairs])

    def _with(self, members: Sequence[Member]) -> Ensemble:
        found = copy(self)
        found.members = members
        return found

    def refuse_mixed(self, records: Sequence[AnyRecord]) -> None:
        """Raise BadInput if predictions of different networks would be compared with each other."""
        if self.combining.kind == "embeddings" and len({tuple(map(id, self.members_for(r))) for r in records}) > 1:
            raise BadInput(
                "these runs were trained on different records, so that each record would be embedded by other networks "
                "than the next, and their vectors cannot be compared: evaluate each run, or name other data (--data)"
            )

    def left_out(self, record: AnyRecord) -> bool:
        """Return whether some members do not predict the record, because they were trained on it."""
        return len(self.members_for(record)) < len(self.members)

    def members_for(self, record: AnyRecord) -> Sequence[Member]:
        """Return the members that predict this record."""
        return [member for member in self.members if not member.trained_on(record)] or self.members

    def trained_on(self, record: AnyRecord) -> bool:
        """Return whether all members were trained on the record, or on another of its group."""
        return all(member.trained_on(record) for member in self.members)

    def predict(self, cropped: Cropped) -> Any:
        """Return the decision on the mean."""
        return self.combining.decide(cropped, self.soft(cropped))

    def soft(self, cropped: Cropped) -> Arrays:
        """Return the mean of the members' soft outputs; embeddings are joined."""
        outputs = self._outputs(cropped)
        if self.combining.kind == "embeddings":
            return _joined(list(outputs))
        return mean(outputs)

    def soft_and_spread(self, cropped: Cropped, keep: list[Arrays] | None = None) -> tuple[Arrays, Array]:
        """Return the mean, and how much the members disagree: the standard deviation of the first array (n − 1).

        Of probabilities, it is that of the class which the mean holds for the most likely. `keep` gets a copy of each
        member's output.
        """
        outputs = self._outputs(cropped) if keep is None else _kept(self._outputs(cropped), keep)
        first = next(outputs)
        name = next(iter(first))
        spread = _Spread(first[name])
        soft = mean(spread.watching(first, outputs, name))
        return soft, spread.map(soft[name], self.combining.kind == "probabilities")

    def predict_with_spread(self, cropped: Cropped) -> tuple[Any, Callable[[Path], Sequence[Path]]]:
        """Return the decision on the mean, and a function that writes how much the members disagree.

        It takes a path without ending, and writes the project's map of `soft_and_spread`, and what else its facet says
        of the single outputs.
        """
        write_map, write_members = self.combining.write_map, self.combining.write_members
        assert write_map is not None  # refuse_without_map
        outputs: list[Arrays] = []
        soft, spread = self.soft_and_spread(cropped, outputs if write_members else None)

        def write(stem: Path) -> Sequence[Path]:
            further = write_members(cropped, outputs, stem) if write_members else ()
            return [*write_map(cropped, spread, stem), *further]

        return self.combining.decide(cropped, soft), write

    def refuse_without_map(self) -> None:
        """Raise BadInput if the project cannot write a map of how much the members disagree."""
        if self.combining.kind == "embeddings" or self.combining.write_map is None:
            name = self.members[0].project.name
            raise BadInput(f"project {name} has no map of values that could show how much networks disagree")

    @property
    def how(self) -> str:
        """Return a sentence that says how the members' outputs are combined."""
        if self.combining.kind == "embeddings":
            return "Scale each network's vectors to length 1, join them, and divide by the root of their number."
        return (
            f"Average the networks' {self.combining.kind} of whole records (after all windows and views of a network, "
            "and before any threshold), with equal weights. Logits are not averaged."
        )

    def _outputs(self, cropped: Cropped) -> Iterator[Arrays]:
        """Yield each member's soft output. Raises BadInput if their shapes differ."""
        outline: Mapping[str, Any] = {}
        for member in self.members_for(cropped.record):
            found = averaged(member.combining.soft, cropped, member.infer, views_of(member.project))
            own = {name: (array.shape, array.dtype) for name, array in found.items()}
            if own != (outline := outline or own):
                raise BadInput(
                    f"{cropped.record.key}: the networks give different outputs, {_shapes(outline)} and {_shapes(own)} "
                    f"({member.name}): they cannot be averaged"
                )
            yield found
            del found


def counting(bar: RecordBar | Estimate, network: Infer | Ensemble) -> Infer | Ensemble:
    """Return what shows or times each call of the network, or of the ensemble's."""
    return network.counting(bar) if isinstance(network, Ensemble) else bar.counting(network)


def predict_with(project: Project, cropped: Cropped, network: Infer | Ensemble) -> Any:
    """Return the prediction of one network, or of an ensemble."""
    return network.predict(cropped) if isinstance(network, Ensemble) else project.predict(cropped, network)


def baseline_with(project: Project, cropped: Cropped, network: Infer | Ensemble) -> Any | None:
    """Return the trivial method's prediction, fitted on the records of a network that did not train on this one."""
    if isinstance(network, Ensemble):
        project = network.members_for(cropped.record)[0].project
    return project.baseline(cropped)


def _joined(outputs: Sequence[Arrays]) -> Arrays:
    """Return vectors of length 1, side by side; those of one network are returned as they are."""
    if len(outputs) == 1:
        return outputs[0]
    return {
        name: np.concatenate([_unit(output[name]) for output in outputs], axis=-1) / np.float32(len(outputs) ** 0.5)
        for name in outputs[0]
    }


def _unit(vectors: Array) -> Array:
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(length, np.finfo(np.float32).tiny), np.float32)


def _kept(outputs: Iterator[Arrays], keep: list[Arrays]) -> Iterator[Arrays]:
    """Yield the outputs, and put a copy of each into `keep`: whoever averages them may overwrite them."""
    for output in outputs:
        keep.append({name: array.copy() for name, array in output.items()})
        yield output


class _Spread:
    """The standard deviation of arrays, as those of a sample around its first: exact enough in float32."""

    def __init__(self, first: Array) -> None:
        self._first = first.astype(np.float32)
        self._sum, self._squares = np.zeros_like(self._first), np.zeros_like(self._first)
        self._count = 1

    def watching(self, first: Arrays, others: Iterator[Arrays], name: str) -> Iterator[Arrays]:
        """Yield all outputs, and count in the array `name` of each."""
        yield first
        for output in others:
            offset = output[name] - self._first
            self._sum += offset
            offset *= offset
            self._squares += offset
            self._count += 1
            yield output

    def map(self, mean: Array, probabilities: bool) -> Array:
        """Return the deviation on the grid; 0 if there was one array."""
        self._sum *= self._sum
        self._sum /= np.float32(self._count)
        self._squares -= self._sum
        np.maximum(self._squares, 0, out=self._squares)
        self._squares /= np.float32(max(1, self._count - 1))
        found = np.sqrt(self._squares, out=self._squares)
        if not probabilities:
            return found
        if mean.dtype == np.uint8:
            found /= np.float32(255)
        return np.asarray(np.take_along_axis(found, mean.argmax(0)[None], 0)[0])


def _refuse_unfit(one: Member, other: Member) -> None:
    """Raise BadInput that names what keeps the predictions of two runs from being averaged."""
    if one.project.name != other.project.name:
        raise BadInput(f"{one.name} is a run of project {one.project.name!r}, {other.name} of {other.project.name!r}")
    first, second = one.combining, other.combining
    _refuse_differences(one, other, one.pipeline.settings, other.pipeline.settings, "they prepare records differently")
    outputs = [{"kind": c.kind, "classes": c.classes, "unit": c.unit, **c.must_match} for c in (first, second)]
    _refuse_differences(one, other, outputs[0], outputs[1], why="their networks do not predict the same")
    decisions = [
        {name: value for name, value in flat(member.project.config).items() if name.startswith("predict.")}
        | {"predict.views": [view.name for view in views_of(member.project)]}  # however they are named: all, none
        for member in (one, other)
    ]
    remedy = "one decision is made of the mean: give the setting on the command line"
    _refuse_differences(one, other, decisions[0], decisions[1], why=remedy)


def _refuse_differences(
    one: Member, other: Member, first: Mapping[str, Any], second: Mapping[str, Any], why: str
) -> None:
    a, b = dict(_leaves(first)), dict(_leaves(second))
    for name in {**a, **b}:
        if a.get(name) != b.get(name):
            raise BadInput(
                f"{one.name} and {other.name} cannot predict together: {name} is {_text(a.get(name))} and "
                f"{_text(b.get(name))} ({why})"
            )


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", list(value) if isinstance(value, (list, tuple)) else value


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def _shapes(outline: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {shape}" for name, (shape, _) in outline.items())
