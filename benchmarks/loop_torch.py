"""Plain PyTorch, runner and others around one tiny network; each trains some steps and says how long they took."""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from runner_core import Learning, Precision, Project, Step
from runner_core.data.sampling import order
from runner_core.engines.torch import TorchEngine
from torch import nn
from torch.nn import functional as F

from benchmarks.tiny import BATCH, FEATURES, INPUTS, LOG_EVERY, ROWS, TARGETS, Seconds, runner

PLAIN = "plain PyTorch loop"
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
torch.set_num_threads(1)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 1))


def optimizer(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=1e-3)


class Batches:
    """The plain way to the same batches: a permutation, a gather into one buffer."""

    def __init__(self) -> None:
        self.steps = 0
        self.x, self.y = np.empty((BATCH, FEATURES), np.float32), np.empty((BATCH, 1), np.float32)

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        sequence = order(0, 0, ROWS, self.steps * BATCH, True)
        for step in range(self.steps):
            rows = sequence[step * BATCH : (step + 1) * BATCH]
            np.take(INPUTS, rows, axis=0, out=self.x, mode="clip")
            np.take(TARGETS, rows, axis=0, out=self.y, mode="clip")
            yield torch.from_numpy(self.x), torch.from_numpy(self.y)

    def of(self, steps: int) -> Batches:
        self.steps = steps
        return self


def plain() -> Seconds:
    model, batches = network(), Batches()
    optim = optimizer(model.parameters())

    def run(steps: int) -> float:
        begun = time.perf_counter()
        for step, (x, y) in enumerate(batches.of(steps), 1):
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optim.step()
            optim.zero_grad()
            if step % LOG_EVERY == 0:
                loss.item()
        return time.perf_counter() - begun

    return run


# ---------------------------------------------------------------- runner


class Tiny(Project):
    name = "tiny"
    framework = "torch"

    def model(self, precision: Precision) -> nn.Module:
        return network()

    def learning(self) -> Learning:
        return Learning(optimizer=optimizer)

    def step(self, model: Any, batch: Any, progress: Any) -> Step:
        return Step(F.mse_loss(model(batch["x"]), batch["y"]))


# ---------------------------------------------------------------- others


def accelerate() -> Seconds:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = network()
    model, optim = accelerator.prepare(model, optimizer(model.parameters()))
    return _wrapped(accelerator, model, optim, accelerator.prepare)


def fabric() -> Seconds:
    from lightning.fabric import Fabric

    with contextlib.redirect_stderr(None):
        fabric = Fabric(accelerator="cpu", devices=1)
    model = network()
    model, optim = fabric.setup(model, optimizer(model.parameters()))
    return _wrapped(fabric, model, optim, fabric.setup_dataloaders)


def _wrapped(wrapper: Any, model: Any, optim: Any, prepare: Callable[[Any], Any]) -> Seconds:
    """The plain loop, with model, optimizer, loader and `backward` as `wrapper` gives them."""
    batches = Batches()

    def run(steps: int) -> float:
        loader = prepare(_loader(batches.of(steps)))
        begun = time.perf_counter()
        for step, (x, y) in enumerate(loader, 1):
            loss = F.mse_loss(model(x), y)
            wrapper.backward(loss)
            optim.step()
            optim.zero_grad()
            if step % LOG_EVERY == 0:
                loss.item()
        return time.perf_counter() - begun

    return run


def lightning() -> Seconds:
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()
            self.began = self.took = 0.0

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            x, y = batch
            loss = F.mse_loss(self.network(x), y)
            if (index + 1) % LOG_EVERY == 0:
                loss.item()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer(self.parameters())

        def on_train_start(self) -> None:
            self.began = time.perf_counter()

        def on_train_end(self) -> None:
            self.took = time.perf_counter() - self.began

    batches = Batches()

    def run(steps: int) -> float:
        module = Module()
        trainer = Trainer(
            max_steps=steps,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(module, _loader(batches.of(steps)))
        return module.took

    return run


def ignite() -> Seconds:
    from ignite.engine import create_supervised_trainer

    model, batches = network(), Batches()
    trainer = create_supervised_trainer(model, optimizer(model.parameters()), F.mse_loss)  # reads every loss

    def run(steps: int) -> float:
        loader = _loader(batches.of(steps))
        begun = time.perf_counter()
        trainer.run(loader, max_epochs=1, epoch_length=steps)
        return time.perf_counter() - begun

    return run


def monai() -> Seconds:
    from monai.engines import SupervisedTrainer

    model, batches = network(), Batches()
    optim = optimizer(model.parameters())

    def run(steps: int) -> float:
        trainer = SupervisedTrainer(
            device=torch.device("cpu"),
            max_epochs=1,
            train_data_loader=[],
            epoch_length=steps,
            network=model,
            optimizer=optim,
            loss_function=F.mse_loss,
            prepare_batch=lambda batch, *_: batch,
        )
        trainer.data_loader = _loader(batches.of(steps))
        begun = time.perf_counter()
        trainer.run()
        return time.perf_counter() - begun

    return run


def _loader(batches: Batches) -> Any:
    """Batches behind a DataLoader, which these libraries expect; it passes them on as they are."""

    class Dataset(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter(batches)

        def __len__(self) -> int:
            return len(batches)

    return torch.utils.data.DataLoader(Dataset(), batch_size=None)


CONTENDERS: dict[str, Callable[[], Seconds]] = {
    PLAIN: plain,
    "runner": partial(runner, Tiny, TorchEngine),
    "Fabric": fabric,
    "Accelerate": accelerate,
    "ignite": ignite,
    "MONAI": monai,
    "Lightning": lightning,
}
