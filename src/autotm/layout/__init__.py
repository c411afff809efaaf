"""Addresses: a byte offset for every stay of a plan, and the program that runs it."""

from autotm.layout.blocks import Blocks
from autotm.layout.compile import compile_program
from autotm.layout.conflict import StepPacking
from autotm.layout.pack import pack, pack_blocks

__all__ = ["Blocks", "StepPacking", "compile_program", "pack", "pack_blocks"]
