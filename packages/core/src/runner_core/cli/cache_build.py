"""`runner PROJECT cache build`: prepare what `train` would, before it, on any machine, and in parts."""

from __future__ import annotations

from collections.abc import Sequence

from runner_core.base.errors import BadInput
from runner_core.base.files import size_text
from runner_core.base.parts import Part
from runner_core.base.text import counted
from runner_core.cli.json_output import show_json
from runner_core.cli.options import CacheOptions
from runner_core.cli.start import start_new
from runner_core.data.cache.folder import read_meta
from runner_core.data.cache.prepared import PreparedCache
from runner_core.data.pipeline import RecordPipeline
from runner_core.training.data import data_folder, describe_plan, kept_phantom, read_records


def cache(name: str, arguments: Sequence[str]) -> int:
    """Build the cache, or the part of it; the last part joins all."""
    if arguments and arguments[0] in ("list", "verify", "prune"):
        raise BadInput(f"`runner cache {arguments[0]} --project {name}` does that; `runner {name} cache` only builds")
    started = start_new(name, "cache", CacheOptions, arguments)
    options, setup, part = started.options, started.setup, Part.of(started.options.part)
    folder = data_folder(setup, print)
    records = read_records(setup, folder, print)
    own, pipeline = setup.cache(records), RecordPipeline.of(setup)
    if not isinstance(own, PreparedCache) or not own.prepares_ahead:
        kind = f"cache.mode {setup.config.cache.mode}" if setup.source is None else f"cache.mode with {setup.source}"
        raise BadInput(
            f"{kind}: records are prepared when a training reads them, so there is nothing to build before it"
        )
    print(describe_plan(own.plan(pipeline, records)))
    with kept_phantom(setup, folder):
        built, missing = own.build(pipeline, records, part, print)
    if built is None:
        print(f"part {part} is done; missing: {', '.join(missing)}. The last one builds the cache")
    else:
        print(f"cache: {counted(len(records), 'record')}, {size_text(read_meta(built).file_bytes)} in {built}")
    if options.json:
        show_json({"folder": built, "records": len(records), "part": options.part, "missing": missing})
    return 0
