"""The memory plan: what it counts, how near it comes to what training takes, and what a refusal names."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "engine_toy"))
import engine_toy as toy
from runner_core.base.errors import BadInput, OutOfSpace
from runner_core.contract import CachePlan
from runner_core.contract.footprint import Footprint
from runner_core.contract.project import Project
from runner_core.contract.team import Alone
from runner_core.output.report.page import lines
from runner_core.output.report.sections import memory as section
from runner_core.training import memory
from runner_core.training.assembly import samples
from runner_core.training.memory.plan import Asked, MemoryPlan, judged, parts, remedies, total
from runner_core.training.memory.survey import Facts

MB = 1_000_000
NET = Footprint(
    weights=10 * MB, gradients=10 * MB, optimizer=20 * MB, average=0, sample=5 * MB, micro=32, how="measured"
)


def asked(**changed) -> Asked:
    usual = Asked(32, 1, prefetch=2, workers=0, cache="memmap", keep=3, validation_batch=None)
    return usual.with_changes(**changed)


def facts(has=None, footprint=NET, **changed) -> Facts:
    usual = {
        **{"sample": MB, "validation_sample": MB, "plain": 500 * MB, "to_cache": 0, "program": 400 * MB},
        **{"counted": 10 * MB, "block": 1, "processes": 1, "on_gpu": False, "kept": 0},
    }
    return Facts(**{**usual, **changed}, footprint=footprint, has=has or {"host": 10_000 * MB, "disk": 10_000 * MB})


def sizes(found, place="host"):
    return {part.name: part.bytes / MB for part in found if part.place == place}


# ---------------------------------------------------------------- parts


def test_the_parts_of_a_training_on_the_processor():
    found = parts(asked(), facts())
    assert sizes(found) == {
        "program and libraries": 490,  # 400, of which 10 are weights, and 100 with the first step
        "weights": 10,
        "optimizer": 20,
        "gradients": 10,
        "activations of a step": 160,
        "a checkpoint being written": 30,
        "batches kept ready": 128,
        "the same of validation": 128,
    }
    assert total(found, "host") == (490 + 10 + 20 + 128 + 128 + max(10 + 160, 30)) * MB
    assert sizes(found, "disk") == {"checkpoints": 150}  # 3, the best, and the one that is being written


def test_the_cache_is_an_estimate_or_a_limit():
    for mode, known in (("memmap", "estimated"), ("stream", "at most")):
        (part,) = (
            part for part in parts(asked(cache=mode), facts(to_cache=MB)) if part.name == "cache of prepared data"
        )
        assert (part.known, part.bytes) == (known, MB)


def test_the_parts_of_a_training_on_a_gpu():
    found = parts(asked(cache="device"), facts(on_gpu=True, footprint=NET))
    assert sizes(found, "device") == {
        "data set on the device": 500,
        "weights": 10,
        "optimizer": 20,
        "gradients": 10,
        "activations of a step": 160,
        "the next batch": 32,
    }
    assert "weights" not in sizes(found)
    assert total(found, "device") == 732 * MB


@pytest.mark.parametrize(
    "change, name, bytes",
    [
        ({"accumulate": 4}, "activations of a step", 40),
        ({"accumulate": 5}, "activations of a step", 35),  # micro-batches of 7
        ({"prefetch": 0}, "batches kept ready", 64),
        ({"validation_batch": 8}, "the same of validation", 32),
        ({"workers": 2}, "worker processes", 240),  # one for validation
        ({"cache": "memory"}, "data set in memory", 500),
        ({"background": True}, "a copy to write checkpoints from", 30),
    ],
)
def test_what_settings_change(change, name, bytes):
    assert sizes(parts(asked(**change), facts()))[name] == bytes


def test_several_processes_have_all_on_the_host_but_a_device_each():
    alone, both = parts(asked(), facts(on_gpu=True)), parts(asked(), facts(on_gpu=True, processes=2))
    assert sizes(both)["batches kept ready"] == 2 * sizes(alone)["batches kept ready"]
    assert sizes(both, "device") == sizes(alone, "device")


# ---------------------------------------------------------------- remedies


def need(place="host", **changed):
    return total(parts(asked(**changed), facts()), place)


def told(has, place="host", splittable=False, recompute="", on_gpu=False, **changed):
    given = facts(has={"host": 10**12, "disk": 10**12, "device": 10**12, place: has}, on_gpu=on_gpu)
    return remedies(asked(**changed), given, place, splittable=splittable, recompute=recompute)


def test_the_largest_batch_that_fits_is_named():
    (text, *_) = told(800 * MB)
    named = int(text.removeprefix("set train.batch_size to ").split()[0])
    assert need(batch_size=named) <= 0.95 * 800 * MB < need(batch_size=named + 1)


def test_micro_batches_are_named_where_they_learn_the_same():
    assert not any("accumulate" in text for text in told(850 * MB))
    (text, *_) = told(850 * MB, splittable=True)
    named = int(text.removeprefix("set train.accumulate to ").split(":")[0])
    assert need(accumulate=named) <= 0.95 * 850 * MB < need(accumulate=named - 1)


def test_data_in_memory_go_back_to_the_disk():
    assert told(1200 * MB, cache="memory")[0].startswith("set cache.mode to memmap")
    assert told(400 * MB, "device", cache="device", on_gpu=True)[0].startswith("set cache.mode to memmap")
    assert not any("cache.mode" in text for text in told(400 * MB, cache="memmap"))


def test_workers_and_prefetch_are_named_where_they_suffice():
    assert "set train.workers to 0" in told(1300 * MB, workers=8)
    assert "set train.prefetch to 0, instead of 2 batches" in told(920 * MB)


def test_fewer_checkpoints_are_named():
    assert told(130 * MB, "disk") == ["set checkpoint.keep to 2"]
    assert told(80 * MB, "disk") == []


def test_recomputing_is_advised_where_the_project_can():
    assert told(100 * MB, recompute="model.recompute") == [
        "try model.recompute, which keeps fewer activations and computes them again"
    ]
    assert told(80 * MB, "disk", recompute="model.recompute") == []


# ---------------------------------------------------------------- refusing


def judge(has, place="host", project=toy.Toy, on_gpu=False, footprint=NET, **changed):
    given = facts(has={"host": 10**12, "disk": 10**12, place: has}, on_gpu=on_gpu, footprint=footprint)
    return judged(toy.ToySetup(project(toy.small())), asked(**changed), given, place)


class Whole(toy.Toy):
    splittable = False


def test_a_training_that_fits_is_not_talked_of():
    assert judge(2000 * MB) is None


def test_what_surely_does_not_fit_is_refused_with_numbers_and_settings():
    text, refused = judge(500 * MB, project=Whole)
    assert refused
    assert text.startswith(
        "this training takes about 946.0 MB of RAM (program and libraries 490.0 MB, activations of a step 160.0 MB, "
        "batches kept ready 128.0 MB), 500.0 MB are free: "
    )


def test_what_only_an_estimate_says_is_warned_of():
    text, refused = judge(900 * MB, project=Whole)
    assert not refused
    assert "set train.batch_size to" in text


def test_a_batch_that_a_gpu_cuts_by_itself_is_warned_of_only():
    text, refused = judge(120 * MB, "device", on_gpu=True)
    assert not refused
    assert "set train.accumulate to" in text
    assert judge(120 * MB, "device", Whole, on_gpu=True)[1]
    assert judge(30 * MB, "device", on_gpu=True)[1]  # not even one sample


def test_a_single_sample_that_is_too_large_is_refused():
    tried = Footprint(**{**NET.__dict__, "sample": 0, "too_large": True})
    text, refused = judge(10**12, "device", on_gpu=True, footprint=tried)
    assert refused
    assert "not even the fewest samples" in text
    assert "use a smaller model" in text


# ---------------------------------------------------------------- the plan of a toy


def planned(config, project=toy.Toy, **options):
    setup = toy.ToySetup(project(config))
    data = toy.make_data(setup.project)
    data.samples = samples(setup.project, data)
    return setup, data, memory.plan(setup, data, **options)


@pytest.mark.torch
def test_the_parts_of_a_network_are_those_that_torch_has():
    _, _, found = planned(toy.small(train__ema=0.9))
    network = toy.Toy(toy.small()).model(None)
    weights = sum(p.numel() for p in network.parameters()) * 4
    buffers = sum(b.numel() * b.element_size() for b in network.buffers())
    own = {part.name: part.bytes for part in found.parts}
    assert own["weights"] == weights + buffers
    assert own["gradients"] == weights
    assert 2 * weights <= own["optimizer"] <= 2 * weights + 4 * len([*network.parameters()])  # and a step each
    assert weights <= own["average of the weights"] <= weights + buffers
    assert own["batches kept ready"] == 4 * 8 * (3 * 8 * 8 + 8)  # slots × batch × (2 slices and mask, and record)
    assert own["activations of a step"] > 8 * 4 * 8 * 8 * 4  # that of the first convolution


@pytest.mark.torch
def test_without_the_network_no_trainer_is_made(monkeypatch):
    monkeypatch.setattr(toy.ToySetup, "engine", property(lambda self: pytest.fail("an engine was asked for")))
    _, _, found = planned(toy.small(), network=False)
    assert {part.name for part in found.parts} == {
        "program and libraries",
        "batches kept ready",
        "the same of validation",
    }


class Sized(toy.Toy):
    """A network whose activations can be counted by hand."""

    def model(self, precision):
        from torch import nn

        return nn.Sequential(nn.Conv2d(2, 32, 3, padding=1), nn.Sigmoid(), nn.Conv2d(32, 1, 1))


@pytest.mark.torch
def test_activations_grow_with_the_batch_as_they_do_in_training():
    """A plan tries at most two samples; what it says of 64 is what 64 take, on the tensors' own account."""
    import torch
    from runner_core.engines.torch.memory import Live

    setup, data, found = planned(toy.small(train__batch_size=64), Sized)
    trainer = setup.engine.trainer(setup, data, 10)
    spec = data.samples["train"].spec
    arrays = {name: np.zeros((64, *s.shape), s.dtype) for name, s in spec.items()}
    with Live(trainer.network.parameters()) as live:
        torch.autograd.grad(trainer._loss_of(arrays, 64), [*trainer.network.parameters()])
    (counted,) = [part.bytes for part in found.parts if part.name == "activations of a step"]
    assert counted == pytest.approx(live.peak, rel=0.1)


@pytest.mark.torch
def test_measuring_leaves_no_trace():
    """Buffers, generators, gradients, statistics, and what the project itself counts are as before."""
    import torch
    from runner_core.engines.torch.checkpoint import read_generators

    class Counts(toy.Toy):
        calls = 0

        def step(self, model, batch, progress):
            self.calls += 1
            return super().step(model, batch, progress)

    setup = toy.ToySetup(Counts(toy.small()))
    data = toy.make_data(setup.project)
    data.samples = samples(setup.project, data)
    trainer = setup.engine.trainer(setup, data, 10)
    before = {name: value.clone() for name, value in trainer.network.state_dict().items()}
    generators = read_generators(torch.device("cpu"))
    assert memory.plan(setup, data, trainer=trainer).parts
    for name, value in trainer.network.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert torch.equal(torch.get_rng_state(), generators["torch"])
    assert np.array_equal(np.random.get_state()[1], generators["numpy"][1])  # noqa: NPY002
    assert all(p.grad is None for p in trainer.network.parameters())
    assert not trainer.optimizer.state
    assert setup.project.calls == 0
    assert setup.project.statistics is data.statistics


@pytest.mark.torch
def test_a_step_that_cannot_be_tried_is_left_out():
    class Picky(toy.Toy):
        def step(self, model, batch, progress):
            if len(batch["image"]) < 8:
                raise ValueError("a whole batch, please")
            return super().step(model, batch, progress)

    _, _, found = planned(toy.small(), Picky)
    assert "activations of a step" not in {part.name for part in found.parts}
    assert found.refusal is None


@pytest.mark.torch
def test_batchnorm_that_refuses_one_sample_is_tried_with_more():
    class Pooled(toy.Toy):
        def model(self, precision):
            from torch import nn

            pooled = (
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
                nn.BatchNorm1d(4),
                nn.Linear(4, 64),
                nn.Unflatten(1, (1, 8, 8)),
            )
            return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), *pooled)

    _, _, found = planned(toy.small(), Pooled)
    assert "activations of a step" in {part.name for part in found.parts}


@pytest.mark.torch
def test_where_two_samples_do_not_fit_one_is_tried():
    import torch

    class Large(toy.Toy):
        def step(self, model, batch, progress):
            if len(batch["image"]) > 1:
                raise torch.OutOfMemoryError
            return super().step(model, batch, progress)

    setup = toy.ToySetup(Large(toy.small(train__batch_size=2)))
    data = toy.make_data(setup.project)
    data.samples = samples(setup.project, data)
    trainer = setup.engine.trainer(setup, data, 10)
    spec = data.samples["train"].spec
    found = trainer.footprint({name: np.zeros((2, *s.shape), s.dtype) for name, s in spec.items()})
    assert (found.how, found.too_large) == ("measured", False)
    assert found.sample > 0


@pytest.mark.torch
def test_an_optimizer_of_the_projects_own_is_counted():
    class Plain(toy.Toy):
        def optimizer(self, groups):
            import torch

            return torch.optim.SGD(groups, lr=0.1, momentum=0.9)

    _, _, found = planned(toy.small(), Plain)
    own = {part.name: part.bytes for part in found.parts}
    assert own["optimizer"] == own["gradients"]


# ---------------------------------------------------------------- training


@pytest.mark.torch
def test_a_run_with_a_plan_is_the_run_without_one(tmp_path):
    """Bit for bit; and it says its plan in a line, and in the summary."""
    display = toy.Quiet()
    without = toy.small(train__ema=0.9, train__deterministic=True)
    planned = toy.small(train__ema=0.9, train__deterministic=True, health__memory="refuse")
    toy.run(without, tmp_path / "without")
    summary = toy.run(planned, tmp_path / "with", display=display)
    toy.assert_equal_runs(tmp_path / "without", tmp_path / "with")
    (line,) = [text for text in display.said if text.startswith("memory: ")]
    assert line.startswith("memory: RAM ")
    assert line.endswith(" free")
    found = summary["memory_plan"]
    assert found["needs"]["host"] == pytest.approx(summary["peak_memory_bytes"]["host"], rel=1.0)
    assert "activations of a step" in "\n".join(lines(section(found, summary["peak_memory_bytes"])))


@pytest.mark.torch
def test_a_run_that_cannot_fit_is_refused_before_its_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr("runner_core.training.memory.survey.available_ram", lambda: -(10**9))
    with pytest.raises(OutOfSpace, match=r"this training takes about .* of RAM .* are free: "):
        toy.run(toy.small(health__memory="refuse"), tmp_path / "refused")
    assert not (tmp_path / "refused" / "log.jsonl").exists()
    display = toy.Quiet()
    summary = toy.run(toy.small(health__memory="warn"), tmp_path / "warned", display=display)
    assert summary["status"] == "done"
    assert summary["memory_plan"]["refusal"] is not None
    assert any(text.startswith("ERROR: this training takes") for text in display.said)


def test_what_does_not_fit_for_one_of_several_processes_is_refused_in_all():
    class Team(Alone):
        def every(self, value):
            return [value, "the other takes too much", value]

    fits = MemoryPlan(parts=(), has={})
    fits.refuse(Alone())
    with pytest.raises(OutOfSpace, match="the other takes too much"):
        fits.refuse(Team())


# ---------------------------------------------------------------- keras


def test_a_keras_run_with_a_plan_is_the_run_without_one(tmp_path):
    """Bit for bit; its step is traced once, for the plan and for itself."""
    pytest.importorskip("keras", reason="the keras engine is not installed (extra keras)")
    import keras_toy

    toy.run(toy.small(train__deterministic=True), tmp_path / "without", project=keras_toy.KerasToy)
    planned = toy.small(train__deterministic=True, health__memory="refuse")
    summary = toy.run(planned, tmp_path / "with", project=keras_toy.KerasToy)
    toy.assert_equal_runs(tmp_path / "without", tmp_path / "with")
    found = {part["name"]: part for part in summary["memory_plan"]["parts"]}
    assert found["activations of a step"]["known"] == "counted"
    assert found["optimizer"]["bytes"] >= 2 * found["gradients"]["bytes"]


def test_a_tensorflow_graph_is_counted_by_what_is_alive_at_once():
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed (extra keras)")
    from runner_core.engines.keras.graph import peak_bytes

    def function(x):  # (1000,) float32
        kept = tf.matmul(x[:, None], x[None, :])  # 4 MB
        changed = tf.sin(kept)  # 4 MB more: `kept` is needed once more
        return tf.reduce_sum(tf.reshape(changed, [-1])) + tf.reduce_sum(kept)

    graph = tf.function(function).get_concrete_function(tf.TensorSpec((1000,), tf.float32)).graph
    assert peak_bytes(graph) == pytest.approx(8e6, rel=0.01)


# ---------------------------------------------------------------- a sketch


class OneRecord(Project):
    """Only what a sketch calls: a file is (rows, side, side) uint8."""

    name = "one"
    framework = "torch"

    def fit(self, store, training):
        return {"mean": float(store.arrays["image"].read(training[0]).mean())}

    def samples(self, store, records, split):
        from runner_core.data.samples import RowSamples

        return RowSamples(store, {"image": (0,)}, records)


def test_a_sketch_is_of_the_median_record(tmp_path, monkeypatch):
    from runner_core.contract.records import Prepared, Record

    records = []
    for key, rows in (("a", 3), ("b", 5), ("c", 40)):
        np.save(tmp_path / f"{key}.npy", np.full((rows, 8, 8), 7, np.uint8))
        records.append(Record(key, key, {"image": tmp_path / f"{key}.npy"}))

    class Setup:
        project = OneRecord(toy.small())
        config = project.config

    def prepare(record):
        return Prepared({"image": np.load(record.files["image"])}, {})

    monkeypatch.setattr("runner_core.training.memory.survey.RecordPipeline.of", lambda setup: prepare)

    cache = CachePlan("memmap", 3, 0, 99, 0, 0, None)
    data = memory.sketch(Setup, records, {"train": [0, 1, 2], "validation": []}, cache)
    assert data.store.keys == ["b"]
    assert len(data.samples["train"]) == 5
    assert "validation" not in data.samples
    assert data.statistics == {"mean": 7.0}
    with pytest.raises(BadInput, match="no records to train on"):
        memory.sketch(Setup, records, {"validation": [0]}, cache)


def test_the_copy_that_checkpoints_are_written_from_stays_and_can_be_switched_off():
    waits, copies = parts(asked(), facts()), parts(asked(background=True), facts())
    assert total(copies, "host") - total(waits, "host") == 30 * MB
    has = {"host": round((total(waits, "host") + 10 * MB) / 0.95), "disk": 10_000 * MB}
    assert "checkpoint.background" in str(
        remedies(asked(background=True), facts(has), "host", splittable=False, recompute="")
    )
