"""The group of commands, which imports a command when it is called, and answers as text or JSON."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import click


class LazyGroup(click.Group):
    """A group of commands in sections, each imported when it is called: help and completion import none of them.

    Args:
        sections: as `main.SECTIONS`.
        named: as in `click.Group`: its own name, help and so on.
    """

    def __init__(self, *, sections: Mapping[str, Mapping[str, tuple[str, str]]], **named: object) -> None:
        look = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
        super().__init__(context_settings=look, **named)  # type: ignore[arg-type]
        self._sections = sections
        self._entries = {name: entry for section in sections.values() for name, entry in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return every name, in the order of the sections."""
        return [*self._entries]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command, whose help then begins with what it does; return None where there is none."""
        entry = self._entries.get(cmd_name)
        if entry is None:
            return super().get_command(ctx, cmd_name)
        if cmd_name not in self.commands:
            home, does = entry
            module, _, function = home.partition(":")
            command: click.Command = getattr(import_module(f"autotm.cli.{module}"), function)
            command.help = "\n\n".join(filter(None, (f"{does[0].upper()}{does[1:]}.", command.help)))
            self.add_command(command, cmd_name)
        return self.commands[cmd_name]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command as `click.Group` does; name the nearest ones in the error of an unknown name."""
        if args and self.get_command(ctx, args[0]) is None:
            raise click.NoSuchCommand(args[0], possibilities=self._entries, ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        """Write a list for each section."""
        width = max(map(len, self._entries))
        for title, section in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), does) for name, (_, does) in section.items()])


@dataclass(frozen=True)
class Answer:
    """The answer of a command: text for a person or, with --json, the same for a program.

    Attributes:
        data: numbers, texts, lists, mappings, dataclasses and paths; or a function that returns them.
        text: for a terminal; empty where log messages have said it.
        fault: an error that ends the command once the answer is written.
    """

    data: Any
    text: str = ""
    fault: Exception | None = None

    def json(self) -> bytes:
        """Return the data as JSON; NaN and infinities are null."""
        from pydantic_core import to_json  # noqa: PLC0415 - only --json needs it

        return to_json(self.data() if callable(self.data) else self.data, indent=1, inf_nan_mode="null")


class AnsweredError(Exception):
    """An error that a written answer reports; its text is that of the error."""


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
    """Answer with the file that a stage wrote; for a person, log messages have said what is in it."""
    from autotm.model.files import read_json  # noqa: PLC0415 - as above

    return Answer(lambda: read_json(path, kind))
