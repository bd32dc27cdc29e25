"""W&B and MLflow, offline for real: what a run that was killed and resumed leaves there, read back."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from runner_core import BadInput, RunConfig
from runner_core.config import LogConfig
from runner_core.output.runfolder import RunFolder
from runner_core.output.sinks import Sinks
from runner_core.output.sinks.mlflow import mlflow_sink
from runner_core.output.sinks.tracker import BackgroundSink, Tracker
from runner_core.output.sinks.wandb import wandb_sink
from runner_core.plugins.settings import refuse_nonsense

SESSION = """
import os, signal, sys, time
from pathlib import Path
from types import SimpleNamespace
from runner_core import RunConfig
from runner_core.config import LogConfig
from runner_core.plugins.defaults import runner_sinks
from runner_core.output.runfolder import RunFolder
from runner_core.output.sinks import Sinks

folder, service, kill = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "kill"
log = LogConfig(wandb="offline") if service == "wandb" else LogConfig(mlflow=str(folder.parent / "mlruns"))
made = runner_sinks(SimpleNamespace(name="toy"), RunConfig(log=log), folder)
assert not {"wandb", "mlflow"} & set(sys.modules), "imported before it is needed"
sinks = Sinks(made)
if kill:
    sinks.event("start", 0, {"steps": 8})
else:  # as a resumed run does
    RunFolder(folder).truncate_log(4, 4)
for step in range(1, 7) if kill else range(5, 9):
    sinks.event("train", step, {"epoch": 0, "loss": 1000 + step, "timing": {"samples_per_second": 7.0}})
    if step in (4, 8):
        sinks.event("validation", step, {"epoch": 0, "dice": step / 10, "best": True})
        sinks.event("watch", step, {"epoch": 0, "arrays": {"edges": [[1.5, 2.5]], "count": 3}})
        sinks.event("checkpoint", step, {"epoch": 0, "best": True, "validated": step})
if kill:
    file = folder / f"tracker-{service}.json"
    while '"train": 6' not in (file.read_text() if file.exists() else ""):
        time.sleep(0.02)
    while service == "wandb" and not any(b"1005" in f.read_bytes() for f in folder.rglob("*.wandb")):
        time.sleep(0.02)  # it writes once a second; the last step waits for the next
    os.kill(os.getpid(), signal.SIGKILL)
sinks.event("health", 8, {"epoch": 0, "rule": "loss", "level": "warning", "message": "odd"})
sinks.event("end", 8, {"epoch": 0, "status": "done"})
RunFolder(folder).write_summary({"status": "done", "metrics": {"dice": 0.8}, "versions": {"numpy": "2"}})
sinks.figure("case", 8, folder / "case.png")
sinks.close()
"""


@pytest.fixture(params=["wandb", "mlflow"])
def sessions(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """A service and the folder of a run that was killed after step 6 and resumed at step 4."""
    from runner_core.output.pictures import write_png

    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")  # for what is read here
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    pytest.importorskip(request.param)
    folder = tmp_path / "run-1"
    folder.mkdir()
    write_png(folder / "case.png", np.zeros((4, 5, 3), np.uint8))
    for way, code in (("kill", -9), ("resume", 0)):
        words = [sys.executable, "-c", SESSION, str(folder), request.param, way]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
        assert done.returncode == code, done.stderr
        assert not done.stdout + done.stderr, "trackers say nothing"
    return request.param, folder


def test_a_killed_and_resumed_run_is_one_run_with_every_step_once(sessions: tuple[str, Path]) -> None:
    service, folder = sessions
    found = from_wandb(folder) if service == "wandb" else from_mlflow(folder)
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    wanted = {
        f"{line['event']}/{name}": []  # type: ignore[var-annotated]
        for line in log
        if line["event"] in ("train", "validation")
        for name in {**line, **line.get("timing", {})}
        if name not in ("event", "step", "epoch", "timing")
    }
    for line in log:
        for name, value in {**line, **line.get("timing", {})}.items():
            if f"{line['event']}/{name}" in wanted:
                wanted[f"{line['event']}/{name}"].append((line["step"], pytest.approx(float(value))))
    if service == "wandb":  # its last row is lost by a kill -9
        wanted = {name: [p for p in points if p[0] != 6] for name, points in wanted.items()}
    assert found["curves"] == wanted
    assert len(wanted["train/loss"]) >= 7
    assert float(found["settings"]["train.learning_rate"]) == 0.001
    assert found["health"] == "warning at step 8: odd"
    assert float(found["summary"]) == 0.8
    assert found["picture"] == (folder / "case.png").read_bytes()
    assert found["finished"]


def from_mlflow(folder: Path) -> dict[str, Any]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=(folder.parent / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("toy")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "run-1"
    names = run.data.metrics
    return {
        "curves": {n: [(p.step, p.value) for p in client.get_metric_history(run.info.run_id, n)] for n in names},
        "settings": run.data.params,
        "health": run.data.tags["health.loss"],
        "summary": run.data.tags["summary.metrics.dice"],
        "picture": Path(client.download_artifacts(run.info.run_id, "figures/case.png")).read_bytes(),
        "finished": run.info.status == "FINISHED",
    }


def from_wandb(folder: Path) -> dict[str, Any]:
    """Both sessions' files; `wandb sync` would join them, for they are of one id."""
    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2
    assert len({file.name for file in files}) == 1
    curves: dict[str, list[Any]] = {}
    settings: dict[str, str] = {}
    summary: dict[str, str] = {}
    for record in (record for file in files for record in wandb_records(file)):
        if kind := record.WhichOneof("record_type"):
            part = getattr(record, kind)
        if kind == "history":
            row = {item.key or "/".join(item.nested_key): item.value_json for item in part.item}
            for name, value in row.items():
                if name.startswith(("train/", "validation/")):
                    curves.setdefault(name, []).append((int(row["_step"]), float(value)))
        elif kind == "run":
            settings |= {item.key: item.value_json for item in part.config.update}
            assert not part.host
        elif kind == "summary":
            summary |= {item.key or "/".join(item.nested_key): item.value_json for item in part.update}
        elif kind == "exit":
            code = part.exit_code
    (picture,) = folder.glob("wandb/offline-run-*/files/media/images/figures/case*.png")
    return {
        "curves": curves,
        "settings": settings,
        "health": json.loads(summary["health/loss"]),
        "summary": summary["metrics.dice"],
        "picture": picture.read_bytes(),
        "finished": code == 0,
    }


def wandb_records(path: Path) -> Iterator[Any]:
    """Records of a .wandb file: LevelDB's log format (blocks of 32 kB) after a header of 7 bytes, in W&B's own
    messages."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, message = path.read_bytes(), 7, b""
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        _, length, kind = struct.unpack("<IHB", data[position : position + 7]) if left >= 7 else (0, 0, 0)
        if kind == 0:  # the block's rest is empty
            position += left
            continue
        message = (b"" if kind in (1, 2) else message) + data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            yield Record.FromString(message)


class Slow:
    """A service that hangs until it is let go."""

    def __init__(self, let_go: Event) -> None:
        self._let_go = let_go

    def event(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        self._let_go.wait()

    def figure(self, name: str, step: int, png: Path) -> None: ...

    def close(self) -> None: ...


def test_a_service_that_hangs_holds_nothing_up() -> None:
    said: list[str] = []
    let_go = Event()
    sinks = Sinks([BackgroundSink("slow", lambda: Slow(let_go), seconds=0.1)], said.append)
    for step in range(1000):  # if one waited, it would wait for ever
        sinks.event("train", step, {"loss": 1.0})
    sinks.close()
    let_go.set()
    assert len(said) == 1
    assert "slow failed" in said[0]
    assert "within 0.1 s" in said[0]


def test_a_service_that_cannot_be_reached_is_told_once() -> None:
    def connect() -> Any:
        raise ConnectionError("no route")

    said: list[str] = []
    sinks = Sinks([BackgroundSink("gone", connect)], said.append)
    sinks.event("train", 1, {})
    sinks.close()
    sinks.event("train", 2, {})
    assert said == ["warning: the tracker gone failed and is switched off for this run: ConnectionError: no route"]


class Fake:
    """A service that keeps what it is told."""

    def __init__(self, run_id: str | None) -> None:
        self.id, self.told = run_id or "new", [f"connect {run_id}"]

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.told.append(f"scalars {step}")

    def finding(self, step: int, level: str, rule: str, message: str) -> None:
        self.told.append(f"finding {step}")

    def image(self, name: str, step: int, png: Path) -> None:
        self.told.append(f"image {step}")

    def finish(self, status: str, summary: Mapping[str, Any]) -> None:
        self.told.append(f"finish {status} {dict(summary)}")


@pytest.mark.parametrize("status", ["done", "stopped", "unhealthy", None])
def test_how_a_run_ended_is_told(status: str | None, tmp_path: Path) -> None:
    made: list[Fake] = []

    def connect(run_id: str | None) -> Fake:
        made.append(Fake(run_id))
        return made[-1]

    tracker = Tracker("fake", tmp_path, connect)
    tracker.event("train", 1, {"loss": 1.0})
    if status:
        tracker.event("end", 2, {"epoch": 0, "status": status})
        RunFolder(tmp_path).write_summary({"steps": 2, "scores": {"dice": 0.5, "none": None}, "versions": {"a": "1"}})
    tracker.close()
    summary = {"steps": 2, "scores.dice": 0.5} if status else {}
    assert made[0].told == ["connect None", "scalars 1", f"finish {status or 'failed'} {summary}"]
    again = Tracker("fake", tmp_path, connect)
    again.event("train", 1, {"loss": 2.0})
    again.event("train", 2, {"loss": 2.0})
    losses = {"gradient_norm": {"dice": 1.0}}
    again.event("losses", 2, losses)
    again.event("losses", 2, losses)
    assert made[1].told == ["connect new", "scalars 2", "scalars 2"]


def test_a_service_that_ends_its_thread_is_told_too() -> None:
    said: list[str] = []
    sinks = Sinks([BackgroundSink("rude", sys.exit)], said.append)
    sinks.event("train", 1, {})
    sinks.close()
    assert said == [
        "warning: the tracker rude failed and is switched off for this run: RuntimeError: it ended with SystemExit: "
    ]


def test_a_run_without_any_event_touches_no_service() -> None:
    connected: list[Any] = []
    sink = BackgroundSink("never", lambda: connected.append(1) or Slow(Event()))  # type: ignore[func-returns-value]
    sink.close()
    assert not connected


def test_what_is_missing_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Toy:
        name = "toy"

    toy: Any = Toy()
    for name, make in (("wandb", wandb_sink), ("mlflow", mlflow_sink)):
        monkeypatch.setattr(f"runner_core.output.sinks.{name}.find_spec", lambda _: None)
        with pytest.raises(BadInput, match=rf"`uv pip install .{name}.*>="):
            make(toy, RunConfig(log=LogConfig(wandb="offline", mlflow="runs")), tmp_path)


@pytest.mark.parametrize("secret", ["me:hunter2", "hunter2", ":hunter2"])
def test_a_password_in_an_address_is_refused(secret: str) -> None:
    with pytest.raises(BadInput, match="MLFLOW_TRACKING_PASSWORD") as error:
        refuse_nonsense(RunConfig(log=LogConfig(mlflow=f"https://{secret}@example.org")))
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("listens, how", [(True, "does not answer"), (False, "cannot be reached")])
def test_a_server_that_is_not_there_is_told_in_a_line(
    listens: bool, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        if not listens:
            server.close()
        toy: Any = type("Toy", (), {"name": "toy"})
        sinks = Sinks([mlflow_sink(toy, RunConfig(log=LogConfig(mlflow=address)), tmp_path)], said.append)
        sinks.event("start", 0, {})
        sinks.close()
    told = "warning: the tracker mlflow failed and is switched off for this run: ConnectionError"
    assert said == [f"{told}: {address} {how}"]
