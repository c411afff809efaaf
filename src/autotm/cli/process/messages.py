"""How messages look on a terminal; elsewhere they are plain."""

from __future__ import annotations

import logging
import os

_COLOURS = {logging.WARNING: "yellow", logging.ERROR: "red"}


class TerminalHandler(logging.Handler):
    """Writes each message to standard error, behind the program's name; warnings and errors are coloured.

    Without a terminal, or where the environment has NO_COLOR (no-color.org), there are no colours.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write one message."""
        import click  # noqa: PLC0415 - Ctrl-C is heard once this module is there, and click takes a while

        try:
            head = click.style("autotm:", fg=_COLOURS.get(record.levelno), bold=record.levelno >= logging.ERROR)
            click.echo(f"{head} {self.format(record)}", err=True, color=False if os.environ.get("NO_COLOR") else None)
        except Exception:  # noqa: BLE001 - a message that cannot be written must not end a measurement
            self.handleError(record)
