"""Addresses: a byte offset for every stay of a plan, and the program that runs it."""

from autotm.layout.compile import compile_program
from autotm.layout.pack import pack
from autotm.layout.shave import fits, fitted, solve_and_pack, sweep_and_pack

__all__ = ["compile_program", "fits", "fitted", "pack", "solve_and_pack", "sweep_and_pack"]
