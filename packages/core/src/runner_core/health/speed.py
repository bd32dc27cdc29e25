"""Does the machine do what it could? What is found follows from the clock: another run need not have it."""

from __future__ import annotations

from runner_core.protocols import Finding, HealthEvent


class Starved:
    """Training waits for its data: a warning, once for as long as it lasts.

    Facts used: `data_wait_share` and `seconds` of log lines, the first apart (workers start, files are opened). More
    than `SHARE` of the time, for `LINES` lines and `SECONDS` seconds of waiting.
    """

    name = "data starved"
    SHARE, LINES, SECONDS = 0.5, 3, 5.0

    def __init__(self) -> None:
        self._seen_first = self._told = False
        self._lines, self._waited, self._total = 0, 0.0, 0.0

    def observe(self, event: HealthEvent) -> Finding | None:
        share = event.facts.get("data_wait_share")
        if event.moment != "log" or share is None:
            return None
        if not self._seen_first or share <= self.SHARE:
            self._seen_first, self._told = True, self._told and share > self.SHARE
            self._lines, self._waited, self._total = 0, 0.0, 0.0
            return None
        self._lines += 1
        self._total += event.facts["seconds"]
        self._waited += share * event.facts["seconds"]
        if self._told or self._lines < self.LINES or self._waited < self.SECONDS:
            return None
        self._told = True
        return Finding(
            self.name, "warning",
            f"{self._waited / self._total:.0%} of the time of the last {self._total:.0f} s training waited for data. "
            "`profile` says what takes so long; train.workers and train.prefetch bring batches ahead, and `tune` tries",
            timed=True,
        )  # fmt: skip


class Idle:
    """The GPU stands still most of the time: a warning, once for as long as it lasts.

    Facts used: `gpu_busy` (0…1, while training) and `seconds` of log lines, the first apart. Less than `BUSY`, for
    `LINES` lines and `SECONDS` seconds.
    """

    name = "GPU idle"
    BUSY, LINES, SECONDS = 0.3, 3, 20.0

    def __init__(self) -> None:
        self._seen_first = self._told = False
        self._lines, self._busy, self._total = 0, 0.0, 0.0

    def observe(self, event: HealthEvent) -> Finding | None:
        busy = event.facts.get("gpu_busy")
        if event.moment != "log" or busy is None:
            return None
        if not self._seen_first or busy >= self.BUSY:
            self._seen_first, self._told = True, self._told and busy < self.BUSY
            self._lines, self._busy, self._total = 0, 0.0, 0.0
            return None
        self._lines += 1
        self._total += event.facts["seconds"]
        self._busy += busy * event.facts["seconds"]
        if self._told or self._lines < self.LINES or self._total < self.SECONDS:
            return None
        self._told = True
        return Finding(
            self.name, "warning",
            f"the GPU was busy for {self._busy / self._total:.0%} of the last {self._total:.0f} s. `profile` says what "
            "it waits for: data, or a processor that gives it its work too slowly (larger batches, train.compile)",
            timed=True,
        )  # fmt: skip
