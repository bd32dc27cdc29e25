"""`runner compare RUN RUN…`: say which run or experiment is better, and compare settings, metrics, curves and speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from runner_core.base.location import shell_word
from runner_core.base.text import aligned
from runner_core.base.writing import replace_json, replace_text
from runner_core.cli.arguments import Parser
from runner_core.cli.json_output import show_json, written_result
from runner_core.contract.records import Table
from runner_core.output.report.page import Block, lines
from runner_core.output.runfolder import claimed
from runner_core.tools.compare import Compared, notes, render, tables, verdicts
from runner_core.tools.runs import Run, read_runs
from runner_core.tools.verdict import blocks, facts

FACTS = "compare.json"


def compare(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="runner compare",
        description="Say whether runs or experiments of one project are better than the first, by their scores of the "
        "same records, and compare settings, metrics, curves and speed.",
    )
    parser.add_argument(
        "runs",
        nargs="*",
        type=Path,
        metavar="RUN",
        help="folders of runs, cross-validations or repetitions, two at least; the first is what others are compared "
        "with",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="a new or empty folder for the page (default: runs/PROJECT/compare-TIME)",
    )
    parser.add_argument("--json", action="store_true", help="print the result on stdout as JSON, the rest on stderr")
    parser.add_argument("--debug", action="store_true", help="show tracebacks of errors")
    options = parser.parse_args(list(arguments))
    folder = compare_with(options.runs, options.out)
    if options.json:
        show_json({"folder": folder, **written_result(folder / FACTS)})
    return 0


def compare_with(named: Sequence[Path], out: Path | None) -> Path:
    """Compare runs, print and write the result, and return its folder."""
    runs = read_runs(named)
    found, remarks = tables(runs), notes(runs)
    judged, about = verdicts(runs)
    answer = list(blocks(judged, about))
    with claimed(runs[0].project, "compare", out) as folder:  # refuse the folder before anything is printed
        for line in _lines(runs, answer, found, remarks):
            print(line)
        judgement = {"verdicts": [facts(verdict) for verdict in judged], "remarks": about}
        replace_json(folder / FACTS, _facts(runs, found, remarks) | judgement)
        replace_text(folder / "report.html", render(runs, answer, found, remarks))
        print(f"\ncurves: {folder / 'report.html'}")
    return folder


def _lines(
    runs: Sequence[Run], answer: Sequence[Block], found: Sequence[Compared], remarks: Sequence[str]
) -> Iterator[str]:
    yield from aligned([(f"run {n}", shell_word(run.folder.path), run.state) for n, run in enumerate(runs, 1)])
    yield "\nverdict"
    for block in answer:
        if isinstance(block, Table):
            yield f"\n{block.title}"
        yield from lines([block])
    for compared in filter(lambda table: table.rows, found):
        yield f"\n{compared.title}"
        yield from lines([compared.table()])
    for note in remarks:
        yield f"\nNOTE: {note}"


def _facts(runs: Sequence[Run], found: Sequence[Compared], remarks: Sequence[str]) -> dict[str, object]:
    return {
        "project": runs[0].project,
        "runs": [{"folder": run.folder.path, "state": run.state} for run in runs],
        **{table.name: {row.name: row.values for row in table.rows} for table in found},
        "notes": list(remarks),
    }
