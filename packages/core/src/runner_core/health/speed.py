"""Rules about slow data and idle GPUs. Their findings follow from the clock: another run may lack them."""

from __future__ import annotations

from abc import ABC, abstractmethod

from runner_core.contract import Finding, HealthEvent


class _Standstill(ABC):
    """Warn, once for as long as it lasts, if a share of the time stays beyond its limit for long enough.

    The share is a fact of log lines, and must be beyond the limit in `LINES` lines in a row. The first line does not
    count: workers start, files are opened.
    """

    name: str
    fact: str
    LINES = 3

    def __init__(self) -> None:
        self._seen_first = self._reported = False
        self._lines, self._seconds, self._part = 0, 0.0, 0.0

    @abstractmethod
    def beyond(self, share: float) -> bool: ...

    @abstractmethod
    def long_enough(self, seconds: float, part: float) -> bool:
        """Return whether `seconds` suffice; `part` is the share of them that the fact measures, in seconds."""

    @abstractmethod
    def message(self, share: str, seconds: str) -> str: ...

    def observe(self, event: HealthEvent) -> Finding | None:
        share = event.facts.get(self.fact)
        if event.moment != "log" or share is None:
            return None
        if not (self._seen_first and self.beyond(share)):
            self._seen_first, self._reported = True, self._reported and self.beyond(share)
            self._lines, self._seconds, self._part = 0, 0.0, 0.0
            return None
        seconds = event.facts["seconds"]
        self._lines, self._seconds, self._part = self._lines + 1, self._seconds + seconds, self._part + share * seconds
        if self._reported or self._lines < self.LINES or not self.long_enough(self._seconds, self._part):
            return None
        self._reported = True
        message = self.message(f"{self._part / self._seconds:.0%}", f"{self._seconds:.0f} s")
        return Finding(self.name, "warning", message, timed=True)


class Starved(_Standstill):
    """Warn if training waits for its data: more than `SHARE` of the time, for `SECONDS` seconds of waiting.

    Facts used: `data_wait_share` and `seconds` of log lines.
    """

    name, fact = "data starved", "data_wait_share"
    SHARE, SECONDS = 0.5, 5.0

    def beyond(self, share: float) -> bool:
        return share > self.SHARE

    def long_enough(self, seconds: float, part: float) -> bool:
        return part >= self.SECONDS

    def message(self, share: str, seconds: str) -> str:
        return (
            f"{share} of the time of the last {seconds} training waited for data. `profile` shows what takes so long; "
            "train.workers and train.prefetch prepare batches ahead, and `tune` tries"
        )


class Idle(_Standstill):
    """Warn if the GPU is idle most of the time: busy for less than `BUSY` of it, for `SECONDS` seconds.

    Facts used: `gpu_busy` (0…1, while training) and `seconds` of log lines.
    """

    name, fact = "GPU idle", "gpu_busy"
    BUSY, SECONDS = 0.3, 20.0

    def beyond(self, share: float) -> bool:
        return share < self.BUSY

    def long_enough(self, seconds: float, part: float) -> bool:
        return seconds >= self.SECONDS

    def message(self, share: str, seconds: str) -> str:
        return (
            f"the GPU was busy for {share} of the last {seconds}. `profile` says what it waits for: data, or a "
            "processor that starts its work too slowly (larger batches, train.compile)"
        )
