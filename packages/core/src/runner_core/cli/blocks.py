"""`predict` of records that memory cannot hold: the project predicts them block by block."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from runner_core.base.errors import BadInput
from runner_core.base.parts import Part
from runner_core.cli.ensembles import weights_text
from runner_core.cli.options import PredictOptions
from runner_core.cli.start import Started
from runner_core.contract import Infer
from runner_core.contract.facets import BlockWork, InBlocks
from runner_core.contract.project import Project, views_of
from runner_core.contract.records import AnyRecord
from runner_core.training.ensembles import Ensemble


def blocks_of(project: Project) -> InBlocks | None:
    """Return how the project predicts records in blocks, if it can."""
    combining = project.combining()
    return None if combining is None else combining.in_blocks


def split_off_blocks(project: Project, records: Sequence[AnyRecord]) -> tuple[list[AnyRecord], list[AnyRecord]]:
    """Return the records to predict in blocks, each of which `--part` divides, and the others, which it deals out."""
    blocks = blocks_of(project)
    large = [] if blocks is None else [record for record in records if blocks.wanted(record)]
    keys = {record.key for record in large}
    return large, [record for record in records if record.key not in keys]


def predict_in_blocks(
    members: Sequence[Started[PredictOptions]],
    network: Infer | Ensemble,
    checkpoints: Sequence[str],
    records: Sequence[AnyRecord],
) -> int:
    """Predict records in blocks, and return how many could not be predicted."""
    options, project = members[0].options, members[0].setup.project
    blocks, failed = blocks_of(project), 0
    networks = [member.infer for member in network.members] if isinstance(network, Ensemble) else [network]
    named, part = weights_text(members, checkpoints), Part.of(options.part)
    for record in records:
        assert blocks is not None
        work = BlockWork(record, networks, named, views_of(project), (part.number, part.count), options.out)
        try:
            if options.disagreement:
                raise BadInput(f"{record.key}: --disagreement needs whole volumes, and this one is predicted in blocks")
            written = blocks.predict(work)
        except BadInput as error:
            failed += 1
            print(f"warning: not predicted: {error}", file=sys.stderr)
            continue
        if written:
            print(f"{record.key}: {', '.join(map(str, written))}")
    return failed
