"""Logs to Weights & Biases: offline into the run folder, or online."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from runner_core.base.calling import adds_extra
from runner_core.base.errors import BadInput
from runner_core.config import RunConfig
from runner_core.config.values import flat
from runner_core.contract import Json, Sink
from runner_core.contract.project import Project
from runner_core.output.sinks.tracker import BackgroundSink, Tracker

_EXIT_CODES = {"done": 0, "unhealthy": 3, "stopped": 143, "failed": 1}


def wandb_sink(project: Project, config: RunConfig, folder: Path) -> Sink:
    """Return the sink. Raises BadInput if the package is missing, or the key that `online` needs."""
    if find_spec("wandb") is None:
        raise BadInput(f"log.wandb needs the package wandb: `{adds_extra('wandb')}`, or set log.wandb off")
    online = config.log.wandb == "online"
    if online and not _has_key():
        raise BadInput("log.wandb online needs an API key: run `wandb login` once, or set WANDB_API_KEY")
    tracker = Tracker("wandb", folder, lambda run_id: _Run(project, config, folder, run_id))
    return BackgroundSink("wandb", lambda: tracker)


def _has_key() -> bool:
    """Return whether there is a key, without asking the user or the server."""
    wandb = _wandb()
    wandb.setup(settings=wandb.Settings(silent=True))
    return bool(wandb.login(prompt=False, verify=False))


class _Run:
    def __init__(self, project: Project, config: RunConfig, folder: Path, run_id: str | None) -> None:
        wandb = self._wandb = _wandb()
        self._run = wandb.init(
            project=config.log.experiment or project.name,
            name=folder.absolute().name,
            id=run_id,
            resume="allow" if run_id else None,
            dir=str(folder),
            config=flat(config),
            mode=config.log.wandb,
            settings=_settings(wandb),
        )
        self.id = str(self._run.id)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def finding(self, step: int, level: str, rule: str, message: str) -> None:
        self._run.summary[f"health/{rule}"] = f"{level} at step {step}: {message}"

    def image(self, name: str, step: int, png: Path) -> None:
        self._run.log({f"figures/{name}": self._wandb.Image(str(png))}, commit=False)  # its step may be past

    def finish(self, status: str, summary: Mapping[str, Json]) -> None:
        self._run.summary.update({**summary, "status": status})
        self._run.finish(exit_code=_EXIT_CODES[status])


def _settings(wandb: Any) -> Any:
    """Return settings that only log the run.

    wandb prints, watches and collects nothing else, gives up on a server that hangs, and loses a second instead of 15
    after kill -9.
    """
    return wandb.Settings(
        silent=True,
        host="",
        console="off",
        disable_git=True,
        disable_code=True,
        save_code=False,
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_disable_stats=True,
        x_save_requirements=False,
        init_timeout=30,
        finish_timeout=20,
        x_transaction_log_flush_interval=1,
    )


def _wandb() -> Any:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # wandb reads it at import
    import wandb

    return wandb
