"""Which output a stored label means."""

from __future__ import annotations

import numpy as np
import pytest
from runner_ssmunet.labels import output_labels, output_names, targets, wrong_settings


def test_without_an_ignored_label_zero_is_a_class() -> None:
    assert output_names(("a", "b"), 0) == output_names(("a", "b"), 255) == ("a", "b")
    assert output_names(("a", "b"), None) == ("unannotated", "a", "b")


@pytest.mark.parametrize("ignore", [0, None])
def test_outputs_lead_back_to_their_labels(ignore: int | None) -> None:
    labels = output_labels(("a", "b", "c"), ignore)
    assert targets(labels, ignore).tolist() == list(range(len(labels)))
    assert labels.dtype == np.uint8


@pytest.mark.parametrize(
    ("classes", "ignore", "said"),
    [
        (("a",), 0, "two names or more"),
        (("a", "a"), 0, "two classes are called a"),
        (("a", ""), 0, "has no name"),
        (tuple(map(str, range(256))), 0, "255 is the most"),
        (("a", "b"), 2, "data.ignore is 2"),
        (("a", "b"), -1, "data.ignore is -1"),
        (("a", "b"), 256, "data.ignore is 256"),
    ],
)
def test_settings_that_make_no_sense(classes: tuple[str, ...], ignore: int, said: str) -> None:
    assert said in (wrong_settings(classes, ignore) or "")


def test_settings_that_do() -> None:
    for ignore in (None, 0, 3, 255):
        assert wrong_settings(("a", "b"), ignore) is None
