"""The energy of a training: counters of processors and GPUs, and what is estimated without them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from runner_core.contract import Device
from runner_core.engines import usage
from runner_core.engines.energy import WATTS_PER_CORE, EnergyMeter

CPU = Device("cpu")
GPU = Device("cuda", 0)


def package(powercap: Path, name: str, microjoules: int) -> Path:
    folder = powercap / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    (folder / "max_energy_range_uj").write_text("1000000000\n")
    return folder


def test_processors_are_read_without_their_parts_and_counters_start_again(tmp_path: Path) -> None:
    package(tmp_path, "intel-rapl:0", 900_000_000)
    package(tmp_path, "intel-rapl:1", 0)
    package(tmp_path, "intel-rapl:0:0", 5)
    meter = EnergyMeter(CPU, tmp_path)
    package(tmp_path, "intel-rapl:0", 100_000_000)  # 200 J, past the largest value
    package(tmp_path, "intel-rapl:1", 160_000_000)
    package(tmp_path, "intel-rapl:0:0", 500_000_000)
    taken = meter.taken()
    assert taken.total == pytest.approx(360 / 3.6e6)
    assert taken.how == {"processor": "measured (RAPL, the whole processor)"}


def test_without_counters_processor_time_is_an_estimate(tmp_path: Path) -> None:
    import os

    def used() -> float:
        times = os.times()
        return times.user + times.system + times.children_user + times.children_system

    begin, meter = used(), EnergyMeter(CPU, tmp_path)
    while used() - begin < 0.2:
        sum(range(10_000))
    joules = meter.taken().total * 3.6e6
    assert 0.1 * WATTS_PER_CORE < joules <= (used() - begin + 0.1) * WATTS_PER_CORE
    assert "estimated" in meter.taken().how["processor"]


def test_what_root_alone_may_read_is_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, "intel-rapl:0", 1)
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("")
    assert "estimated" in EnergyMeter(CPU, tmp_path).taken().how["processor"]


def test_a_resumed_run_goes_on_counting(tmp_path: Path) -> None:
    package(tmp_path, "intel-rapl:0", 0)
    meter = EnergyMeter(CPU, tmp_path)
    meter.before = {"processor": 1.5}
    package(tmp_path, "intel-rapl:0", 3_600_000)
    assert meter.taken().total == pytest.approx(1.5 + 1e-6)


@pytest.mark.parametrize("counts", [True, False])
def test_gpus_count_or_are_left_out_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: bool) -> None:
    joules = iter((5_000, 41_000))

    def energy(handle: Any) -> int:
        if not counts:
            raise RuntimeError("not supported")
        return next(joules)

    library = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByPciBusId=lambda bus: "handle",
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=1, memory=1),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=1),
        nvmlDeviceGetTotalEnergyConsumption=energy,
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(usage, "_bus_id", lambda index: "bus")
    package(tmp_path, "intel-rapl:0", 0)
    taken = EnergyMeter(GPU, tmp_path).taken()
    if counts:
        assert taken.kwh["gpu"] == pytest.approx(36 / 3.6e6)
    else:
        assert "gpu" not in taken.kwh
    assert taken.how["gpu"].startswith("measured (NVML" if counts else "unknown")


@pytest.mark.torch
def test_the_summary_says_what_a_training_cost(here: Path) -> None:
    import runner_core as runner

    settings: dict[str, Any] = {"epochs": 1, "train.steps_per_epoch": 2, "train.threads": 1}
    summary = runner.train("toy", run_dir=here / "run", **settings, **{"log.price_per_kwh": 0.25}).summary
    energy = summary["energy"]
    assert energy["kwh"] > 0
    assert energy["cost"] == pytest.approx(0.25 * energy["kwh"])
    assert energy["price_per_kwh"] == 0.25
