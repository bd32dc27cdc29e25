"""The hooks: factories only; nothing per step goes through pluggy.

A plugin is a module (or object) with functions of these names, each marked with `@hookimpl`, named by an entry
point: `runner.projects` for a project (only the chosen project's plugin is loaded), `runner.extensions` for one
that replaces or adds a capability for every project. A function may leave out arguments that it does not need; one
with a name or an argument that is not on this page is refused.

    from runner_core import hookimpl

    @hookimpl
    def runner_sinks(folder):
        return [MySink(folder)]

Who is asked: extensions before the project before the core.

- *First result*: the first that returns something other than None provides the capability. Two extensions that both
  do so are refused until `--extension NAME` chooses; `--no-extension NAME` switches one off.
- *All*: what everybody returns is used together, the core's first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from runner_core.config import RunConfig
    from runner_core.project import Project
    from runner_core.protocols import (
        Cache,
        CheckpointFormat,
        Cropper,
        Device,
        Engine,
        Fix,
        HealthRule,
        Metric,
        Precision,
        Sink,
    )

hookspec = pluggy.HookspecMarker("runner")
hookimpl = pluggy.HookimplMarker("runner")


@hookspec(firstresult=True)
def runner_project() -> type[Project]:
    """The project: a class that says what is trained. *First result*; only a project's plugin implements it.

    Returns:
        A subclass of `Project`. The core makes one object of it for each command, with the resolved settings.

    In the core: nothing. In `runner-ssmunet`, `runner-brainunet`, `runner-openkbp`, `runner-vesuvius` and
    `runner-dinocell`: their project.

    Example:
        ```python
        @hookimpl
        def runner_project():
            return Brains
        ```
    """
    raise AssertionError


@hookspec(firstresult=True)
def runner_engine(project: Project, config: RunConfig) -> Engine | None:
    """The engine: trains the network, and is all of the runner that knows a framework. *First result*.

    Asked once, when the first thing is needed that a framework does: `check` and `config` never ask.

    Args:
        project: The project with its settings; `project.framework` says what its methods are written in.
        config: All settings of the run.

    Returns:
        The engine, or None to leave it to others.

    In the core: PyTorch or Keras, as `project.framework` says.

    Example:
        ```python
        @hookimpl
        def runner_engine(project, config):
            if project.framework == "torch" and config.train.device.startswith("xpu"):
                from xpu_engine import XpuEngine  # here, not at the top: --help imports this module too

                return XpuEngine(project, config)
        ```
    """


@hookspec(firstresult=True)
def runner_cache(project: Project, config: RunConfig) -> Cache | None:
    """The cache: where prepared arrays are kept between runs, and read from in every step. *First result*.

    Args:
        project: The project with its settings.
        config: All settings of the run; `config.cache` is the cache's section.

    Returns:
        A cache that says what it will take (`plan`) and builds and opens a store (`open`), or None.

    In the core: flat memory maps, blosc2, RAM, the device, records fetched as they are used, or nothing, as
    `cache.mode` says.

    Example:
        ```python
        @hookimpl
        def runner_cache(config):
            from zarr_cache import ZarrCache

            return ZarrCache(config.cache.dir)
        ```
    """


@hookspec(firstresult=True)
def runner_crop(project: Project, config: RunConfig) -> Cropper | None:
    """The cropper: which box of a record is worth preparing and caching. *First result*.

    Used between `Project.decode` and `Project.prepare`; predictions are put back into the whole grid.

    Args:
        project: The project with its settings; `project.crop` names the cropper it recommends.
        config: All settings of the run; `config.crop` is the cropper's section.

    Returns:
        A cropper, or None. Its `settings` are part of the cache's key: raise their version when the box changes.

    In the core: none, centre, foreground or body, as `crop.mode` says.

    Example:
        ```python
        class UpperHalf:
            settings = {"name": "upper half", "version": 1}

            def box(self, guide, spacing):
                shape = guide.shape[: len(spacing)]
                return Box((0, 0, shape[2] // 2), shape, shape)

        @hookimpl
        def runner_crop():
            return UpperHalf()
        ```
    """


@hookspec(firstresult=True)
def runner_precision(project: Project, config: RunConfig, device: Device) -> Precision | None:
    """The precision policy: in which dtype layers compute. A value that the engine applies. *First result*.

    Args:
        project: The project with its settings.
        config: All settings of the run; `config.precision` is the section of this.
        device: Where the run computes, and which dtypes that device has.

    Returns:
        The policy, or None. Parameters and optimizer state are float32 under any.

    In the core: `precision.mode`; auto is bfloat16 where the GPU has it, float16 with loss scaling on older ones,
    float32 on a CPU.

    Example:
        ```python
        @hookimpl
        def runner_precision(config, device):
            if config.precision.mode == "auto" and device.bfloat16:
                return Precision("bfloat16", keep_float32=("head",), reason="the head needs all its digits")
        ```
    """


@hookspec(firstresult=True)
def runner_checkpoint(project: Project, config: RunConfig) -> CheckpointFormat | None:
    """The files of a checkpoint: how a run's state is written and read. *First result*.

    The core owns everything around them: temporary folder, flushing, checksums, renaming, how many are kept, which is
    the best.

    Args:
        project: The project with its settings.
        config: All settings of the run.

    Returns:
        A format, or None. Never pickle: a checkpoint must be safe to open.

    In the core: safetensors and JSON.

    Example:
        ```python
        class NumpyFiles:
            def write(self, folder, state):
                (folder / "values.json").write_text(json.dumps(state.values))
                np.savez(folder / "tensors.npz", **{name: np.asarray(t) for name, t in state.tensors.items()})

            def read(self, folder, device="cpu"):
                with np.load(folder / "tensors.npz", allow_pickle=False) as tensors:
                    return State(json.loads((folder / "values.json").read_text()), dict(tensors))

        @hookimpl
        def runner_checkpoint():
            return NumpyFiles()
        ```
    """


@hookspec
def runner_metrics(project: Project, config: RunConfig) -> Sequence[Metric]:
    """Validation metrics. *All*; two of one name are refused.

    Asked once for each training. Metrics accumulate on the device and are read once, at a validation's end.

    Args:
        project: The project with its settings; its `framework` says what tensors the metrics are given.
        config: All settings of the run.

    Returns:
        Metrics; an empty sequence adds none.

    In the core: what `Project.metrics` returns. The loss and its terms are always there.

    Example:
        ```python
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
def runner_health(project: Project, config: RunConfig) -> Sequence[HealthRule]:
    """Rules that watch the training and say when it only looks healthy. *All*.

    Args:
        project: The project with its settings.
        config: All settings of the run; `config.health.mode` decides what an error does.

    Returns:
        Rules; an empty sequence adds none. What a rule remembers must follow from the validations that it saw: when
        a run is resumed, they are shown to it again; or it is in its `memory`, a dict that checkpoints keep.

    In the core: those of docs/how-it-works/health.md. In `runner-ssmunet`: unannotated pixels learned as a class. In
    `runner-vesuvius`: a loss in no step, a share of surface unlike the labels'. In `runner-dinocell`: a teacher that
    answers the same to everything, embeddings all alike, losses that stay at ln K, 16-bit images squeezed into 8 bits.

    Example:
        ```python
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
def runner_sinks(project: Project, config: RunConfig, folder: Path) -> Sequence[Sink]:
    """Trackers: they are told what happens in a run, and write or send it. *All*.

    Asked once, when a training begins or goes on, before the data are opened: refuse here, by `BadInput`, what cannot
    work, and open files and connections at the first event. A tracker that raises is dropped with one warning; it
    never stops a run.

    Args:
        project: The project with its settings.
        config: All settings of the run; `config.log` is the trackers' section.
        folder: The run's folder; it exists.

    Returns:
        Sinks; an empty sequence adds none.

    In the core: `log.jsonl` and `train.log` always, others when `log` asks for them.

    Example:
        ```python
        class Best:
            def __init__(self, path):
                self.path = path

            def event(self, kind, step, values):
                if kind == "validation" and values["best"]:
                    self.path.write_text(f"step {step}: loss {values['loss']:.4g}\\n")

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
def runner_fixes(project: Project, report: Mapping[str, Any]) -> Sequence[Fix]:
    """Remedies: settings that might make this run faster. `profile` shows them, `tune` tries them. *All*.

    Args:
        project: The project with its settings.
        report: What `profile` found (profile.json): where the time of a step goes, and what limits it.

    Returns:
        Remedies, those that promise most first; an empty sequence adds none.

    In the core: workers and look-ahead where training waits for data, another cache where reading is slow, lower
    precision, compilation and channels_last where the network is what takes the time, larger batches where a step takes
    as long whatever is in it.

    Example:
        ```python
        @hookimpl
        def runner_fixes(project, report):
            if report["bound"] == "data" and not project.config.train.workers:
                return [Fix("workers", {"train.workers": 2}, "one process alone fills the batches")]
            return []
        ```
    """
    return ()
