"""The commands: each stage of the pipeline alone, questions about its files, and the machine they are for."""

from __future__ import annotations

from autotm.cli.process import program

__all__ = ["program"]
