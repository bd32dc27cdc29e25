"""`runner PROJECT check`: audit the data before spending GPU hours on it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from runner_core.base.errors import BadInput
from runner_core.base.text import counted, first_few
from runner_core.cli.ensembles import start_each
from runner_core.cli.json_output import show_json
from runner_core.cli.options import CheckOptions
from runner_core.cli.start import Arguments, Started, seen_flags, start_new
from runner_core.cli.wrong_labels import find_wrong_labels
from runner_core.contract.records import AnyRecord
from runner_core.contract.run import collect_left_out
from runner_core.output.report.page import lines
from runner_core.output.runfolder import claimed, tool_folder
from runner_core.tools.check.audit import Audit, Auditor
from runner_core.tools.check.page import write_audit
from runner_core.tools.check.pictures import pictures
from runner_core.training.data import data_folder, read_records


def check(name: str, arguments: Sequence[str]) -> int:
    audit, _ = check_with(start_check(name, arguments))
    return 0 if audit.status == "ready" else 2


def start_check(name: str, arguments: Arguments) -> list[Started[CheckOptions]]:
    """Start the command, once for each run of `--with`; then settings and data are those of the runs."""
    seen = seen_flags(arguments)
    if seen.help or not seen.with_:
        return [start_new(name, "check", CheckOptions, arguments)]
    if seen.preset is not None:
        raise BadInput("--preset and --with: the settings are those of the runs; leave --preset out")
    return start_each(name, "check", CheckOptions, arguments, seen.with_)


def check_with(members: Sequence[Started[CheckOptions]]) -> tuple[Audit, Path | None]:
    """Audit the data; return the results and the page, or None if it could not be written.

    If there are runs, `members` are these, and they judge the labels.
    """
    setup, out = members[0].setup, members[0].options.out
    # refuse the folder before anything is read
    with nullcontext() if out is None else claimed(setup.name, "check", out):
        return _check(members)


def _check(members: Sequence[Started[CheckOptions]]) -> tuple[Audit, Path | None]:
    setup, options = members[0].setup, members[0].options
    folder = data_folder(setup, print)
    with collect_left_out() as left_out:
        records = read_records(setup, folder, print)
    print(f"{folder}: {counted(len(records), 'record')} in {counted(len({r.group for r in records}), 'group')}")
    _refuse_unknown(options.different, records)
    auditor = Auditor(setup, records, left_out)
    auditor.each()
    auditor.together(options.different)
    if options.fit:
        auditor.fit()
    wrong = find_wrong_labels(members, auditor) if options.with_ else None
    result = replace(auditor.result(folder), wrong_labels=None if wrong is None else wrong.found)
    for shown in result.tables:
        print(f"{shown.title}:", *lines([shown]), sep="\n")
    auditor.conclude(result)
    page = None
    try:
        folder_of_page = wrong.folder if wrong else options.out or tool_folder(setup.name, "check", None)
        page = write_audit(result, folder_of_page, [*pictures(setup, result)], wrong.blocks if wrong else ())
    except (BadInput, OSError) as error:  # the screen has the same content
        print(f"NOTE: there is no report: {error}")
    else:
        print(f"report: {page}")
    if options.json:
        show_json({"folder": page and page.parent, **result.to_json()})
    return result, page


def _refuse_unknown(different: Sequence[str], records: Sequence[AnyRecord]) -> None:
    """Raise BadInput if `--different` does not name two records or more, before they are all read."""
    if len(different) == 1:
        raise BadInput("--different takes the keys of two records, or of more")
    if unknown := sorted({*different} - {record.key for record in records}):
        raise BadInput(f"--different {first_few(unknown)}: no record has this key")
