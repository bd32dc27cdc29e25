"""Rules that check whether training changes anything, and rules about the loss.

The former look at learning rate, weights, length of steps and loss; the latter at terms without gradient, ignored
voxels, weights without gradient and impossible values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from runner_core.contract import Finding, HealthEvent, Json


class RateZero:
    """Report a learning rate of 0 in every parameter group: nothing is learned.

    Facts used: `learning_rate` of log lines. If it never was anything else, a warning after `FIRST` steps, and an error
    at a validation and at the end; later a warning after `LATER` steps. Reported once for as long as it lasts.
    """

    name = "learning rate zero"
    FIRST, LATER = 10, 50

    def __init__(self) -> None:
        self.memory: dict[str, Json] = {"since": 0, "line": 0, "told": False}

    def observe(self, event: HealthEvent) -> Finding | None:
        memory, moment = self.memory, event.moment
        if moment == "log":
            memory["line"] = event.step
            if event.facts.get("learning_rate") != 0:
                memory |= {"since": event.step, "told": False}
        lasts, first = memory["line"] - memory["since"], memory["since"] == 0
        over = first and lasts > 0 and (moment == "end" or (moment == "validation" and lasts >= self.FIRST))
        if not over and (moment != "log" or memory["told"] or lasts < (self.FIRST if first else self.LATER)):
            return None
        memory["told"] = True
        when = f"in all {lasts} steps" if first else f"for {lasts} steps, since step {memory['since']},"
        return Finding(
            self.name, "error" if over else "warning",
            f"{when} the learning rate was 0: nothing is learned. Look at train.learning_rate, train.schedule and "
            "train.epochs, or at the project's own schedule",
        )  # fmt: skip


class StillWeights:
    """Stop if no weight changed between two validations that are `STEPS` or more optimizer steps apart.

    Facts used: `weights` of the first step and of validations; they are absent while the learning rate is 0.
    """

    name = "weights unchanged"
    STEPS = 5

    def __init__(self) -> None:
        self.memory: dict[str, Json] = {"step": None, "weights": None}

    def observe(self, event: HealthEvent) -> Finding | None:
        weights = event.facts.get("weights")
        if event.moment not in ("first_step", "validation") or weights is None:
            return None
        since, before = self.memory["step"], self.memory["weights"]
        if weights != before:
            self.memory |= {"step": event.step, "weights": weights}
        elif event.step - since >= self.STEPS:
            text = f"no bit of the trained weights has changed since step {since}: the optimizer does nothing"
            return Finding(self.name, "error", f"{text}. Are these the weights that the loss depends on?")
        return None


class StillPredictions:
    """Warn, once, if predictions equal those of the validation before, bit for bit, though the weights changed.

    Validation then sees another network than the trained one. Facts used: extremes of the decision (`decision_…`) and
    `weights` of validations `STEPS` or more steps apart. Decisions in whole numbers (masks, classes) are not checked:
    they may well stay the same.
    """

    name = "predictions unchanged"
    STEPS = 5

    def __init__(self) -> None:
        self.memory: dict[str, Json] = {"step": None, "last": None, "weights": None, "told": False}

    def observe(self, event: HealthEvent) -> Finding | None:
        facts, memory = event.facts, self.memory
        if event.moment != "validation" or "decision_mark_min" not in facts:
            return None
        seen = [facts[f"decision_{name}"] for name in ("min", "max", "mark_min", "mark_max")]
        weights = facts.get("weights")
        same = seen == memory["last"] and not all(float(value).is_integer() for value in seen[:2])
        if not same or weights == memory["weights"] or event.step - memory["step"] < self.STEPS:
            memory |= {"step": event.step, "last": seen, "weights": weights}
            return None
        if memory["told"]:
            return None
        memory["told"] = True
        return Finding(
            self.name, "warning",
            f"the weights have changed since step {memory['step']}, but no bit of the validation's "
            "predictions has: does validation use the trained network, or a copy that should follow it?",
        )  # fmt: skip


class AlwaysClipped:
    """Warn, once, if every step has the length of `train.clip`, whatever its gradient.

    Facts used: `clipped` of log lines, the share of steps whose gradients were longer than `train.clip`, and
    `gradient_norm`. Warns after `STEPS` such steps in a row; already after `WILD` if gradients were `TIMES` as long on
    average, because the setting then does not fit the network.
    """

    name = "gradients clipped"
    STEPS, WILD, TIMES = 1000, 50, 50.0

    def __init__(self, clip: float | None) -> None:
        self._clip = clip
        self.memory: dict[str, Json] = {"line": 0, "since": 0, "wild": 0, "told": False}

    def observe(self, event: HealthEvent) -> Finding | None:
        if event.moment != "log" or self._clip is None or event.facts.get("clipped") is None:
            return None
        memory, norm = self.memory, event.facts.get("gradient_norm", 0.0)
        memory["line"] = event.step
        if event.facts["clipped"] < 1:
            memory["since"] = event.step
        if event.facts["clipped"] < 1 or not norm > self.TIMES * self._clip:
            memory["wild"] = event.step
        lasts = event.step - memory["since"]
        if memory["told"] or (lasts < self.STEPS and event.step - memory["wild"] < self.WILD):
            return None
        memory["told"] = True
        text = f"gradients were longer than train.clip {self._clip:g} in each of {lasts} steps ({norm:.3g} on average)"
        advice = "every step has the same length. Lower train.learning_rate, or raise train.clip"
        return Finding(self.name, "warning", f"{text}: {advice}")


class Uninformed:
    """Warn if all losses stay at `Health.chance_losses`, the losses of a network that ignores its input.

    Facts used: the terms of log lines. Their mean over `LINES` lines must once fall below `NEAR` of that value; the
    line of the first step alone does not count. A warning, once: after `STEPS` steps, or at the end after `LEAST`.
    """

    name = "loss at chance"
    NEAR, LINES, STEPS, LEAST = 0.98, 5, 500, 50

    def __init__(self, chance_losses: Callable[[], Mapping[str, float]]) -> None:
        self._chance_losses = chance_losses
        self.memory: dict[str, Json] = {"last": {}, "lowest": {}, "told": []}

    @cached_property
    def _values(self) -> dict[str, float]:
        """The chance losses above 0; they may depend on the statistics that the project knows while it trains."""
        return {name: value for name, value in self._chance_losses().items() if value > 0}

    def observe(self, event: HealthEvent) -> Finding | None:
        if event.moment == "log" and event.step > 1:
            for name in self._values:
                if name in event.facts:
                    self._add(name, event.facts[name])
        after = {"log": self.STEPS, "end": self.LEAST}.get(event.moment)
        due = after is not None and event.step >= after
        seen = [name for name in self._values if self.memory["last"].get(name)]
        found = seen if due and all(map(self._stays, seen)) else []  # one that fell may have raised others
        self.memory["told"] += found
        if not found:
            return None
        stays = ", ".join(f"{name} at {self.memory['last'][name][-1]:.4g} ({self._values[name]:.4g})" for name in found)
        return Finding(
            self.name, "warning",
            f"after {event.step} steps the loss is still that of a network that predicts the same for every "
            f"input: {stays}. Do the labels belong to the images? Try another train.learning_rate",
        )  # fmt: skip

    def _add(self, name: str, value: float) -> None:
        last = [*self.memory["last"].get(name, []), value][-self.LINES :]
        self.memory["last"][name] = last
        if len(last) == self.LINES:
            self.memory["lowest"][name] = min(self.memory["lowest"].get(name, value), sum(last) / len(last))

    def _stays(self, name: str) -> bool:
        last = self.memory["last"].get(name, [])
        if not last or name in self.memory["told"]:
            return False
        lowest = self.memory["lowest"].get(name, sum(last) / len(last))
        return bool(lowest >= self.NEAR * self._values[name])


class Unmoved:
    """Warn, once, if the loss is the same in every line of the log.

    Facts used: `loss` of log lines, all within `SAME` of each other, over `LINES` lines and `STEPS` steps from the
    first on.
    """

    name = "loss unmoved"
    SAME, LINES, STEPS = 1e-3, 5, 50

    def __init__(self) -> None:
        self.memory: dict[str, Json] = {"lowest": None, "highest": None, "lines": 0, "told": False}

    def observe(self, event: HealthEvent) -> Finding | None:
        if event.moment != "log" or "loss" not in event.facts:
            return None
        memory, loss = self.memory, event.facts["loss"]
        memory["lines"] += 1
        for name, choose in (("lowest", min), ("highest", max)):
            memory[name] = loss if memory[name] is None else choose(memory[name], loss)
        due = memory["lines"] >= self.LINES and event.step >= self.STEPS
        if not due or memory["told"] or memory["highest"] - memory["lowest"] > self.SAME * abs(loss):
            return None
        memory["told"] = True
        text = f"after {event.step} steps the loss is still that of the first step, {loss:.5g}: nothing is learned"
        return Finding(self.name, "warning", f"{text}. Do its gradients reach the network?")


class TermWithoutGradient:
    """Warn about a loss term whose gradient was exactly zero at every measurement: it teaches nothing.

    Facts used: `gradient_norms` of log lines (for each term, how often its gradient was measured since the last line,
    and the largest norm), `detached` (terms that are part of the loss but have no gradient at all). Warns once for each
    term, after `MEASURED` measurements in a row, because one batch may hold nothing to find.
    """

    name = "loss without gradient"
    MEASURED = 5

    def __init__(self) -> None:
        self.memory: dict[str, Json] = {"in_a_row": {}}

    def observe(self, event: HealthEvent) -> Finding | None:
        if event.moment != "log":
            return None
        detached = list(event.facts.get("detached", ()))
        norms = event.facts.get("gradient_norms", {})
        silent = [name for name, norm in norms.items() if self._silent(name, *norm)]
        if not detached and not silent:
            return None
        messages = []
        if silent:
            which = f"the term {silent[0]} has" if len(silent) == 1 else f"the terms {_listed(silent)} have"
            messages.append(
                f"{which} no gradient: in {self.MEASURED} measurements or more, it was 0 at the network's output. "
                "Do the labels hold what it looks for (see `check`)? Else set its weight to 0"
            )
        if detached:
            which = f"the term {detached[0]} is" if len(detached) == 1 else f"the terms {_listed(detached)} are"
            why = "detached, or computed from decisions (argmax, a threshold)?"
            messages.append(f"{which} part of the loss, and no gradient comes from there: {why}")
        return Finding(self.name, "warning", "; ".join(messages))

    def _silent(self, name: str, count: float, largest: float) -> bool:
        """Return whether to report the term now."""
        before = self.memory["in_a_row"].get(name, 0)
        now = self.memory["in_a_row"][name] = 0 if largest > 0 else before + int(count)
        return bool(before < self.MEASURED <= now)


class IgnoredIsLearned:
    """Stop if the loss, or a metric, looks at voxels that the project ignores.

    The network would learn, or a metric would count, voxels that nobody annotated. Facts used: `ignored` of log lines:
    the `share` of ignored voxels; the loss's largest gradient at them, as a share of the largest anywhere (`gradient`);
    the `metrics` whose values change with the prediction there.
    """

    name = "ignored voxels"
    NOTHING = 1e-6
    """Share of the largest gradient below which a gradient is rounding."""

    def observe(self, event: HealthEvent) -> Finding | None:
        found = event.facts.get("ignored")
        if event.moment != "log" or found is None:
            return None
        messages = []
        if found["gradient"] > self.NOTHING:
            messages.append(f"the loss has a gradient there ({found['gradient']:.2g} of the largest): they are learned")
        if found["metrics"]:
            verb = "changes" if len(found["metrics"]) == 1 else "change"
            messages.append(f"{_listed(found['metrics'])} {verb} with the prediction there")
        if not messages:
            return None
        text = f"{found['share']:.0%} of the voxels of a batch are to be ignored, but {', and '.join(messages)}"
        return Finding(self.name, "error", text)


class WithoutGradient:
    """Warn, once, about trained weights for which no loss has a gradient: detached, or computed under no_grad.

    The other weights learn meanwhile, and every curve looks good. Facts used: `weights_without_gradient` of log lines.
    The rule waits for `LOOKS` looks, since one batch may not use every weight.
    """

    name = "weights without gradient"
    LOOKS = 5

    def __init__(self) -> None:
        self.memory: dict[str, Json] = {"looks": 0, "weights": {}, "told": False}

    def observe(self, event: HealthEvent) -> Finding | None:
        found, memory = event.facts.get("weights_without_gradient"), self.memory
        if event.moment != "log" or found is None or memory["told"]:
            return None
        known = memory["weights"] if memory["looks"] else found["weights"]
        memory["weights"] = {name: size for name, size in found["weights"].items() if name in known}
        memory["looks"] += found["looks"]
        if memory["looks"] < self.LOOKS or not memory["weights"]:
            return None
        memory["told"] = True
        names, numbers = list(memory["weights"]), sum(memory["weights"].values())
        few = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        text = f"{few} should be trained ({numbers:,} numbers), but the loss gives no gradient"
        return Finding(
            self.name,
            "warning",
            f"{text}: detached, or unused? Leave weights that should not train out of the optimizer",
        )


class BelowLeast:
    """Stop if a loss term is below its bound: its sign is wrong, or the labels do not fit it.

    Facts used: the terms, of log lines and validations. `least` holds the bound of each by name
    (`Health.lower_bounds`).
    """

    name = "impossible loss"
    ROUNDING = 1e-4

    def __init__(self, least: Mapping[str, float]) -> None:
        self._least = least

    def observe(self, event: HealthEvent) -> Finding | None:
        if event.moment not in ("log", "validation"):
            return None
        below = [
            f"{name} is {event.facts[name]:.4g}, which cannot be below {least:g}"
            for name, least in self._least.items()
            if event.facts.get(name, least) < least - self.ROUNDING
        ]
        if not below:
            return None
        why = "a wrong sign, or labels of another scale than it was made for (0 and 255 instead of 0 and 1?)"
        return Finding(self.name, "error", f"{_listed(below)}: {why}")


def _listed(names: Sequence[str]) -> str:
    """Return names as a list in words.

    >>> _listed(["a"]), _listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
