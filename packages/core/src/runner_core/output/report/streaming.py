"""The report's section on records that were fetched as they were used."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from runner_core.base.text import counted
from runner_core.output.report.charts import Series, line_chart

_SHOWN = 20
_NEEDS, _GIVES = "images_per_second_needed", "images_per_second_link"


def streaming(events: Iterable[Mapping[str, Any]], bad_samples: Path) -> str:
    """Return the section with the data rate that training needed, the link's rate, and the replaced samples.

    Returns "" if nothing was streamed.
    """
    data = [e for e in events if e.get("event") == "data"]
    if not data:
        return ""
    timings = [(float(e["step"]), e["timing"]) for e in data if e.get("timing")]
    curves = [
        Series("needed", "a", [(step, t[_NEEDS]) for step, t in timings if t["images"]]),
        Series("the link gives", "b", [(step, t[_GIVES]) for step, t in timings if t["images"]]),
    ]
    chart = line_chart("images/s", curves, None) if curves[0].points else ""
    there, waited = (sum(t[name] for _, t in timings) for name in ("records_there", "records_waited_for"))
    images, retries = (sum(t[name] for _, t in timings) for name in ("images", "retries"))
    fetched = f"{counted(images, 'file')} fetched, {counted(retries, 'request')} tried again"
    used = f"; {there / (there + waited):.1%} of records were there when they were wanted" if there + waited else ""
    return f"<p>{fetched}{used}.</p>{chart}{_bad(data[-1]['bad'], bad_samples)}"


def _bad(replaced: int, file: Path) -> str:
    lines = _read(file)
    if not lines:
        return ""
    rows = "".join(
        f"<tr><th>{escape(line['record'])}</th><td>{escape(line['kind'])}</td><td>{escape(line['reason'])}</td></tr>"
        for line in lines[:_SHOWN]
    )
    more = f"<p>… {len(lines) - _SHOWN} more in {escape(file.name)}</p>" if len(lines) > _SHOWN else ""
    return (
        f"<h3>{counted(replaced, 'training sample')} of another record</h3>"
        f'<div class="wide"><table class="plain"><thead><tr><th>record</th><th>kind</th><th>what is wrong</th></tr>'
        f"</thead><tbody>{rows}</tbody></table></div>{more}"
    )


def _read(file: Path) -> Sequence[Mapping[str, Any]]:
    """Return one line for each bad record; the file's last line may be torn."""
    found: dict[str, Mapping[str, Any]] = {}
    for text in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            line = json.loads(text)
        except ValueError:
            break
        found.setdefault(line["record"], line)
    return list(found.values())
