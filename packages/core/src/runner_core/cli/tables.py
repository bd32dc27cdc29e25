"""Text that `train` prints before it begins and after it has ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner_core.base.location import shell_word
from runner_core.base.text import counted, decimal
from runner_core.contract.setup import Setup
from runner_core.output.display import duration, speed
from runner_core.output.runfolder import RunFolder
from runner_core.plugins.settings import differences, from_preset

_SHOWN = 12


def banner(setup: Setup, folder: RunFolder, resume: bool) -> Iterator[str]:
    """Yield lines that name the project, its data, and the demo's differences from the default."""
    verb = "continuing" if resume else "run"
    yield f"{setup.name}: preset {setup.preset}, {verb} {folder.path}"
    if setup.source is None:
        yield f"data: the generated phantom (no --data given): a demonstration of {setup.name}, not a usable model"
    else:
        yield f"data: {setup.source}"
    extensions = [name for name in setup.plugins.names if name.startswith("extension ")]
    if extensions:
        yield f"with {', '.join(extensions)}"
    if setup.preset == "demo":
        changed = unlike_default(setup)
        if changed:
            yield "differs from the preset default in: " + "; ".join(changed)


def unlike_default(setup: Setup) -> list[str]:
    """Return the settings that differ from the preset default, model and training first.

    Settings about how the run is kept are left out.
    """
    usual = from_preset(type(setup.project), "default")
    changed = [
        f"{name} {_text(now)} (default {_text(was)})"
        for name, (was, now) in sorted(differences(usual, setup.config).items(), key=_importance)
        if not name.startswith(("cache.", "log.", "health.", "checkpoint."))
    ]
    return changed[:_SHOWN] + ([f"… {len(changed) - _SHOWN} more in config.yaml"] if len(changed) > _SHOWN else [])


def result_table(summary: Mapping[str, Any], folder: RunFolder) -> Iterator[str]:
    """Yield the result: validation metrics, whole-record scores beside the trivial baseline's, speed."""
    yield ""
    scores = summary.get("scores") or {}
    others = {"baseline": summary.get("baseline") or {}, **(summary.get("further") or {})}
    others = {method: values for method, values in others.items() if values}
    if summary.get("metrics"):
        yield f"validation (best checkpoint, step {summary.get('best_step')})"
        yield from (f"  {name:<24} {_number(value)}" for name, value in summary["metrics"].items())
    if scores:
        yield " ".join([f"{'whole records':<26} {'trained':>9}", *(f"{method:>9}" for method in others)])
        for name, value in scores.items():
            beside = [f"{_number(values.get(name)):>{len(method)}}" for method, values in others.items()]
            yield " ".join([f"  {name:<24} {_number(value)}", *beside])
    done = f"{counted(summary['epochs'], 'epoch')}, {counted(summary['steps'], 'step')}"
    yield (
        f"{done} in {duration(summary['wall_seconds'])}: "
        f"{speed(summary['samples_per_second'])} samples/s, {summary['data_wait_share']:.1%} of it waiting for data"
    )
    for finding in summary.get("health") or ():
        yield f"{finding['level']}: {finding['rule']}: {finding['message']}"
    yield f"run folder: {folder.path}   report: {folder.report_file}"
    name = summary["project"]
    yield f"next: runner {name} predict {shell_word(folder.path)} INPUT… --out DIR"


def _importance(item: tuple[str, Any]) -> int:
    """Return the rank of a setting: model, then training, then the rest."""
    section = item[0].partition(".")[0]
    return {"model": 0, "train": 1}.get(section, 2)


def _number(value: Any) -> str:
    return f"{decimal(value) if isinstance(value, (int, float)) and value - value == 0 else '–':>9}"


def _text(value: Any) -> str:
    return str(value).replace(" ", "") if isinstance(value, list) else str(value)
