"""The contract test of a project, ours or another's: everything the runner relies on.

    from runner_core.testing import ProjectContract

    class TestContract(ProjectContract):
        project = "mine"

Without a file, use `pytest --check-project mine`, or `check_project("mine", folder)` in a script. The project must be
installed, because it is found through its entry point. Everything is tested on its phantom under preset demo, on the
CPU, and takes about as long as three short runs.

A project's other tests may use `cropped`, `prepared`, `open_store`, `changed` and `refusal`; those of built-in weights
`texts_of_weights` and `predict_from_wheel`.

An extension is tested in a short run of a toy project, with its settings (the package must be installed):

    from runner_core.testing import train_toy

    def test_the_worst_loss_is_written(tmp_path):
        run = train_toy(tmp_path, "worst", {"worst.after": 3})
        assert "at step" in (run / "worst.txt").read_text()

`runner_core.open(run)` then gives its curves and scores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner_core.testing.contract import CHECKS as CHECKS
    from runner_core.testing.contract import ProjectContract as ProjectContract
    from runner_core.testing.contract import check_project as check_project
    from runner_core.testing.parts import changed as changed
    from runner_core.testing.parts import cropped as cropped
    from runner_core.testing.parts import open_store as open_store
    from runner_core.testing.parts import prepared as prepared
    from runner_core.testing.parts import refusal as refusal
    from runner_core.testing.toy import train_toy as train_toy
    from runner_core.testing.wheel import predict_from_wheel as predict_from_wheel
    from runner_core.testing.wheel import texts_of_weights as texts_of_weights

__all__ = [
    "CHECKS",
    "ProjectContract",
    "changed",
    "check_project",
    "cropped",
    "open_store",
    "predict_from_wheel",
    "prepared",
    "refusal",
    "texts_of_weights",
    "train_toy",
]
_PARTS = ("changed", "cropped", "open_store", "prepared", "refusal")
_WHEEL = ("predict_from_wheel", "texts_of_weights")


def __getattr__(name: str) -> Any:
    # Lazy: pytest loads this package, for its plugin, in every session of an environment with runner-core.
    if name == "with_pipeline":  # its name before 0.1.0; Python would hide the text of an AttributeError
        raise ImportError("`with_pipeline` is gone from runner_core.testing: write `cropped(project, record)`")
    if name in _PARTS:
        from runner_core.testing import parts

        return getattr(parts, name)
    if name == "train_toy":
        from runner_core.testing.toy import train_toy

        return train_toy
    if name in _WHEEL:
        from runner_core.testing import wheel

        return getattr(wheel, name)
    if name in __all__:
        from runner_core.testing import contract

        return getattr(contract, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
