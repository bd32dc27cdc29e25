"""Checkpoints that several processes write together, each its rows of the tensors that are divided among them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
HERE = Path(__file__).parent
for name in ("engine_toy", "together_toy", "crash"):
    sys.path.insert(0, str(HERE / name))
import engine_toy as toy  # noqa: E402
import together_toy as together  # noqa: E402
from runner_core.base.errors import BadInput, OutOfSpace  # noqa: E402
from runner_core.contract import State  # noqa: E402
from runner_core.contract.run import Damaged  # noqa: E402
from runner_core.engines.torch.checkpoint import INDEX, SafetensorsFormat  # noqa: E402
from runner_core.engines.torch.shards import Rows  # noqa: E402
from runner_core.training.checkpoints import Checkpoints, refuse_unshared  # noqa: E402
from several import Threads  # noqa: E402
from several import together as by_threads  # noqa: E402
from together_toy import assert_close_runs, cut_after  # noqa: E402

# ---------------------------------------------------------------- what is written, by threads in place of processes


def part(whole: dict[str, Any], number: int, count: int, single: dict[str, Any]) -> State:
    """What process `number` of `count` holds of a training's tensors; `single` are not divided."""
    rows = {}
    for name, tensor in whole.items():
        chunks = tensor.chunk(count)
        rows[name] = chunks[number] if number < len(chunks) else tensor[:0]
    values = {"loop": {"step": 7}} if number == 0 else {}
    return State(values, (single if number == 0 else {}) | rows, {name: tuple(t.shape) for name, t in whole.items()})


def save(folder: Path, whole, single, count: int, job=None) -> list[Any]:
    def one(team: Threads) -> Any:
        form = SafetensorsFormat()
        if job is not None:
            job(form, team)
        checkpoints = Checkpoints(folder, form, project="toy")
        return checkpoints.save(part(whole, team.number, count, single), 7, 1, None, True, team)

    return by_threads(count, one)


@given(
    count=st.integers(2, 5),
    shapes=st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=3), min_size=1, max_size=4),
    readers=st.integers(1, 6),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
)
@settings(max_examples=25, deadline=None)
def test_any_number_of_processes_reads_what_others_wrote(tmp_path_factory, count, shapes, readers, dtype):
    folder = tmp_path_factory.mktemp("parts")
    generator = torch.Generator().manual_seed(0)
    whole = {f"model.w{n}": torch.randn(shape, generator=generator).to(dtype) for n, shape in enumerate(shapes)}
    single = {"optimizer.step": torch.tensor(3.0), "model.buffer": torch.arange(4)}
    saved = save(folder, whole, single, count)
    assert saved == [folder / "step-00000007"] * count
    checkpoints = Checkpoints(folder, SafetensorsFormat(), project="toy")
    path, _ = checkpoints.latest()
    state = checkpoints.load(path)
    assert state.tensors.keys() == {*whole, *single}
    assert all(torch.equal(state.tensors[name], tensor) for name, tensor in (whole | single).items())
    lazy = checkpoints.load(path, rows=True)
    for name, tensor in whole.items():
        rows = lazy.tensors[name]
        assert isinstance(rows, Rows)
        assert (rows.shape, rows.dtype) == (tensor.shape, tensor.dtype)
        each = -(-len(tensor) // readers)
        for begin in range(0, len(tensor), each):
            assert torch.equal(rows.take(begin, begin + each), tensor[begin : begin + each])


WHOLE = {"model.a": torch.arange(10.0).view(5, 2), "ema.a": torch.arange(10.0).view(5, 2) + 1, "m": torch.ones(3)}


def test_each_process_has_its_own_files_and_tied_weights_are_written_once(tmp_path):
    tied = torch.arange(8.0).view(4, 2)
    (path, _) = save(tmp_path, {**WHOLE, "model.b": tied, "model.c": tied}, {"n": torch.ones(1)}, 2)
    names = {file.name for file in path.iterdir()}
    parts = {f"{name}-0000{n}-of-00002.safetensors" for name in ("model", "ema", "training") for n in (1, 2)}
    assert names == {*parts, "training.safetensors", "state.json", "manifest.json", INDEX}
    index = json.loads((path / INDEX).read_text())
    assert index["files"] == 2
    assert index["shapes"]["model.a"] == [5, 2]
    assert index["shared"] == {"model.c": "model.b"}
    state = SafetensorsFormat().read(path)
    assert torch.equal(state.tensors["model.c"], tied)


@pytest.mark.parametrize("change", ["missing", "shorter", "index", "count"])
def test_a_part_that_is_missing_or_changed_is_damage(tmp_path, change):
    path, _, _ = save(tmp_path, WHOLE, {}, 3)
    file = path / "model-00002-of-00003.safetensors"
    index = json.loads((path / INDEX).read_text())
    if change == "missing":
        file.unlink()
    elif change == "shorter":
        shutil.copy(path / "model-00001-of-00003.safetensors", path / "model-00003-of-00003.safetensors")
        index["shapes"]["model.a"] = [7, 2]
        (path / INDEX).write_text(json.dumps(index))
    elif change == "index":
        (path / INDEX).write_text("{")
    else:
        (path / INDEX).write_text(json.dumps(index | {"files": 4}))
    checkpoints = Checkpoints(tmp_path, SafetensorsFormat(), project="toy")
    with pytest.raises(Damaged, match="step-00000007"):
        checkpoints.load(path)
    with pytest.raises(Damaged, match="damaged or was changed"):  # sealed again
        SafetensorsFormat().read(path)


@pytest.mark.parametrize("fails", [0, 1, 2])
def test_a_full_disk_of_one_is_told_by_all_and_leaves_nothing(tmp_path, fails):
    save(tmp_path, WHOLE, {}, 3)

    def full(form, team):
        if team.number == fails:

            def write_part(*_):
                raise OSError(28, "No space left on device")

            form.write_part = write_part

    before = sorted(tmp_path.rglob("*"))
    wrong = save(tmp_path, WHOLE, {}, 3, full)
    assert all(isinstance(error, OutOfSpace) for error in wrong)
    assert f"No space left on device, says process {fails} of 3" in str(wrong[0])
    assert sorted(tmp_path.rglob("*")) == before
    assert Checkpoints(tmp_path, SafetensorsFormat(), project="toy").latest() is not None


def test_folders_that_are_not_shared_are_refused(tmp_path):
    def same(team):
        return refuse_unshared(tmp_path / "shared", team)

    def other(team):
        return refuse_unshared(tmp_path / str(team.number), team)

    assert by_threads(3, same) == [None] * 3
    assert not list((tmp_path / "shared").iterdir())
    for error in by_threads(2, other):
        assert isinstance(error, BadInput)
        assert "process 1 of 2 sees another folder of that name" in str(error)


# ---------------------------------------------------------------- trainings of several processes


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of a batch of 6 with fsdp, by the number of processes: `one`; `two`; `three` and `handed`, which go on with
    `two` from step 6 on 3 processes and on 1; `full`, in which the second of two finds no room at step 4."""
    folder = tmp_path_factory.mktemp("divided")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    toy.run(together.settings(1, **together.SIX), folder / "one", project=together.Together)
    start(folder, 2, "two", "full")
    for name in ("three", "handed"):
        cut_after(shutil.copytree(folder / "two", folder / name), 6)
    start(folder, 3, "three")
    toy.run(together.settings(1, **together.SIX), folder / "handed", project=together.Together, resume=True)
    torch.set_num_threads(threads)
    return folder


def start(folder: Path, count: int, *runs: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    words = [[sys.executable, together.__file__, folder, str(number), str(count), *runs] for number in range(count)]
    processes = [subprocess.Popen(w, env=environment, stderr=subprocess.PIPE, text=True) for w in words]
    said = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * count, "\n".join(said)


@pytest.mark.parametrize("run", ["two", "three", "handed"])
def test_two_processes_or_three_learn_what_one_does_and_go_on_with_each_others_runs(trained, run):
    assert_close_runs(trained / "one", trained / run)


def test_each_process_wrote_its_rows(trained):
    for run, count in (("two", 2), ("three", 3)):
        path = max((trained / run / "checkpoints").glob("step-*"))
        index = json.loads((path / INDEX).read_text())
        assert index["files"] == count
        assert index["shapes"]["model.student.0.weight"] == [together.FEATURES, together.WIDTH]
        sizes = [
            len(SafetensorsFormat().load(path / f"model-0000{n}-of-0000{count}.safetensors", "cpu")["student.0.weight"])
            for n in range(1, count + 1)
        ]
        assert sizes == {2: [4, 3], 3: [3, 3, 1]}[count]


def test_a_full_disk_of_the_second_process_costs_one_checkpoint(trained):
    steps, all_steps = ({path.name for path in trained.glob(f"{run}/checkpoints/step-*")} for run in ("full", "two"))
    assert steps == all_steps - {"step-00000004"}
    lines = map(json.loads, (trained / "full" / "log.jsonl").read_text("utf-8").splitlines())
    found = [line["timing"]["message"] for line in lines if line["event"] == "speed"]
    assert any("says process 1 of 2" in message for message in found)
    (_, tensors), (_, others) = toy.final_state(trained / "two"), toy.final_state(trained / "full")
    assert all(np.array_equal(np.asarray(tensor), np.asarray(others[name])) for name, tensor in tensors.items())
