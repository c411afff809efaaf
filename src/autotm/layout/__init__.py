"""Addresses: a byte offset for every stay of a plan, and the program that runs it."""

from autotm.layout.compile import compile_program
from autotm.layout.fit import fits, solve_and_pack, sweep_and_pack
from autotm.layout.pack import pack

__all__ = ["compile_program", "fits", "pack", "solve_and_pack", "sweep_and_pack"]
