"""The commands: each stage of the pipeline alone, on the same files as the rules."""

from autotm.cli.main import main

__all__ = ["main"]
