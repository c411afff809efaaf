"""What surrounds a command: its messages, Ctrl-C, temporary files."""

from autotm.cli.process.interrupts import interrupts
from autotm.cli.process.messages import TerminalHandler
from autotm.cli.process.program import INTERRUPTED, INTERRUPTED_TEXT, program

__all__ = ["INTERRUPTED", "INTERRUPTED_TEXT", "TerminalHandler", "interrupts", "program"]
