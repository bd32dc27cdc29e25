"""The memory that a training takes, as a section of a page."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from runner_core.base.files import size_text
from runner_core.output.report.page import table

_TITLES = {"host": "RAM", "device": "Device", "disk": "Disk", "cache": "Disk of the cache"}


def memory(plan: Mapping[str, Any], peak: Mapping[str, int] | None = None) -> str:
    """Return the HTML of a plan (`MemoryPlan.json`), or "" without a plan.

    `peak` holds the peak by place, once a training has ended.
    """
    if not plan:
        return ""
    body = "".join(
        f'<p class="finding {level}"><b>{level}</b> {escape(text)}</p>'
        for level, text in (("error", plan.get("refusal")), *(("warning", text) for text in plan["warnings"]))
        if text
    )
    for place, title in _TITLES.items():
        own = [part for part in plan["parts"] if part["place"] == place]
        if own:
            rows = [(p["name"], size_text(p["bytes"]), p["known"], p["setting"]) for p in own]
            rows.append(("at most at once", size_text(plan["needs"].get(place, 0)), "", ""))
            rows.append(
                ("there is", size_text(plan["has"][place]), "", "") if place in plan["has"] else ("", "", "", "")
            )
            if peak and peak.get(place):
                rows.append(("taken at most", size_text(peak[place]), "measured", ""))
            body += table(title, ("part", "takes", "known", "setting"), rows, f"memory-{place}")
    return body + "<p>The plan made before the first step. Scoring whole records takes memory of its own.</p>"
