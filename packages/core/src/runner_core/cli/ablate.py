"""`runner PROJECT ablate`: switch off each optimisation in turn, then all, on the user's data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from runner_core.base.errors import BadInput
from runner_core.base.writing import replace_json, replace_text
from runner_core.cli.measured import base_of, exit_code, refuse
from runner_core.cli.options import AblateOptions
from runner_core.cli.start import Started, start_new
from runner_core.contract.setup import Setup
from runner_core.output.report.page import lines
from runner_core.output.toolfolder import claimed
from runner_core.tools.measure import ablate_report as report
from runner_core.tools.measure.ablate import Ablated, Ablation
from runner_core.tools.measure.remedies import cases, refuse_unknown
from runner_core.tools.measure.trial import TrialFailed
from runner_core.training.data import data_folder, open_data


def ablate(name: str, arguments: Sequence[str]) -> int:
    started = start_new(name, "ablate", AblateOptions, arguments)
    refuse("ablate", started)
    refuse_unknown(started.setup, started.options.only)
    with claimed(name, "ablate", started.options.out) as folder:
        return _ablate(started, folder)


def _ablate(started: Started[AblateOptions], folder: Path) -> int:
    setup, options = started.setup, started.options
    open_data(setup, print).store.close()  # build the cache and refuse faulty data before measuring
    base = replace(base_of(started), source=str(data_folder(setup, print)))  # one phantom for all trials
    measured, code = Ablation(base, 60 * options.minutes, print), 0

    def done(found: Ablated) -> None:
        """Write the result after every case, so that no measurement is lost."""
        _write(setup, found, folder)
        *_, row = report.rows(found)
        print(
            "  " + ", ".join(f"{what} {cell}" for what, cell in zip(report.COLUMNS[1:], row[1:], strict=True) if cell)
        )

    try:
        measured.run(lambda ready: cases(setup, ready, options.only), done)
    except TrialFailed as failure:
        until_then = f"; what was measured until then: {folder}" if measured.found else ""
        raise BadInput(f"these settings cannot be measured: {failure}{until_then}") from failure
    except (KeyboardInterrupt, SystemExit) as stop:
        if measured.found is None:
            raise
        code = exit_code(stop)
    found = measured.found
    assert found is not None
    print()
    _show(setup, found)
    if code:
        print("interrupted: what was not finished by then is left out")
    elif not found.rows:
        print("there is nothing to switch off")
    print(f"report: {folder / 'report.html'}   also ablate.csv, ablate.json")
    return code


def _show(setup: Setup, found: Ablated) -> None:
    print(report.headline(report.head(setup, found)))
    for line in lines(report.measured(found)):
        print(line)


def _write(setup: Setup, found: Ablated, folder: Path) -> None:
    head = report.head(setup, found)
    replace_json(folder / "ablate.json", report.as_json(head, found))
    replace_text(folder / "ablate.csv", report.as_csv(found))
    replace_text(folder / "report.html", report.as_page(head, found))
