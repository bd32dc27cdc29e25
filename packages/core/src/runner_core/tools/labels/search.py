"""The search for wrong labels in a set of records, whatever kind of output the networks have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from runner_core.base.errors import BadInput
from runner_core.base.progress import RecordBar
from runner_core.contract.records import AnyRecord
from runner_core.tools.labels.embedded import Embedded
from runner_core.tools.labels.judge import Judging, Usual, WrongLabels
from runner_core.training.ensembles import Ensemble


def refuse_unable(ensemble: Ensemble) -> None:
    """Raise BadInput if the project does not say what the labels of its predictions are."""
    if ensemble.combining.labels is None:
        name = ensemble.members[0].project.name
        raise BadInput(
            f"project {name} does not say which labels belong to its predictions (`labels` of its `combining`), so "
            "networks cannot judge them: leave out --with"
        )


@contextmanager
def judged(
    ensemble: Ensemble, records: Sequence[AnyRecord], folder: Path, bar: RecordBar
) -> Iterator[tuple[WrongLabels, Usual | None]]:
    """Yield the judged records, and what is usual (None for embeddings).

    What the networks said of the records lies in `folder` until then, and is gone afterwards.
    """
    with TemporaryDirectory(dir=folder, prefix="predictions-") as place:
        counted = ensemble.counting(bar)
        embeds = ensemble.combining.kind == "embeddings"
        judging = Embedded(counted) if embeds else Judging(counted, Path(place))
        for record in records:
            bar.begin(record.key)
            judging.observe(record)
            bar.done()
        yield judging.conclude(), judging.usual if isinstance(judging, Judging) else None
