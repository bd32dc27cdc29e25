"""`train --from`: weights of a run or a file, what fits, what they were trained on, and resuming such a run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np
import pytest
import runner_core as runner
from runner_core import BadInput, Record
from runner_core.cli import main
from runner_core.cli.start_weights import start_weights
from runner_core.config import DataConfig
from runner_core.contract.records import Judgement, Predicted
from runner_core.contract.start import StartWeights
from runner_core.data.splits import split
from runner_core.engines.weights import matched, refuse_no_fit
from runner_core.plugins import discovery
from runner_core.training.seen import History, TrainedRun, read_split

QUICK = ["--train.epochs", "2", "--train.steps-per-epoch", "2", "--train.deterministic"]


def summary(run: str) -> Any:
    return json.loads((Path(run) / "summary.json").read_text(encoding="utf-8"))


def weights(run: str, step: int) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return dict(load_file(Path(run) / "checkpoints" / f"step-{step:08d}" / "model.safetensors"))


def everything(run: str, step: int) -> Any:
    """Return all that a checkpoint holds, except times: weights, average, optimizer, generators, counters."""
    folder = Path(run) / "checkpoints" / f"step-{step:08d}"
    values = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    del values["values"]["timing"]
    return values, {file.name: file.read_bytes() for file in folder.glob("*.safetensors")}


@pytest.fixture
def parent(trained: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Path]:
    """A trained run of the toy, in the working folder."""
    yield shutil.copytree(trained, here / "parent")
    capsys.readouterr()


@pytest.mark.torch
def test_a_run_gives_its_settings_its_data_and_what_it_was_trained_on(
    parent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["toy", "train", "--from", "parent", "--run-dir", "child", "--train.seed", "5", *QUICK]) == 0
    said = capsys.readouterr().out
    assert "do not validate" in said
    start = summary("child")["start"]
    assert start["fitted"] == len(weights("child", 4))
    assert start["from"].startswith(str(parent.absolute()))
    assert [start["kept"], start["unused"], start["differ"]] == [[], [], {}]
    one, other = read_split(parent), read_split(Path("child"))
    assert one is not None
    assert other is not None
    assert other["validation"], "the seed alone would choose others"
    assert not {*one["train"]} & {*other["validation"]}
    assert summary("child")["preset"] == summary("parent")["preset"]

    # a run that starts from that one knows both, in the same data under other names too
    assert main(["toy", "phantom", "data"]) == 0
    names = sorted(path.stem for path in Path("data").glob("*.npy") if not path.stem.endswith("_mask"))
    Path("moved").mkdir()
    for number, name in enumerate(names):
        for end in ("", "_mask"):
            shutil.copy(f"data/{name}{end}.npy", f"moved/new{number}_a{end}.npy")
    values = np.random.default_rng(0).random((2, 8, 24, 24)).astype(np.float32)
    for group in "ab":
        np.save(f"moved/{group}_new.npy", values["ab".index(group)])
        np.save(f"moved/{group}_new_mask.npy", (values["ab".index(group)] > 0.5).astype(np.float32))
    assert main(["toy", "train", "--from", "child", "--data", "moved", "--run-dir", "third", *QUICK]) == 0
    third = read_split(Path("third"))
    assert third is not None
    seen = {*one["train"], *other["train"]} & {*names}
    unseen = {f"new{number}_a" for number, name in enumerate(names) if name not in seen} | {"a_new", "b_new"}
    assert {name for name in third["validation"] if "_" in name} <= unseen
    capsys.readouterr()
    assert main(["toy", "evaluate", "third", "--data", "data"]) == 0
    trained_on = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.endswith("  trained on")]
    assert seen <= {*trained_on}
    history = History.of(Path("third").absolute(), str(Path("moved").absolute()))
    assert [Path(run.run).name for run in history.runs] == ["third", "child", "parent"]

    named = sorted({*one["train"]} & {name.partition("_")[0] for name in names})[0]
    assert main(["toy", "train", "--from", "child", "--run-dir", "no", "--data.split", f"group:{named}"]) == 2
    assert f"were trained on 1 group that would validate or test ({named})" in capsys.readouterr().err
    assert not Path("no").exists()


@pytest.mark.torch
def test_a_small_file_that_claims_much_is_refused(here: Path) -> None:
    import torch
    from runner_core.engines.torch.start import read_weights

    several = torch.arange(6.0)
    torch.save({"some": several.view(2, 3), "part": several[2:], "turned": several.view(2, 3).T}, "plain.pt")
    assert [*read_weights(Path("plain.pt"))] == ["some", "part", "turned"]
    torch.save({"good": several, "large": torch.zeros(1).expand(3 * 10**9)}, "large.pt")
    with pytest.raises(BadInput, match=r"large\.pt: large \(3000000000,\) claims more values than the file holds"):
        read_weights(Path("large.pt"))
    torch.save({"nothing": torch.empty(10**12, device="meta")}, "meta.pt")
    with pytest.raises(BadInput, match=r"nothing .* claims more values"):
        read_weights(Path("meta.pt"))
    torch.save({"zeros": torch.zeros(10**6)}, "zeros.pt")
    with ZipFile("zeros.pt") as archive, ZipFile("packed.pt", "w", ZIP_DEFLATED) as packed:
        for part in archive.namelist():
            packed.writestr(part, archive.read(part))
    with pytest.raises(BadInput, match="compressed parts"):
        read_weights(Path("packed.pt"))


@pytest.mark.torch
def test_weights_of_a_file_are_taken_by_name_and_shape(parent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.numpy import save_file

    own = weights("parent", int(summary("parent")["steps"]))
    first, *rest = (name for name in own if own[name].ndim > 1)
    changed = {f"module.{name}": array for name, array in own.items() if name != rest[0]}
    save_file(
        {**changed, f"module.{first}": np.zeros((1, 2), np.float32), "module.more": np.ones(3)}, "some.safetensors"
    )
    assert main(["toy", "train", "--from", "some.safetensors", "--run-dir", "child", *QUICK]) == 0
    said, start = capsys.readouterr().out, summary("child")["start"]
    assert start["kept"] == [rest[0]]
    assert start["unused"] == ["module.more"]
    assert [*start["differ"]] == [first]
    assert start["fitted"] == len(own) - 2
    assert f"not in the file, so initial: 1 ({rest[0]})" in said
    assert "it is not known what" in said

    def refused(*words: str) -> str:
        assert main(["toy", "train", "--run-dir", "no", *words]) == 2
        assert not Path("no").exists()
        return capsys.readouterr().err

    save_file({"other": np.ones(3, np.float32)}, "other.safetensors")
    assert "none of its weights fits this network" in refused("--from", "other.safetensors")
    save_file({**own, first: np.full_like(own[first], np.nan)}, "nan.safetensors")
    assert f"nan.safetensors: {first} holds NaN" in refused("--from", "nan.safetensors")
    Path("text.safetensors").write_text("hello", encoding="utf-8")
    assert "cannot be read as weights" in refused("--from", "text.safetensors")
    for content in (bytes(range(256)) * 4, b"h\xff\x00\xff"):
        Path("odd.pt").write_bytes(content)
        assert "odd.pt cannot be read as weights: torch.save did not write it" in refused("--from", "odd.pt")
    assert "there is no such run or file" in refused("--from", "nothing.pth")
    assert "--from names nothing" in refused("--from", "")
    assert "leave one of them out" in refused("--from", "parent", "--resume", "child")
    assert "leave one of them out" in refused("--from", "child", "--resume", "parent")
    assert "leave one of them out" in refused("--from", "/", "--resume", "child")
    assert "without --resume, the same line starts it" in refused("--from", "parent", "--resume", "nowhere")
    Path("empty").mkdir()
    assert "neither a run nor a folder with weights" in refused("--from", "empty")


@pytest.mark.torch
def test_what_holds_no_weights_is_named(parent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each refusal names the path, what it is and what to give instead, and leaves nothing."""

    def refused(named: str, content: bytes | None = None) -> str:
        if content is not None:
            Path(named).parent.mkdir(exist_ok=True)
            Path(named).write_bytes(content)
        before = sorted(Path().rglob("*"))
        assert main(["toy", "train", "--run-dir", "no", "--from", named, *QUICK]) == 2
        error = capsys.readouterr().err
        assert sorted(Path().rglob("*")) == before
        assert len(error.strip().splitlines()) == 1
        assert f"--from {named}" in error
        assert " give " in error
        return error

    checkpoint = sorted(Path("parent/checkpoints").glob("step-*"))[-1]
    error = refused("parent/checkpoints")
    assert "the folder of checkpoints of the run parent; give the run (--from parent), or a checkpoint" in error
    assert f"(--from {checkpoint})" in error
    for part in ("checkpoints/best.json", "config.yaml", "log.jsonl", "figures"):
        assert "no weights but a part of the run parent; give the run (--from parent)" in refused(f"parent/{part}")
    for name, content, what in (
        ("net.onnx", b"\x08\x08\x12\x07pytorch", "a network in the format of ONNX; it runs, but cannot be trained"),
        ("vino/model.xml", b"<net/>", "a network in the format of OpenVINO"),
        ("vino/model.bin", b"\0" * 99, "a network in the format of OpenVINO"),
        ("net.pt2", b"PK\3\4", "a network in the format of torch.export"),
        ("net.keras", b"PK\3\4", "a network of Keras, and this project's is one of torch"),
        ("notes.txt", b"hello", "a text file"),
        ("cut.dat", "ä".encode() * 300, "a text file"),
        ("config.yaml", b"project: toy", "a settings file; give settings with --config"),
        ("scan.npy", b"\x93NUMPY", "a file of NumPy"),
        ("empty.pth", b"", "an empty file"),
        ("exported/export.json", b'{"format": "onnx"}', "a text file"),
    ):
        assert f"--from {name} cannot be read as weights: it is {what}" in refused(name, content)
    assert "it is a network exported as onnx; it runs, but" in refused("exported")
    assert "it is a folder of runs; give one of them" in refused(".")
    assert "it is no ordinary file" in refused("/dev/null")


KILLED = """
import os, signal, sys
from runner_core.cli import main
from runner_core.engines.torch.trainer import TorchTrainer
own, at = TorchTrainer.train_step, int(sys.argv[1])
def mortal(self, batch, step):
    if step == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return own(self, batch, step)
TorchTrainer.train_step = mortal
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.torch
@pytest.mark.parametrize("at", [1, 5])
def test_a_killed_and_resumed_run_equals_one_that_never_was(parent: Path, at: int) -> None:
    """At step 1 nothing is saved yet: the weights are read again. At step 5 they are gone, and nothing needs them."""
    words = ["toy", "train", "--from", "parent", "--train.ema", "0.9", *QUICK, "--train.steps-per-epoch", "4"]
    assert main([*words, "--run-dir", "whole"]) == 0
    killed = subprocess.run([sys.executable, "-c", KILLED, str(at), *words, "--run-dir", "run"], check=False)
    assert killed.returncode == -9
    if at == 5:
        shutil.rmtree(parent)
    assert main([*words, "--run-dir", "run", "--resume"]) == 0  # the same line
    assert everything("whole", 8) == everything("run", 8)
    assert summary("run")["metrics"] == summary("whole")["metrics"]
    assert summary("run")["start"] == summary("whole")["start"]

    # averaged weights are what a run that starts from this one gets
    if at == 1:
        runner.train("toy", from_="run", run_dir="next", epochs=1, **{"train.steps_per_epoch": 1})
        assert summary("next")["start"]["weights"].startswith("averaged weights of step-")


@pytest.mark.torch
def test_weights_that_changed_before_the_first_checkpoint_are_refused(
    parent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = json.loads((parent / "checkpoints" / "best.json").read_text(encoding="utf-8"))["step"]
    shutil.copy(parent / "checkpoints" / f"step-{best:08d}" / "model.safetensors", "some.safetensors")
    words = ["toy", "train", "--from", "some.safetensors", "--run-dir", "run", *QUICK]
    assert subprocess.run([sys.executable, "-c", KILLED, "1", *words], check=False).returncode == -9
    from safetensors.numpy import load_file, save_file

    save_file({name: array + 1 for name, array in load_file("some.safetensors").items()}, "some.safetensors")
    assert main(["toy", "train", "--resume", "run"]) == 2
    assert "was changed since" in capsys.readouterr().err


@pytest.mark.torch
def test_several_processes_start_from_the_weights_that_a_settings_file_names(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runner_core.cli.options import TrainOptions
    from runner_core.cli.start import start_new

    seen = []

    def launch(words: list[str], count: int, patience: float) -> int:
        name, command, *rest = words
        seen.append((start_new(name, command, TrainOptions, rest), count))
        return 2

    monkeypatch.setattr("runner_core.cli.launch.launch", launch)
    Path("s.yaml").write_text("project: toy\nfrom: parent\n", encoding="utf-8")
    for more in ({"config": "s.yaml"}, {"from_": "parent"}, {}):
        with pytest.raises(BadInput, match="ended with code 2"):
            runner.train("toy", devices=2, device="cpu", run_dir="run", **more)
    named, given, none = (started for started, _ in seen)
    assert named.setup.start is not None
    assert given.setup.start is not None
    assert none.setup.start is None
    assert named.setup.start.source == given.setup.start.source
    assert Path(named.setup.start.source).parent.parent == parent.absolute()
    assert [count for _, count in seen] == [2, 2, 2]


@pytest.mark.torch
def test_a_run_tells_no_extension_what_to_do(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may be a stranger's: the settings of runner-slurm hold lines of shell."""
    from runner_core.cli.options import TrainOptions
    from runner_core.cli.parsing import peek

    file = parent / "config.yaml"
    file.write_text(file.read_text(encoding="utf-8") + "cluster_jobs: {setup: [echo]}\n", encoding="utf-8")
    installed = discovery.extensions()
    monkeypatch.setattr(discovery, "extensions", lambda: {**installed, "cluster-jobs": None})
    found = start_weights("toy", TrainOptions, peek(["--from", "parent"]), None)
    assert found is not None
    assert found.settings is not None
    assert "cluster_jobs" not in found.settings.sections
    assert found.settings.sections["train"]


@pytest.mark.torch
def test_scoring_does_without_the_first_network_once_its_weights_are_gone(
    parent: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from toy_project import Toy, declare

    given: list[list[bool]] = []

    def judge(self: Any, predicted: Sequence[Predicted]) -> Judgement:
        given.append([p.untrained is not None for p in predicted])
        return Judgement({"spread": 1.0}, {"spread": 0.5})

    monkeypatch.setattr(Toy, "judging", declare(Toy, "judging", judge=judge, untrained=True))
    monkeypatch.delattr(Toy, "score")
    assert main(["toy", "train", "--from", "parent", "--run-dir", "child", *QUICK]) == 0
    assert "no comparison" not in capsys.readouterr().out
    parent.rename("moved")
    assert main(["toy", "evaluate", "child"]) == 0
    assert "NOTE: no comparison with the network before its first step" in capsys.readouterr().out
    assert main(["toy", "train", "--resume", "child"]) == 0
    assert "NOTE: no comparison with the network before its first step" in capsys.readouterr().out
    Path("moved").rename("parent")
    assert main(["toy", "evaluate", "child"]) == 0
    assert [all(found) for found in given] == [True, False, False, True]
    assert [any(found) for found in given] == [True, False, False, True]


def test_names_that_all_begin_alike_are_compared_without_it() -> None:
    fit, names = matched({"a.w": "2", "b.w": "3"}, {"net.a.w": "2", "net.b.w": "3"})
    assert names == {"a.w": "net.a.w", "b.w": "net.b.w"}
    assert (fit.kept, fit.unused, fit.differ) == ([], [], {})
    fit, names = matched({"a.w": "2", "b": "3"}, {"a.w": "2", "c": "9"})
    assert (names, fit.kept, fit.unused) == ({"a.w": "a.w"}, ["b"], ["c"])
    assert matched({"a": "2"}, {})[0].kept == ["a"]


def test_a_counter_alone_does_not_fit() -> None:
    start = StartWeights("file", "", "", True, dict)
    start.fit, _ = matched({"n": "()", "w": "(3,)"}, {"n": "()", "v": "(3,)"})
    with pytest.raises(BadInput, match="none of its weights fits"):
        refuse_no_fit(start, {"n": 1, "w": 3})


def records(*groups: str) -> list[Record]:
    return [Record(f"{group}{n}", group, {}) for group in groups for n in range(2)]


@pytest.mark.parametrize("seed", range(20))
def test_seen_groups_never_validate(seed: int) -> None:
    found = records(*"abcdefghij")
    usual = split(found, DataConfig(), seed)
    trained = {found[n].group for n in usual["train"]}
    assert split(found, DataConfig(), seed, lambda r: r.group in trained) == usual, "the same seed, the same split"
    other = split(found, DataConfig(), seed + 100, lambda r: r.group in trained)
    assert other["validation"] == usual["validation"]
    few = split(found, DataConfig(), seed, lambda r: r.group not in "cd")
    assert {found[n].group for n in few["validation"]} == {"c", "d"}
    with pytest.raises(BadInput, match="none can validate"):
        split(found, DataConfig(), seed, lambda r: True)
    assert not split(found, DataConfig(split="none"), seed, lambda r: True)["validation"]


def test_names_count_in_the_same_data_and_contents_in_others() -> None:
    one, two = Record("s1", "s1", {}), Record("s2", "s2", {})
    history = History((TrainedRun("run", "here", ["s1"], {"s1": "x"}),), ("weights.pth",))
    same = history.seen([one, two], ["x", "y"], "here")
    assert (same(one), same(two)) == (True, False)
    other = history.seen([one, two], ["z", "x"], "elsewhere")
    assert (other(one), other(two)) == (False, True)
    assert any("weights.pth" in note for note in other.notes)
    assert History.from_json(json.loads(json.dumps(history.json()))).seen([one], ["x"], "here")(one)
