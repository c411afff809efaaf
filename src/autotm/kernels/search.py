"""MetaSchedule's search for a schedule of one function: candidates are compiled and timed in this process, by us.

What is timed is what would be used: candidates go through the same hoisting of workspaces and the same passes as all
kernels, and one for which that fails is no candidate.
"""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule import TuneContext
from tvm.s_tir.meta_schedule.builder import BuilderResult, PyBuilder
from tvm.s_tir.meta_schedule.database import MemoryDatabase
from tvm.s_tir.meta_schedule.measure_callback import AddToDatabase, UpdateCostModel
from tvm.s_tir.meta_schedule.runner import PyRunner, PyRunnerFuture, RunnerResult
from tvm.s_tir.meta_schedule.tune import tune_tasks

from autotm.kernels.compiler import UnusableScheduleError, as_kernel, compiled, copy_of, to_json
from autotm.kernels.schedules.dispatch import ScheduledKernel
from autotm.model.errors import AutotmError

_LOG = logging.getLogger(__name__)
_LOUD = "tvm.s_tir.meta_schedule"

TRIALS_PER_ROUND = 16
"""Candidates between two updates of the cost model."""

Measure = Callable[[ScheduledKernel, tvm.runtime.Module], float]
"""Seconds of one call of a compiled kernel's `main`."""


@dataclass(frozen=True)
class Found:
    """A schedule that the search tried: its steps as JSON, and the seconds it was measured at."""

    trace: str
    seconds: float


def require_packages() -> None:
    """Raise unless the packages that the search needs are installed.

    Raises:
        AutotmError: names what is missing and how to get it.
    """
    missing = [name for name in ("xgboost", "cloudpickle", "psutil") if importlib.util.find_spec(name) is None]
    if missing:
        raise AutotmError(
            f"tuning needs packages that are not installed: {', '.join(missing)}; install them: make setup-tune "
            "(or: pip install 'autotm[tune]')"
        )


def search(
    func: tirx.PrimFunc,
    own: ScheduledKernel,
    target: tvm.target.Target,
    threads: int,
    trials: int,
    seed: int,
    cores: int,
    measure: Measure,
) -> list[Found]:
    """Usable schedules of `func`, fastest first; none where MetaSchedule knows no way to schedule it.

    Args:
        func: unscheduled.
        own: its kernel by our own schedule.
        target: of the kernel.
        threads: of the kernel.
        trials: candidates to compile and time.
        seed: of the search.
        cores: threads that the search itself may use.
        measure: times a candidate.
    """
    logging.getLogger(_LOUD).setLevel(logging.ERROR)
    np.random.seed(seed)  # noqa: NPY002  (an untrained cost model draws its guesses from there)
    candidates: dict[str, tuple[ScheduledKernel, tvm.runtime.Module]] = {}
    database = MemoryDatabase()
    try:
        context = TuneContext(
            mod=tvm.IRModule({"main": copy_of(func)}),
            target=_with_cores(target, threads),
            space_generator="post-order-apply",
            search_strategy="evolutionary",
            task_name=own.op,
            rand_state=seed + 1,  # 0 would draw a seed
            num_threads=cores,
            logger=logging.getLogger(_LOUD),
        ).clone()
        tune_tasks(
            tasks=[context],
            task_weights=[1.0],
            work_dir="",
            max_trials_global=trials,
            num_trials_per_iter=min(trials, TRIALS_PER_ROUND),
            builder=_Builder(own, target, candidates),
            runner=_Runner(candidates, measure),
            database=database,
            measure_callbacks=[AddToDatabase(), UpdateCostModel()],
        )
    except AutotmError:
        raise
    except Exception as error:  # noqa: BLE001  (TVM raises anything; what was found so far still counts)
        _LOG.warning("the search for '%s' ended early: %s", own.op, str(error).strip().splitlines()[-1])
    return sorted(_found(database.get_all_tuning_records()), key=lambda item: item.seconds)


def _with_cores(target: tvm.target.Target, threads: int) -> tvm.target.Target:
    """The target with a number of cores, which MetaSchedule insists on; a machine file may leave it out."""
    if "num-cores" in target.attrs:
        return target
    return tvm.target.Target({**target.export(), "num-cores": threads})


def _found(records: Iterable[Any]) -> Iterable[Found]:
    for record in records:
        seconds = min((float(value) for value in record.run_secs or ()), default=math.inf)
        if math.isfinite(seconds) and seconds < _FAILED_S:
            yield Found(to_json(record.trace), seconds)


_FAILED_S = 1e9
"""MetaSchedule records failed candidates with 1e10 seconds."""


@derived_object
class _Builder(PyBuilder):  # type: ignore[misc]
    """Compiles candidates in memory; the `artifact path` it hands on is their number."""

    def __init__(
        self,
        own: ScheduledKernel,
        target: tvm.target.Target,
        candidates: dict[str, tuple[ScheduledKernel, tvm.runtime.Module]],
    ) -> None:
        super().__init__()
        self.own = own
        self.target = target
        self.candidates = candidates
        self.built = 0

    def build(self, build_inputs: Any) -> list[Any]:
        """One result per candidate."""
        return [self._build(item.mod["main"]) for item in build_inputs]

    def _build(self, func: tirx.PrimFunc) -> Any:
        try:
            kernel = as_kernel(func.without_attr("global_symbol"), self.own)
            module = compiled(kernel, self.target)
        except UnusableScheduleError as error:
            return BuilderResult(None, str(error))
        except Exception as error:  # noqa: BLE001  (a candidate may break any check of TVM)
            return BuilderResult(None, str(error))
        self.built += 1
        name = f"candidate-{self.built}"
        self.candidates[name] = (kernel, module)
        return BuilderResult(name, None)


@derived_object
class _Done(PyRunnerFuture):  # type: ignore[misc]
    """A result that is there already."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def done(self) -> bool:
        """Always."""
        return True

    def result(self) -> Any:
        """The seconds of one call."""
        return RunnerResult([self.seconds], None)


@derived_object
class _Runner(PyRunner):  # type: ignore[misc]
    """Times the builder's candidates, and forgets their code."""

    def __init__(self, candidates: dict[str, tuple[ScheduledKernel, tvm.runtime.Module]], measure: Measure) -> None:
        super().__init__()
        self.candidates = candidates
        self.measure = measure

    def run(self, runner_inputs: Any) -> list[Any]:
        """One future per candidate."""
        return [_Done(self._run(str(item.artifact_path))) for item in runner_inputs]

    def _run(self, name: str) -> float:
        return self.measure(*self.candidates.pop(name))
