"""From a kernel to the machine code that is kept: compiled, tuned, its facts known."""

from autotm.kernels.making.build import identity, objects_in
from autotm.kernels.making.contraction_rate import contraction_flop_per_s
from autotm.kernels.making.facts import KernelFacts
from autotm.kernels.making.neighbours import neighbours
from autotm.kernels.making.search import require_packages, search
from autotm.kernels.making.tuned import UnusableScheduleError, choose, compiled, replay, workload, workspace_bytes
from autotm.kernels.making.workshop import Desk, Make, Request, Workshop

__all__ = [
    "Desk",
    "KernelFacts",
    "Make",
    "Request",
    "UnusableScheduleError",
    "Workshop",
    "choose",
    "compiled",
    "contraction_flop_per_s",
    "identity",
    "neighbours",
    "objects_in",
    "replay",
    "require_packages",
    "search",
    "workload",
    "workspace_bytes",
]
