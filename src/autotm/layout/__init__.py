"""Addresses: a byte offset for every stay of a plan, and the program that runs it."""

from autotm.layout.compile import compile_program
from autotm.layout.fit import fits, fitted, solve_and_pack, sweep_and_pack
from autotm.layout.pack import pack

__all__ = ["compile_program", "fits", "fitted", "pack", "solve_and_pack", "sweep_and_pack"]
