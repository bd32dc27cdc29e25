"""The torch engine's whole path on an accelerator; a script, because PyTorch keeps the pretended one for good.

`engine.py` runs on the pretended accelerator, `engine.py cuda` on a GPU. It prints {check: what went wrong, or ""}.
Each check is a function below; test_pretend.py and tests/test_on_gpu.py ask for all. On a GPU the numbers are compared
with the CPU's within rounding, and what only the pretended one can show is left out.
"""

from __future__ import annotations

import gc
import inspect
import json
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np
import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "engine_toy")]
import engine_toy as toy  # noqa: E402
import pretend  # noqa: E402
import torch  # noqa: E402
from runner_core.base.errors import BadInput  # noqa: E402
from runner_core.contract import HostBatch  # noqa: E402
from runner_core.data.loader import Loader  # noqa: E402
from runner_core.engines.torch import accelerator, process, transfer  # noqa: E402
from runner_core.engines.torch.trainer import TorchTrainer  # noqa: E402

KIND = sys.argv[1] if len(sys.argv) > 1 else "pretend"
PRETENDED = KIND == "pretend"


class Gpu:
    """What the checks ask of the pretended accelerator, on a real one."""

    def limit(self, size: int) -> None:
        """Let PyTorch hold `size` bytes at most."""
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(min(1.0, size / torch.cuda.mem_get_info()[1]))

    def allocated(self) -> int:
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    def unsafe_frees(self) -> int:
        return 0


native = pretend.start() if PRETENDED else Gpu()
DEVICE = torch.device(KIND, 0)
MORE = 10_000 if PRETENDED else 1 << 26
"""Bytes that are still allowed when memory is to run out, less than what is asked for then."""


def same(one, other) -> None:
    """Fail unless the numbers are equal: in every bit on the pretended accelerator, up to rounding on a GPU."""
    np.testing.assert_allclose(one, other, rtol=0 if PRETENDED else 1e-5)


class Plain(toy.Toy):
    """Nothing random on the device, so that a CPU computes the same."""

    def on_device(self, batch, statistics, rng):
        return super().on_device(batch, statistics, None)

    splittable = False


def trainer(kind=toy.Toy, store=None, **settings) -> TorchTrainer:
    project = kind(toy.small(**{"train__device": KIND, "net__batchnorm": False, **settings}))
    setup = toy.ToySetup(project)
    data = toy.make_data(project, store)
    data.samples = {split: project.samples(data.store, data.splits[split], split) for split in ("train", "validation")}
    made = setup.engine.trainer(setup, data, 12)
    made.setup, made.data = setup, data
    return made


def steps(ours: TorchTrainer, count: int, first: int = 0) -> list[float]:
    """Losses of `count` steps from a loader whose ring is as small as it gets, in the engine's page-locked memory."""
    engine = ours.setup.engine
    loader = Loader(ours.data.samples["train"], batch_size=8, seed=3, shuffle=True, allocate=engine.allocate)
    found: list[float] = []
    batches = (batch for epoch in range(9) for batch in loader.batches(epoch))
    for step, batch in zip(range(first + count), batches, strict=False):
        if step < first:
            batch.release()
            continue
        ours.train_step(batch, step)
        found += ours.losses()[-1:]
    loader.close()
    return found


# ---------------------------------------------------------------- the device


def the_device_is_found():
    count = 1 if PRETENDED else torch.cuda.device_count()
    for asked in ("auto", KIND, f"{KIND}:0"):
        device = toy.ToySetup(toy.Toy(toy.small(train__device=asked))).device
        assert (device.kind, device.index, device.count) == (KIND, 0, count)
        if PRETENDED:
            assert (device.name, device.memory_bytes, device.tf32) == ("a pretended GPU", pretend.MEMORY, False)
        else:
            assert (device.name, device.memory_bytes) == (torch.cuda.get_device_name(0), torch.cuda.mem_get_info()[1])
    for asked in ("cuda" if PRETENDED else "xpu", f"{KIND}:{count}"):
        with pytest.raises(BadInput, match=rf"cpu, {KIND} or {KIND}:NUMBER|there are {count} GPUs"):
            toy.ToySetup(toy.Toy(toy.small(train__device=asked))).device  # noqa: B018


def autocast_computes_in_bfloat16():
    ours = trainer()
    steps(ours, 1)
    assert ours.read_log()["precision_seen"] == {"torch.bfloat16": 2}
    assert all(p.dtype == torch.float32 and p.device == DEVICE for p in ours.network.parameters())


def float16_scales_the_loss():
    ours = trainer(precision__mode="float16")
    assert np.isfinite(steps(ours, 4)).all()
    assert ours.learning.scaler.is_enabled()
    assert ours.learning.scaler.get_scale() > 1


# ---------------------------------------------------------------- feeds


def losses_are_the_cpus():
    on_cpu = trainer(Plain, train__device="cpu", net__dropout=0.0)
    here = trainer(Plain, precision__mode="float32", net__dropout=0.0)
    same(steps(on_cpu, 8), steps(here, 8))
    assert native.unsafe_frees() == 0


def a_feed_that_does_not_wait_is_noticed():
    """Without one of its promises the numbers are wrong: this rehearsal can fail."""
    right = steps(trainer(Plain, precision__mode="float32", net__dropout=0.0), 3)

    class DoesNotWait(transfer.DeviceFeed):
        def take(self, batch):
            main = torch.accelerator.current_stream(self._device)
            torch.accelerator.set_stream(self._side)
            moved = {n: torch.from_numpy(a).to(self._device, non_blocking=True) for n, a in batch.arrays.items()}
            torch.accelerator.set_stream(main)
            return moved

    class DoesNotRecord(transfer.DeviceFeed):
        def take(self, batch):
            kept, torch.Tensor.record_stream = torch.Tensor.record_stream, lambda *_: None
            try:
                return super().take(batch)
            finally:
                torch.Tensor.record_stream = kept

    ours = trainer(Plain, precision__mode="float32", net__dropout=0.0)
    ours._feed = DoesNotWait(DEVICE)
    assert steps(ours, 3) != right
    before = native.unsafe_frees()
    ours = trainer(Plain, precision__mode="float32", net__dropout=0.0)
    ours._feed = DoesNotRecord(DEVICE)
    assert steps(ours, 3) == right
    assert native.unsafe_frees() > before


def rings_are_page_locked():
    engine = toy.ToySetup(toy.Toy(toy.small(train__device=KIND))).engine
    memory = engine.allocate((3, 5), np.dtype(np.int16))
    assert memory.shape == (3, 5)
    assert torch.from_numpy(memory).is_pinned()
    shared = np.zeros(1 << 16, np.uint8)
    engine.pin(shared)  # nothing happens on the pretended accelerator, which has no call for it
    assert torch.from_numpy(shared).is_pinned() is not PRETENDED


def a_buffer_is_given_back_after_it_was_copied():
    for waits in (True, False) if PRETENDED else (True,):
        feed, arrays = transfer.feed(DEVICE), {"x": transfer.allocate((4,), np.dtype(np.float32), DEVICE)}
        arrays["x"][...] = 7
        refill = lambda: arrays["x"].fill(9)  # noqa: B023, E731
        batch = HostBatch(arrays, 4, refill)
        moved = feed.take(batch)["x"]
        assert not PRETENDED or native.unfinished() >= 1  # nothing was copied yet
        feed.done(batch) if waits else batch.release()
        assert moved.tolist() == [7.0 if waits else 9.0] * 4


def the_set_may_live_on_the_device():
    class NoAugment(Plain):
        augment = None

    host = trainer(NoAugment, precision__mode="float32", net__dropout=0.0)
    there = trainer(NoAugment, toy.MemoryStore(device=True), precision__mode="float32", net__dropout=0.0)
    same(steps(host, 4), steps(there, 4))


# ---------------------------------------------------------------- memory


def memory_is_measured():
    ours = trainer()
    arrays = {n: np.zeros((4, *s.shape), s.dtype) for n, s in ours.data.samples["train"].spec.items()}
    found = ours.footprint(arrays)
    assert found.how == "measured"
    assert found.sample > 0
    assert found.held == 1_000_000 if PRETENDED else found.held > 0
    accelerator.forget_peak(DEVICE)
    held = accelerator.allocated(DEVICE)
    steps(ours, 1)
    assert ours.peak_memory() > held


def memory_that_runs_out_makes_smaller_batches():
    """The retry begins from the same buffers and generators: as if it had been that small from the start."""

    class Splittable(toy.Toy):
        splittable = True

        def on_device(self, batch, statistics, rng):
            return super().on_device(batch, statistics, None)

    class Hungry(Splittable):
        def step(self, model, batch, progress):
            result = super().step(model, batch, progress)
            native.limit(native.allocated() + MORE if len(batch["mask"]) > 4 else 1 << 40)
            try:
                torch.empty(2 * MORE, dtype=torch.uint8, device=DEVICE)
            finally:
                native.limit(1 << 40)
            return result

    small = trainer(Splittable, train__accumulate=2)
    ours = trainer(Hungry)
    both = []
    for one in (small, ours):
        torch.manual_seed(0)
        both.append(steps(one, 3))
    assert ours.learning.micro.size == 4
    np.testing.assert_allclose(both[0], both[1], rtol=1e-6 if PRETENDED else 1e-3)  # bfloat16's kernels by batch size


def a_network_that_does_not_fit_is_refused():

    class Large(toy.Toy):
        def model(self, precision):
            made = super().model(precision)
            made.register_parameter("spare", torch.nn.Parameter(torch.zeros(4096, 4096)))
            return made

    gc.collect()  # what earlier checks left in cycles would make room for it
    native.limit(native.allocated() if PRETENDED else 1)
    try:
        with pytest.raises(BadInput, match="memory"):
            trainer(Large)
    finally:
        native.limit(1 << 40)


# ---------------------------------------------------------------- random numbers and checkpoints


def generators_are_in_checkpoints():
    """Dropout and noise of the device go on where they were: three steps, saved, read, three more equal six."""
    again = {"train__deterministic": True}
    whole = steps(trainer(**again), 6)
    first = trainer(**again)
    begun = steps(first, 3)
    with tempfile.TemporaryDirectory() as folder:
        files = first.setup.checkpoint_format
        files.write(Path(folder), first.state())
        torch.manual_seed(99)
        torch.rand(5, device=DEVICE)
        second = trainer(**again)
        second.load_state(files.read(Path(folder)))
    assert [*begun, *steps(second, 3, 3)] == whole
    assert KIND in second.learning.state()["generators"]


def a_validation_draws_nothing():
    ours = trainer()
    steps(ours, 1)
    before = accelerator.read_generator(DEVICE)
    loader = Loader(ours.data.samples["validation"], batch_size=8, seed=0, shuffle=False)
    found = ours.validate(loader.batches(0))
    loader.close()
    assert np.isfinite(found["loss"])
    assert torch.equal(before, accelerator.read_generator(DEVICE))


def a_process_is_left_as_it_was():
    found = process.read()
    state = accelerator.read_generator(DEVICE)
    torch.rand(3, device=DEVICE)
    process.write(found)
    assert torch.equal(state, accelerator.read_generator(DEVICE))


# ---------------------------------------------------------------- measuring


def parts_of_steps_are_timed():
    from runner_core.engines.torch.phases import TorchPhases

    ours = trainer()
    steps(ours, 1)
    phases = TorchPhases(ours)
    phases.watch()
    steps(ours, 3)
    taken = phases.take()
    assert len(taken) == 3
    assert all(seconds >= 0 for step in taken for seconds in step.values())
    batch = next(iter(Loader(ours.data.samples["train"], batch_size=8, seed=3, shuffle=True).batches(0)))
    assert set(phases.losses(batch, 4)) == {"bce", "spread", "loss"}


def a_whole_run_repeats():
    """The loop with validations, checkpoints and everything random, twice: the same losses."""
    found = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            settings = {"train__device": "auto", "train__ema": 0.9, "train__clip": 1.0, "train__deterministic": True}
            assert toy.run(toy.small(**settings), Path(folder))["status"] == "done"
            found.append([line["loss"] for line in toy.log_lines(Path(folder)) if "loss" in line])
    assert found[0] == found[1]
    assert len(found[0]) > 3


def ways_to_compute_agree():
    """Of the same steps, up to what each computes in."""
    plain = steps(trainer(Plain, precision__mode="float32", net__dropout=0.0), 6)
    for rtol, settings in (
        (1e-5, {"precision__mode": "float32", "train__channels_last": "on"}),
        (1e-5, {"precision__mode": "float32", "train__deterministic": True}),
        (1e-4, {"precision__mode": "float32", "train__compile": "on"}),
        (5e-3, {"precision__mode": "tf32"}),
        (2e-2, {"precision__mode": "bfloat16"}),
        (2e-2, {"precision__mode": "bfloat16", "train__compile": "on", "train__channels_last": "on"}),
        (1e-2, {"precision__mode": "float16"}),
    ):
        found = steps(trainer(Plain, net__dropout=0.0, **settings), 6)
        np.testing.assert_allclose(found, plain, rtol=rtol, err_msg=str(settings))


def the_use_of_the_gpu_is_read():
    """NVML's figures, as the log shows them."""
    from runner_core.engines.energy import EnergyMeter
    from runner_core.engines.usage import Gpu, GpuSampler

    ours = trainer()
    device = ours.setup.device
    gpu, meter = Gpu.find(device), EnergyMeter(device)
    assert gpu is not None
    with GpuSampler(gpu, 0.02) as sampler:
        steps(ours, 60)
        use = sampler.take()
    assert use is not None
    assert 0 <= use.busy <= 1
    assert 0 < use.memory_bytes <= device.memory_bytes
    assert meter.taken().how.get("gpu")


ELSEWHERE = (
    {ways_to_compute_agree, the_use_of_the_gpu_is_read}
    if PRETENDED
    else {a_feed_that_does_not_wait_is_noticed}  # a GPU may have copied in time
)
"""Checks that this accelerator cannot have."""
CHECKS = [
    f
    for f in [*globals().values()]
    if inspect.isfunction(f) and f.__module__ == __name__ and not inspect.signature(f).parameters and f not in ELSEWHERE
]


def main() -> None:
    wrong = {}
    for check in CHECKS:
        try:
            check()
        except Exception as error:
            where = "".join(traceback.format_tb(error.__traceback__)[-3:])
            wrong[check.__name__] = f"{where}{type(error).__name__}: {str(error)[:600]}"
        else:
            wrong[check.__name__] = ""
    print(json.dumps(wrong))


if __name__ == "__main__":
    main()
