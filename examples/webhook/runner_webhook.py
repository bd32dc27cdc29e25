"""Tells a chat, or whatever listens at a web address, how a run fares: its start, what is wrong with it, its end.

RUNNER_WEBHOOK holds the address. It is no setting: such addresses are secrets, and settings are kept with the run.
Each message is posted as {"text": "…"}, which Slack, Mattermost, Discord (…/slack) and many others take.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Annotated, Any
from urllib.request import Request, urlopen

from runner_core import AtLeast, BackgroundSink, Finding, HealthEvent, MoreThan, Project, hookimpl


@dataclass
class Config:
    stalled_after: Annotated[int, AtLeast(1)] = 10
    """Validations without an improvement after which a warning is sent."""
    timeout: Annotated[float, MoreThan(0)] = 10.0
    """Seconds that one message may take."""


@hookimpl
def runner_sinks(project: Project, folder: Path, settings: Config) -> Sequence[BackgroundSink]:
    """None without an address. In the background: a server that is slow or gone must not hold the training up."""
    address = os.environ.get("RUNNER_WEBHOOK")
    run = f"{project.name} {folder.name}"
    return [BackgroundSink("webhook", lambda: Webhook(address, run, settings.timeout))] if address else []


@hookimpl
def runner_health(project: Project, settings: Config) -> Sequence[Stalled]:
    return [Stalled(*project.monitor, settings.stalled_after)]


class Webhook:
    """A sink: gets every event of the run and passes on those that somebody wants to be told of."""

    def __init__(self, address: str, run: str, timeout: float) -> None:
        self.address, self.run, self.timeout = address, run, timeout
        self.best: dict[str, Any] = {}

    def event(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        if kind == "start":
            self.post(f"started: {values['steps']} steps")
        elif kind == "validation" and values["best"]:
            self.best = {"step": step} | {k: v for k, v in values.items() if k not in ("best", "epoch", "timing")}
        elif kind == "health" and values["level"] != "note":
            self.post(f"{values['level']} at step {step}: {values['rule']}: {values['message']}")
        elif kind == "end":
            best = ", ".join(f"{k} {v:.4g}" for k, v in self.best.items())
            self.post(f"{values['status']} at step {step}; best: {best or 'nothing was validated'}")

    def figure(self, name: str, step: int, png: Path) -> None:
        pass

    def close(self) -> None:
        pass

    def post(self, text: str) -> None:
        body = json.dumps({"text": f"{self.run}: {text}"}).encode()
        try:
            with urlopen(Request(self.address, body, {"Content-Type": "application/json"}), timeout=self.timeout):
                pass  # an error status has raised
        except (ValueError, HTTPException):  # their texts hold the address, and what is said is kept with the run
            raise ValueError("RUNNER_WEBHOOK holds no address of the web") from None


class Stalled:
    """A health rule: the monitored metric has not become better for a while."""

    name = "stalled"

    def __init__(self, metric: str, direction: str, after: int) -> None:
        self.metric, self.sign, self.after = metric, 1 if direction == "max" else -1, after
        self.best, self.since = float("-inf"), 0

    def observe(self, event: HealthEvent) -> Finding | None:
        if event.moment != "validation" or self.metric not in event.facts:
            return None
        value = self.sign * event.facts[self.metric]
        self.since = 0 if value > self.best else self.since + 1
        self.best = max(self.best, value)
        if self.since != self.after:  # told once, until it gets better
            return None
        return Finding(self.name, "warning", f"{self.metric} has not become better in {self.since} validations")
