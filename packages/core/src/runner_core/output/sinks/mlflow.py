"""Logs to MLflow: into a folder, or to a tracking server."""

from __future__ import annotations

import os
import re
import time
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

_STATUS = {"done": "FINISHED", "unhealthy": "FAILED", "stopped": "KILLED", "failed": "FAILED"}
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",  # mlflow-skinny can write it without a server
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",  # else 120 s, and 7 times
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
}
"""Set unless the user has set them; MLflow has no other way to configure these."""
_LONGEST = 500
"""Length in characters of a parameter that every version of MLflow accepts."""


def mlflow_sink(project: Project, config: RunConfig, folder: Path) -> Sink:
    """Return the sink. Raises BadInput if the package is missing, or if the address holds a password or a token."""
    if find_spec("mlflow") is None:
        raise BadInput(f"log.mlflow needs the package mlflow: `{adds_extra('mlflow')}`, or leave log.mlflow out")
    address = _address(str(config.log.mlflow))

    def connect(run_id: str | None) -> _Run:
        try:
            return _Run(address, project, config, folder, run_id)
        except Exception as error:
            if "ConnectionPool(" not in str(error):
                raise
            how = (
                "does not answer" if "timed out" in str(error) else "cannot be reached"
            )  # urllib3's own text fills a page
            raise ConnectionError(f"{address} {how}") from error

    tracker = Tracker("mlflow", folder, connect)
    return BackgroundSink("mlflow", lambda: tracker)


class _Run:
    def __init__(self, address: str, project: Project, config: RunConfig, folder: Path, run_id: str | None) -> None:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        self._client: Any = MlflowClient(tracking_uri=address)
        if run_id is not None:
            self.id = run_id
            self._client.update_run(run_id, status="RUNNING")
            return
        name = config.log.experiment or project.name
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else self._client.create_experiment(name)
        run = self._client.create_run(number, run_name=folder.absolute().name)
        self.id = str(run.info.run_id)
        self._parameters(flat(config))

    def _parameters(self, values: Mapping[str, Json]) -> None:
        from mlflow.entities import Param

        params = [Param(name, str(value)[:_LONGEST]) for name, value in values.items()]
        for begin in range(0, len(params), 100):  # the most that one request may have
            self._client.log_batch(self.id, params=params[begin : begin + 100])

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self.id, metrics=[Metric(_key(k), v, now, step) for k, v in values.items()])

    def finding(self, step: int, level: str, rule: str, message: str) -> None:
        self._client.set_tag(self.id, _key(f"health.{rule}"), f"{level} at step {step}: {message}")

    def image(self, name: str, step: int, png: Path) -> None:
        self._client.log_artifact(self.id, str(png), "figures")

    def finish(self, status: str, summary: Mapping[str, Json]) -> None:
        from mlflow.entities import RunTag

        tags = [RunTag(_key(f"summary.{name}"), str(value)) for name, value in summary.items()]
        self._client.log_batch(self.id, tags=tags)
        self._client.set_terminated(self.id, status=_STATUS[status])


def _address(value: str) -> str:
    """Return a folder as a file: address, and any other address unchanged."""
    if "://" not in value:
        return Path(value).absolute().as_uri()
    return value


def _key(name: str) -> str:
    """Return `name` with an underscore for each character that MLflow refuses in names."""
    return re.sub(r"[^\w\-. /]", "_", name)
