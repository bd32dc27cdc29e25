"""`runner watch`: it follows logs as they grow, answers only who knows the token, and serves no file."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runner_core.base.errors import BadInput
from runner_core.cli import main
from runner_core.cli import watch as command
from runner_core.output.progress import note_start, read_starts
from runner_core.output.runfolder import RunFolder
from runner_core.tools.watch import Followed, Watch

ABOUT = {"project": "toy", "preset": "demo", "command": "runner toy train", "monitor": ["dice", "max"]}


def lines(last: int) -> bytes:
    events: list[dict[str, Any]] = [{"event": "start", "step": 0, "steps": 100}]
    for step in range(1, last + 1):
        timing = {"seconds": 2.0, "samples_per_second": 12.0}
        events.append({"event": "train", "step": step, "epoch": 0, "loss": 1 / step, "timing": timing})
    events.append({"event": "validation", "step": last, "epoch": 1, "loss": 0.5, "dice": 0.75, "best": True})
    return "".join(json.dumps(event, ensure_ascii=False) + "\n" for event in events).encode()


def new_run(path: Path, last: int = 5) -> RunFolder:
    run = RunFolder.create(None, "toy", path)
    run.config_file.write_text("project: toy\n", encoding="utf-8")
    run.jsonl.write_bytes(lines(last))
    note_start(run, ABOUT)
    return run


@given(cuts=st.lists(st.integers(0, len(lines(6))), max_size=6).map(sorted))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_log_that_grows_byte_by_byte_is_read_like_a_whole_one(tmp_path: Path, cuts: list[int]) -> None:
    whole, path = lines(6), tmp_path / "grows"
    path.mkdir(exist_ok=True)
    grows = Followed(path)
    for end in [*cuts, len(whole)]:
        (path / "log.jsonl").write_bytes(whole[:end])
        grows.update()
    assert grows.curves["loss"]["train"] == [(float(step), 1 / step) for step in range(1, 7)]
    assert grows.curves["loss"]["validation"] == [(6.0, 0.5)]
    assert (grows.progress.step, grows.progress.steps, grows.progress.summary["metrics"]["dice"]) == (6, 100, 0.75)


def test_a_resumed_run_starts_its_log_anew(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run", 50)
    followed = Followed(run.path)
    followed.update()
    assert followed.progress.step == 50
    run.truncate_log(20)
    with run.jsonl.open("ab") as file:
        file.write(b'{"event": "train", "step": 21, "loss": 3.0}\nno json\n{"event": "train", "step": "x"}\n')
    followed.update()
    assert followed.progress.step == 21
    assert followed.curves["loss"]["train"][-2:] == [(20.0, 1 / 20), (21.0, 3.0)]


def test_new_runs_appear_and_damaged_ones_say_so(tmp_path: Path) -> None:
    new_run(tmp_path / "runs/toy/<b>first")
    watch = Watch([tmp_path / "runs"])
    page = watch.page()
    for part in (
        "&lt;b&gt;first",
        "status running",
        "step 5 of 100",
        "best dice ↑ 0.75",
        "about 3:10 of training left",
    ):
        assert part in page, part
    assert "toy / second" not in page
    new_run(tmp_path / "runs/toy/second").summary_file.write_text("{torn")
    watch._looked = 0.0
    page = watch.page()
    assert "toy / second" in page
    assert "is damaged" in page
    assert "runner toy train" in (watch.report(0) or "")
    assert watch.report(2) is None


def test_a_card_says_what_is_wrong_and_what_is_left(tmp_path: Path) -> None:
    run = new_run(tmp_path / "runs/one", last=1)
    found = {"level": "warning", "rule": "dead", "message": "3 layers <get> no gradient"}
    with run.jsonl.open("a", encoding="utf-8") as log:
        log.writelines(json.dumps({"event": "health", "step": step, **found}) + "\n" for step in (1, 2))
    watch = Watch([tmp_path / "runs"])
    page = watch.page()
    assert re.search(r"about 3[^·<]* of training left", page)
    assert page.count("3 layers &lt;get&gt; no gradient") == 1
    assert "no gradient (step 2)" in page
    summary = {"status": "unhealthy", "reason": "loss is NaN since step 1", "starts": read_starts(run)}
    run.write_summary({**ABOUT, **summary})
    assert "loss is NaN since step 1" in watch.page()


@pytest.mark.torch
def test_a_run_that_was_killed_before_its_first_step_is_interrupted(launch: Any, here: Path) -> None:
    """It prepares a large phantom when it is killed: its log does not exist yet."""
    run = RunFolder(here / "run")
    process = launch("toy", "train", "--run-dir", run.path, "--train.batch-size", "4")
    while not run.starts_file.exists():
        assert process.poll() is None, (here / "out").read_text(encoding="utf-8")
        time.sleep(0.005)
    process.kill()
    process.wait()
    if run.jsonl.exists():
        run.jsonl.unlink()  # this machine was quick
    page = Watch([run.path]).page()
    assert "status interrupted" in page
    assert "The process of this run is gone" in page


def test_a_damaged_run_is_the_fault_of_its_own_card(tmp_path: Path) -> None:
    def damage(name: str, **files: str) -> None:
        run = new_run(tmp_path / "runs/toy" / name)
        for file, text in files.items():
            (run.path / file.replace("_", ".")).write_text(text, encoding="utf-8")

    new_run(tmp_path / "runs/toy/whole", 7)
    start, train = '{"event": "start", "step": 0, "steps": 9}', '{"event": "train", "step": %s, "loss": %s}'
    damage("steps", log_jsonl=start.replace("9", '"100"'))
    damage("starts", summary_json='{"status": "done", "starts": 3}')
    damage("best", summary_json='{"status": "done", "starts": [0, 1], "metrics": {"dice": []}, "best_step": [1]}')
    damage("infinite", log_jsonl="\n".join([start, train % (1, "Infinity"), train % (2, 1)]))
    damage("large", log_jsonl="\n".join([start, train % (1, 10**400), train % (10**400, 1)]))
    for name in ("log.jsonl", "starts.jsonl", "summary.json"):
        pipe = new_run(tmp_path / f"runs/toy/{name}").path / name
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe)
    watch = Watch([tmp_path / "runs"])
    page = watch.page()
    assert "step 7 of 100" in page
    assert page.count("a named pipe (FIFO)") == 3
    assert "starts/summary.json is damaged" in page
    for number in range(9):
        with suppress(BadInput):  # its answer names the fault
            watch.report(number)


def test_a_fault_while_a_run_is_shown_is_said_in_its_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_run(tmp_path / "runs/toy/good", 7)
    new_run(tmp_path / "runs/toy/bad", 6)

    def numbers(run: Followed, state: Any) -> Iterator[str]:
        yield {"good": "all well"}[run.folder.path.name]

    monkeypatch.setattr("runner_core.tools.watch._numbers", numbers)
    page = Watch([tmp_path / "runs"]).page()
    assert "all well" in page
    assert "bad: its files hold what the runner does not write (KeyError" in page


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_cannot_be_watched(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new_run(here / "run")
    (here / "empty").mkdir()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for words, message in (
            ([], "there is no folder runs here"),
            (["gone"], "gone: there is no such folder"),
            (["empty"], "empty is not a run folder of runner, and there is none in it"),
            (["run", "--port", "70000"], "a port lies from 0 to 65535"),
            (["run", "--port", port], f"port {port} of 127.0.0.1 cannot be used: Address already in use"),
        ):
            assert main(["watch", *words]) == 2, words
            assert message in capsys.readouterr().err


@pytest.fixture
def process(here: Path) -> Iterator[subprocess.Popen[str]]:
    new_run(here / "runs/toy/a")
    words = [sys.executable, "-c", "from runner_core.cli import main; raise SystemExit(main())", "watch", "--port", "0"]
    with subprocess.Popen(words, cwd=here, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def test_the_page_is_for_those_who_know_the_token(process: subprocess.Popen[str], here: Path) -> None:
    assert process.stdout is not None
    address = process.stdout.readline().split("http://127.0.0.1:")[1]
    port, token = address.strip("/\n").split("/")

    def get(path: str, method: str = "GET") -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", int(port), timeout=20)
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    status, page = get(f"/{token}/")
    assert (status, "toy / a" in page) == (200, True)
    status, report = get(f"/{token}/run/0")
    assert (status, "status running" in report) == (200, True)
    assert get(f"/{token}/", "HEAD") == (200, "")
    for path in ("/", "/x/", f"/{token[:-1]}/", "/run/0", "//"):
        assert get(path)[0] == 403, path
    for path in ("run/1", "run/-1", "run/", "run/0/x", "../config.yaml", "run/..%2f", "runs/toy/a/config.yaml"):
        assert get(f"/{token}/{path}")[0] == 404, path
    for method in ("POST", "PUT", "DELETE"):
        assert get(f"/{token}/", method)[0] == 501
    assert "project: toy" not in get(f"/{token}/?../runs/toy/a/config.yaml")[1]
    before = sorted(path.name for path in (here / "runs/toy/a").iterdir())
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0
    assert sorted(path.name for path in (here / "runs/toy/a").iterdir()) == before, "it writes nothing"


def test_idle_connections_take_a_bounded_number_of_threads(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_run(here / "run")
    monkeypatch.setattr(command, "_THREADS", 2)
    server = command._server(Watch([here / "run"]), 0)
    Thread(target=server.serve_forever, daemon=True).start()
    address = server.server_address[:2]
    idle = [socket.create_connection(address) for _ in range(2)]
    try:
        with socket.create_connection(address, timeout=20) as third:
            assert third.recv(1) == b"", "it is closed at once"
    finally:
        for connection in idle:
            connection.close()
        server.shutdown()
        server.server_close()
