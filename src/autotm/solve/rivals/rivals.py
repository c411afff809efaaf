"""Rivals by name."""

from __future__ import annotations

from autotm.model.files import unknown_name
from autotm.solve.problem import Problem
from autotm.solve.rivals.lru import page_tensors
from autotm.solve.rivals.managed import ManagedMemory, run_managed
from autotm.solve.rivals.recompute import recompute_segments
from autotm.solve.rivals.saved import save_on_cpu
from autotm.solve.rivals.simulated import Simulated
from autotm.solve.rivals.swap import swap_everything

_PLACING = {
    "lru-paging": page_tensors,
    "swap-all": swap_everything,
    "recompute": recompute_segments,
    "save-on-cpu": save_on_cpu,
}
_MANAGED = "managed-memory"
RIVALS = (_MANAGED, *_PLACING)


def run_rival(name: str, problem: Problem, managed: ManagedMemory) -> Simulated:
    """The step as that rival makes it.

    Raises:
        BadInputError: there is no such rival.
    """
    if name == _MANAGED:
        return run_managed(problem, managed)
    if name not in _PLACING:
        raise unknown_name("rival", name, RIVALS)
    return _PLACING[name](problem)
