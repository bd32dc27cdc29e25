"""Command lines are parsed as they were meant, or refused with what to write instead."""

from __future__ import annotations

from typing import Any

import pytest
from runner_core import BadInput
from runner_core.cli.options import TrainOptions
from runner_core.cli.parsing import parse
from runner_core.config import RunConfig


def parsed(*words: str) -> RunConfig:
    settings: Any = RunConfig()
    return parse(TrainOptions, settings, words, prog="runner toy train", defaults="the preset demo")[1]


def test_what_is_on_or_off_is_a_pair_of_flags() -> None:
    assert not parsed().train.deterministic
    assert parsed("--train.deterministic").train.deterministic
    assert not parsed("--train.no-deterministic").train.deterministic


@pytest.mark.parametrize(
    "words",
    [
        ["--train.deterministic", "True"],
        ["--train.deterministic", "false", "--train.epochs", "3"],
        ["--train.deterministic=True"],
        ["--train.no_deterministic", "True"],
    ],
)
def test_a_value_for_it_is_refused_with_what_to_write(words: list[str]) -> None:
    with pytest.raises(
        BadInput, match=r"takes no value: --train\.deterministic alone .*, --train\.no-deterministic off"
    ):
        parsed(*words)


@pytest.mark.parametrize(
    "words, said",
    [
        (["--train.devices", "two"], r"^--devices \(or --train\.devices\) takes a whole number, not 'two'$"),
        (["--train.learning_rate=high"], r"^--lr \(or --train\.learning-rate\) takes a number, not 'high'$"),
        ([f"--{'a' * 100_000}=1"], rf"^there is no option --{'a' * 98}…$"),
        (["--train.steps-per-epoch", "1.5"], r"^--train\.steps-per-epoch takes a whole number, not '1\.5'$"),
    ],
)
def test_a_word_for_a_number_is_refused_in_one_message(words: list[str], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        parsed(*words)


def test_other_settings_may_be_called_true() -> None:
    assert (
        parsed("--data.split", "group:True", "--train.device", "True", "--train.deterministic").train.device == "True"
    )


def test_help_says_what_data_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--help-all")
    shown = capsys.readouterr().out
    assert "--data FOLDER|URL" in shown
    assert "--log.snapshots-every {None}|INT ≥1" in shown
