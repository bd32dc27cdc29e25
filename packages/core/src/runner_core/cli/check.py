"""`runner PROJECT check`: audit the data before spending GPU hours on it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from runner_core.base.errors import BadInput
from runner_core.base.text import counted
from runner_core.cli.json_output import show_json
from runner_core.cli.options import CheckOptions
from runner_core.cli.start import Started, start_new
from runner_core.contract.run import collect_left_out
from runner_core.contract.setup import Setup
from runner_core.output.report.page import lines
from runner_core.output.runfolder import claimed, tool_folder
from runner_core.tools.check.audit import Audit, Auditor
from runner_core.tools.check.page import write_audit
from runner_core.tools.check.pictures import pictures
from runner_core.training.data import data_folder, read_records


def check(name: str, arguments: Sequence[str]) -> int:
    audit, _ = check_with(start_new(name, "check", CheckOptions, arguments))
    return 0 if audit.status == "ready" else 2


def check_with(started: Started[CheckOptions]) -> tuple[Audit, Path | None]:
    """Audit the data; return the results and the page, or None if it could not be written."""
    setup, out = started.setup, started.options.out
    # refuse the folder before anything is read
    with nullcontext() if out is None else claimed(setup.name, "check", out):
        return _check(setup, started.options)


def _check(setup: Setup, options: CheckOptions) -> tuple[Audit, Path | None]:
    folder = data_folder(setup, print)
    with collect_left_out() as left_out:
        records = read_records(setup, folder, print)
    print(f"{folder}: {counted(len(records), 'record')} in {counted(len({r.group for r in records}), 'group')}")
    auditor = Auditor(setup, records, left_out)
    auditor.each()
    auditor.together()
    if options.fit:
        auditor.fit()
    result = auditor.result(folder)
    for shown in result.tables:
        print(f"{shown.title}:", *lines([shown]), sep="\n")
    auditor.conclude(result)
    page = None
    try:
        folder_of_page = options.out or tool_folder(setup.name, "check", None)
        page = write_audit(result, folder_of_page, [*pictures(setup, result)])
    except (BadInput, OSError) as error:  # the screen has the same content
        print(f"NOTE: there is no report: {error}")
    else:
        print(f"report: {page}")
    if options.json:
        show_json({"folder": page and page.parent, **result.to_json()})
    return result, page
