"""The toy on an S3 server: train, check, evaluate, predict, faulty files, kill -9 and resume."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runner_core.cli import main
from runner_core.data.phantoms import write_phantom
from runner_core.output.runfolder import RunFolder

pytest.importorskip("obstore", reason="obstore is not installed (the extra runner-core[stream])")
pytest.importorskip("moto")
from s3server import S3

pytestmark = pytest.mark.torch

Launch = Callable[..., "subprocess.Popen[str]"]

URL = "s3://cells/toy"
SHORT = ["--train.epochs", "2", "--train.steps-per-epoch", "6", "--health.mode", "off", "--log.every", "4"]


@pytest.fixture
def phantom(toy: None, tmp_path: Path) -> Path:
    from toy_project import Toy, ToyConfig

    return write_phantom(Toy(ToyConfig()), tmp_path / "phantom")


@pytest.fixture
def s3(phantom: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """The phantom at URL, for everybody to read."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with S3() as server:
        for file in sorted(phantom.iterdir()):
            server.put("cells", f"toy/{file.name}", file.read_bytes())
        yield server


def at(s3: S3, *words: str) -> list[str]:
    return [*words, "--remote.endpoint", s3.endpoint, "--remote.retries", "1"]


def summary(run: Path) -> Any:
    return json.loads((run / "summary.json").read_text(encoding="utf-8"))


def log(run: Path) -> list[dict[str, Any]]:
    """Without what may differ between equal runs."""
    events = [event for event in RunFolder(run).events() if event["event"] != "speed"]
    return [{name: value for name, value in event.items() if name != "timing"} for event in events]


def weights(run: Path) -> list[bytes]:
    """Return the files of every kept checkpoint: network, optimizer and generators."""
    return [file.read_bytes() for file in sorted((run / "checkpoints").glob("step-*/*.safetensors"))]


def test_a_run_from_s3_is_the_run_from_the_folder(
    here: Path, s3: S3, phantom: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bit for bit, where all records find room in the cache; then its scores, predictions and report."""
    assert main([*at(s3, "toy", "train", "--data", URL), *SHORT, "--run-dir", "run"]) == 0
    said = capsys.readouterr().out
    assert "cache (stream)" in said
    assert main(["toy", "train", "--data", str(phantom), *SHORT, "--run-dir", "local"]) == 0
    assert weights(here / "run") == weights(here / "local")
    capsys.readouterr()
    found, local = summary(here / "run"), summary(here / "local")
    assert found["data"] == URL
    assert found["scores"] == local["scores"]
    assert found["streaming"]["bad"] == 0
    assert [e for e in log(here / "run") if e["event"] != "data"] == log(here / "local")
    assert f"source: {URL}" in (here / "run" / "config.yaml").read_text(encoding="utf-8")
    gets = {path for method, path in s3.requests if method == "GET" and path.endswith(".npy")}
    assert len(gets) == 20

    assert main(["toy", "evaluate", "run"]) == 0
    assert main(["toy", "evaluate", "run", "--data", f"{URL}/"]) == 0
    assert "10 records (all)" in capsys.readouterr().out
    assert len([*(here / "run").glob("evaluation-all-*/scores.json")]) == 1
    assert main(["toy", "predict", "run", f"{URL}/p0_a.npy", str(phantom / "p0_b.npy"), "--out", "out"]) == 0
    assert sorted(p.name for p in (here / "out").iterdir()) == ["p0_a_mask.npy", "p0_b_mask.npy"]
    assert main(["toy", "predict", "local", str(phantom / "p0_a.npy"), "--out", "out2"]) == 0
    assert (here / "out" / "p0_a_mask.npy").read_bytes() == (here / "out2" / "p0_a_mask.npy").read_bytes()
    assert "<h2>Streaming</h2>" in (here / "run" / "report.html").read_text(encoding="utf-8")


def test_kernels_are_compared_on_fetched_records_and_the_training_is_the_same(
    here: Path, s3: S3, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where a record cannot be read: its stand-in is compared, and listed by the training alone."""
    s3.put("cells", "toy/p3_a.npy", b"no numpy")
    words = [*at(s3, "toy", "train", "--data", URL), *SHORT, "--data.split", "group:p0"]
    words += ["--precision.mode", "bfloat16"]
    assert main([*words, "--train.kernels", "off", "--cache.dir", "one", "--run-dir", "off"]) == 0
    capsys.readouterr()
    assert main([*words, "--cache.dir", "two", "--run-dir", "check"]) == 0
    assert "gradients agree with plain float32 (precision bfloat16" in capsys.readouterr().out
    assert summary(here / "check")["kernels"]["status"] == "right"
    assert log(here / "check") == log(here / "off")
    assert weights(here / "check") == weights(here / "off")
    assert bad_samples(here / "check") == bad_samples(here / "off")
    assert main([*words, "--cache.dir", "two", "--run-dir", "again"]) == 0
    assert "as found before" in capsys.readouterr().out


def test_a_folder_may_be_streamed_too(here: Path, phantom: Path) -> None:
    words = ["toy", "train", "--data", str(phantom), *SHORT]
    assert main([*words, "--cache.mode", "stream", "--run-dir", "run"]) == 0
    assert main([*words, "--cache.mode", "memmap", "--run-dir", "mapped"]) == 0
    assert weights(here / "run") == weights(here / "mapped")
    assert summary(here / "run")["streaming"]["images"] > 0


def test_workers_change_nothing(here: Path, s3: S3) -> None:
    """A record that two workers need is fetched once."""
    words = [*at(s3, "toy", "train", "--data", URL), *SHORT, "--data.split", "group:p0"]
    s3.put("cells", "toy/p3_a.npy", b"no numpy")
    assert main([*words, "--run-dir", "alone"]) == 0
    shutil.rmtree(here / "cache-home")
    s3.requests.clear()
    s3.latency = 0.05
    assert main([*words, "--train.workers", "2", "--run-dir", "two"]) == 0
    assert weights(here / "alone") == weights(here / "two")
    assert log(here / "alone") == log(here / "two")
    assert all(s3.count(f"toy/p{n}.npy") == s3.count(f"toy/p{n}_mask.npy") == 1 for n in ("1_a", "2_b", "4_a", "4_b"))
    streaming = summary(here / "two")["streaming"]
    assert streaming["images"] > 0
    assert streaming["images_per_second_link"] > 0


def test_keys_of_the_environment_sign_requests(here: Path, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret that nobody may see")
    words = [*at(s3, "toy", "train", "--data", URL), *SHORT, "--remote.credentials", "environment"]
    assert main([*words, "--run-dir", "run"]) == 0
    for file in (here / "run").rglob("*"):
        assert file.is_dir() or b"a secret" not in file.read_bytes()


def test_check_says_what_training_will_replace(here: Path, s3: S3, capsys: pytest.CaptureFixture[str]) -> None:
    words = at(s3, "toy", "check", "--data", URL)
    assert main(words) == 0
    assert f"{URL}: 10 records in 5 groups" in capsys.readouterr().out
    s3.put("cells", "toy/p3_a.npy", b"no numpy")
    assert main(words) == 0
    said = capsys.readouterr().out
    assert f"warning  p3_a: {URL}/p3_a.npy: not a whole .npy file" in said
    assert "1 faulty record, 0 errors, 1 warning" in said
    assert "cache (stream): at most " in said
    assert "training reads other records in place of the 1 that cannot be read" in said
    for name in ("p4_a", "p4_b"):
        s3.put("cells", f"toy/{name}.npy", b"no numpy")
    assert main(words) == 2
    said = capsys.readouterr().out
    why = "3 of 20 files cannot be used: more than 1%, and not fewer than 3, so that no others are taken in their place"
    assert f"error    {why}" in said
    assert "3 faulty records, 1 error, 3 warnings" in said
    assert f"training refuses: {why}" in said


def test_faulty_files_are_replaced_and_listed(here: Path, s3: S3, capsys: pytest.CaptureFixture[str]) -> None:
    """One corrupt, one missing though it was listed: the run goes on, and says which."""
    s3.put("cells", "toy/p3_a.npy", b"no numpy")
    s3.fail("missing", "p4_b.npy")
    words = [*at(s3, "toy", "train", "--data", URL), *SHORT, "--data.split", "group:p0"]
    assert main([*words, "--run-dir", "run"]) == 0
    lines = [json.loads(line) for line in (here / "run" / "bad_samples.jsonl").read_text().splitlines()]
    assert {(line["record"], line["kind"]) for line in lines} == {("p3_a", "corrupt"), ("p4_b", "missing")}
    data = [event for event in log(here / "run") if event["event"] == "data"]
    assert data[-1]["bad"] == len(lines) == summary(here / "run")["streaming"]["bad"] > 0
    page = (here / "run" / "report.html").read_text(encoding="utf-8")
    assert "training samples of another record" in page
    assert "p3_a.npy: not a whole .npy file" in page


def test_too_many_faulty_files_end_the_run(here: Path, s3: S3, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("p3_a", "p3_b", "p4_a", "p4_b"):
        s3.put("cells", f"toy/{name}.npy", b"no numpy")
    words = [*at(s3, "toy", "train", "--data", URL), *SHORT, "--data.split", "group:p0"]
    assert main([*words, "--run-dir", "run"]) == 2
    said = capsys.readouterr().err
    assert "more than 1%" in said
    assert "p3_a.npy: not a whole .npy file" in said


@pytest.mark.parametrize("command", ["train", "check"])
def test_a_wrong_bucket_is_bad_input(command: str, here: Path, s3: S3, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(at(s3, "toy", command, "--data", "s3://sells/toy")) == 2
    assert "s3://sells/toy: there is no such bucket" in capsys.readouterr().err
    assert not (here / "runs").exists() or not any((here / "runs").rglob("config.yaml"))


def test_denied_access_is_bad_input_at_once(here: Path, s3: S3, capsys: pytest.CaptureFixture[str]) -> None:
    s3.fail("denied", ".npy")
    assert main([*at(s3, "toy", "train", "--data", URL), "--run-dir", "run"]) == 2
    assert "denies access" in capsys.readouterr().err
    assert s3.count(".npy") < 6
    assert not (here / "run").exists()


def test_other_cache_modes_are_refused(here: Path, s3: S3, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*at(s3, "toy", "train", "--data", URL), "--cache.mode", "memory", "--run-dir", "run"]) == 2
    assert f"{URL}/p0_a.npy: cache.mode memory prepares every record" in capsys.readouterr().err
    assert not (here / "run").exists()


LONG = ["--data.split", "group:p0", "--cache.max-gb", "0.00015", "--train.workers", "2", "--train.batch-size", "4"]
LONG += ["--train.epochs", "2", "--train.steps-per-epoch", "15", "--checkpoint.every-steps", "4", "--log.every", "7"]
LONG += ["--checkpoint.keep", "50", "--health.mode", "off", "--remote.retries", "0"]
"""The cache holds 16 or 17 of 20 records, so that the samples come in an order of their own."""


@pytest.fixture
def many(s3: S3) -> S3:
    """Ten more records, one of them corrupt."""
    rng = np.random.default_rng(0)
    for number in range(10):
        image = rng.random((4, 24, 24), np.float32)
        for key, array in ((f"q{number}_a", image), (f"q{number}_a_mask", (image > 0.5).astype(np.uint8))):
            file = io.BytesIO()
            np.save(file, array)
            s3.put("cells", f"toy/{key}.npy", file.getvalue())
    s3.put("cells", "toy/q3_a.npy", b"no numpy")
    return s3


def kill_after(step: int, run: Path, process: subprocess.Popen[str]) -> None:
    """kill -9 once the checkpoint of `step` is there; the workers end by themselves."""
    begun = time.monotonic()
    while not (run / "checkpoints" / f"step-{step:08d}").exists():
        assert process.poll() is None, (run.parent / "out").read_text()
        assert time.monotonic() - begun < 240
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()


def bad_samples(run: Path) -> list[Any]:
    return [json.loads(line) for line in (run / "bad_samples.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_killed_and_resumed_bit_for_bit(many: S3, tmp_path: Path, launch: Launch) -> None:
    """Also with another cache, of another size, and other workers."""
    words = [*at(many, "toy", "train", "--data", URL), *LONG]
    run, whole = tmp_path / "run", tmp_path / "whole"
    kill_after(12, run, launch(*words, "--run-dir", run, "--cache.dir", tmp_path / "one"))
    assert json.loads((run / "streaming.json").read_text()) == {"block": 8}
    again = ["--cache.dir", tmp_path / "two", "--cache.max-gb", "0.5", "--train.workers", "0"]
    assert launch(*words, *again, "--run-dir", run, "--resume").wait(240) == 0, (tmp_path / "out").read_text()
    assert launch(*words, "--run-dir", whole, "--cache.dir", tmp_path / "three").wait(240) == 0
    assert log(run) == log(whole)
    assert weights(run) == weights(whole)
    assert len(weights(whole)) == 18
    assert {line["record"] for line in bad_samples(run)} == {"q3_a"}


@pytest.mark.slow
def test_what_was_replaced_once_is_replaced_again(many: S3, tmp_path: Path, launch: Launch) -> None:
    """A file that cannot be read for a while: a run that goes on when it can has the samples of the run before."""
    words = [*at(many, "toy", "train", "--data", URL), *LONG]
    run, other = tmp_path / "run", tmp_path / "other"
    many.fail("unavailable", "q5_a.npy")
    kill_after(16, run, launch(*words, "--run-dir", run, "--cache.dir", tmp_path / "one"))
    many.heal()
    before = bad_samples(run)
    assert {(line["record"], line["kind"]) for line in before} == {("q3_a", "corrupt"), ("q5_a", "transient")}
    shutil.copytree(run, other)
    for checkpoint in (other / "checkpoints").glob("step-*"):
        if checkpoint.name != "step-00000004":
            shutil.rmtree(checkpoint)
    for each in (run, other):
        assert launch(*words, "--cache.dir", tmp_path / "two", "--run-dir", each, "--resume").wait(240) == 0
        assert bad_samples(each)[: len(before)] == before
    assert log(run) == log(other)
    assert weights(run)[-2:] == weights(other)[-2:]
