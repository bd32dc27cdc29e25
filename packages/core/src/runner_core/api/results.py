"""Results as Python values that a notebook shows as tables: `Rows`, `Pictures`, `Scores`, `Comparison`, `DataCheck`."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner_core.base.files import read_json
from runner_core.config.values import flat_items
from runner_core.contract.records import Table
from runner_core.experiments.chosen import settings_file
from runner_core.output.report.page import Markup, Note, fragment

if TYPE_CHECKING:
    from runner_core.tools.check.audit import Audit

_SHOWN = 30
_PICTURES = 6


class Rows(list[dict[str, Any]]):
    """A table: a list with one dict for each row, which `pandas.DataFrame(rows)` takes as it is.

    >>> rows = Rows([{"step": 40, "loss": 0.5}, {"step": 80, "loss": 0.25, "dice": 0.9}])
    >>> rows.columns, rows.column("loss"), rows.column("dice")
    (['step', 'loss', 'dice'], [0.5, 0.25], [None, 0.9])
    """

    @property
    def columns(self) -> list[str]:
        """The names that any row has, in their order."""
        return list(dict.fromkeys(name for row in self for name in row))

    def column(self, name: str) -> list[Any]:
        """Return one value for each row, None where the row has none."""
        return [row.get(name) for row in self]

    def table(self, title: str = "") -> Table:
        """Return the rows as the reports show them: the first ones, if there are many."""
        shown = [[_cell(row.get(name)) for name in self.columns] for row in self[:_SHOWN]]
        more = f" (the first {_SHOWN} of {len(self)})" if len(self) > _SHOWN else ""
        return Table("rows", title + more, self.columns, shown)

    def _repr_html_(self) -> str:
        return fragment([self.table()] if self else [Note("no rows")])


class Pictures(list[Path]):
    """Files of pictures, which a notebook shows."""

    def _repr_html_(self) -> str:
        shown = [block for path in self[:_PICTURES] for block in (Note(path.name), picture(path.read_bytes()))]
        more = [Note(f"… {len(self) - _PICTURES} more")] if len(self) > _PICTURES else []
        return fragment([*shown, *more] if shown else [Note("no pictures")])


def picture(png: bytes) -> Markup:
    """Return a picture as HTML."""
    text = base64.b64encode(png).decode()
    return Markup(f'<img style="max-width: 100%" src="data:image/png;base64,{text}">')


class Scores(dict[str, float]):
    """Scores of whole records: the mean of each by name. `records` has those of each record, the worst first.

    A project with many scores names those that are shown; scores.csv and scores.json in `folder` have all.
    """

    def __init__(self, folder: Path, found: Mapping[str, Any]) -> None:
        shown = found.get("shown") or None
        super().__init__(_numbers(found.get("means"), shown))
        self.folder = folder
        """Folder with scores.csv, scores.json and pictures."""
        self.baseline = _numbers(found.get("baseline"), shown)
        """Scores of a trivial method, if the project has one."""
        self.further = {name: _numbers(values, shown) for name, values in (found.get("further") or {}).items()}
        """Scores of other methods, by name."""
        self.unseen = _numbers((found.get("unseen") or {}).get("means"), shown)
        """Scores without the records that were trained on; empty if there are none, or no others."""
        self.errors: list[str] = list(found.get("errors") or ())
        """One message for each record that could not be scored."""
        self.records = Rows(_record(record, shown) for record in found.get("records") or ())

    @classmethod
    def read(cls, folder: Path) -> Scores:
        """Read what a training or an evaluation wrote into `folder`; empty if nothing was scored."""
        found = read_json(folder / "scores.json", lambda found: cls(folder, found), "evaluate the run again")
        return cls(folder, {}) if found is None else found

    def table(self) -> Table:
        """Return a table with one row for each score, and one column for each method."""
        methods: dict[str, Mapping[str, float]] = {"trained": self}
        methods |= {"baseline": self.baseline} if self.baseline else {}
        methods |= self.further
        rows = [[name, *(_cell(values.get(name)) for values in methods.values())] for name in self]
        return Table("scores", "Scores", ["", *methods], rows)

    def _repr_html_(self) -> str:
        records = [self.records.table("Records, the worst first")] if self.records else []
        return fragment([self.table(), *records] if self else [Note("nothing was scored")])


class Choices:
    """The result of `select`: the settings that it recommends, and whether they are better beyond the noise."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self.summary = dict(found)
        """The content of select.json."""
        self.folder = Path(found["folder"])
        self.file = self.folder / "settings.yaml"
        """The recommended settings as a file, for `config=`."""
        self.report = self.folder / "report.html"

    @property
    def settings(self) -> dict[str, Any]:
        """The recommended settings by dotted name: `run.predict(item, **choices.settings)`."""
        return dict(flat_items(settings_file(self.summary)))

    @property
    def changed(self) -> bool:
        """True if something else than the current settings is recommended."""
        return bool(self.summary["changed"])

    def __repr__(self) -> str:
        return f"<choices for {self.summary['project']}: {self.summary['text']}>"

    def _repr_html_(self) -> str:
        return fragment([Note(self.summary["text"]), *map(Note, self.summary["notes"])])


class Comparison:
    """The result of `compare`: a verdict for each run and score, the headline score first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.summary: dict[str, Any] = read_json(folder / "compare.json", dict, "compare the runs again") or {}
        """The content of compare.json."""
        self.report = folder / "report.html"

    @property
    def verdicts(self) -> Rows:
        """Table of each run and score: better, worse or cannot tell, the difference, its interval and p.

        Empty if the runs cannot be compared; then `summary["notes"]` says why.
        """
        return Rows(self.summary["verdicts"])

    def __repr__(self) -> str:
        return f"<comparison in {self.folder}: {' '.join(self._headline()) or 'no verdict'}>"

    def _headline(self) -> list[str]:
        rows = self.verdicts
        return [row["text"] for row in rows if row["score"] == rows[0]["score"]]

    def _repr_html_(self) -> str:
        shown = ("run", "score", "verdict", "difference", "low", "high")
        found = Rows({name: row[name] for name in shown} for row in self.verdicts)
        notes = map(Note, [*self.summary["remarks"], *self.summary["notes"]])
        return fragment([*map(Note, self._headline()), *([found.table()] if found else []), *notes])


class DataCheck:
    """The findings of `check` in a data set."""

    def __init__(self, audit: Audit, report: Path | None) -> None:
        self.audit = audit
        self.report = report
        """The page, or None if it could not be written."""

    @property
    def ready(self) -> bool:
        """True if there is no error."""
        return self.audit.status == "ready"

    @property
    def findings(self) -> Rows:
        """The findings: level, rule, record (None for the whole set) and message."""
        order = ("error", "warning", "note")
        found = sorted(self.audit.findings, key=lambda entry: order.index(entry[1].level))
        return Rows({"level": f.level, "rule": f.rule, "record": key, "message": f.message} for key, f in found)

    def __repr__(self) -> str:
        return f"<check of {self.audit.data}: {self.audit.status}, {len(self.audit.findings)} findings>"

    def _repr_html_(self) -> str:
        status = Note("ready to train", "good") if self.ready else Note("there are errors", "error")
        return fragment([status, *([self.findings.table("Findings")] if self.findings else []), *self.audit.tables])


def _numbers(found: Any, shown: Any) -> dict[str, float]:
    """Return those of the numbers that are `shown`, None for all; JSON has null for one that is not finite."""
    chosen = {name: value for name, value in dict(found or {}).items() if shown is None or name in shown}
    return {name: math.nan if value is None else value for name, value in chosen.items()}


def _record(found: Mapping[str, Any], shown: Any) -> dict[str, Any]:
    baseline = {f"baseline_{name}": value for name, value in _numbers(found.get("baseline"), shown).items()}
    own = {"record": found["record"], "group": found["group"], **_numbers(found.get("scores"), shown), **baseline}
    return own | {"trained_on": bool(found.get("trained_on"))}


def _cell(value: Any) -> str | float:
    if isinstance(value, float):
        return value
    if value is None or isinstance(value, bool):
        return "yes" if value else ""
    return str(value)
