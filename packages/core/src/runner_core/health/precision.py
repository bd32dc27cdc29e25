"""Is the precision on that was asked for?"""

from __future__ import annotations

from runner_core.precision import matches
from runner_core.protocols import Finding, HealthEvent, Precision


class PrecisionAsked:
    """Mixed precision that is asked for and not on (or the other way round), seen in the forward pass.

    Facts used at first_step: `precision_asked` (dtype), `precision_seen` ({dtype: number of layers}). What cannot be
    seen is noted.
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
