"""The model card: what a network is for, how good it is, what it learned from, and how to train it again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner_core.base.text import counted, decimal, duration
from runner_core.contract.records import Table
from runner_core.output.report.page import Block, Code, Note, Page, decimal_or_dash, markdown
from runner_core.plugins.settings import PHANTOM

UNKNOWN = "not stated"


def text(facts: Mapping[str, Any], files: Sequence[str]) -> str:
    """Return MODEL_CARD.md from the facts of a run; `files` are the exported ones."""
    limits = facts["limits"] or "The project states none. Try the network on data like yours before you rely on it."
    return markdown(
        Page(
            "",
            f"Model card: {facts['project']}, {facts['weights']['checkpoint']}",
            [Note(f"{facts['task']}."), Note(f"{facts['weights']['values']:,} values in {', '.join(files)}.")],
            [
                ("Scores", [*_scores(facts)]),
                ("Worst cases", [*_worst(facts)]),
                ("Limits", [Note(limits), *_findings(facts)]),
                ("Data", [*_data(facts["data"])]),
                ("Training", [*_training(facts)]),
                ("Train it again", [*_again(facts)]),
                ("License", [Note(f"License of the weights: {facts.get('license') or UNKNOWN}.")]),
            ],
        )
    )


def interval(score: Mapping[str, Any]) -> str:
    """Return the interval of a score, "" if it has none."""
    return "" if score["low"] is None else f"{decimal(score['low'])} to {decimal(score['high'])}"


def flat_versions(versions: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions of a card by name, those in groups too.

    >>> flat_versions({"python": "3.11", "packages": {"torch": "2.10"}})
    {'python': '3.11', 'torch': '2.10'}
    """
    found: dict[str, str] = {}
    for name, value in versions.items():
        found |= flat_versions(value) if isinstance(value, Mapping) else {name: str(value)}
    return found


def shown_scores(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the scores that the project shows (`Judging.shown`), without a confusion matrix's counts for instance."""
    return [score for score in facts.get("scores") or () if score.get("shown", True)]


def _scores(facts: Mapping[str, Any]) -> Iterator[Block]:
    if not facts["scores"]:
        yield Note("No whole record was scored. Metrics of the validation samples:")
        yield Table("", "", ["metric", "value"], [[name, decimal_or_dash(v)] for name, v in facts["metrics"].items()])
        return
    records, groups = facts["scored"]["records"], facts["scored"]["groups"]
    of = f"{counted(records, 'record')} of {counted(groups, 'group')} that the training did not learn from"
    yield Note(f"Means over {of}. They chose the best checkpoint, so expect slightly less on new data.")
    rows = [
        [score["name"], decimal_or_dash(score["value"]), interval(score), decimal_or_dash(score["baseline"])]
        for score in shown_scores(facts)
    ]
    yield Table("", "", ["score", "value", "95 % interval over groups", "trivial baseline"], rows)


def _worst(facts: Mapping[str, Any]) -> Iterator[Block]:
    hidden = {score["name"] for score in facts["scores"]} - {score["name"] for score in shown_scores(facts)}
    for case in facts["worst"]:
        own = {name: value for name, value in case["scores"].items() if name not in hidden}
        scores = ", ".join(f"{name} {decimal_or_dash(value)}" for name, value in own.items())
        picture = f"\n\n![{case['record']}]({case['picture']})" if case.get("picture") else ""
        yield Note(f"{scores}{picture}", "", case["record"])


def _findings(facts: Mapping[str, Any]) -> Iterator[Block]:
    for found in facts["health"]:
        yield Note(found["message"], "", f"{found['level']}, {found['rule']}")


def _data(data: Mapping[str, Any]) -> Iterator[Block]:
    source = "the generated phantom, no real data" if data["source"] == PHANTOM else data["source"]
    yield Note(f"Source: {source}. Fingerprint of the records and their preparation: `{data['identity'] or UNKNOWN}`.")
    rows = [
        [name, f"{split.get('records', 0):,}", f"{split.get('groups', 0):,}"] for name, split in data["split"].items()
    ]
    if rows:
        yield Table("", "", ["split", "records", "groups"], rows)
    yield Note("card.json has a digest of each record's name and content: they recognise a record, and do not name it.")


def _training(facts: Mapping[str, Any]) -> Iterator[Block]:
    training, energy = facts["training"], facts["training"].get("energy") or {}
    rows = [
        ["steps", f"{training['steps']:,} ({counted(training['epochs'], 'epoch')}), {training['status']}"],
        ["date", f"{training['started'] or UNKNOWN} to {training['ended'] or UNKNOWN}"],
        ["time", duration(training["wall_seconds"]) if training["wall_seconds"] else UNKNOWN],
        ["device", f"{training['devices'] or 1} × {facts['device']}"],
        ["energy", _energy(energy) if energy else UNKNOWN],
        ["seed", f"{facts['seed']}{', deterministic' if facts['deterministic'] else ''}"],
        ["preset", facts["preset"]],
        *([name, str(value)] for name, value in facts["changed"].items()),
        *([name, value] for name, value in flat_versions(facts["versions"]).items()),
    ]
    if start := facts["start"]:
        rows.append(["started from", f"{start['about']} ({start['digest']})"])
    yield Table("", "", ["", ""], rows)


def _energy(energy: Mapping[str, Any]) -> str:
    how = "; ".join(f"{part}: {text}" for part, text in energy["how"].items())
    cost = f", cost {energy['cost']:.2f} at {energy['price_per_kwh']:g} per kWh" if "cost" in energy else ""
    return f"{energy['kwh']:.3g} kWh{cost} ({how})"


def _again(facts: Mapping[str, Any]) -> Iterator[Block]:
    data = "" if facts["data"]["source"] == PHANTOM else " --data DIR"
    yield Code(f"runner reproduce MODEL_CARD.md{data}")
    yield Note(
        "It trains with the same settings, split and seed. On the same machine the weights must be the same bits; "
        "elsewhere it says which of data, versions and device differ, and whether the scores agree."
    )
