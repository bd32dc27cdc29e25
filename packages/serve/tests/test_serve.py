"""`serve`: a real server in a process of its own, and clients that mean well or not."""

from __future__ import annotations

import io
import json
import socket
import stat
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import fields
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil
import pytest
import runner_core
from real_server import Server, npy, serving
from runner_core import BadInput
from runner_core.cli.options import PredictOptions
from runner_serve import archives
from runner_serve.app import Refused, ending
from runner_serve.command import Flags
from served_toy import DIE, FAIL, HANG, HOLD


def wait_for(there: Callable[[], Any], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


@pytest.fixture
def held(environment: dict[str, str]) -> Iterator[Path]:
    """The folder in which a prediction that is held says so, and waits for `go`."""
    folder = Path(environment["SERVED_FOLDER"])
    yield folder
    for name in ("held", "go"):
        (folder / name).unlink(missing_ok=True)


def zipped(members: Sequence[tuple[str | zipfile.ZipInfo, bytes]]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


# ---------------------------------------------------------------- what it answers


def test_the_answer_is_what_predict_writes(
    server: Server, run: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "input.npy").write_bytes(npy())
    command = [str(Path(sys.executable).with_name("runner")), "toy", "predict", str(run), "input.npy", "--out", "out"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    written = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    assert sorted(written) == ["input.json", "input.npy"]
    one = server.post(npy(), "x.npy?only=.npy")
    assert (one.status, one.body) == (200, written["input.npy"])
    assert 'filename="input.npy"' in one.headers["content-disposition"]
    both = server.post(npy(), "another name.npy".replace(" ", "%20"))
    with zipfile.ZipFile(io.BytesIO(both.body)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == written
    assert both.headers["x-runner-area"] == str(json.loads(written["input.json"])["Area"])
    assert both.body == server.post(npy()).body, "the same bytes each time"
    inside = server.post(zipped([("patient/seven.npy", npy())]), "p.zip?only=.npy")
    assert inside.body == written["input.npy"]
    assert 'filename="seven.npy"' in inside.headers["content-disposition"]


def test_it_says_what_it_is(server: Server) -> None:
    said = json.loads(server.ask("GET", "/").body)
    assert (said["project"], said["limits"]["megabytes"], said["limits"]["waiting"]) == ("toy", 0.05, 1)
    assert said["weights"].startswith("step-")
    assert "error" in said["scores"]
    health = server.ask("GET", "/health")
    assert (health.status, json.loads(health.body)["ready"]) == (200, True)


# ---------------------------------------------------------------- who sends what


@pytest.mark.parametrize("name", ["../../x.npy", "..%2f..%2fx.npy", "%2fetc%2fpasswd.npy", "a%00b.npy"])
def test_a_name_is_no_path(server: Server, name: str) -> None:
    answer = server.post(npy(), f"{name}?only=.json")
    assert (answer.status, json.loads(answer.body)["Record"]) == (200, "input")


@pytest.mark.parametrize(
    ("name", "body", "status", "says"),
    [
        ("a", npy(), 415, "its ending says what it is"),
        ("a.xyz", npy(), 422, "input.xyz: no .npy file\n"),
        ("a.csv", b"image\n/etc/passwd\n", 422, "tables and texts name other files"),
        ("a.CSV.gz", b"image\n/etc/passwd\n", 422, "tables and texts name other files"),
        ("a.npy", npy()[:100], 422, "input.npy: damaged\n"),
        ("a.npy", b"", 400, "no body"),
        ("a.npy?only=.nii", npy(), 422, "no file ends with '.nii'; there are "),
        ("a.zip", b"PK\3\4" + bytes(100), 422, "the archive is damaged"),
        ("a.zip", zipped([("a.npy", npy()), ("b.npy", npy())]), 422, "has 2 records (a, b)"),
        ("a.zip", zipped([("../a.npy", npy())]), 422, "a name that is not taken: '../a.npy'\n"),
        ("a.zip", zipped([("a.npy", bytes(10**7))]), 422, "more than this server takes"),
        ("a.zip", zipped([("where.list", b"/elsewhere/a.npy")]), 422, "names a file that is not in it"),
    ],
)
def test_bad_uploads_are_refused_in_one_line(server: Server, name: str, body: bytes, status: int, says: str) -> None:
    worker = server.worker()
    answer = server.post(body, name)
    assert answer.status == status
    assert says in answer.text
    assert answer.text.count("\n") == 1
    assert str(server.folder) not in answer.text
    assert server.worker() == worker, "the process of the network lives on"


def test_too_large(server: Server) -> None:
    most = 50_000
    told = server.ask("POST", "/predict/a.npy", None, Content_Length=str(most + 1))  # the body is not waited for
    assert told.status == 413
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(b"POST /predict/a.npy HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(2):
            client.sendall(b"7530\r\n" + bytes(30_000) + b"\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 413 ")
    assert server.post(npy()).status == 200


def test_web_pages_and_other_hosts_are_refused(server: Server) -> None:
    assert server.post(npy(), Origin="http://localhost").status == 403
    assert server.post(npy(), Host="rebound.example").status == 403
    assert server.ask("GET", "/", Host="rebound.example").status == 403


# ---------------------------------------------------------------- several clients, and failures


def test_clients_wait_for_one_another_until_too_many_do(server: Server, held: Path) -> None:
    with ThreadPoolExecutor(2) as clients:
        first = clients.submit(server.post, npy(HOLD))
        wait_for((held / "held").exists)
        second = clients.submit(server.post, npy())
        wait_for(lambda: json.loads(server.ask("GET", "/health").body)["requests"] == 2)
        third = server.post(npy())
        assert (third.status, int(third.headers["retry-after"]) >= 1) == (503, True)
        (held / "go").touch()
        assert [first.result().status, second.result().status] == [200, 200]
    assert server.post(npy()).status == 200


@pytest.mark.parametrize("how", ["killed from outside", DIE])
def test_a_dead_process_is_replaced(server: Server, held: Path, how: float | str) -> None:
    before = server.worker()
    if how == DIE:
        answer = server.post(npy(DIE))
    else:
        with ThreadPoolExecutor(1) as clients:
            asked = clients.submit(server.post, npy(HOLD))
            wait_for((held / "held").exists)
            before.kill()
            answer = asked.result()
    assert (answer.status, "ended" in answer.text) == (500, True)
    wait_for(lambda: server.ask("GET", "/health").status == 200)  # nobody has to ask for a prediction first
    assert server.worker() != before
    assert server.post(npy()).status == 200


def test_who_leaves_the_queue_is_forgotten(server: Server, held: Path) -> None:
    with ThreadPoolExecutor(1) as clients:
        first = clients.submit(server.post, npy(HOLD))
        wait_for((held / "held").exists)
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
            body = npy(DIE)
            head = f"POST /predict/a.npy HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)
            wait_for(lambda: json.loads(server.ask("GET", "/health").body)["requests"] == 2)
        before = server.worker()
        (held / "go").touch()
        assert first.result().status == 200
    wait_for(lambda: json.loads(server.ask("GET", "/health").body)["requests"] == 0)
    assert server.worker() == before, "what it sent would have killed the process"


@pytest.mark.slow
def test_a_prediction_that_goes_on_does_not_keep_the_server(
    run: Path, environment: dict[str, str], tmp_path: Path, held: Path
) -> None:
    with serving(run, environment, tmp_path) as server, ThreadPoolExecutor(1) as clients:
        asked = clients.submit(server.post, npy(HOLD))
        wait_for((held / "held").exists)
        worker = server.worker()
        server.process.terminate()
        assert server.process.wait(timeout=100) == 0
        assert not worker.is_running()
        assert list(server.folder.glob("runner-*")) == []
        with suppress(OSError, HTTPException):
            assert asked.result().status == 500


def test_a_mistake_in_the_project_is_not_told_to_the_client(server: Server) -> None:
    answer = server.post(npy(FAIL))
    assert (answer.status, answer.text) == (500, "unexpected ZeroDivisionError; the server's own output says more\n")
    assert "a mistake in the project" in server.log.read_text()
    assert server.post(npy()).status == 200


def test_time_limits_a_token_and_the_death_of_the_server(
    run: Path, environment: dict[str, str], tmp_path: Path, held: Path
) -> None:
    token = "0123456789abcdef0123"
    with serving(run, environment, tmp_path, "--timeout-seconds", "3", RUNNER_SERVE_TOKEN=token) as server:
        bearer = f"Bearer {token}"
        assert server.post(npy()).status == server.post(npy(), Authorization="Bearer x").status == 401
        assert server.ask("GET", "/").status == 401
        assert server.post(npy(), Authorization=bearer, Host="any.name").status == 200
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:  # sends no more than this
            head = f"POST /predict/a.npy HTTP/1.1\r\nHost: x\r\nAuthorization: {bearer}\r\nContent-Length: 1000\r\n\r\n"
            client.sendall(head.encode() + b"abc")
            assert client.recv(100).startswith(b"HTTP/1.1 408 ")
        before = server.worker()
        hung = server.post(npy(HANG), Authorization=bearer)
        assert (hung.status, "longer than 3 s" in hung.text, before.is_running()) == (504, True, False)
        assert server.post(npy(), Authorization=bearer).status == 200, "another process has taken its place"
        wait_for(lambda: not [*server.folder.glob("runner-serve-*/*")])
        worker = server.worker()
        with ThreadPoolExecutor(1) as clients:
            asked = clients.submit(server.post, npy(HOLD), Authorization=bearer)
            wait_for((held / "held").exists)
            assert [*server.folder.glob("runner-serve-*/*/input.npy")]
            server.process.kill()
            with pytest.raises(OSError):
                asked.result()
        psutil.wait_procs([worker], timeout=60)
        assert not worker.is_running(), "it does not outlive its server"
        assert list(server.folder.glob("runner-*")) == [], "and leaves no upload behind"


# ---------------------------------------------------------------- the command line


@pytest.mark.parametrize(
    ("words", "token", "says"),
    [
        (["--host", "0.0.0.0"], None, "set RUNNER_SERVE_TOKEN"),
        ([], "short", "at least 16"),
        (["--port", "70000"], None, "--port 70000"),
        (["--timeout-seconds", "nan"], None, "--timeout-seconds nan"),
        (["--port", "{taken}"], None, "Address already in use"),
    ],
)
def test_what_is_refused_at_the_start(
    run: Path, environment: dict[str, str], words: list[str], token: str | None, says: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for place in reversed(environment["PYTHONPATH"].split(":")):
        monkeypatch.syspath_prepend(place)
    if token is None:
        monkeypatch.delenv("RUNNER_SERVE_TOKEN", raising=False)
    else:
        monkeypatch.setenv("RUNNER_SERVE_TOKEN", token)
    with socket.create_server(("127.0.0.1", 0)) as other:
        words = [word.format(taken=other.getsockname()[1]) for word in words]
        assert runner_core.main(["toy", "serve", str(run), *words]) == 2
    assert says in capsys.readouterr().err


def test_every_flag_of_predict_holds_here_or_is_hidden() -> None:
    of_the_run = {"run", "weights", "with_", "config", "extension", "no_extension", "debug"}
    own = {field.name for field in fields(PredictOptions)} - of_the_run
    assert own <= {field.name for field in fields(Flags) if "Suppress" in str(field.type)}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("scan.nii.gz", ".nii.gz"), ("A.B.NII.GZ", ".nii.gz"), ("x.ome.tif", ".ome.tif"), ("my.scan.tif", ".tif"),
        ("a/../b.npy", ".npy"), ("x.0", ".0"), ("a", None), ("a.", None), ("a./b", None), ("a.b c", None),
        ("a." + 9 * "x", None), ("..", None), ("", None), ("a.tif\n", None),
    ],
)  # fmt: skip
def test_ending(name: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(Refused):
            ending(name)
    else:
        assert ending(name) == expected


# ---------------------------------------------------------------- archives


def link(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


@pytest.mark.parametrize(
    "members",
    [
        [("/etc/a", b"")], [("a/../../b", b"")], [("a//b", b"")], [("./a", b"")], [("a\\b", b"")], [("a\nb", b"")],
        [(201 * "a", b"")], [("/".join(40 * "a"), b"")], [(link("a"), b"/etc/passwd")],
        [(link("a"), b"/tmp"), ("a/b", b"x")], [("a", b"1"), ("a", b"2")], [("a", b"1"), ("a/b", b"2")],
        [("a", bytes(1001))], [("a", bytes(600)), ("b", bytes(600))],
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_hostile_archives(tmp_path: Path, members: list[tuple[str | zipfile.ZipInfo, bytes]]) -> None:
    archive, folder = tmp_path / "a.zip", tmp_path / "in" / "side"
    folder.parent.mkdir()
    archive.write_bytes(zipped(members))
    with pytest.raises(BadInput):
        archives.unpack(archive, folder, 1000)
    assert [path for path in tmp_path.iterdir() if path.name not in ("a.zip", "in")] == []
    assert [path.name for path in folder.parent.iterdir()] == ["side"]


def test_an_archive_whose_header_lies(tmp_path: Path) -> None:
    """It says 10 bytes and holds a million."""
    whole = zipped([("a", bytes(10**6))])
    archive = tmp_path / "a.zip"
    archive.write_bytes(whole.replace((10**6).to_bytes(4, "little"), (10).to_bytes(4, "little")))
    with pytest.raises(BadInput):
        archives.unpack(archive, tmp_path / "out", 1000)
    assert sum(file.stat().st_size for file in (tmp_path / "out").iterdir()) <= 1000


def test_damage_anywhere_in_an_archive_is_bad_input(tmp_path: Path) -> None:
    whole = zipped([("a/b.npy", npy()), ("c", b"text")])
    for at in range(0, len(whole), 7):
        archive = tmp_path / f"{at}.zip"
        archive.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            archives.unpack(archive, tmp_path / f"out{at}", 100_000)
        except BadInput:
            continue


def test_packing_gives_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "x.zarr" / "0").mkdir(parents=True)
    for name in ("x.zarr/.zarray", "x.zarr/0/1", "y.csv"):
        (tmp_path / name).write_text(name)
    files = [tmp_path / "x.zarr", tmp_path / "y.csv"]
    archives.pack(files, tmp_path, tmp_path / "1.zip")
    for file in tmp_path.rglob("*"):
        file.touch()
    archives.pack(files, tmp_path, tmp_path / "2.zip")
    assert (tmp_path / "1.zip").read_bytes() == (tmp_path / "2.zip").read_bytes()
    archives.unpack(tmp_path / "1.zip", tmp_path / "again", 1000)
    assert sorted(p.read_text() for p in (tmp_path / "again").rglob("*") if p.is_file()) == [
        "x.zarr/.zarray", "x.zarr/0/1", "y.csv",
    ]  # fmt: skip
