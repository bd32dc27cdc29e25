"""The limit of a run, and the remedies that follow, from the facts of profiles."""

from __future__ import annotations

import pytest
from runner_core.config import RunConfig
from runner_core.contract.phases import PARTS, Limits, Operation
from runner_core.contract.project import Project
from runner_core.engines.device import chunks
from runner_core.plugins.defaults import default_remedies
from runner_core.tools.measure.bound import bound, roofline

LIMITS = Limits({"float32": 1e12, "bfloat16": 8e12}, 1e11, 5e-6)


class Plain(Project):
    name, framework = "plain", "torch"


def facts(device="cpu", workers=0, lines=(0.05, 0.01, 0.01), operations=500, host=None, **parts):
    """A step of 100 ms, of which `parts` (ms) take theirs and the backward pass the rest."""
    given = {name.replace("_", " "): ms / 1000 for name, ms in parts.items()}
    taken = dict.fromkeys(PARTS, 0.0) | given
    taken["backward"] += 0.1 - sum(taken.values())
    work = {"operations": operations, "flops": 5e10, "bytes": 1e9}
    found = {
        "parts": {**taken, "other": 0.0},
        "events": {},
        "step": 0.1,
        "seconds": 0.1,
        "workers": workers,
        "engine": "torch",
        "device": {"kind": device},
        "precision": "float32",
        "loader": 100.0,
        "host": host,
        "work": work,
        "roofline": dict(zip(("compute", "bandwidth", "latency"), lines, strict=True)),
        "limits": {"flops": dict(LIMITS.flops), "bytes": LIMITS.bytes},
        "use": {"cpu": {"usable": 8, "cores": 1.0, "others": 0.0}, "gpu": None},
    }
    return found | bound(found)


@pytest.mark.parametrize(
    "found, limit, said",
    [
        (facts(data_wait=60), "data", "60% of a step is waiting for its batch, the loader alone gives 100 samples/s"),
        (facts(data_wait=20), "compute", "GFLOP"),
        (facts(data_wait=20, workers=2), "data", "20% of a step"),
        (facts(data_wait=20, device="cuda"), "data", "20% of a step"),
        (facts(host_to_device=50, device="cuda"), "data", "bringing its batch to the device"),
        (facts(device="cuda", host=0.09), "latency", "the host takes 90 ms of a step's 100 ms"),
        (facts(device="cuda", host=0.03), "compute", "50 ms, those that move memory 10 ms, "),
        (facts(lines=(0.01, 0.05, 0.01)), "bandwidth", "1 GB of memory traffic"),
        (facts(lines=(0.01, 0.01, 0.05)), "latency", "500 operations of 200 µs on average, most too small"),
        (facts(lines=(0.01, 0.01, 0.05)), "latency", "those too small for either 50 ms, of the 100 ms"),
        (facts(operations=10_000), "compute", "those that compute take 50 ms"),
        (facts(lines=(0.0073, 0.0119, 0.0006), operations=2_500), "latency", "operations take 5.1 times what this"),
        (facts(lines=(0.0073, 0.0190, 0.0006), operations=2_500), "bandwidth", "operations take 3.7 times what this"),
        (facts(lines=(0.001, 0.001, 0.0005)), "latency", "operations take 40 times what this machine needs"),
    ],
)
def test_what_limits_a_run_and_why(found, limit, said):
    assert (found["bound"], said in found["reason"]) == (limit, True), found["reason"]


def test_where_nothing_was_counted_it_is_said_what_is_known():
    found = facts()
    found["roofline"] = found["work"] = None
    assert bound(found) == {
        "bound": "compute",
        "reason": "100% of a step is the network's and the loss's computation",
    }


def test_what_happens_between_steps_is_no_part_of_one_and_is_said_where_it_takes_much():
    found = facts(data_wait=40)
    found["events"] = {"metrics": {"seconds": 10.0, "every": 100, "setting": "validate.every"}}
    found["parts"]["metrics"] = 0.1
    found["seconds"] = 0.2
    now = bound(found)
    assert now["bound"] == "data", "40 % of the step, if 20 % of the time"
    assert "50% of the time goes into what happens between steps" in now["reason"]
    fixes = {fix.name: fix for fix in default_remedies(Plain(RunConfig()), found | now)}
    assert fixes["metrics less often"].settings == {"validate.every": 4}
    assert fixes["metrics less often"].saves == pytest.approx(0.375)


def advised(found, **settings):
    config = RunConfig()
    for name, value in settings.items():
        section, _, key = name.partition("__")
        setattr(getattr(config, section), key, value)
    return {fix.name: fix for fix in default_remedies(Plain(config), found)}


def test_workers_where_training_waits_and_cores_are_idle():
    fixes = advised(facts(data_wait=60))
    assert fixes["workers"].settings == {"train.workers": 4}
    assert fixes["workers"].saves == pytest.approx(0.6)
    assert "60% of the time goes into waiting" in fixes["workers"].why
    busy = facts(data_wait=60)
    busy["use"]["cpu"]["cores"] = 7.9
    assert "workers" not in advised(busy), "they would take what the network computes with"
    more = advised(facts(data_wait=60, workers=2), train__workers=2)
    assert more["more workers"].settings == {"train.workers": 4}
    assert more["more workers"].saves == pytest.approx(0.3)
    assert more["look-ahead"].settings == {"train.prefetch": 4}
    assert not {"workers", "look-ahead", "in memory"} & set(advised(facts()))


@pytest.mark.parametrize("mode, name", [("blosc2", "memory map"), ("off", "cache"), ("auto", "in memory")])
def test_another_cache_where_reading_takes_long(mode, name):
    assert name in advised(facts(data_wait=60), cache__mode=mode)


def test_a_gpu_may_hold_the_set():
    fix = advised(facts(data_wait=20, host_to_device=10, device="cuda"))["set on the GPU"]
    assert fix.settings == {"cache.mode": "device"}
    assert fix.saves == pytest.approx(0.3)
    assert "set on the GPU" not in advised(facts(data_wait=20, host_to_device=10))


def test_precision_only_where_it_was_measured_to_be_faster():
    fix = advised(facts())["bfloat16"]
    assert fix.saves == pytest.approx(7 / 8 * 0.5)
    slow = facts()
    slow["limits"]["flops"]["bfloat16"] = 1.1e12
    assert "bfloat16" not in advised(slow)
    half = facts()
    half["precision"] = "bfloat16"
    assert "bfloat16" not in advised(half)
    assert "bfloat16" not in advised(facts(data_wait=60))


def test_latency_larger_steps_and_compilation():
    fixes = advised(facts(lines=(0.01, 0.01, 0.05)), train__steps_per_epoch=40)
    assert fixes["batch size 64"].settings == {"train.batch_size": 64, "train.steps_per_epoch": 20}
    assert not fixes["batch size 64"].same
    assert fixes["compile"].saves is None
    assert "steps at once" not in fixes
    keras = facts(lines=(0.01, 0.01, 0.05)) | {"engine": "keras"}
    assert "steps at once" not in advised(keras), "of a step of 100 ms, what surrounds it is little: `tune` says so"
    assert advised(keras | {"step": 0.01})["steps at once"].settings == {"train.steps_per_execution": 8}


def test_an_update_that_takes_long_wants_larger_batches():
    assert advised(facts(optimizer=40))["batch size 64"].saves == pytest.approx(0.2)
    assert "batch size 64" not in advised(facts(optimizer=5))


# ---------------------------------------------------------------- limits


def test_each_operation_waits_for_what_takes_it_longest():
    computes, moves, starts = Operation(10**10, 10**6), Operation(10**6, 10**9), Operation(100, 100)
    found = roofline([computes, moves, starts, starts], LIMITS, "float32")
    assert found.compute == pytest.approx(1e-2)
    assert found.bandwidth == pytest.approx(1e-2)
    assert found.latency == pytest.approx(1e-5)
    assert found.seconds == pytest.approx(found.compute + found.bandwidth + found.latency)
    assert roofline([computes], LIMITS, "bfloat16").compute == pytest.approx(1e-2 / 8)


def test_short_work_is_timed_in_longer_runs():
    done, waits = [0], [0]

    def work():
        done[0] += 1

    def wait():
        waits[0] += 1

    times = chunks(work, wait, 1, 0.05)
    assert len(times) < waits[0] < done[0]
