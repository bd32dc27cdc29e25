"""Search settings with Optuna: which settings may vary, the trials that are done, and what mattered.

Optuna keeps its study in sweep.log of the experiment's folder, line by line, so that a sweep goes on after a kill. A
trial of Optuna and the member of the same number are one: the member's settings are the trial's parameters.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

import yaml

from runner_core.base.calling import adds_extra
from runner_core.base.errors import BadInput, did_you_mean
from runner_core.config import RunConfig
from runner_core.config.values import flat, overlay_named
from runner_core.contract import Json
from runner_core.contract.project import Project
from runner_core.output.experiments import ExperimentFolder, Member
from runner_core.output.report.page import is_number

FILE = "sweep.log"
SPLIT = "split.yaml"
"""File with the split that all trials share."""
_FIXED = ("data.split", "train.device", "train.devices")
_STARTUP = 5
"""Trials chosen at random before Optuna learns from them, and before any is stopped early."""

DONE, GIVEN_UP, FAILED, UNFINISHED = "done", "given up", "failed", "not done"

MATTERED_FROM = 8
"""Least number of trials that are done from which it can be said what mattered."""

Space = Mapping[str, Any]
"""Setting → Optuna distribution."""


def parse_space(words: Sequence[str], config: RunConfig, project: type[Project]) -> Space:
    """Return what `--vary NAME=A..B`, `NAME=A..B:log` and `NAME=a,b,c` mean.

    Raises BadInput for a setting that does not exist or that may not have such a value, and if Optuna is missing.
    """
    known = flat(config)
    named: dict[str, tuple[str, str]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        name = name.replace("-", "_")
        if name in _FIXED:
            raise BadInput(f"--vary {word}: {name} is the same for all trials")
        if name not in known:
            raise BadInput(f"--vary {word}: there is no setting {name!r}{did_you_mean(name, known)}")
        if not equals or not values:
            raise BadInput(f"--vary {word}: write {name}=LOW..HIGH, {name}=LOW..HIGH:log or {name}=A,B,C")
        if name in named:
            raise BadInput(f"--vary names {name} twice")
        named[name] = word, values
    if not named:
        raise BadInput("name the settings to search: --vary train.learning_rate=1e-4..1e-2:log train.batch_size=2,4,8")
    from_optuna = _optuna()
    space = {}
    for name, (word, values) in named.items():
        space[name] = _range(word, values, known[name], from_optuna)
        space[name] = space[name] or _choices(word, values, partial(_as_setting, config, name, word), from_optuna)
        for value in _ends(space[name]):
            refused = overlay_named(config, {name: value}, f"--vary {word}")
            project(refused)
    return space


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise BadInput(f"a sweep needs the package optuna: `{adds_extra('sweep')}` adds it") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _range(word: str, values: str, now: Any, optuna: Any) -> Any | None:
    low, dots, high = values.partition("..")
    high, colon, kind = high.partition(":")
    if not dots:
        return None
    if colon and kind != "log":
        raise BadInput(f"--vary {word}: {kind!r} is unknown; after the colon only `log` may stand")
    try:
        ends = float(low), float(high)
    except ValueError:
        raise BadInput(f"--vary {word}: {values} is not a range of numbers") from None
    if not (all(map(math.isfinite, ends)) and ends[0] < ends[1]) or (kind and ends[0] <= 0):
        raise BadInput(f"--vary {word}: the range must go from a smaller to a larger number{' above 0' * bool(kind)}")
    whole = now is None and all(end.strip().lstrip("-").isdecimal() for end in (low, high))
    if whole or (isinstance(now, int) and not isinstance(now, bool)):
        if not all(end.is_integer() for end in ends):
            raise BadInput(f"--vary {word}: the setting takes whole numbers")
        return optuna.distributions.IntDistribution(int(ends[0]), int(ends[1]), log=bool(kind))
    return optuna.distributions.FloatDistribution(*ends, log=bool(kind))


def _as_setting(config: RunConfig, name: str, word: str, value: Any) -> Any:
    """Return a value as the setting keeps it: YAML's text 1e-4 is a number where the setting is one."""
    return flat(overlay_named(config, {name: value}, f"--vary {word}"))[name]


def _choices(word: str, values: str, as_setting: Callable[[Any], Any], optuna: Any) -> Any:
    try:
        found = yaml.safe_load(f"[{values}]")
        texts = [json.dumps(as_setting(value)) for value in found]
    except (yaml.YAMLError, TypeError):
        raise BadInput(f"--vary {word}: {values} is no list of values; write A,B,C") from None
    if len(set(texts)) < 2:
        raise BadInput(f"--vary {word}: name two values or more, or a range LOW..HIGH")
    return optuna.distributions.CategoricalDistribution(texts)


def _ends(distribution: Any) -> list[Json]:
    if hasattr(distribution, "choices"):
        return [json.loads(text) for text in distribution.choices]
    return [distribution.low, distribution.high]


def settings_of(parameters: Mapping[str, Any], space: Space) -> dict[str, Json]:
    """Return the settings that a trial's parameters stand for; choices are kept as JSON text."""
    return {name: json.loads(value) if hasattr(space[name], "choices") else value for name, value in parameters.items()}


@dataclass
class Sweep:
    """The study of an experiment and its members.

    `base` are the values of the varied settings without the sweep: the first trial, if they lie in the space.
    """

    experiment: ExperimentFolder
    space: Space
    metric: str
    maximise: bool
    seed: int
    base: Mapping[str, Json]
    trials: int
    until: float
    """Moment (time.monotonic) after which no trial begins."""
    study: Any = field(init=False)
    _reported: dict[str, int] = field(default_factory=dict)
    _begun: dict[str, float] = field(default_factory=dict)
    _durations: list[float] = field(default_factory=list)
    _read: dict[str, int] = field(default_factory=dict)
    _given_up: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        optuna = _optuna()
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        self.study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(self.experiment.path / FILE))),
            study_name="sweep",
            direction="maximize" if self.maximise else "minimize",
            load_if_exists=True,
            sampler=optuna.samplers.TPESampler(
                seed=self.seed + len(self.experiment.members), n_startup_trials=_STARTUP, constant_liar=True
            ),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=_STARTUP, n_warmup_steps=1),
        )
        self._states = optuna.trial.TrialState
        if not self.study.trials and (first := self._base_trial()) is not None:
            self.study.enqueue_trial(first)

    def _base_trial(self) -> dict[str, Any] | None:
        """Return the parameters of the settings without the sweep, or None if they lie outside the space."""
        found = {}
        for name, distribution in self.space.items():
            chosen = hasattr(distribution, "choices")
            value = json.dumps(self.base[name]) if chosen else self.base[name]
            if not chosen and not is_number(value):  # none, by default
                return None
            inside = value in distribution.choices if chosen else distribution.low <= value <= distribution.high
            if not inside:
                return None
            found[name] = value
        return found

    def following(self) -> Member | None:
        """Return the next member to train: one that was interrupted, or a new trial; None if there is to be none."""
        trials = self.study.get_trials(deepcopy=False)
        for trial in trials:
            if trial.state == self._states.RUNNING and self._member(trial).name not in self._begun:
                return self._known(self._member(trial))
        begun = sum(trial.state != self._states.WAITING for trial in trials)
        typical = median(self._durations) if self._durations else 0.0
        if begun >= self.trials or time.monotonic() + typical > self.until:
            return None
        return self._known(self._member(self.study.ask(dict(self.space))))

    def _member(self, trial: Any) -> Member:
        settings = settings_of(trial.params, self.space)
        return Member(f"trial-{trial.number:03d}", seed=self.seed, settings=settings)

    def _known(self, member: Member) -> Member:
        """Return the member with what all trials share, after it was added to experiment.json."""
        self._begun[member.name] = time.monotonic()
        member = replace(member, settings={**member.settings, "data.split": SPLIT})
        if all(m.name != member.name for m in self.experiment.members):
            self.experiment = replace(self.experiment, members=[*self.experiment.members, member])
            self.experiment.save()
        return member

    def stops(self, member: Member) -> bool:
        """Report the validations of a member that trains; return whether Optuna gives it up."""
        log = self.experiment.run(member).jsonl
        size = log.stat().st_size if log.exists() else 0
        if size == self._read.get(member.name, 0):
            return False
        self._read[member.name] = size
        values, trial = self._validations(member), self._trial(member)
        if (known := self._reported.get(member.name)) is None:  # a trial that goes on has reported some before
            known = len(self.study.get_trials(deepcopy=False)[_number(member)].intermediate_values)
        if len(values) <= known:
            return False
        self._reported[member.name] = len(values)
        for step in range(known, len(values)):
            trial.report(values[step], step + 1)
        if trial.should_prune():
            self._given_up.add(member.name)
        return member.name in self._given_up

    def ended(self, member: Member, problem: str) -> str:
        """Record how a member ended; return its state: done, given up or failed."""
        values, number = self._validations(member), _number(member)
        if self.experiment.done(member) and values:
            self._durations.append(time.monotonic() - self._begun[member.name])
            self.study.tell(number, max(values) if self.maximise else min(values))
            return DONE
        given_up = member.name in self._given_up
        self.study.tell(number, state=self._states.PRUNED if given_up else self._states.FAIL)
        return GIVEN_UP if given_up else FAILED

    def _trial(self, member: Member) -> Any:
        from optuna.trial import Trial

        return Trial(self.study, self.study.get_trials(deepcopy=False)[_number(member)]._trial_id)

    def _validations(self, member: Member) -> list[float]:
        """Return the monitored metric of each validation of a run, in order."""
        events = self.experiment.run(member).events()
        found = [e.get(self.metric) for e in events if e.get("event") == "validation"]
        return [float(value) for value in found if value is not None and is_number(value)]

    def table(self) -> list[tuple[Member, str, float | None]]:
        """Return each trial's member, its state and its value: those that are done, the best first, then the others."""
        names = {"COMPLETE": DONE, "PRUNED": GIVEN_UP, "FAIL": FAILED}
        rows = [
            (
                self._member(trial),
                names.get(trial.state.name, UNFINISHED),
                trial.value if trial.state.is_finished() else None,
            )
            for trial in self.study.get_trials(deepcopy=False)
        ]
        done = [(member, state, value) for member, state, value in rows if state == DONE and value is not None]
        done.sort(key=lambda row: row[2], reverse=self.maximise)
        return [*done, *((member, state, None) for member, state, _ in rows if state != DONE)]

    def best(self) -> Member | None:
        """Return the member of the best trial, or None if none is done."""
        return next((member for member, _, value in self.table() if value is not None), None)

    def base_member(self) -> Member | None:
        """Return the member with the settings without the sweep, or None if no trial that is done has them."""
        return next((m for m, _, value in self.table() if m.settings == self.base and value is not None), None)

    def importance(self) -> dict[str, float]:
        """Return each setting's share in what made trials good (PED-ANOVA), largest first; empty for few trials."""
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

        done = [t for t in self.study.get_trials(deepcopy=False) if t.state == self._states.COMPLETE]
        if len(done) < MATTERED_FROM or len(self.space) < 2:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return dict(get_param_importances(self.study, evaluator=PedAnovaImportanceEvaluator()))


def _number(member: Member) -> int:
    return int(member.name.removeprefix("trial-"))
