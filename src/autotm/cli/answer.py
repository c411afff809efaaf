"""What a command answers: text for a person, or with --json the same for a program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click


@dataclass(frozen=True)
class Answer:
    """An answer.

    Attributes:
        data: numbers, texts, lists, mappings, dataclasses and paths; or a function that gives them.
        text: for a terminal; empty where messages have told it.
        fault: ends the command once the answer is written; None where all is well.
    """

    data: Any
    text: str = ""
    fault: Exception | None = None

    def json(self) -> bytes:
        """The data as JSON; what is no number is null."""
        from pydantic_core import to_json  # noqa: PLC0415 - a person need not wait for it

        return to_json(self.data() if callable(self.data) else self.data, indent=1, inf_nan_mode="null")


class AnsweredError(Exception):
    """A fault that the answer tells of, which is written; its text is that of the fault."""


def answering(function: Callable[..., Answer]) -> Callable[..., None]:
    """Add the option `--json` to a command that returns its answer, and write that to standard output."""

    @click.option("--json", "as_json", is_flag=True, help="Write the answer to standard output as JSON.")
    @functools.wraps(function)
    def command(*positional: Any, as_json: bool, **named: Any) -> None:
        answer = function(*positional, **named)
        if as_json:
            click.echo(answer.json())
        elif answer.text:
            click.echo(answer.text)
        if answer.fault:
            raise AnsweredError(str(answer.fault)) from answer.fault

    return command


def file_answer(path: Path, kind: str) -> Answer:
    """What a stage wrote, as it is in the file; messages have told a person."""
    from autotm.model.files import read_json  # noqa: PLC0415 - as above

    return Answer(lambda: read_json(path, kind))
