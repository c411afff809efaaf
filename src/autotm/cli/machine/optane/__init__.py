"""Optane memory between its modes, as the artifact's scripts did it, but without losing anybody's data."""

from autotm.cli.machine.optane.changes import change_goal, make_file_system
from autotm.cli.machine.optane.state import State, read_state
from autotm.cli.machine.optane.tools import Step, run_steps

__all__ = ["State", "Step", "change_goal", "make_file_system", "read_state", "run_steps"]
