"""Pictures of a few samples while a network trains: when, of what, that training does not notice; both engines."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent / "engine_toy"))
import engine_toy as toy
import keras_toy
from runner_core import Pictures
from runner_core.base.errors import BadInput, Unhealthy
from runner_core.engines.memory import no_room
from runner_core.engines.returned import snapshots
from runner_core.output.report import write_report
from runner_core.output.runfolder import RunFolder
from runner_core.training.snapshots import spread_samples


def picture(array):
    """Three of the four bytes of each float32: the same picture only where the numbers are the same to the bit."""
    numbers = np.ascontiguousarray(array, np.float32)
    return numbers.view(np.uint8).reshape(-1, toy.SIDE, 4)[..., 1:]


class Draws(toy.Toy):
    """A project that draws its input, its output, and everything else that a project may draw at random."""

    snapshot_samples = 3

    def snapshots(self, model, batch):
        import torch

        assert not model.training
        assert not torch.is_grad_enabled()
        assert len(batch["image"]) == 3
        torch.rand(5)
        np.random.rand(5)  # noqa: NPY002
        random.random()
        return {"what it sees": picture(batch["image"]), "logits": picture(model(batch["image"]).float())}


class KerasDraws(keras_toy.KerasToy):
    snapshot_samples = 3

    def snapshots(self, model, batch):
        import keras

        assert len(batch["image"]) == 3
        keras.random.normal((5,))
        image, logits = (keras.ops.convert_to_numpy(x) for x in (batch["image"], model(batch["image"])))
        return {"what it sees": picture(image), "logits": picture(logits.astype(np.float32))}


both = pytest.mark.parametrize("kind", [Draws, KerasDraws], ids=["torch", "keras"])


def needs(kind):
    pytest.importorskip(kind.framework, reason=f"{kind.framework} is not installed")


def figures(folder):
    return [line for line in toy.log_lines(folder) if line["event"] == "figure"]


def files(folder):
    return {path.name: path.read_bytes() for path in (folder / "figures").iterdir()}


@both
def test_training_does_not_notice(kind, tmp_path):
    """Dropout, BatchNorm, averaged weights, augmentation: the same to the bit, and the same log but for pictures."""
    needs(kind)
    settings = {"train__epochs": 2, "train__ema": 0.9, "log__snapshots_every": 2}
    summary = toy.run(toy.small(**settings), tmp_path / "plain", project=kind.__base__)
    drawn = toy.run(toy.small(**settings), tmp_path / "drawing", project=kind)
    assert drawn.keys() == summary.keys()
    (values, tensors), (values2, tensors2) = (toy.final_state(tmp_path / name) for name in ("plain", "drawing"))
    assert values == values2
    assert {n: np.asarray(t).tobytes() for n, t in tensors.items()} == {
        n: np.asarray(t).tobytes() for n, t in tensors2.items()
    }
    lines = toy.log_lines(tmp_path / "drawing")
    assert [line for line in lines if line["event"] != "figure"] == toy.log_lines(tmp_path / "plain")
    assert not (tmp_path / "plain" / "figures").exists()


@both
def test_drawn_before_the_first_step_and_every_n_steps(kind, tmp_path):
    """The network of each moment, with averaged weights where validation has them."""
    needs(kind)
    toy.run(toy.small(train__epochs=4, train__ema=0.9, log__snapshots_every=5), tmp_path, project=kind)
    told = figures(tmp_path)
    assert [(line["step"], line["name"]) for line in told] == [
        (step, name) for step in (0, 5, 10) for name in ("what it sees", "logits")
    ]
    assert [line["file"] for line in told[-2:]] == ["what_it_sees-00000010.png", "logits-00000010.png"]
    kept = files(tmp_path)
    assert kept.keys() == {line["file"] for line in told}
    assert len({kept[f"what_it_sees-{step:08d}.png"] for step in (0, 5, 10)}) == 1, "always the same samples"
    assert len({kept[f"logits-{step:08d}.png"] for step in (0, 5, 10)}) == 3, "of another network each time"
    events = [line["event"] for line in toy.log_lines(tmp_path) if line["step"] == 0]
    assert events == ["start", "watch", "figure", "figure"]


@both
def test_the_pictures_are_of_the_weights_that_validation_sees(kind, tmp_path):
    """At the end of the run: those of the checkpoint, through `infer`."""
    needs(kind)
    config = toy.small(train__epochs=2, train__ema=0.9, log__snapshots_every=6)
    toy.run(config, tmp_path, project=kind)
    values, tensors = toy.final_state(tmp_path)
    setup = toy.ToySetup(kind(config))
    data = toy.make_data(setup.project)
    samples = setup.project.samples(data.store, data.splits["validation"], "validation")
    first = spread_samples(samples, 3, 0)
    trained = setup.engine.load(setup, SimpleNamespace(values=values, tensors=tensors))
    expected = trained.infer({"image": first["image"]})["prediction"]
    found = np.asarray(Image.open(tmp_path / "figures" / "logits-00000006.png"))
    assert np.array_equal(found[..., 2], picture(expected)[..., 2])  # sign and exponent: one is compiled, one is not


class Bomb:
    """Ends the run at a log line, as a kill would."""

    name = "bomb"

    def __init__(self, step):
        self.step = step

    def observe(self, event):
        if event.moment == "log" and event.step == self.step:
            raise KeyboardInterrupt


@both
def test_killed_and_resumed_has_the_same_files_and_lines(kind, tmp_path):
    """Step 8 was drawn when it was killed in step 10, and its newest checkpoint is that of step 6."""
    needs(kind)
    config = toy.small(train__epochs=4, checkpoint__every=2, validate__every=2, log__snapshots_every=2)
    toy.run(config, tmp_path / "whole", project=kind, rules=[Bomb(None)])
    with pytest.raises(KeyboardInterrupt):
        toy.run(config, tmp_path / "killed", project=kind, rules=[Bomb(10)])
    assert figures(tmp_path / "killed")[-1]["step"] == 8
    for old in (tmp_path / "killed" / "figures").glob("*-00000008.png"):
        old.write_bytes(b"half a picture")
    toy.run(config, tmp_path / "killed", project=kind, rules=[Bomb(None)], resume=True)
    assert files(tmp_path / "killed") == files(tmp_path / "whole")
    toy.assert_equal_runs(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.parametrize("validation", [True, False])
@pytest.mark.torch
def test_samples_at_even_distances_of_the_split_that_is_validated(validation, tmp_path):
    """They are filled as in a validation; without a validation split they are of the training's."""
    drawn = []

    class Notes(Draws):
        def snapshots(self, model, batch):
            drawn.append({name: tensor.numpy().copy() for name, tensor in batch.items()})
            return {}

    project = Notes(toy.small(train__epochs=1, log__snapshots_every=100))
    data = toy.make_data(project, validation=validation)
    toy.run(project.config, tmp_path, project=Notes, data=data)
    (batch,) = drawn
    records = data.splits["validation" if validation else "train"]
    rows = [(record, row) for record in records for row in data.store.arrays["mask"].read(record)]
    chosen = [rows[len(rows) * place // 6] for place in (1, 3, 5)]
    assert batch["record"].tolist() == [record for record, _ in chosen]
    assert batch["mask"][:, 0].tolist() == [row.tolist() for _, row in chosen]
    assert not figures(tmp_path)


@pytest.mark.torch
def test_fewer_samples_than_it_wants_and_the_set_on_the_device(tmp_path):
    class Greedy(Draws):
        snapshot_samples = 1000
        augment = None

        def snapshots(self, model, batch):
            return {"mean": np.full((4, 4, 3), len(batch["image"]), np.uint8)}

    store = toy.MemoryStore(device=True)
    data = toy.make_data(Greedy(toy.small()), store)
    toy.run(toy.small(train__epochs=1), tmp_path, project=Greedy, data=data, rules=[])
    found = np.asarray(Image.open(tmp_path / "figures" / "mean-00000000.png"))
    assert (found == sum(len(store.arrays["image"].read(r)) for r in data.splits["validation"])).all()


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "it returned NoneType"),
        ({"a": np.zeros((2, 2, 3))}, r"'a' is \(2, 2, 3\) float64"),
        ({"a": np.zeros((2, 2, 4), np.uint8)}, r"'a' is \(2, 2, 4\) uint8"),
        ({"a": "picture"}, "'a' is  str"),
    ],
)
def test_what_is_no_picture_is_refused(found, message):
    project = SimpleNamespace(name="toy", pictures=lambda: Pictures(snapshots=lambda model, batch: found))
    with pytest.raises(BadInput, match=rf"project toy: `snapshots` must return pictures .* by name; {message}"):
        snapshots(project, None, {})


@both
def test_what_is_not_finite_is_not_drawn(kind, tmp_path):
    """The run ends as it does at a checkpoint, whatever the project's drawing would make of NaN."""
    needs(kind)

    class Fails(kind):
        def step(self, model, batch, progress):
            found = super().step(model, batch, progress)
            return found._replace(loss=found.loss * float("nan"))

        def snapshots(self, model, batch):
            return {"a": np.zeros((2, 2, 3), np.uint8)}

    with pytest.raises(Unhealthy, match="NaN or infinite in step 1"):
        toy.run(toy.small(log__every=100, log__snapshots_every=1), tmp_path, project=Fails)
    assert [line["step"] for line in figures(tmp_path)] == [0]


def test_nothing_is_compiled_for_a_picture(tmp_path, monkeypatch):
    """Neither does the compiled step see another graph, nor is one made for the picture's batch."""
    nn, dynamo = pytest.importorskip("torch.nn"), pytest.importorskip("torch._dynamo")
    graphs = []

    def counted(graph, inputs):
        graphs.append(graph)
        return graph

    class Net(nn.Module):
        def __init__(self, layers):
            super().__init__()
            self.layers = layers

        def forward(self, image):
            return self.layers(image)

    class Compiled(Draws):
        def model(self, precision):
            return Net(super().model(precision))

    class Plain(Compiled):
        snapshot_samples = 0

    compiled = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self: compiled(self, backend=counted))
    numbers = []
    for name, kind in {"plain": Plain, "drawing": Compiled}.items():
        config = toy.small(train__epochs=2, train__compile="on", log__snapshots_every=2)
        toy.run(config, tmp_path / name, project=kind, rules=[])
        numbers.append(len(graphs))
        graphs.clear()
        dynamo.reset()
    assert numbers[0] == numbers[1] > 0
    assert len(figures(tmp_path / "drawing")) == 8


@pytest.mark.torch
def test_a_disk_that_takes_no_picture_does_not_stop_training(tmp_path):
    (tmp_path / "figures").write_text("in the way")
    display = toy.Quiet()
    summary = toy.run(toy.small(train__epochs=1), tmp_path, project=Draws, display=display)
    assert summary["status"] == "done"
    assert sum("logits-00000000.png cannot be written" in text for text in display.said) == 1
    assert not figures(tmp_path)


@pytest.mark.torch
def test_training_goes_on_without_pictures_where_device_memory_is_short(tmp_path, monkeypatch):
    from runner_core.engines.torch.trainer import TorchTrainer

    asked = []

    def no_memory(trainer, arrays):
        asked.append(trainer)
        raise no_room("drawing samples", 8)

    monkeypatch.setattr(TorchTrainer, "snapshots", no_memory)
    summary = toy.run(toy.small(log__snapshots_every=2), tmp_path, project=Draws)
    assert (summary["status"], len(asked)) == ("done", 1)
    assert not list(tmp_path.glob("figures/*"))


@pytest.mark.torch
def test_the_report_shows_a_few_of_a_long_series(tmp_path):
    toy.run(toy.small(train__epochs=10, log__snapshots_every=1), tmp_path, project=Draws)
    run = RunFolder(tmp_path)
    run.config_file.write_text("project: enginetoy\n", encoding="utf-8")
    Image.new("RGB", (4, 4)).save(run.figures / "001-plate-00000012.png")  # a record's, whatever its name
    page = write_report(run).read_text(encoding="utf-8")
    shown = page.split("Pictures during training")[1]
    for name in ("what it sees", "logits"):
        steps = [part.split("<")[0] for part in shown.split(f"<figcaption>{name}, step ")[1:]]
        assert steps == ["0", "3", "7", "10", "13", "17", "20", "23", "27", "30"]
    assert "<figcaption>001-plate-00000012</figcaption>" in page
    assert page.count("<figure>") == 21
