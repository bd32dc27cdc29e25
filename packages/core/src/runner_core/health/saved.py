"""A rule that checks whether a checkpoint gives back the validated network."""

from __future__ import annotations

from runner_core.contract import Finding, HealthEvent


class SavedAsValidated:
    """Stop if a checkpoint gives back another network than the validated one: the scores would be another's.

    Facts used, of a checkpoint: `refused` (why it cannot be read at all); `weights_differ` (names of parameters and
    buffers) and `prediction_differs` (the largest difference on a few validation samples, as a share of the
    prediction's range).
    """

    name = "saved is not validated"
    SAME = 0.02
    """Half precision, and kernels that a GPU chooses anew, differ by less if the weights are equal."""

    def observe(self, event: HealthEvent) -> Finding | None:
        if event.moment != "checkpoint":
            return None
        refused = event.facts.get("refused")
        names, apart = event.facts.get("weights_differ", ()), event.facts.get("prediction_differs", 0.0)
        if refused is not None:
            return Finding(self.name, "error", f"the checkpoint of step {event.step} cannot be used: {refused}")
        if names:
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            why = f"{shown} {'is' if len(names) == 1 else 'are'} not what the network had when it was validated"
        elif not apart <= self.SAME:
            why = (
                f"with the same weights its predictions differ by up to {apart:.0%} of what they span: something that "
                "it computes with is in no checkpoint (an attribute that is no buffer, a statistic)"
            )
        else:
            return None
        return Finding(self.name, "error", f"the checkpoint of step {event.step} gives back another network: {why}")
