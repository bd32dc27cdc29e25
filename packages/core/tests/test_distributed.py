"""Two processes that train together against one with the same batches: losses, weights, checkpoints, signals."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent / "engine_toy"))
sys.path.insert(0, str(Path(__file__).parent / "together_toy"))
import engine_toy as toy  # noqa: E402
import together_toy as together  # noqa: E402
from runner_core.base.errors import BadInput, PeerLost  # noqa: E402
from runner_core.cli.launch import place_of  # noqa: E402
from runner_core.contract import Precision  # noqa: E402
from runner_core.contract.team import ALONE, Place  # noqa: E402
from runner_core.engines.torch import engine as torch_engine  # noqa: E402
from runner_core.engines.torch import parallel, ranks  # noqa: E402
from runner_core.engines.torch.steplog import Means  # noqa: E402
from runner_core.engines.torch.team import TorchTeam  # noqa: E402
from runner_core.training.launchers import find_place  # noqa: E402

STRATEGIES = ("ddp", "fsdp")
SCRIPT = Path(together.__file__)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all that two processes did (`together_toy.main`), and the run `one` of a single one."""
    folder = tmp_path_factory.mktemp("together")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    together.Together.validated.clear()
    toy.run(together.settings(1), folder / "one", project=together.Together)
    torch.set_num_threads(threads)
    validations = [line for line in toy.log_lines(folder / "one") if line["event"] == "validation"]
    (folder / "samples.json").write_text(json.dumps(sum(together.Together.validated) // len(validations)))
    together.cut_after(shutil.copytree(folder / "one", folder / "handed-on"), 6)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen(
            [sys.executable, SCRIPT, folder, str(number)], env=environment, stderr=subprocess.PIPE, text=True
        )
        for number in range(2)
    ]
    said = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(said)
    assert not any("find_unused_parameters" in text for text in said)
    return folder


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_processes_learn_what_one_does(strategy: str, both: Path) -> None:
    together.assert_close_runs(both / "one", both / strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_process_validates_its_share(strategy: str, both: Path) -> None:
    first, second = (json.loads((both / f"{strategy}-validated-{number}.json").read_text()) for number in range(2))
    epochs = len([line for line in toy.log_lines(both / "one") if line["event"] == "validation"])
    whole = sum(first) + sum(second)
    assert whole % epochs == 0
    assert 0 < sum(second) <= sum(first) < whole
    assert whole == epochs * json.loads((both / "samples.json").read_text())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_signal_to_one_stops_both_after_the_same_step_and_resuming_changes_nothing(strategy: str, both: Path) -> None:
    said = [(both / f"{strategy}-stopped-{number}").read_text() for number in range(2)]
    assert said[0] == said[1]
    assert "stopped by SIGTERM after step" in said[0]
    straight, stopped = both / f"{strategy}-random", both / f"{strategy}-stopped"
    (values, tensors), (values2, tensors2) = toy.final_state(straight), toy.final_state(stopped)
    assert values == values2
    assert tensors.keys() == tensors2.keys()
    for name, tensor in tensors.items():
        assert np.array_equal(np.asarray(tensor), np.asarray(tensors2[name])), name
    logs = [[line for line in toy.log_lines(run) if line["event"] != "checkpoint"] for run in (straight, stopped)]
    assert logs[0] == logs[1]


def test_what_is_random_differs_between_processes(both: Path) -> None:
    """Their default generators, which dropout uses, do; those of the first are a single process's."""
    _, tensors = toy.final_state(both / "ddp-random")
    _, alone = toy.final_state(both / "one")
    own = [name for name in tensors if name.startswith("generators.") and name.endswith("torch")]
    other = [name for name in tensors if name.startswith("others.0.") and name.endswith("torch")]
    assert len(own) == len(other) == 1
    assert not np.array_equal(np.asarray(tensors[own[0]]), np.asarray(tensors[other[0]]))
    assert not any(name.startswith("others.") for name in alone)


def test_one_process_goes_on_with_a_run_of_two_and_two_with_a_run_of_one(both: Path, tmp_path: Path) -> None:
    together.assert_close_runs(both / "one", both / "handed-on")
    run = together.cut_after(shutil.copytree(both / "fsdp", tmp_path / "run"), 6)
    toy.run(together.settings(1), run, project=together.Together, resume=True)
    together.assert_close_runs(both / "one", run)


def test_another_global_batch_is_refused(both: Path, tmp_path: Path) -> None:
    run = together.cut_after(shutil.copytree(both / "fsdp", tmp_path / "run"), 6)
    with pytest.raises(BadInput, match=r"train.batch_size times train.devices: 8 in the run, 4 now"):
        toy.run(together.settings(1, train__batch_size=4), run, project=together.Together, resume=True)


def test_a_checkpoint_of_divided_weights_is_anybodys(both: Path, tmp_path: Path) -> None:
    """Whole tensors under the network's own names: one process predicts with it and exports it."""
    image = np.random.default_rng(0).integers(0, 255, (5, 2, toy.SIDE, toy.SIDE), dtype=np.uint8)
    predictions = []
    for run in ("one", "fsdp"):
        setup = toy.ToySetup(together.Together(together.settings(1)))
        values, tensors = toy.final_state(both / run)
        state = SimpleNamespace(values=values, tensors=tensors)
        predictions.append(setup.engine.load(setup, state).infer({"image": image})["prediction"])
        assert setup.engine.export(setup, state, tmp_path / run)
        assert tensors["model.student.0.weight"].shape == (together.FEATURES, together.WIDTH)
    np.testing.assert_allclose(predictions[0], predictions[1], rtol=1e-9)


def test_gradients_flow_back_through_what_is_gathered(both: Path) -> None:
    single = np.array(together.gathered(0))
    for number in range(2):
        found = json.loads((both / f"gathered-{number}.json").read_text())
        np.testing.assert_allclose(found, single, rtol=1e-12, atol=1e-15)


def test_the_log_counts_the_samples_of_both(both: Path) -> None:
    lines = [json.loads(line) for line in (both / "ddp" / "log.jsonl").read_text().splitlines()]
    train = [line["timing"] for line in lines if line["event"] == "train"]
    samples = sum(round(t["samples_per_second"] * t["seconds"]) for t in train)
    assert samples == 8 * lines[-1]["step"]


# ---------------------------------------------------------------- one process, nothing in between


def test_alone_nothing_is_put_in_between() -> None:
    tensor = torch.ones(3, requires_grad=True)
    assert (ranks.count(), ranks.number(), ALONE.every(1)) == (1, 0, [1])
    assert ranks.gathered(tensor) is tensor
    assert not ranks.summed(tensor).requires_grad
    network = torch.nn.Linear(2, 2)
    project = toy.Toy(toy.small())
    made = parallel.parallel(project, network, torch.device("cpu"), Precision("float32"), 1, ranks=1)
    assert isinstance(made, parallel.Single)
    assert made.train(max, 1, 2) == 2


def test_auto_divides_what_would_fill_a_quarter_of_the_memory() -> None:
    network = torch.nn.Linear(100, 99)  # 9,999 weights of 16 bytes
    assert parallel.chosen(toy.small().train, network, 4 * 16 * 9_999) == "ddp"
    assert parallel.chosen(toy.small().train, network, 4 * 16 * 9_999 - 4) == "fsdp"
    assert parallel.chosen(toy.small(train__strategy="ddp").train, network, 1) == "ddp"


def test_what_cannot_be_divided_is_refused() -> None:
    project = toy.Toy(toy.small())
    network, cpu = torch.nn.Linear(2, 2), torch.device("cpu")
    with pytest.raises(BadInput, match=r"fsdp does not go with precision\.mode float16"):
        parallel.Sharded(project, network, cpu, Precision("float16"))
    network.temperature = torch.nn.Parameter(torch.tensor(1.0))
    with pytest.raises(BadInput, match=r"fsdp cannot divide temperature, a single number: give it the shape \(1,\)"):
        parallel.Sharded(project, network, cpu, Precision("float32"))


def test_terms_that_only_one_process_has_are_refused() -> None:
    team = SimpleNamespace(every=lambda values: [values, values[:1]])
    with pytest.raises(BadInput, match="must return the same terms in every process"):
        Means(toy.Toy(toy.small()), team)([torch.tensor(1.0), torch.tensor(2.0)])


# ---------------------------------------------------------------- places and devices


def test_a_place_is_found_in_what_a_launcher_says() -> None:
    assert find_place({}) is None
    assert find_place({"WORLD_SIZE": "1", "RANK": "0"}) is None
    torchrun = {"WORLD_SIZE": "8", "RANK": "5", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    assert find_place(torchrun) == Place(5, 8, 1, 4, "env://")
    assert find_place(torchrun | {"TORCHELASTIC_RESTART_COUNT": "2"}) == Place(5, 8, 1, 4, "env://", attempt=2)
    ours = torchrun | {"RUNNER_RENDEZVOUS": "/tmp/x/meeting"}
    assert find_place(ours) == Place(5, 8, 1, 4, "file:///tmp/x/meeting")
    with pytest.raises(BadInput, match="WORLD_SIZE is 8 in the environment, but RANK is not set"):
        find_place({"WORLD_SIZE": "8"})


@pytest.mark.parametrize(
    "nodes, host",
    [("gpu[03-05,09]", "gpu03"), ("gpu7", "gpu7"), ("a1,b2", "a1"), ("n[1-2]-ib", "n1-ib"), ("x[01,04],y3", "x01")],
)
def test_a_place_of_srun(nodes: str, host: str) -> None:
    srun = {"SLURM_STEP_NUM_TASKS": "6", "SLURM_PROCID": "4", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "70012",
            "SLURM_STEP_TASKS_PER_NODE": "3(x2)", "SLURM_STEP_NODELIST": nodes}  # fmt: skip
    assert find_place(srun) == Place(4, 6, 1, 3, f"tcp://{host}:30012")
    uneven = srun | {"SLURM_STEP_TASKS_PER_NODE": "2(x2),1,3", "SLURM_NODEID": "2"}
    assert find_place(uneven) == Place(4, 6, 1, 1, f"tcp://{host}:30012")
    bound = srun | {"CUDA_VISIBLE_DEVICES": "1"}
    assert find_place(bound) == Place(4, 6, 0, 1, f"tcp://{host}:30012")


def test_a_place_of_mpi_and_of_kubeflow() -> None:
    mpi = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
           "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "prterun-host-27639@1"}  # fmt: skip
    place, other = find_place(mpi), find_place(mpi | {"PMIX_NAMESPACE": "prterun-host-27640@1"})
    assert place is not None
    assert other is not None
    assert place == Place(1, 2, 1, 2, place.rendezvous)
    assert place.rendezvous.startswith("tcp://127.0.0.1:")
    assert place.rendezvous != other.rendezvous
    meeting = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
    two_machines = mpi | {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    assert find_place(two_machines | meeting) == Place(1, 2, 0, 1, "tcp://node1:29500")
    mpich = {"PMI_SIZE": "4", "PMI_RANK": "3", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    assert find_place(mpich | meeting) == Place(3, 4, 1, 2, "tcp://node1:29500")
    for unknown in (two_machines, mpich):
        with pytest.raises(BadInput, match="does not say where they meet: name the first machine"):
            find_place(unknown)
    kubeflow = {"WORLD_SIZE": "4", "RANK": "2", **meeting}
    assert find_place(kubeflow) == Place(2, 4, 0, 1, "env://"), "one process on each machine"
    assert find_place(kubeflow | {"LOCAL_RANK": "1"}) == Place(2, 4, 1, 4, "env://"), "several on this one"
    assert find_place({"PMIX_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}) is None
    assert find_place({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'}) is None
    assert find_place({"RANK": "0", "SLURM_PROCID": "0", "PMI_RANK": "captain"}) is None


def _tf_config(kind: str, index: int, **cluster: list[str]) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def test_a_place_of_tensorflow() -> None:
    cluster = {"worker": ["b:1", "c:1", "b:2"], "chief": ["a:7"]}
    tasks = [("chief", 0), ("worker", 0), ("worker", 1), ("worker", 2)]
    found = [find_place(_tf_config(kind, index, **cluster), tensorflow=True) for kind, index in tasks]
    assert found == [
        Place(0, 4, 0, 1, "tcp://a:7"), Place(1, 4, 0, 2, "tcp://a:7"),
        Place(2, 4, 0, 1, "tcp://a:7"), Place(3, 4, 1, 2, "tcp://a:7"),
    ]  # fmt: skip
    workers = _tf_config("worker", 1, worker=["b:1", "c:1"])
    assert find_place(workers, tensorflow=True) == Place(1, 2, 0, 1, "tcp://b:1")
    assert find_place(_tf_config("worker", 0, worker=["b:1"]), tensorflow=True) is None
    launched = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "d", "MASTER_PORT": "5"}
    assert find_place(launched | workers, tensorflow=True) == Place(0, 2, 0, 1, "env://"), "a launcher goes first"
    for wrong, said in (
        (_tf_config("worker", 0, worker=["b:1"], ps=["a:1"]), "has tasks of the kind ps"),
        (_tf_config("worker", 2, worker=["b:1", "c:1"]), "names no task of this process among its 2"),
        (_tf_config("worker", 0, worker=["b", "c:1"]), "'b' is not HOST:PORT"),
    ):
        with pytest.raises(BadInput, match=said):
            find_place(wrong, tensorflow=True)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"TF_CONFIG": '{"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"]}}'}, "TF_CONFIG .* names 3 processes"),
        ({"PMIX_RANK": "0"}, "PMIX_RANK is set in the environment, but not the number of processes"),
        ({"RANK": "1", "MASTER_ADDR": "a"}, "RANK is set in the environment, but not the number of processes"),
        ({"PMI_RANK": "10"}, "PMI_RANK is set in the environment, but not the number of processes"),
    ],
)
def test_what_would_start_several_trainings_is_refused(environment: dict[str, str], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        find_place(environment)


def test_devices_follow_the_launcher_or_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    setup = toy.ToySetup(toy.Toy(toy.small()))
    assert place_of(setup) == Place(1, 2, 0, 1, "env://")
    assert setup.config.train.devices == 2
    setup.config.cache.mode = "device"
    with pytest.raises(BadInput, match=r"cache\.mode device keeps the data on one GPU, and train\.devices is 2"):
        place_of(setup)
    setup.config.train.devices = 3
    with pytest.raises(BadInput, match=r"train\.devices is 3, but 2 processes were started"):
        place_of(setup)


@pytest.mark.parametrize(
    "asked, found, said",
    [
        ("cuda:1", 4, "train.devices 4: train.device cuda:1 names only one GPU"),
        ("auto", 0, "train.devices 4: PyTorch sees no GPU here"),
        ("auto", 3, "train.devices 4: PyTorch sees only 3 GPUs here; use at most as many"),
    ],
)
def test_devices_that_are_not_there_are_refused(asked: str, found: int, said: str) -> None:
    place = Place(0, 4, 0, 4, "env://")
    with pytest.raises(BadInput, match=said):
        torch_engine._gpu_of(place, asked, found)
    assert torch_engine._gpu_of(place, "cpu", 0) is None
    assert torch_engine._gpu_of(Place(3, 4, 3, 4, "env://"), "auto", 4) == 3


def test_a_lost_process_is_told_from_other_errors() -> None:
    lost = PeerLost("process 1 ended")
    team = SimpleNamespace(_heartbeat=SimpleNamespace(after_failure=lambda: lost))
    closed = RuntimeError("[pytorch/third_party/gloo/pair.cc:547] Connection closed by peer")
    assert TorchTeam.lost(team, closed) is lost
    assert TorchTeam.lost(team, torch.distributed.DistBackendError("NCCL error")) is lost
    assert TorchTeam.lost(team, RuntimeError("shapes do not match")) is None
    assert TorchTeam.lost(team, ValueError("gloo")) is None


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"WORLD_SIZE": "x"}, "WORLD_SIZE is 'x' in the environment, and must be a whole number"),
        ({"WORLD_SIZE": "2", "RANK": "x"}, "RANK is 'x'"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK is 2 in the environment, and WORLD_SIZE is 2"),
        ({"WORLD_SIZE": "-1", "RANK": "0"}, "RANK is 0 in the environment, and WORLD_SIZE is -1"),
        ({"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": ""}, "LOCAL_RANK is ''"),
        ({"SLURM_STEP_NUM_TASKS": "1e3"}, "SLURM_STEP_NUM_TASKS is '1e3'"),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7-1"}, "SLURM_JOB_ID is '7-1'"),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused_by_name(environment: dict[str, str], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        find_place(environment)


def test_tasks_of_a_node_that_cannot_be_read_are_those_of_the_step() -> None:
    place = find_place({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_STEP_TASKS_PER_NODE": "x"})
    assert place is not None
    assert (place.number, place.local_count) == (1, 2)
