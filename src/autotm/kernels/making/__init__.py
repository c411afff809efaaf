"""From a kernel to the machine code that is kept: compiled, tuned, its facts known."""

from autotm.kernels.making.build import identity, objects_in
from autotm.kernels.making.co_runners import co_runner_functions
from autotm.kernels.making.compiler import KernelCompiler, KernelScheduler, Make, Request
from autotm.kernels.making.facts import KernelFacts
from autotm.kernels.making.multiply_adds import register_loop
from autotm.kernels.making.search import require_packages, search
from autotm.kernels.making.tuned import UnusableScheduleError, choose, compiled, replay, workload, workspace_bytes
from autotm.kernels.making.yardsticks import make_co_runners, make_yardsticks

__all__ = [
    "KernelCompiler",
    "KernelFacts",
    "KernelScheduler",
    "Make",
    "Request",
    "UnusableScheduleError",
    "choose",
    "co_runner_functions",
    "compiled",
    "identity",
    "make_co_runners",
    "make_yardsticks",
    "objects_in",
    "register_loop",
    "replay",
    "require_packages",
    "search",
    "workload",
    "workspace_bytes",
]
