"""Checkpoint folders: whole or not there; damage noticed; no more of them than wanted."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runner_core.base.errors import BadInput, NotSaved, OutOfSpace
from runner_core.contract import State
from runner_core.contract.run import Damaged
from runner_core.training import checkpoints as store
from runner_core.training.checkpoints import Checkpoints


class TextFormat:
    """Two files, one in a folder of its own."""

    def write(self, folder, state):
        (folder / "values.json").write_text(json.dumps(state.values))
        (folder / "more").mkdir()
        (folder / "more" / "padding.bin").write_bytes(b"x" * 1000)

    def read(self, folder, device="cpu"):
        return State(json.loads((folder / "values.json").read_text()))


def make(folder: Path, keep: int = 2, said: list[str] | None = None, project: str = "toy") -> Checkpoints:
    return Checkpoints(folder, TextFormat(), project=project, keep=keep, say=(said if said is not None else []).append)


def save(checkpoints: Checkpoints, step: int, best: bool = False) -> Path:
    return checkpoints.save(State({"step": step}), step, step // 10, float(step), best)


def steps_in(folder: Path) -> set[int]:
    return {int(p.name[5:]) for p in folder.glob("step-*")}


def test_round_trip(tmp_path):
    checkpoints = make(tmp_path)
    path = save(checkpoints, 10, best=True)
    found, manifest = checkpoints.latest()
    assert (found, manifest.step, manifest.epoch, manifest.metric) == (path, 10, 1, 10.0)
    assert checkpoints.load(found).values == {"step": 10}
    assert checkpoints.best()[0] == path
    assert not list(tmp_path.glob(".*"))


def test_nothing_there(tmp_path):
    assert make(tmp_path / "none").latest() is None
    assert make(tmp_path / "none").best() is None


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_keeps_the_last_and_the_best(tmp_path_factory, bests, keep):
    folder = tmp_path_factory.mktemp("keep")
    checkpoints = make(folder, keep)
    best = None
    for step, is_best in enumerate(bests, 1):
        save(checkpoints, step, is_best)
        best = step if is_best else best
        expected = set(range(max(1, step - keep + 1), step + 1)) | ({best} if best else set())
        assert steps_in(folder) == expected
    shutil.rmtree(folder)


def test_every_flipped_byte_is_noticed(tmp_path):
    """In any file of the checkpoint, the manifest included: reported, and the one before it used."""
    said: list[str] = []
    checkpoints = make(tmp_path, said=said)
    old, new = save(checkpoints, 1), save(checkpoints, 2)
    for file in sorted(p for p in new.rglob("*") if p.is_file()):
        content = file.read_bytes()
        for place in range(0, len(content), max(1, len(content) // 60)):
            for altered in (content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :], content[:place]):
                file.write_bytes(altered)
                said.clear()
                assert checkpoints.latest()[0] == old
                assert len(said) == 1
                assert "damaged" in said[0]
        file.write_bytes(content)
    assert checkpoints.latest()[0] == new


def test_missing_and_escaping_files(tmp_path):
    checkpoints = make(tmp_path)
    path = save(checkpoints, 1)
    (path / "values.json").rename(tmp_path / "values.json")
    with pytest.raises(Damaged, match="missing"):
        checkpoints.load(path)
    manifest = store.read_manifest(path)
    moved = store.Manifest(**{**vars(manifest), "files": {"../values.json": manifest.files["values.json"]}})
    (path / "manifest.json").write_text(moved.dumps())
    with pytest.raises(Damaged, match="missing"):
        checkpoints.load(path)


def test_damaged_best_falls_back_to_the_newest(tmp_path):
    said: list[str] = []
    checkpoints = make(tmp_path, said=said)
    best, last = save(checkpoints, 1, best=True), save(checkpoints, 2)
    assert checkpoints.best()[0] == best
    (best / "values.json").write_text("{}")
    assert checkpoints.best()[0] == last
    assert "best checkpoint cannot be used" in said[0]


def test_another_project(tmp_path):
    save(make(tmp_path, project="brains"), 1)
    with pytest.raises(BadInput, match="project brains, not of toy"):
        make(tmp_path).latest()


class Kill(BaseException):
    pass


def kill_at(monkeypatch, number: int) -> None:
    """End the process, as it were, at the n-th call that changes the disk."""
    calls = 0

    def mortal(function):
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == number:
                raise Kill
            return function(*args, **kwargs)

        return call

    for module, names in ((os, ("rename", "replace", "fsync", "mkdir")), (shutil, ("rmtree",))):
        for name in names:
            monkeypatch.setattr(module, name, mortal(getattr(module, name)))


@pytest.mark.parametrize("again", [False, True])  # a new step, or the same one saved again
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path, monkeypatch, again):
    for number in range(1, 60):
        folder = tmp_path / str(number)
        save(make(folder, keep=1), 1, best=True)
        step = 1 if again else 2
        with monkeypatch.context() as patch:
            kill_at(patch, number)
            try:
                save(make(folder, keep=1), step, best=True)
                finished = True
            except Kill:
                finished = False
        said: list[str] = []
        checkpoints = make(folder, keep=1, said=said)
        found, manifest = checkpoints.latest()
        assert checkpoints.load(found).values["step"] in (1, step)
        checkpoints.start(manifest.step, best=manifest.step)
        assert checkpoints.best()[1].step == manifest.step
        assert steps_in(folder) <= {1, step}
        assert not list(folder.glob(".*"))
        assert not said
        if finished:
            assert number > 10  # the kills did come in between
            return
    raise AssertionError("saving never finished")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_keeps_the_last_good_one(tmp_path, number, monkeypatch):
    checkpoints = make(tmp_path)
    good = save(checkpoints, 1, best=True)

    def full(self, folder, state):
        (folder / "half").write_bytes(b"half")
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(TextFormat, "write", full)
    with pytest.raises(OutOfSpace, match="no space left to save the checkpoint of step 2"):
        save(checkpoints, 2, best=True)
    assert checkpoints.latest()[0] == checkpoints.best()[0] == good
    assert not list(tmp_path.glob(".*"))


def test_full_disk_for_real(tmp_path):
    """Files may not grow beyond 64 kB in this process, as on a disk with a quota; safetensors meets the limit."""
    pytest.importorskip("torch")
    script = f"""
import resource, signal, torch
from pathlib import Path
from runner_core.base.errors import OutOfSpace
from runner_core.training.checkpoints import Checkpoints
from runner_core.engines.torch.checkpoint import SafetensorsFormat
from runner_core.contract import State
checkpoints = Checkpoints(Path({str(tmp_path)!r}), SafetensorsFormat(), project="toy")
checkpoints.save(State({{}}, {{"model.w": torch.ones(100)}}), 1, 0, None, True)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, {resource.RLIM_INFINITY}))
try:
    checkpoints.save(State({{}}, {{"model.w": torch.ones(100_000)}}), 2, 0, None, True)
except OutOfSpace:
    assert checkpoints.latest()[1].step == checkpoints.best()[1].step == 1
    print("kept")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "kept"
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["best.json", "step-00000001"]


def test_unwritable_folder_is_no_lack_of_space(tmp_path, monkeypatch):
    def forbidden(self, folder, state):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(TextFormat, "write", forbidden)
    with pytest.raises(NotSaved, match="the checkpoint of step 1 cannot be written"):
        save(make(tmp_path), 1)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("change", [{"format_version": 2}, {"format_version": 0}, {"colour": "red"}])
def test_another_runners_checkpoint_is_refused_and_kept(tmp_path, change):
    checkpoints = make(tmp_path)
    save(checkpoints, 1)
    newer = save(checkpoints, 2, best=True)
    content = {**json.loads((newer / "manifest.json").read_text()), **change}
    del content["checksum"]
    content["checksum"] = store._checksum_of(content)
    (newer / "manifest.json").write_text(json.dumps(content))
    for read in (checkpoints.latest, checkpoints.best, lambda: checkpoints.verify(newer)):
        with pytest.raises(BadInput, match=r"step-00000002 was written by an? (newer|older) runner") as refused:
            read()
        assert not isinstance(refused.value, Damaged)
    assert steps_in(tmp_path) == {1, 2}


def test_damaged_later_ones_are_set_aside(tmp_path):
    for _ in range(2):  # the second does not replace the first
        said: list[str] = []
        checkpoints = make(tmp_path, said=said)
        save(checkpoints, 1, best=True)
        (save(checkpoints, 2) / "values.json").write_text("{}")
        assert checkpoints.start(checkpoints.latest()[1].step, 1)
        assert steps_in(tmp_path) == {1}
        assert "set aside" in said[-1]
    assert sorted(p.name for p in tmp_path.glob(".*")) == [".damaged-step-00000002", ".damaged-step-00000002-2"]
    assert json.loads((tmp_path / ".damaged-step-00000002" / "manifest.json").read_text())["step"] == 2


def test_a_name_of_the_best_that_a_kill_left_half_written_goes(tmp_path, monkeypatch):
    checkpoints = make(tmp_path)
    save(checkpoints, 1, best=True)
    with monkeypatch.context() as killed:
        killed.setattr(Path, "unlink", lambda *args, **options: None)
        killed.setattr("runner_core.base.writing.move", lambda *args: None)
        killed.setattr("runner_core.base.writing.os.getpid", lambda: 1)  # another process
        checkpoints.set_best(1)
    assert len(list(tmp_path.glob(".*"))) == 1
    assert make(tmp_path).start(1, 1)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("gone", [True, False])
def test_a_best_that_is_gone_or_damaged_is_not_named(tmp_path, gone):
    checkpoints = make(tmp_path)
    best = save(checkpoints, 1, best=True)
    save(checkpoints, 2)
    if gone:
        shutil.rmtree(best)
    else:
        (best / "values.json").write_text("{}")
    assert not make(tmp_path).start(2, 1)
    assert not (tmp_path / "best.json").exists()
    assert make(tmp_path).best()[1].step == 2


def test_each_file_is_hashed_once_to_be_loaded(tmp_path, monkeypatch):
    save(make(tmp_path), 1)
    hashed = []
    original = store.hash_file
    monkeypatch.setattr(store, "hash_file", lambda path: hashed.append(path.name) or original(path))
    checkpoints = make(tmp_path)
    checkpoints.load(checkpoints.latest()[0])
    assert sorted(hashed) == ["padding.bin", "values.json"]
