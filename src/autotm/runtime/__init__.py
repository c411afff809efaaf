"""Running programs: kernels and moves over two pools, verified against the plain step and timed."""

from autotm.runtime.arguments import Arguments, initial_value
from autotm.runtime.executor import Executor, prepare
from autotm.runtime.options import RunOptions
from autotm.runtime.plain import all_fast_program, plain_program
from autotm.runtime.record import unfit_record
from autotm.runtime.run import Runs, run
from autotm.runtime.session import Session
from autotm.runtime.timing import Effort, time_all_fast
from autotm.runtime.verify import VerificationError, plain_steps, verified

__all__ = [
    "Arguments",
    "Effort",
    "Executor",
    "RunOptions",
    "Runs",
    "Session",
    "VerificationError",
    "all_fast_program",
    "initial_value",
    "plain_program",
    "plain_steps",
    "prepare",
    "run",
    "time_all_fast",
    "unfit_record",
    "verified",
]
