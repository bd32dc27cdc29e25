"""Parts of `evaluate`, `predict` and `cache build` give what one process gives, after kills too."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runner_core
from runner_core import BadInput, Judging
from runner_core.base.parts import Part
from runner_core.cli import main
from runner_core.output.parts import PartsFolder

torch = pytest.mark.torch

_KILLED = """
import os, signal, sys
from runner_core.cli import main
from runner_core.output.parts import PartsFolder

left, add = int(sys.argv[1]), PartsFolder.add

def killed(folder, part, line):
    global left
    if not left:
        with folder._file(part).open("a") as file:  # the disk got half of the line
            file.write(line[: len(line) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    add(folder, part, line)

PartsFolder.add = killed
main(sys.argv[2:])
"""
"""A command whose part is killed by -9 after so many records."""


def killed(variables: dict[str, str], after: int, *words: str | Path) -> None:
    line = [sys.executable, "-c", _KILLED, str(after), *map(str, words)]
    done = subprocess.run(line, env=variables, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


def contents(folder: Path, *without: str) -> dict[str, bytes]:
    """The files of a folder by name, hidden ones left out."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not any(name[0] == "." for name in path.relative_to(folder).parts)
        and path.name not in without
    }


def test_parts_divide_a_list() -> None:
    items = [*range(11)]
    for count in range(1, 14):
        shares = [part.share(items) for part in Part.all(count)]
        assert sorted(item for share in shares for item in share) == items
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert Part.of("") == Part(1, 1)
    for wrong in ("0/2", "3/2", "2", "a/b", "1/2/3", "-1/2"):
        with pytest.raises(BadInput, match="write i/n"):
            Part.of(wrong)


@torch
def test_parts_of_an_evaluation_give_what_one_process_gives(
    trained: Path, tmp_path: Path, variables: dict[str, str], runner: Callable[..., Any]
) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    words = ("toy", "evaluate", run, "--split", "all")
    assert runner(*words, "--out", "whole").returncode == 0
    parts = (*words, "--out", "parts", "--part")
    done = runner(*parts, "3/3")
    assert done.returncode == 0
    assert "part 3/3 is done; these parts are missing: 1/3, 2/3" in done.stdout
    killed(variables, 2, *words, "--out", tmp_path / "parts", "--part", "2/3")
    asked = runner(*words, "--out", "parts", "--merge")
    assert asked.returncode == 2
    assert "these parts are missing: 1/3, 2/3 (2 of 3 records)" in asked.stderr
    assert not (tmp_path / "parts" / "scores.json").exists()
    done = runner(*parts, "2/3")
    assert (done.returncode, "part 2/3: 3 records, 2 done already" in done.stdout) == (0, True), (
        done.stdout + done.stderr
    )
    done = runner(*parts, "1/3")
    assert done.returncode == 0
    assert "worst first" in done.stdout
    whole, joined = (contents(tmp_path / name, "evaluation.json") for name in ("whole", "parts"))
    assert len(whole) > 5
    assert whole == joined
    facts = [json.loads((tmp_path / name / "evaluation.json").read_text()) for name in ("whole", "parts")]
    assert facts[0]["key"] == facts[1]["key"]
    again = runner(*parts, "2/3")
    assert again.returncode == 0
    assert "all parts are done and joined" in again.stdout
    assert contents(tmp_path / "parts", "evaluation.json") == whole


@torch
@pytest.mark.slow
def test_parts_of_an_evaluation_in_the_run_folder_at_the_same_moment(
    trained: Path, tmp_path: Path, variables: dict[str, str], runner: Callable[..., Any]
) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    lines = [
        subprocess.Popen(
            [str(Path(sys.executable).with_name("runner")), "toy", "evaluate", "run", "--split", "all", "--part", part],
            **{"cwd": tmp_path, "env": variables, "stdout": subprocess.PIPE, "text": True},
        )
        for part in ("1/2", "2/2")
    ]
    said = [process.communicate(timeout=240)[0] for process in lines]
    assert [process.returncode for process in lines] == [0, 0], said
    assert sum("worst first" in text for text in said) == 1, "one of them joins"
    (joined,) = run.glob("evaluation-all-*")
    assert runner("toy", "evaluate", "run", "--split", "all", "--out", "whole").returncode == 0
    assert contents(joined, "evaluation.json") == contents(tmp_path / "whole", "evaluation.json")
    assert joined.name in (run / "report.html").read_text(encoding="utf-8")


@torch
def test_a_part_that_does_not_fit_is_refused_by_name(
    trained: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained, "run")
    assert main(["toy", "phantom", "data"]) == 0
    words = ["toy", "evaluate", "run", "--data", "data", "--out", "out", "--part"]
    assert main([*words, "1/2"]) == 0
    capsys.readouterr()

    def refused(*more: str) -> str:
        assert main([*words, *more]) == 2
        return capsys.readouterr().err

    assert "does not fit to part 1/2" in refused("2/2", "--predict.threshold", "0.4")
    assert "settings: predict.threshold 0.5 there, 0.4 here" in refused("2/2", "--predict.threshold", "0.4")
    assert "parts: 2 there, 3 here" in refused("2/3")
    other = min((here / "run" / "checkpoints").glob("step-*"))
    assert main(["toy", "evaluate", str(other), *words[3:], "2/2"]) == 2
    assert "weights: run/step-" in capsys.readouterr().err
    image = Path("data/p0_b.npy")
    np.save(image, np.load(image) * np.float32(0.9))
    assert "contents: p0_b " in refused("2/2")


@torch
def test_a_record_that_cannot_be_scored_is_tried_again(
    trained: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained, "run")
    assert main(["toy", "phantom", "data"]) == 0
    mask = Path("data/p3_a_mask.npy")
    sound = mask.read_bytes()
    mask.write_bytes(sound[:-9])
    words = ["toy", "evaluate", "run", "--data", "data", "--out"]
    assert main([*words, "whole"]) == 2
    assert [main([*words, "parts", "--part", part]) for part in ("2/2", "1/2")] == [0, 2]
    assert contents(Path("whole"), "evaluation.json") == contents(Path("parts"), "evaluation.json")
    mask.write_bytes(sound)
    capsys.readouterr()
    assert main([*words, "parts", "--part", "1/2"]) == 0
    assert "p3_a" in Path("parts/scores.csv").read_text(encoding="utf-8")


@torch
def test_python_takes_a_part(trained: Path, here: Path) -> None:
    shutil.copytree(trained, "run")
    run = runner_core.open("run")
    assert not run.evaluate(split="all", out="out", part=(1, 2))
    scores = run.evaluate(split="all", out="out", part=(2, 2))
    assert scores
    assert len(scores.records) == 10


# ---------------------------------------------------------------- predict


@torch
def test_parts_of_a_prediction_skip_what_is_written(
    trained: Path,
    here: Path,
    variables: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(["toy", "phantom", "data"]) == 0
    words = ["toy", "predict", str(trained), "data", "--out"]
    assert main([*words, "whole"]) == 0
    killed(variables, 1, *words[:3], here / "data", "--out", here / "parts", "--part", "1/2")
    before = {path: path.stat().st_mtime_ns for path in Path("parts").glob("*.npy")}
    capsys.readouterr()
    assert main([*words, "parts", "--part", "1/2"]) == 0
    assert "part 1/2: 5 records, 1 done already" in (said := capsys.readouterr().out)
    assert "part 1/2 is done; missing: 2/2" in said
    kept = min(before)
    assert kept.stat().st_mtime_ns == before[kept], "what was written whole is not written again"
    assert main([*words, "parts", "--part", "2/2"]) == 0
    assert contents(Path("whole")) == contents(Path("parts"))
    capsys.readouterr()
    assert main([*words, "parts", "--part", "2/2"]) == 0
    assert "5 done already" in capsys.readouterr().out
    image = Path("data/p0_b.npy")
    np.save(image, np.load(image)[::-1])
    Path("parts/p1_b_mask.npy").unlink()
    assert main([*words, "parts", "--part", "2/2"]) == 0
    assert "3 done already" in capsys.readouterr().out, "one input changed, one prediction was removed"
    assert main([*words, "whole"]) == 0
    assert contents(Path("whole")) == contents(Path("parts"))


@torch
def test_parts_are_combined_into_one_file(
    trained: Path, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from toy_project import Toy  # type: ignore[import-not-found]

    def collect(files: Sequence[Path], out: Path) -> list[Path]:
        np.save(out / "all.npy", np.stack([np.load(file) for file in files]))
        return [out / "all.npy"]

    monkeypatch.setattr(Toy, "judging", lambda self: Judging(collect=collect))
    assert main(["toy", "phantom", "data"]) == 0
    words = ["toy", "predict", str(trained), "data", "--out"]
    assert main([*words, "whole"]) == 0
    for part in ("2/3", "3/3"):
        assert main([*words, "parts", "--part", part]) == 0
        assert not Path("parts/all.npy").exists()
    assert main([*words, "parts", "--part", "1/3"]) == 0
    assert contents(Path("whole")) == contents(Path("parts"))
    assert [*contents(Path("whole"))] == ["all.npy"]
    capsys.readouterr()
    assert main([*words, "parts", "--part", "3/3"]) == 0
    assert "part 3/3: 3 records, 3 done already" in capsys.readouterr().out
    Path("parts/all.npy").unlink()
    for part in ("1/3", "2/3", "3/3"):
        assert main([*words, "parts", "--part", part]) == 0
    assert contents(Path("whole")) == contents(Path("parts"))
    image = Path("data/p0_b.npy")  # an input changes after all were joined, and each record's own file is gone
    np.save(image, np.load(image)[::-1])
    for part in ("1/3", "2/3", "3/3"):
        assert main([*words, "parts", "--part", part]) == 0
    assert main([*words, "whole"]) == 0
    assert contents(Path("whole")) == contents(Path("parts"))


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk whose file system has no locks, as some network disks are mounted."""

    def refuse(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)


@torch
@pytest.mark.usefixtures("no_locks")
def test_parts_on_a_disk_without_locks(
    trained: Path, tmp_path: Path, toy: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["toy", "phantom", "data"]) == 0
    words = ["toy", "predict", str(trained), "data", "--out"]
    assert main([*words, "whole"]) == 0
    for part in ("1/2", "2/2"):
        assert main([*words, "parts", "--part", part]) == 0
    assert contents(Path("whole")) == contents(Path("parts"))
    build = ["toy", "cache", "build", "--data", "data", "--cache.dir", "caches", "--part"]
    assert main([*build, "1/2"]) == 0
    assert main([*build, "2/2"]) == 0
    assert caches(Path("caches"))
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".held")]
    capsys.readouterr()


def test_a_part_is_done_by_one_process_on_a_disk_without_locks_too(tmp_path: Path, no_locks: None) -> None:
    folder, other = PartsFolder(tmp_path / "parts"), Path(f"{tmp_path / 'parts' / '2-of-2.lock'}.held")
    folder.join(2, {"weights": "a"})
    with folder.claimed(Part(1, 2)):
        with (
            pytest.raises(BadInput, match=r"part 1/2 is at work already.*1-of-2\.lock\.held"),
            folder.claimed(Part(1, 2)),
        ):
            pass
        with folder.claimed(Part(2, 2)):
            assert other.exists()
    with folder.claimed(Part(1, 2)):
        assert not other.exists()


def test_a_part_is_done_once_at_a_time(tmp_path: Path) -> None:
    folder = PartsFolder(tmp_path / "parts")
    folder.join(2, {"weights": "a"})
    with folder.claimed(Part(1, 2)):
        with pytest.raises(BadInput, match="part 1/2 is at work already"), folder.claimed(Part(1, 2)):
            pass
        with folder.claimed(Part(2, 2)):
            folder.add(Part(2, 2), '{"record": "b"}')
    assert folder.missing(["a", "b", "c"], folder.lines(["a", "b", "c"])) == ["1/2"]
    folder.set_joined({})
    with folder.claimed(Part(1, 2)), pytest.raises(BadInput, match="part 1/2 is at work"):
        PartsFolder(folder.path).join(3, {"weights": "b"})
    PartsFolder(folder.path).join(3, {"weights": "b"})  # what was joined makes room
    assert folder.parts == Part.all(3)
    assert not folder.lines(["a", "b", "c"])


# ---------------------------------------------------------------- cache build

_KILLED_AHEAD = """
import os, signal, sys
from runner_core.cli import main
from runner_core.data.cache import ahead

left, keep = int(sys.argv[1]), ahead.PrepareAhead.keep
ahead._SECONDS_TO_NOTE = 0

def killed(self, *record):
    global left
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return keep(self, *record)

ahead.PrepareAhead.keep = killed
main(sys.argv[2:])
"""


def caches(folder: Path) -> dict[str, bytes]:
    """The files of finished caches, by their places; what changes with each use is left out."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.glob("toy/*/*.flat/*"))
        if file.name != "verified"
    }


def test_parts_of_a_cache_give_what_training_would_build(
    here: Path, variables: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["toy", "phantom", "data"]) == 0
    words = ["toy", "cache", "build", "--data", str(here / "data"), "--cache.workers", "1"]
    assert main([*words, "--cache.dir", "whole"]) == 0
    assert "10 records" in capsys.readouterr().out
    built = caches(Path("whole"))
    assert len(built) == 3
    assert main([*words, "--cache.dir", "whole"]) == 0
    assert "10 of 10 records ready" in capsys.readouterr().out
    parts = [*words, "--cache.dir", str(here / "parts"), "--part"]
    line = [sys.executable, "-c", _KILLED_AHEAD, "2", *parts, "2/3"]
    done = subprocess.run(line, env=variables, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    assert main([*parts, "3/3"]) == 0
    assert "part 3/3 is done; missing: 1/3, 2/3 (" in capsys.readouterr().out
    assert main(["cache", "list", "--dir", "parts"]) == 0
    assert "ahead" in capsys.readouterr().out
    assert main([*parts, "2/3"]) == 0
    said = capsys.readouterr().out
    assert "of 3 records ready already" in said
    assert "missing: 1/3" in said
    assert not caches(Path("parts"))
    assert main([*parts, "1/3"]) == 0
    assert caches(Path("parts")) == built
    assert not [*Path("parts").glob("toy/*/.ahead")]
    for part in ("1/3", "2/2"):  # all is there: nothing to do, however it was divided
        assert main([*parts, part]) == 0
        assert "10 of 10 records ready" in capsys.readouterr().out
    assert caches(Path("parts")) == built


@torch
def test_training_takes_what_was_prepared_ahead(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--cache.dir", "cache", "--cache.workers", "1"]
    assert main(["toy", "cache", "build", *words, "--part", "1/2"]) == 0
    (file, *_) = sorted(Path("cache").glob("toy/*/.ahead/*/*"))
    file.write_bytes(file.read_bytes()[:-1] + b"?")  # a damaged one is prepared anew
    capsys.readouterr()
    quick = ["--epochs", "1", "--train.steps-per-epoch", "1", "--train.threads", "1"]
    assert main(["toy", "train", *words, "--run-dir", "run", *quick]) == 0
    assert "5 of 10 records ready" in capsys.readouterr().out
    assert not [*Path("cache").glob("toy/*/.ahead")]
    assert main(["toy", "cache", "build", *words]) == 0
    assert "10 of 10 records ready" in capsys.readouterr().out
    assert main(["toy", "cache", "build", "--cache.dir", "other", "--cache.workers", "1"]) == 0
    assert caches(Path("cache")) == caches(Path("other"))


def test_records_prepared_ahead_can_be_removed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["toy", "phantom", "data"]) == 0
    words = ["toy", "cache", "build", "--data", "data", "--cache.dir", "cache", "--cache.workers", "1", "--part", "1/2"]
    Path("data/p0_a.npy").write_bytes(b"no array")
    assert main(words) == 2
    assert "p0_a.npy" in capsys.readouterr().err
    assert len([*Path("cache").glob("toy/*/.ahead/*/*")]) == 4, "the sound ones are kept"
    assert main(["cache", "verify", "--dir", "cache"]) == 0
    assert main(["cache", "prune", "--dir", "cache", "--all"]) == 0
    assert not [*Path("cache").glob("toy/*/.ahead")]
    assert main(["toy", "cache", "build", "--cache.mode", "off"]) == 2
    assert main(["toy", "cache", "list"]) == 2
    assert "`runner cache list --project toy` does that" in capsys.readouterr().err


def test_a_cache_is_built_without_a_framework(here: Path, variables: dict[str, str]) -> None:
    code = "import sys; from runner_core.cli import main; sys.exit(main(sys.argv[1:]) or 'torch' in sys.modules)"
    line = [sys.executable, "-c", code, "toy", "cache", "build", "--cache.dir", str(here / "cache")]
    done = subprocess.run(line, env=variables, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
