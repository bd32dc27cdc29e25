"""The core's toy project, with what its exported network needs around it."""

from __future__ import annotations

from pathlib import Path

from runner_core import Project, Standalone, hookimpl
from runner_core.testing.toy import Toy


class Exported(Toy):
    def standalone(self) -> Standalone:
        return Standalone((Path(__file__).with_name("toy_script.py"),), {"threshold": 0})


@hookimpl
def runner_project() -> type[Project]:
    return Exported
