"""Find images with labels: from a table (`data.manifest`), by name patterns (`data.pattern`), or in two folders.

`read_rows` reads the table of any project. A project that reads pairs of files calls `list_pairs` first, which follows
the user's own table or pattern. If the user gives neither, the project looks for the layouts of its field;
`find_folder_pairs` finds the usual pairs of folders.
"""

from __future__ import annotations

from runner_core.data.pairs.listing import (
    IMAGE_FOLDERS,
    LABEL_FOLDERS,
    Pair,
    find_folder_pairs,
    list_inputs,
    list_pairs,
    match_by_name,
    without_channel,
)
from runner_core.data.pairs.rows import TableRow, is_table, named_table, read_rows, record_key, refuse_no_table
from runner_core.data.pairs.table import Pattern, Table, read_table

__all__ = [
    "IMAGE_FOLDERS",
    "LABEL_FOLDERS",
    "Pair",
    "Pattern",
    "Table",
    "TableRow",
    "find_folder_pairs",
    "is_table",
    "list_inputs",
    "list_pairs",
    "match_by_name",
    "named_table",
    "read_rows",
    "read_table",
    "record_key",
    "refuse_no_table",
    "without_channel",
]
