"""The contract as tests: one list of checks, for pytest and for scripts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar
from unittest import SkipTest

from runner_core.testing import data, learning, using
from runner_core.testing.case import Case

Check = Callable[[Case], None]
CHECKS: tuple[Check, ...] = (
    data.settings_survive_yaml,
    data.optimisations_can_be_switched_off,
    data.plugin_imports_no_framework,
    data.phantom_is_written_and_read,
    data.bad_input_is_refused_by_name,
    data.prepare_is_pure,
    data.annotation_counts_voxels,
    data.prepare_settings_name_what_prepare_reads,
    data.split_is_by_group,
    data.fit_reads_training_records_alone,
    data.samples_are_pure,
    data.batches_do_not_depend_on_workers,
    learning.two_steps_train,
    learning.metrics_do_not_depend_on_the_batch_size,
    learning.metrics_of_two_processes_join,
    learning.metrics_equal_numpy,
    learning.snapshots_leave_training_alone,
    learning.killed_and_resumed_equals_never_killed,
    using.prediction_is_repeatable,
    using.soft_output_can_be_combined,
    using.views_lead_back,
    using.prediction_is_written_in_its_own_grid,
    using.scores_fit_together,
    using.judgement_fits_together,
    using.parts_join_to_the_whole,
    using.what_is_watched_is_drawn,
    using.export_writes_files,
)


class ProjectContract:
    """Test class of a project: subclass it in a test file and set `project`; pytest runs every check as a test.

    runner-core's pytest plugin provides the two arguments.
    """

    project: ClassVar[str]

    def test_contract(self, contract_case: Case, contract_check: Check) -> None:
        contract_check(contract_case)


def check_project(name: str, folder: Path) -> list[str]:
    """Check the installed project `name`, writing into the empty `folder`; return what could not be checked, and why.

    Raises AssertionError that names the broken promise.
    """
    case = Case(name, folder)
    skipped: list[str] = []
    for check in CHECKS:
        try:
            check(case)
        except SkipTest as error:
            skipped.append(f"{check.__name__}: {error}")
    return skipped
