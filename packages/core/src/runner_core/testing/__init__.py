"""The contract test of a project, ours or a stranger's: what every part of the runner relies on.

    from runner_core.testing import ProjectContract

    class TestContract(ProjectContract):
        project = "mine"

or, without a file, `pytest --check-project mine`, or `check_project("mine", folder)` in a script. The project must be
installed (its entry point is what is found). Everything is tested on its phantom under preset demo, on the CPU; it
takes about as long as three short runs.
"""

from runner_core.testing.contract import CHECKS, ProjectContract, check_project

__all__ = ["CHECKS", "ProjectContract", "check_project"]
