"""Hooks: the functions by which a plugin provides a project, or adds or replaces a capability.

A plugin is a module (or object) with functions of these names, each marked with `@hookimpl`. An entry point names it:
`runner.projects` for a project (only the chosen project's plugin is loaded), `runner.extensions` for a plugin that adds
or replaces a capability in every project. A function may leave out arguments that it does not need. A function or an
argument with a name that is not on this page is refused.

An extension may have settings: a dataclass called `Config` beside its hooks. `settings` is then an object of it.

    from runner_core import hookimpl

    @hookimpl
    def runner_sinks(folder):
        return [MySink(folder)]

Hooks return objects, which runner then uses directly, so no training step calls a hook.

Extensions are asked before the project, and the project before the core. There are two kinds of hooks:

- *First result*: the first answer other than None wins. If two extensions both answer, the runner refuses to start
  until `--extension NAME` chooses one; `--no-extension NAME` switches an extension off.
- *All*: the runner uses the answers of all plugins together, the core's first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from runner_core.config import RunConfig
    from runner_core.contract.data import Cache, Cropper
    from runner_core.contract.project import Project
    from runner_core.contract.records import AnyRecord
    from runner_core.contract.run import CheckpointFormat, Device, HealthRule, Metric, Precision, Remedy, Sink
    from runner_core.contract.setup import Engine

hookspec = pluggy.HookspecMarker("runner")
hookimpl = pluggy.HookimplMarker("runner")


@hookspec(firstresult=True)
def runner_project() -> type[Project]:
    """Return the project: the class that defines what is trained. *First result*.

    Only a project's plugin implements this hook.

    Returns:
        A subclass of `Project`. For each command the core makes one object of it, with the resolved settings.

    In the core: nothing. `runner-ssmunet`, `runner-brainunet`, `runner-openkbp`, `runner-vesuvius` and
    `runner-dinocell` return their project.

    Example:
        ```python
        from runner_core import hookimpl

        @hookimpl
        def runner_project():
            from runner_cells.project import Segmentation  # here, not at the top: `--help` imports this module

            return Segmentation
        ```
    """
    raise AssertionError


@hookspec(firstresult=True)
def runner_engine(project: Project, config: RunConfig, settings: Any) -> Engine | None:
    """Return the engine, which trains the network. *First result*.

    Only the engine imports a framework. The runner calls this hook once, when it first needs the framework. `check` and
    `config` never call it.

    Args:
        project: The project with its settings; `project.framework` names the framework that its methods use.
        config: All settings of the run.
        settings: The extension's own settings (its `Config`).

    Returns:
        The engine, or None to leave the choice to the next plugin.

    In the core: the engine for PyTorch or for Keras, whichever `project.framework` names.

    Example:
        ```python
        from runner_core import hookimpl

        @hookimpl
        def runner_engine(project, config):
            if project.framework == "torch" and config.train.device.startswith("xpu"):
                from xpu_engine import XpuEngine  # here, not at the top: --help imports this module too

                return XpuEngine(project, config)
        ```
    """


@hookspec(firstresult=True)
def runner_cache(project: Project, config: RunConfig, records: Sequence[AnyRecord], settings: Any) -> Cache | None:
    """Return the cache, which keeps prepared arrays between runs and serves them in every step. *First result*.

    Args:
        project: The project with its settings.
        config: All settings of the run; `config.cache` is the cache's section.
        records: The records that will be kept; those at URLs are usually fetched as they are used.
        settings: The extension's own settings (its `Config`).

    Returns:
        A cache that predicts its size (`plan`) and builds and opens a store (`open`), or None.

    In the core: flat memory maps, blosc2, RAM, the device, records fetched as they are used, or no cache; `cache.mode`
    chooses.

    Example:
        ```python
        import os
        from dataclasses import replace
        from pathlib import Path

        from runner_core import PreparedCache, hookimpl

        @hookimpl
        def runner_cache(config):
            if local := os.environ.get("SLURM_TMPDIR"):  # the node's own disk is faster than the shared one
                return PreparedCache(replace(config.cache, dir=Path(local)))
        ```
    """


@hookspec(firstresult=True)
def runner_crop(project: Project, config: RunConfig, settings: Any) -> Cropper | None:
    """Return the cropper, which chooses the box of a record that is worth preparing and caching. *First result*.

    The runner crops between `Project.decode` and `Project.prepare`, and puts predictions back into the whole grid.

    Args:
        project: The project with its settings; `project.dataset.crop` names the cropper it recommends.
        config: All settings of the run; `config.crop` is the cropper's section.
        settings: The extension's own settings (its `Config`).

    Returns:
        A cropper, or None. Its `settings` are part of the cache's key. If it would choose another box, raise the
        version in them, so that caches are built again.

    In the core: none, centre, foreground or body; `crop.mode` chooses.

    Example:
        ```python
        from runner_core import Box, hookimpl

        class UpperHalf:  # for volumes whose last axis points up
            settings = {"name": "upper half", "version": 1}

            def box(self, guide, spacing):
                shape = guide.shape[: len(spacing)]  # a guide may have channel axes after the spatial ones
                return Box((*[0] * (len(shape) - 1), shape[-1] // 2), shape, shape)

        @hookimpl
        def runner_crop():
            return UpperHalf()
        ```
    """


@hookspec(firstresult=True)
def runner_precision(project: Project, config: RunConfig, device: Device, settings: Any) -> Precision | None:
    """Return the precision policy: the dtype in which layers compute. *First result*.

    The policy is a plain value, which the engine applies.

    Args:
        project: The project with its settings.
        config: All settings of the run; `config.precision` is the policy's section.
        device: The device that the run computes on, and the dtypes that it supports.
        settings: The extension's own settings (its `Config`).

    Returns:
        The policy, or None. Parameters and optimizer state are float32 under every policy.

    In the core: the policy of `precision.mode`. auto is bfloat16 if the GPU supports it, float16 with loss scaling on
    older GPUs, and float32 on a CPU (bfloat16 on one with AMX, if the project's `bfloat16_on_cpu` is true).

    Example:
        ```python
        from runner_core import Precision, hookimpl

        @hookimpl
        def runner_precision(project, config, device):
            if project.name == "brainunet" and config.precision.mode == "auto" and device.bfloat16:
                return Precision("bfloat16", keep_float32=("head",), reason="the head needs all its digits")
        ```
    """


@hookspec(firstresult=True)
def runner_checkpoint(project: Project, config: RunConfig, settings: Any) -> CheckpointFormat | None:
    """Return the checkpoint format, which writes and reads the files of a run's state. *First result*.

    The core does everything around them: the temporary folder, flushing, checksums, renaming, how many checkpoints are
    kept, and which is the best.

    Args:
        project: The project with its settings.
        config: All settings of the run.
        settings: The extension's own settings (its `Config`).

    Returns:
        A format, or None. Never use pickle: a checkpoint must be safe to open.

    In the core: safetensors and JSON.

    Example:
        ```python
        import json

        import numpy as np
        from runner_core import State, hookimpl

        class NumpyFiles:  # any program that reads NumPy files can read these checkpoints
            def write(self, folder, state):
                (folder / "values.json").write_text(json.dumps(state.values))
                np.savez(folder / "tensors.npz", **{name: t.cpu().numpy() for name, t in state.tensors.items()})

            def read(self, folder, device="cpu"):
                import torch

                values = json.loads((folder / "values.json").read_text())
                with np.load(folder / "tensors.npz", allow_pickle=False) as arrays:
                    return State(values, {name: torch.from_numpy(arrays[name]).to(device) for name in arrays})

        @hookimpl
        def runner_checkpoint(project):
            return NumpyFiles() if project.framework == "torch" else None
        ```
    """


@hookspec
def runner_metrics(project: Project, config: RunConfig, settings: Any) -> Sequence[Metric]:
    """Return validation metrics. *All*; two metrics of one name are refused.

    The runner asks once for each training. Metrics accumulate on the device and are read once, at the end of a
    validation.

    Args:
        project: The project with its settings; metrics get tensors of its `framework`.
        config: All settings of the run.
        settings: The extension's own settings (its `Config`).

    Returns:
        Metrics; an empty sequence adds none.

    In the core: the metrics that `Project.metrics` returns. The loss and its terms are always there.

    Example:
        ```python
        from runner_core import hookimpl

        class Foreground:
            def reset(self):
                self.sum, self.count = 0.0, 0

            def update(self, prediction, batch):  # tensors: nothing here waits for the device
                self.sum = self.sum + (prediction > 0).float().mean() * len(prediction)
                self.count += len(prediction)

            def compute(self):
                return {"foreground": float(self.sum) / max(1, self.count)}

        @hookimpl
        def runner_metrics(project):
            return [Foreground()] if project.framework == "torch" else []
        ```
    """
    return ()


@hookspec
def runner_health(project: Project, config: RunConfig, settings: Any) -> Sequence[HealthRule]:
    """Return health rules, which detect a training that only looks healthy. *All*.

    Args:
        project: The project with its settings.
        config: All settings of the run; `config.health.mode` decides what an error does.
        settings: The extension's own settings (its `Config`).

    Returns:
        Rules; an empty sequence adds none. After a resume, a rule without `memory` sees all past validations again, so
        what it derives from them need not be saved. A rule that must remember anything else keeps it in `memory`, a
        dict that is saved in checkpoints.

    In the core: the rules of docs/how-it-works/health.md. In `runner-ssmunet`: unannotated pixels learned as a class.
    In `runner-vesuvius`: a loss that no step computes, a share of surface unlike the labels'. In `runner-dinocell`: a
    teacher that answers the same to everything, embeddings that are all alike, losses that stay at ln K, 16-bit images
    squeezed into 8 bits.

    Example:
        ```python
        from runner_core import Finding, hookimpl

        class LossRose:
            name = "loss rose"

            def __init__(self):
                self.best = float("inf")

            def observe(self, event):
                if event.moment != "validation":
                    return None
                loss = event.facts["loss"]
                self.best = min(self.best, loss)
                if loss > 10 * self.best:
                    return Finding(self.name, "warning", f"the validation loss is {loss:.3g}, and was {self.best:.3g}")

        @hookimpl
        def runner_health():
            return [LossRose()]
        ```
    """
    return ()


@hookspec
def runner_sinks(project: Project, config: RunConfig, folder: Path, settings: Any) -> Sequence[Sink]:
    r"""Return sinks (trackers), which write or send what happens in a run. *All*.

    The runner asks once, when a training starts or resumes, before it opens the data. Raise `BadInput` here for
    anything that cannot work; open files and connections at the first event. A sink that raises later is dropped with
    one warning; it never stops a run.

    Args:
        project: The project with its settings.
        config: All settings of the run; `config.log` is the sinks' section.
        folder: The run's folder; it exists.
        settings: The extension's own settings (its `Config`).

    Returns:
        Sinks; an empty sequence adds none.

    In the core: `log.jsonl` and `train.log` always, others if the `log` settings ask for them.

    Example:
        ```python
        from runner_core import hookimpl

        class Best:
            def __init__(self, path):
                self.path = path

            def event(self, kind, step, values):
                if kind == "validation" and values["best"]:
                    self.path.write_text(f"step {step}: loss {values['loss']:.4g}\n")

            def figure(self, name, step, png):
                pass

            def close(self):
                pass

        @hookimpl
        def runner_sinks(folder):
            return [Best(folder / "best.txt")]
        ```
    """
    return ()


@hookspec
def runner_remedies(project: Project, report: Mapping[str, Any], settings: Any) -> Sequence[Remedy]:
    """Return remedies: settings that might make this run faster. *All*.

    `profile` shows them, and `tune` tries them.

    Args:
        project: The project with its settings.
        report: The findings of `profile` (profile.json): where the time of a step goes, and what limits it.
        settings: The extension's own settings (its `Config`).

    Returns:
        Remedies, the most promising first; an empty sequence adds none.

    In the core: workers and look-ahead if training waits for data; another cache if reading is slow; lower precision,
    compilation and channels_last if the network takes most of the time; larger batches if a step takes equally long
    whatever its batch size.

    Example:
        ```python
        from runner_core import Remedy, hookimpl

        @hookimpl
        def runner_remedies(project, report):
            if report["bound"] == "data" and not project.config.train.workers:
                return [Remedy("workers", {"train.workers": 2}, "one process alone fills the batches")]
            return []
        ```
    """
    return ()
