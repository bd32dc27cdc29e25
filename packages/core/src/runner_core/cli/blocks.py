"""`predict` of records that memory cannot hold: the project predicts them block by block."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from runner_core.base.errors import BadInput
from runner_core.cli.ensembles import run_of
from runner_core.cli.options import PredictOptions
from runner_core.cli.start import Started
from runner_core.contract import Infer
from runner_core.contract.facets import BlockWork, InBlocks
from runner_core.contract.project import Project, views_of
from runner_core.contract.records import AnyRecord
from runner_core.output.experiments import share_of
from runner_core.output.runfolder import RunFolder
from runner_core.training.checkpoints import read_manifest
from runner_core.training.ensembles import Ensemble


def blocks_of(project: Project) -> InBlocks | None:
    """Return how the project predicts records in blocks, if it can."""
    combining = project.combining()
    return None if combining is None else combining.in_blocks


def split_off_blocks(
    project: Project, records: Sequence[AnyRecord], part: str
) -> tuple[list[AnyRecord], list[AnyRecord]]:
    """Return the records to predict in blocks, each of which `--part` divides, and this part's share of the others."""
    blocks = blocks_of(project)
    large = [] if blocks is None else [record for record in records if blocks.wanted(record)]
    keys = {record.key for record in large}
    return large, [record for record in records if record.key not in keys][share_of(part)]


def predict_in_blocks(
    members: Sequence[Started[PredictOptions]],
    network: Infer | Ensemble,
    checkpoints: Sequence[str],
    records: Sequence[AnyRecord],
) -> int:
    """Predict records in blocks, and return how many could not be predicted."""
    options, project = members[0].options, members[0].setup.project
    blocks, failed = blocks_of(project), 0
    share = share_of(options.part)
    networks = [member.infer for member in network.members] if isinstance(network, Ensemble) else [network]
    named = [_named(run_of(member), checkpoint) for member, checkpoint in zip(members, checkpoints, strict=True)]
    for record in records:
        assert blocks is not None
        part = (1 + (share.start or 0), share.step or 1)
        work = BlockWork(record, networks, ", ".join(named), views_of(project), part, options.out)
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


def _named(run: RunFolder, checkpoint: str) -> str:
    """Return a name that no other network has: the folds of two experiments have the same runs and steps."""
    return f"{run.path.name}/{checkpoint} ({read_manifest(run.checkpoints / checkpoint).checksum})"
