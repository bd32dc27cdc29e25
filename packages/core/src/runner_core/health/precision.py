"""A rule that checks whether layers compute in the precision that the settings ask for."""

from __future__ import annotations

from runner_core.contract import Finding, HealthEvent, Precision
from runner_core.contract.run import matches


class PrecisionAsked:
    """Stop if mixed precision is on though not asked for, or the reverse, as seen in the forward pass.

    Facts used at first_step: `precision_asked` (dtype), `precision_seen` ({dtype: number of layers}). A note says so if
    it cannot be seen.
    """

    name = "precision"

    def observe(self, event: HealthEvent) -> Finding | None:
        seen = event.facts.get("precision_seen")
        if event.moment != "first_step" or seen is None:
            return None
        asked = event.facts["precision_asked"]
        if not seen:
            why = "the network has no layer of a kind that can be observed"
            return Finding(
                self.name, "note", f"{asked} was asked for; whether layers compute in it was not seen: {why}"
            )
        if matches(Precision(asked), seen):
            unseen = "tf32 was asked for; whether layers compute in it cannot be seen: they return float32 either way"
            return Finding(self.name, "note", unseen) if asked == "tf32" else None
        layers = ", ".join(f"{count} in {dtype.rpartition('.')[2]}" for dtype, count in seen.items())
        return Finding(self.name, "error", f"{asked} was asked for, but layers compute otherwise: {layers}")
