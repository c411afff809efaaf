"""What commands are made of: a group that imports a command when it is called, and answers as text or JSON."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import click

# A group whose commands are imported when they are called: help and completion wait for no package of theirs.


@dataclass(frozen=True)
class Entry:
    """A command: where it is, and what it does in one line."""

    home: str
    does: str


class LazyGroup(click.Group):
    """A group of commands in sections.

    Args:
        sections: entries by the commands' names, by the sections' titles; `home` is `module:function`.
        named: as in `click.Group`: its own name, help and so on.
    """

    def __init__(self, *, sections: Mapping[str, Mapping[str, Entry]], **named: object) -> None:
        super().__init__(**named)  # type: ignore[arg-type]
        self._sections = sections
        self._entries = {name: entry for section in sections.values() for name, entry in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Every name, in the order of the sections."""
        return [*self._entries]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported; its help begins with its entry's line. None where there is none of that name."""
        entry = self._entries.get(cmd_name)
        if entry is None:
            return super().get_command(ctx, cmd_name)
        if cmd_name not in self.commands:
            module, _, function = entry.home.partition(":")
            command: click.Command = getattr(import_module(module), function)
            command.help = "\n\n".join(filter(None, (f"{entry.does[0].upper()}{entry.does[1:]}.", command.help)))
            self.add_command(command, cmd_name)
        return self.commands[cmd_name]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As in `click.Group`; an unknown name's error tells the nearest ones."""
        if args and self.get_command(ctx, args[0]) is None:
            raise click.NoSuchCommand(args[0], possibilities=self._entries, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        """A list for each section."""
        for title, rows in self._rows():
            with formatter.section(title):
                formatter.write_dl(rows)

    def _rows(self) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        width = max(map(len, self._entries))
        for title, section in self._sections.items():
            yield title, [(name.ljust(width), entry.does) for name, entry in section.items()]


# What a command answers: text for a person, or with --json the same for a program.


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
