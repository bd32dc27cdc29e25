"""Rules about the loss: terms without gradient, ignored voxels, weights without gradient, impossible values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runner_core.contract import Finding, HealthEvent, Json


class PullsAtNothing:
    """Warn about a loss term whose gradient was exactly zero at every measurement: it teaches nothing.

    Facts used: `pulls` of log lines (for each term, how often its gradient was measured since the last line, and the
    largest norm), `detached` (terms that are part of the loss but have no gradient at all). Warns once for each term,
    after `MEASURED` measurements in a row, because one batch may hold nothing to find.
    """

    name = "loss without gradient"
    MEASURED = 5

    def __init__(self) -> None:
        self.memory: dict[str, Json] = {"in_a_row": {}}

    def observe(self, event: HealthEvent) -> Finding | None:
        if event.moment != "log":
            return None
        detached = list(event.facts.get("detached", ()))
        silent = [name for name, pull in event.facts.get("pulls", {}).items() if self._silent(name, *pull)]
        if not detached and not silent:
            return None
        messages = []
        if silent:
            which = f"the term {silent[0]} pulls" if len(silent) == 1 else f"the terms {_listed(silent)} pull"
            messages.append(
                f"{which} at nothing: in {self.MEASURED} measurements or more, the prediction had no gradient of it. "
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


class PullsAtIgnored:
    """Stop if the loss, or a metric, looks at voxels that the project ignores.

    The network would learn, or a metric would count, voxels that nobody annotated. Facts used: `ignored` of log lines:
    the `share` of ignored voxels; the loss's largest gradient at them, as a share of the largest anywhere (`pull`); the
    `metrics` whose values change with the prediction there.
    """

    name = "ignored voxels"
    NOTHING = 1e-6
    """Share of the largest gradient below which a gradient is rounding."""

    def observe(self, event: HealthEvent) -> Finding | None:
        found = event.facts.get("ignored")
        if event.moment != "log" or found is None:
            return None
        messages = []
        if found["pull"] > self.NOTHING:
            messages.append(f"the loss has a gradient there ({found['pull']:.2g} of the largest): they are learned")
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
        text = f"{few} are to be trained ({numbers:,} numbers), and the loss has no gradient of them"
        return Finding(
            self.name, "warning", f"{text}: detached, or unused? Keep from the optimizer what is not to learn"
        )


class BelowLeast:
    """Stop if a loss term is below its bound: its sign is wrong, or the labels do not fit it.

    Facts used: the terms, of log lines and validations. `least` holds the bound of each by name
    (`Project.lower_bounds`).
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
