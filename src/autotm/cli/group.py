"""A group whose commands are imported when they are called: help and completion wait for no package of theirs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module

import click


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
