"""The argument parser of commands that need no settings; it suggests what a mistyped word may mean."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import NoReturn

from runner_core.base.errors import did_you_mean

_CHOICE = re.compile(r"invalid choice: '(.+?)' \(choose from (.+)\)$")


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose refusal of an unknown option or choice ends with the nearest known one."""

    def error(self, message: str) -> NoReturn:
        if found := _CHOICE.search(message):
            message += did_you_mean(found[1], re.findall(r"[^', ]+", found[2]))
        elif message.startswith("unrecognized arguments: "):
            unknown = next((word for word in message.split()[2:] if word.startswith("-")), "")
            message += did_you_mean(unknown.partition("=")[0], self._known())
        super().error(message)

    def _known(self) -> Iterator[str]:
        """Yield the options of this command and of its own commands."""
        for action in self._actions:
            yield from action.option_strings
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    yield from parser._known()
