"""No false alarm: the kernels of the five projects' presets agree with plain float32 on the installed frameworks."""

from __future__ import annotations

import json

import pytest

CASES = [
    ("brainunet", ()),
    ("brainunet", ("--precision.mode", "bfloat16")),
    ("vesuvius", ()),
    ("vesuvius", ("--precision.mode", "bfloat16")),
    ("ssmunet", ()),
    ("ssmunet", ("--precision.mode", "bfloat16")),
    ("dinocell", ("--train.channels-last", "on")),
    ("dinocell", ("--precision.mode", "bfloat16")),
    ("openkbp", ()),
    ("openkbp", ("--precision.mode", "bfloat16")),
    ("openkbp", ("--train.compile", "on")),
]


@pytest.mark.weekly
@pytest.mark.parametrize(("project", "flags"), CASES, ids=[" ".join([name, *flags]) for name, flags in CASES])
def test_the_kernels_of_a_demo_agree(runner, project, flags):
    done = runner(project, "verify-kernels", *flags, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "right"
