"""`runner PROJECT ablate`: every optimisation off in turn, and all of them, on the user's data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from runner_core._errors import BadInput
from runner_core._text import aligned
from runner_core.cli.data import data_folder, open_data
from runner_core.cli.measured import base_of, exit_code, refuse
from runner_core.cli.options import AblateOptions
from runner_core.cli.start import Started, start_new
from runner_core.measure import ablate_report as report
from runner_core.measure.ablate import Ablation, Found
from runner_core.measure.optimisations import cases, refuse_unknown
from runner_core.measure.trial import TrialFailed
from runner_core.runfolder import json_text, replace_text
from runner_core.setup import Setup
from runner_core.toolfolder import claimed


def ablate(name: str, arguments: Sequence[str]) -> int:
    started = start_new(name, "ablate", AblateOptions, arguments)
    refuse("ablate", started)
    refuse_unknown(started.setup, started.options.only)
    with claimed(name, "ablate", started.options.out) as folder:
        return _ablate(started, folder)


def _ablate(started: Started[AblateOptions], folder: Path) -> int:
    setup, options = started.setup, started.options
    open_data(setup, print).store.close()  # before anything is measured: the cache is built, and faulty data refused
    base = replace(base_of(started), source=str(data_folder(setup, print)))  # one phantom, wherever trials cache
    measured, code = Ablation(base, 60 * options.minutes, print), 0

    def done(found: Found) -> None:
        """After every case, so that what was measured is not lost."""
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
    _tell(setup, found)
    if code:
        print("interrupted: what was not finished by then is left out")
    elif not found.rows:
        print("there is nothing to switch off")
    print(f"report: {folder / 'report.html'}   also ablate.csv, ablate.json")
    return code


def _tell(setup: Setup, found: Found) -> None:
    print(report.headline(report.head(setup, found)))
    for line in aligned([report.COLUMNS, *report.rows(found)]):
        print(line)
    for note in report.footnotes(found):
        print(note)


def _write(setup: Setup, found: Found, folder: Path) -> None:
    told = report.head(setup, found)
    replace_text(folder / "ablate.json", json_text(report.as_json(told, found)) + "\n")
    replace_text(folder / "ablate.csv", report.as_csv(found))
    replace_text(folder / "report.html", report.as_page(told, found))
