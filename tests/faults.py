"""Seeded faults: what people commit, put into the real projects, and what the runner says of it.

A fault is put into a project's class (a method that does something else), into a function of it or of its engine, or
into the settings; nothing tells the runner. A short training of the phantom must then say it by the rule that is named,
and the training of the same length without it must say nothing. A `Bench` shares phantom and cache between them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import pytest
from runner_core import BadInput, Finding, Json, Project, Sinks, Unhealthy
from runner_core.config.values import overlay_named
from runner_core.contract.setup import Setup
from runner_core.output.display import Display
from runner_core.output.runfolder import RunFolder
from runner_core.plugins import discovery
from runner_core.plugins.manager import Plugins
from runner_core.training.data import open_data
from runner_core.training.run import train

Make = Callable[[Callable[..., Any]], Callable[..., Any]]
"""The function as it is → the function with the fault."""

SHORT: dict[str, dict[str, Json]] = {
    "brainunet": {
        "data.spacing": 4.0, "data.size": 64, "model.features": [4, 8, 16], "train.batch_size": 8,
        "train.epochs": 3, "train.steps_per_epoch": 20, "train.learning_rate": 0.02,
        "validate.every": 1, "checkpoint.every": 1, "log.every": 10,
    },
    "ssmunet": {
        "data.bin": 8, "model.filters": 4, "model.states": 2, "model.embed": 8, "model.base": 8,
        "train.epochs": 6, "validate.every": 3, "checkpoint.every": 3, "log.every": 10,
    },
    "openkbp": {
        "data.size": 32, "model.features": 2, "train.epochs": 3, "train.steps_per_epoch": 10,
        "validate.every": 1, "checkpoint.every": 1, "log.every": 10,
    },
    "vesuvius": {
        "data.patch": [16, 16, 16], "data.patches": 16, "model.base": 4, "model.multipliers": [1, 2],
        "loss.topology_crop": 12, "train.epochs": 4, "log.every": 10,
    },
    "dinocell": {
        "data.window": 48, "data.windows": 2, "model.prototypes": 64, "model.hidden": 64, "model.bottleneck": 16,
        "augment.global_size": 32, "augment.local_size": 16, "augment.locals": 2,
        "train.batch_size": 16, "train.epochs": 4, "validate.every": 1, "checkpoint.every": 1, "log.every": 10,
    },
}  # fmt: skip
"""Settings over the preset demo's: trainings of seconds, in which a sound network learns something."""


class Place:
    """Puts a fault into a project until the training ends."""

    def __init__(self, kind: type[Project], patch: pytest.MonkeyPatch) -> None:
        self._kind, self._patch = kind, patch

    def method(self, name: str, make: Make) -> None:
        """A method, or an attribute, of the project's class."""
        self._patch.setattr(self._kind, name, make(getattr(self._kind, name)))

    def facet(self, name: str, **makes: Make) -> None:
        """Fields of what a method of the project's class returns: `learning`, for example."""

        def changed(old: Callable[..., Any]) -> Callable[..., Any]:
            def facet(project: Any) -> Any:
                found = old(project)
                return replace(found, **{field: make(getattr(found, field)) for field, make in makes.items()})

            return facet

        self.method(name, changed)

    def function(self, name: str, make: Make) -> None:
        """`module.function`, or `module.Class.method`."""
        owner, _, last = name.rpartition(".")
        target = _named(owner)
        self._patch.setattr(target, last, make(getattr(target, last)))

    def entry(self, name: str, key: str, make: Make) -> None:
        """Change the value that the dict `module.NAME` has under a key."""
        target = _named(name)
        self._patch.setitem(target, key, make(target[key]))


def _named(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, last = name.rpartition(".")
        return getattr(importlib.import_module(module), last)


@dataclass(frozen=True)
class Fault:
    """A fault. `rule` must find what `inject` does to the project, or `wrong` (settings by dotted name) to a training.

    `settings` are no fault: the training without it has them too. `quick`: it is looked for whenever tests run.
    `missed`: why nothing finds it yet.
    """

    name: str
    rule: str
    inject: Callable[[Place], None] = lambda place: None
    wrong: Mapping[str, Json] = field(default_factory=dict)
    settings: Mapping[str, Json] = field(default_factory=dict)
    quick: bool = False
    missed: str = ""


class Seeded(Protocol):
    """The attributes that faults of a training and faults of the data share."""

    @property
    def name(self) -> str: ...
    @property
    def rule(self) -> str: ...
    @property
    def settings(self) -> Mapping[str, Json]: ...
    @property
    def quick(self) -> bool: ...
    @property
    def missed(self) -> str: ...


def seeded(faults: Mapping[str, Sequence[Seeded]], judge: Callable[[str, str], str]) -> Iterator[Any]:
    """Yield (project, fault) of each fault, as parameters of a test.

    `judge` names who finds faults of a project by a rule: the project, or the engine if nothing in the project matters.
    The default tests run the quick faults. .ci/run adds one for each rule and judge. The rest, and faults that nothing
    finds, come once a week.
    """
    seen = {(judge(project, fault.rule), fault.rule) for project, own in faults.items() for fault in own if fault.quick}
    for project, own in faults.items():
        for fault in own:
            found = judge(project, fault.rule), fault.rule
            new = not fault.missed and found not in seen
            if new:
                seen.add(found)
            mark = pytest.mark.slow if new else pytest.mark.weekly
            yield pytest.param(project, fault, id=f"{project}: {fault.name}", marks=() if fault.quick else mark)


def sound(faults: Mapping[str, Sequence[Seeded]]) -> Iterator[Any]:
    """(project, settings) under which faults are looked for, each once; others than a project's own once a week."""
    for project, own in faults.items():
        kinds: list[dict[str, Json]] = [{}, *(dict(fault.settings) for fault in own if fault.settings)]
        for number, settings in enumerate(kinds):
            if settings not in kinds[:number]:
                mark = pytest.mark.weekly if settings else pytest.mark.slow
                yield pytest.param(project, settings, id=f"{project}: {settings}", marks=mark)


class _Found(Exception):
    """The rule that a fault must be found by has said so: the rest of the training would change nothing."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


class _Screen(Display):
    """Show nothing, and raise `_Found` when the rule warns or worse."""

    def __init__(self, rule: str | None) -> None:
        super().__init__(stream=StringIO())
        self._rule = rule

    def say(self, text: str) -> None:
        super().say(text)
        for level in ("error", "warning"):
            if self._rule is not None and text.startswith(start := f"{level.upper()}: {self._rule}: "):
                raise _Found(Finding(self._rule, level, text.removeprefix(start)))


class Bench:
    """Short trainings of one project, which share phantom and cache in `folder`."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self._plugins = Plugins.load(name, without=tuple(discovery.extensions()))
        self._numbers = count(1)
        self.summary: dict[str, Any] = {}
        """The summary of the last training."""

    def findings(
        self, settings: Mapping[str, Json], inject: Callable[[Place], None] | None = None, until: str | None = None
    ) -> list[Finding]:
        """Train, and return the findings except notes; end early once the rule `until` has one.

        A refusal is a finding of the rule `refused`, a loss that is not finite one of `not finite`.
        """
        with pytest.MonkeyPatch.context() as patch:
            kind = self._plugins.project()
            if inject is not None:
                inject(Place(kind, patch))
            try:
                self.summary = self._train(kind, {**SHORT[self.name], **settings}, _Screen(until))
            except _Found as found_early:
                return [found_early.finding]
            except BadInput as error:
                return [Finding("refused", "error", str(error))]
        found = [Finding(**finding) for finding in self.summary["health"]]
        return [finding for finding in found if finding.level != "note"]

    def _train(self, kind: type[Project], settings: Mapping[str, Json], screen: Display) -> dict[str, Any]:
        """Return the run's summary."""
        config = overlay_named(kind.presets["demo"](), settings, "a fault's settings")
        config.cache.dir, config.cache.workers = self.folder / "cache", 1
        config.train.device = "cpu"
        setup = Setup(kind(config), config, "demo", None, self._plugins)
        data = open_data(setup, lambda text: None)
        run = RunFolder.create(None, self.name, self.folder / f"run-{next(self._numbers)}")
        sinks = Sinks(setup.sinks(run.path), lambda text: None)
        try:
            return train(setup, data, run, sinks, screen, False)
        except Unhealthy as error:
            summary: dict[str, Any] = error.summary  # type: ignore[attr-defined]
            if not any(finding["level"] == "error" for finding in summary["health"]):  # of no rule
                summary["health"].append({"rule": "not finite", "level": "error", "message": str(error)})
            return summary
        finally:
            sinks.close()


# ---------------------------------------------------------------- faults that any project can have


def integer_schedule(place: Place) -> None:
    """The share of the training that is done, in integers: the learning rate is 0 up to the end."""
    place.facet("learning", schedule=lambda old: lambda progress: progress.step // progress.steps)


def copied_parameters(place: Place) -> None:
    """The optimizer is given the parameters of a copy of the network."""
    from copy import deepcopy

    place.facet("learning", parameter_groups=lambda old: lambda model: [{"params": list(deepcopy(model).parameters())}])


def leaking_samples(place: Place) -> None:
    """Whatever records are asked for, samples are of all."""
    place.method(
        "samples", lambda old: lambda self, store, records, split: old(self, store, range(len(store.keys)), split)
    )


def forgets_average_in(engine: str) -> Callable[[Place], None]:
    """A checkpoint format of one's own, which writes the network's weights where their average belongs."""

    def make(old: Callable[..., Any]) -> Callable[..., Any]:
        def write(self: Any, folder: Path, state: Any) -> None:
            for name in [name for name in state.tensors if name.startswith("ema.")]:
                state.tensors[name] = state.tensors.get(f"model.{name.removeprefix('ema.')}", state.tensors[name])
            old(self, folder, state)

        return write

    kind = {"torch": "SafetensorsFormat", "keras": "ArraysFormat"}[engine]
    return lambda place: place.function(f"runner_core.engines.{engine}.checkpoint.{kind}.write", make)


forgets_average = forgets_average_in("torch")


def unsaved_statistics(place: Place) -> None:
    """BatchNorm's running statistics are in no checkpoint."""
    import torch

    def make(old: Callable[..., Any]) -> Callable[..., Any]:
        def model(self: Any, precision: Any) -> Any:
            network = old(self, precision)
            for module in network.modules():
                if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                    module._non_persistent_buffers_set |= {"running_mean", "running_var"}
            return network

        return model

    place.method("model", make)


def no_autocast(place: Place) -> None:
    """Mixed precision is a setting that nothing reads."""
    place.function("runner_core.engines.torch.precision.autocast", lambda old: lambda *arguments: None)


def blank(*names: str) -> Callable[[Place], None]:
    """Set the network's input to 0."""

    def make(old: Callable[..., Any]) -> Callable[..., Any]:
        def on_device(self: Any, batch: Any, statistics: Any, rng: Any) -> Any:
            out = old(self, batch, statistics, rng)
            return out | {name: out[name] * 0 for name in names}

        return on_device

    return lambda place: place.method("on_device", make)


def detached(function: str) -> Callable[[Place], None]:
    """The value of a loss, without its gradient."""
    return lambda place: place.function(function, lambda old: lambda *given: old(*given).detach())


def negative(function: str) -> Callable[[Place], None]:
    """A loss with the wrong sign."""
    return lambda place: place.function(function, lambda old: lambda *given: -old(*given))


# ---------------------------------------------------------------- what was found

PROPERTY = "seeded fault"
"""Name of the property of a test's report: project, fault (or settings), rule (empty without a fault) and the
result."""


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines: faults found of all, false alarms of all sound trainings; then each of them."""
    faults, clean = [row for row in rows if row[2]], [row for row in rows if not row[2]]
    found, alarms = sum(row[3] == "found" for row in faults), sum(row[3] == "false alarm" for row in clean)
    lines = [f"found {found} of {len(faults)}; false alarms in {alarms} of {len(clean)} sound runs"]
    return lines + [f"{row[3]:<11}  {row[0]:<10}  {row[1]:<60}  {row[2]}" for row in sorted(faults) + sorted(clean)]
