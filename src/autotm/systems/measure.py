"""Systems measured in turn, each in processes of its own: one that hangs, crashes or is wrong ends no other.

A process prepares its program, is checked, and then calls it whenever it is asked to. To import PyTorch and TVM, to
read a model and to compute its results in float64 takes seconds, so one process, `python -m autotm.systems.measure`,
does it for all, and forks them.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing.connection as mpc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from itertools import product
from multiprocessing import Pipe
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import numpy as np
import torch

from autotm.control.function import compile_program
from autotm.control.program import Array, Program
from autotm.control.reader import read_program
from autotm.control.rewrites import NO_REWRITES, SMALL_ELEMENTS, Rewrites
from autotm.kernels.library import aligned_empty
from autotm.model.control_study import ALL_BLOCKS, RESOLVED, WITH_CONTROL_FLOW, SystemTimes
from autotm.model.errors import AutotmError, BadInputError
from autotm.systems.resolved import resolved, with_weights
from autotm.systems.source import EVERY_OPERATOR, Prepared, Ready, Results, python_source, without_checks
from autotm.systems.torch_systems import reference
from autotm.zoo.control_flow import BRANCHING, ControlModel, control_model

SAMPLE_S = 0.005
"""Calls that are shorter are repeated until they take so long together, which a clock can tell."""
MOST_CALLS = 200
"""In one sample: a system that answers in less than some microseconds is not called for longer."""
ENOUGH_S = 3.0
"""A system that has been called for so long, and in `FEWEST_ROUNDS`, is not called in further rounds."""
FEWEST_ROUNDS = 3
START_S = 300.0
"""A process is there until then at the latest, whatever else the computer does."""
SLOW_TO_BUILD = ("torch.compile", "jax", "tvm-fused")
"""Systems that are prepared first, so that no core waits for them at the end; resolved ones before all others."""
RATIO = "ratio"
"""Among the sizes of a task: the percentage of blocks that are computed, of a model whose branches skip some."""
TOLERANCE = 1e-5
"""Most that float32 may be off float64, over the largest result."""
SPIN = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "TVM_THREAD_POOL_SPIN_COUNT": "0"}
"""Threads of a process that waits for its turn are to sleep."""


@dataclass(frozen=True)
class Task:
    """One system with one variant of a model.

    Attributes:
        sizes: of the model, and perhaps `RATIO`.
        rewrites: of `tvm-fused`; those of `Rewrites` if None.
    """

    model: str
    sizes: tuple[tuple[str, Any], ...]
    batch: int
    seed: int
    threads: int
    system: str
    variant: str
    rewrites: Rewrites | None = None


class Forks:
    """The process that has imported, read and computed everything once, and forks the others.

    Attributes:
        process: that one.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        """Start it, for tasks that its forks are going to be asked about."""
        self._control, theirs = Pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "autotm.systems.measure", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, **SPIN, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # What compilers print is no result.
        )
        theirs.close()
        self._lock = threading.Lock()
        with self._alive():
            self._control.send_bytes(pickle.dumps(tasks))

    def fork(self) -> tuple[int, mpc.Connection]:
        """Return the number of a new process, and the connection by which it is asked.

        Raises:
            AutotmError: it is not there in time, or the process that forks has ended.
        """
        ours, theirs = Pipe()
        with theirs, self._lock, self._alive():
            self._control.send(None)
            send_handle(self._control, theirs.fileno(), self.process.pid)
            return _received(self._control, START_S), ours

    def exit_code(self, process: int) -> int:
        """Wait for the end of a forked process.

        Raises:
            AutotmError: as `fork`.
        """
        with self._lock, self._alive():
            self._control.send(process)
            return int(_received(self._control, START_S))

    @contextlib.contextmanager
    def _alive(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError):
            raise AutotmError(f"the process that forks others ended: {_ended(self.process.wait())}") from None

    def close(self) -> None:
        """End it; each of its forks ends as soon as nobody can ask it any more."""
        self._control.close()
        self.process.kill()
        self.process.wait()


def _received(connection: mpc.Connection, limit_s: float) -> Any:
    if not connection.poll(limit_s):
        raise AutotmError(f"no result within {limit_s:.0f} s")
    return connection.recv()


def _ended(code: int) -> str:
    """Say how a process ended."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


class _Worker:
    """A process that calls one system, with control flow in one or more variants and sizes, or resolved.

    Attributes:
        tasks: those that have not failed.
        times: what is known of each task; all that there was from the beginning.
        calls: of each, in one sample.
        fork: number of the process and the connection to it, if there is one.
    """

    def __init__(self, tasks: Sequence[Task], forks: Forks) -> None:
        self.tasks = list(tasks)
        self.times = {
            task: SystemTimes(
                *(task.system, task.variant, task.batch, dict(task.sizes), task.threads),
                rewrites=asdict(task.rewrites or Rewrites()) if task.system == "tvm-fused" else {},
            )
            for task in tasks
        }
        self.calls: dict[Task, int] = {}
        self.samples: dict[Task, list[float]] = {task: [] for task in tasks}
        self._forks = forks
        self.fork: tuple[int, mpc.Connection] | None = None

    def end(self) -> None:
        """End the process, if there is one."""
        if self.fork is not None:
            process, connection = self.fork
            self.fork = None
            with contextlib.suppress(OSError):
                connection.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def ask(self, question: str, task: Task, limit_s: float, **details: Any) -> dict[str, Any]:
        """Ask the process for something; start one if there is none.

        Raises:
            BadInputError: what it asked the system for failed.
            AutotmError: it has no answer in time, or has ended; it can be asked nothing any more.
        """
        if self.fork is None:
            self.fork = self._forks.fork()
        process, connection = self.fork
        try:
            connection.send((question, pickle.dumps(task), details))
            answer: dict[str, Any] = _received(connection, limit_s)
        except (EOFError, OSError):
            raise AutotmError(f"its process ended: {_ended(self._forks.exit_code(process))}") from None
        if "failure" in answer:
            raise BadInputError(answer["failure"])
        return answer

    def fail(self, task: Task, why: str) -> None:
        """Note why a task has no times."""
        self.times[task] = replace(self.times[task], failure=why, build_s=None, error=None)
        self.tasks.remove(task)

    def prepare(self, limit_s: float) -> None:
        """Prepare all tasks; after one that the process does not survive, the others again."""
        while not all(task in self.calls for task in self.tasks):
            for task in tuple(self.tasks):
                try:
                    answer = self.ask("prepare", task, limit_s)
                    self.times[task] = replace(self.times[task], **answer)
                    first = self.ask("call", task, limit_s, calls=2)["ms"]  # The first call is not like the others.
                    self.calls[task] = max(1, min(MOST_CALLS, round(SAMPLE_S * 1e3 / max(first, 1e-6))))
                except BadInputError as error:
                    self.fail(task, str(error))
                except AutotmError as error:
                    self.fail(task, str(error))
                    self.end()
                    self.calls.clear()
                    break

    def has_enough(self, task: Task) -> bool:
        """Whether a task takes so long that fewer rounds have to do."""
        samples = self.samples[task]
        return len(samples) >= FEWEST_ROUNDS and sum(samples) * self.calls[task] > ENOUGH_S * 1e3

    def sample(self, task: Task, limit_s: float) -> None:
        """Call a task; if the process does not survive that, no task of it has times."""
        try:
            self.samples[task].append(self.ask("call", task, limit_s, calls=self.calls[task])["ms"])
        except BadInputError as error:
            self.fail(task, str(error))
        except AutotmError as error:
            for each in tuple(self.tasks):
                self.fail(each, f"{task.variant}: {error}")

    def measured(self, limit_s: float) -> None:
        """Let the times say what was measured, and ask for the time in kernels."""
        for task in tuple(self.tasks):
            try:
                kernel_ms = self.ask("kernels", task, limit_s)["ms"]
            except AutotmError:
                kernel_ms = None
            self.times[task] = replace(self.times[task], times_ms=tuple(self.samples[task]), kernel_ms=kernel_ms)


def times_in_turn(tasks: Sequence[Task], rounds: int, build_s: float, at_once: int) -> list[SystemTimes]:
    """Prepare all systems, `at_once` of them at a time, check their results, and call them in turn.

    A round calls each system once in each variant and size, the round after that in the opposite order.

    Args:
        tasks: one for each system, variant and size.
        rounds: samples of each.
        build_s: seconds that a system may take until the first results of a variant are there.
        at_once: processes that prepare side by side.

    Raises:
        AutotmError: a system's results are wrong; nothing is timed then.
    """
    systems: dict[tuple[str, int, bool], list[Task]] = {}
    for task in tasks:
        # Thousands of operators in a row may take a compiler so long that its process is ended.
        systems.setdefault((task.system, task.threads, task.variant == RESOLVED), []).append(task)
    with contextlib.ExitStack() as stack:
        forks = Forks(tasks)
        stack.callback(forks.close)
        workers = {}
        for own in systems.values():
            worker = _Worker(own, forks)
            stack.callback(worker.end)
            workers.update(dict.fromkeys(own, worker))
        with ThreadPoolExecutor(at_once) as pool:
            each_once = dict.fromkeys(workers.values())
            slow_first = sorted(each_once, key=lambda worker: _place_in_line(worker.tasks[0]))
            list(pool.map(lambda worker: worker.prepare(build_s), slow_first))
        for task in tasks:
            _require_right(task, workers[task].times[task].error)
        for turn in range(rounds):
            for task in tasks if turn % 2 else reversed(tasks):
                if task in workers[task].tasks and not workers[task].has_enough(task):
                    workers[task].sample(task, build_s)
        for worker in {*workers.values()}:
            worker.measured(build_s)
        return [workers[task].times[task] for task in tasks]


def _place_in_line(task: Task) -> tuple[bool, bool]:
    """Return what systems are sorted by to be prepared: those first that take longest."""
    return task.variant != RESOLVED, task.system not in SLOW_TO_BUILD


def _require_right(task: Task, error: float | None) -> None:
    if error is not None and not error <= TOLERANCE:  # NaN is wrong too.
        raise AutotmError(
            f"{task.system} computes {task.model} ({task.variant}, batch {task.batch}) wrong: off PyTorch's float64 by "
            f"{error:.2g} of the largest result, allowed are {TOLERANCE:.0e}"
        )


def different_rewrites(task: Task) -> list[Rewrites]:
    """Return the sets of rewrites that make different programs of a task: none first."""
    program, _, _ = _read(task)
    by_source: dict[str, Rewrites] = {}
    sets = [Rewrites(small, small, unroll=unroll) for small, unroll in product((0, SMALL_ELEMENTS), (1, 2, 4, 8))]
    sets += [replace(Rewrites(), **{left_out: 0}) for left_out in ("predicate", "by_levels", "split_loops")]
    for rewrites in sets:
        source, _ = python_source(rewrites.apply(program), EVERY_OPERATOR)
        by_source.setdefault(source, rewrites)
    return [NO_REWRITES, *by_source.values()]


# In the processes.


def main() -> None:
    """Fork a process whenever one is asked for, and tell how one ended.

    Everything comes by the connection whose number is given, the tasks first.
    """
    torch.set_grad_enabled(False)
    # A second thread of OpenMP would be waited for in every fork, which has none. The environment may ask for it by
    # other names than `OMP_NUM_THREADS`, as Snakemake's does.
    torch.set_num_threads(1)
    control = mpc.Connection(int(sys.argv[1]))
    for task in pickle.loads(control.recv_bytes()):  # noqa: S301 - Our own parent wrote it.
        with contextlib.suppress(Exception):  # The process that is asked meets the error again, and tells it.
            _expected(task)
            _given(task)
    with contextlib.suppress(EOFError):
        while True:
            if (process := control.recv()) is not None:
                _, status = os.waitpid(process, 0)
                control.send(os.waitstatus_to_exitcode(status))
                continue
            number = recv_handle(control)
            if not (process := os.fork()):
                control.close()
                _answer(mpc.Connection(number))
                os._exit(0)
            os.close(number)
            control.send(process)


def _answer(connection: mpc.Connection) -> None:
    """Answer questions until the one who asks is gone."""
    compiled: dict[Task, tuple[Ready, float]] = {}
    prepared: dict[Task, Prepared] = {}
    while True:
        try:
            question, pickled, details = connection.recv()
        except EOFError:
            return
        task: Task = pickle.loads(pickled)  # noqa: S301 - Our own parent wrote it.
        try:
            match question:
                case "prepare":
                    prepared[task], answer = _prepared(task, compiled)
                case "call":
                    answer = {"ms": _timed(prepared[task].call, details["calls"])}
                case _:
                    ask = prepared[task].kernel_ms
                    answer = {"ms": ask() if ask else None}
        except Exception as error:  # noqa: BLE001 - Whatever a compiler says is why it has no times.
            answer = {"failure": _one_line(error)}
        connection.send(answer)


def _prepared(task: Task, compiled: dict[Task, tuple[Ready, float]]) -> tuple[Prepared, dict[str, float]]:
    """Return the system, and how long that took and how wrong it is.

    Args:
        task: of the system.
        compiled: programs that do not depend on the ratio of blocks, and the seconds that they took; it is added to.
    """
    os.environ["OMP_NUM_THREADS"] = str(task.threads)  # What TVM reads at its first kernel.
    program, arguments = _given(task)
    key = replace(task, sizes=_without_ratio(task)) if task.variant == WITH_CONTROL_FLOW else task
    if key not in compiled:
        start = time.perf_counter()
        if task.system == "tvm-fused":
            program = (task.rewrites or Rewrites()).apply(program)
        compiled[key] = prepare(task.system, program, task.threads), time.perf_counter() - start
    ready, build_s = compiled[key]
    start = time.perf_counter()
    prepared = ready(arguments)
    results = prepared.results()
    build_s += time.perf_counter() - start
    return prepared, {"build_s": build_s, "error": _error(results, _expected(task))}


def _given(task: Task) -> tuple[Program, list[Array]]:
    """Return what a system gets of a task: a program and its arguments."""
    channels_last = task.model in BRANCHING and task.system.startswith(("tvm", "cuda"))
    if task.variant == WITH_CONTROL_FLOW:
        program, arguments, _ = _read(task, channels_last)
        return program, arguments
    return _resolved(_of_any_system(task), channels_last)


def _of_any_system(task: Task) -> Task:
    """Return what the same tasks of all systems have in common: what is known of one holds for each."""
    return replace(task, system="", threads=1, rewrites=None)


@functools.cache
def _resolved(task: Task, channels_last: bool) -> tuple[Program, list[Array]]:
    program, arguments, deciding = _read(task, channels_last)
    program = resolved(without_checks(program), arguments, deciding)
    return program, [array for position, array in enumerate(arguments) if position not in deciding]


_MODULES = {
    "torch": ("torch_systems", "eager"),
    "torch.compile": ("torch_systems", "compiled_pieces"),
    "torchscript": ("torch_systems", "scripted"),
    "onnxruntime": ("onnx_system", "interpreted"),
    "jax": ("jax_system", "compiled"),
    "tvm-py": ("relax_vm", "in_pieces"),
    "tvm-vm": ("relax_vm", "whole"),
    "cuda-host": ("cuda_system", "on_host"),
    "cuda-persistent": ("cuda_system", "within_kernel"),
    "cuda-graph": ("cuda_system", "as_graph"),
}
"""Where each system is: a process imports its own only."""


def prepare(system: str, program: Program, threads: int) -> Ready:
    """Prepare a program in a system, on so many threads.

    Raises:
        BadInputError: the system has nothing for something in the program.
        ImportError: its package is not installed.
    """
    if system == "tvm-fused":
        return _fused(program, threads)
    module, function = _MODULES[system]
    prepare_program = getattr(import_module(f"autotm.systems.{module}"), function)
    ready: Ready = prepare_program(without_checks(program), threads)
    return ready


def _fused(program: Program, threads: int) -> Ready:
    function = compile_program(program, threads=threads)

    def on(arguments: Sequence[Array]) -> Prepared:
        placed = [_aligned(each) for each in arguments]
        return Prepared(lambda: function(*placed))

    return on


def _aligned(array: Array) -> Array:
    own = aligned_empty(array.shape, str(array.dtype))
    own[...] = array
    return own


def _without_ratio(task: Task) -> tuple[tuple[str, Any], ...]:
    return tuple((name, size) for name, size in task.sizes if name != RATIO)


def _read(task: Task, channels_last: bool = False) -> tuple[Program, list[Array], list[int]]:
    """Return a program, the arguments that are not weights, and which of them decide."""
    sizes = (*_without_ratio(task), *((("channels_last", True),) if channels_last else ()))
    model, program = _model(task.model, sizes, task.batch, task.seed)
    ratio = 100 if task.variant == ALL_BLOCKS else dict(task.sizes).get(RATIO)
    arguments = model.arguments if ratio is None else model.at_ratio(ratio)
    kept = [index for index in range(len(arguments)) if index not in model.weights]
    deciding = [kept.index(position) for position in model.deciding]
    return program, [arguments[index] for index in kept], deciding


@functools.cache
def _model(name: str, sizes: tuple[tuple[str, Any], ...], batch: int, seed: int) -> tuple[ControlModel, Program]:
    model = control_model(name, dict(sizes), batch, seed)
    return model, with_weights(read_program(model.module), {index: model.arguments[index] for index in model.weights})


def _expected(task: Task) -> Results:
    """Return the results in float64."""
    variant = ALL_BLOCKS if task.variant == ALL_BLOCKS else WITH_CONTROL_FLOW
    return _reference(replace(_of_any_system(task), variant=variant))


@functools.cache
def _reference(task: Task) -> Results:
    program, arguments, _ = _read(task)
    return reference(program, arguments)


def _error(results: Sequence[Array], expected: Sequence[Array]) -> float:
    """Return by how much results are off what is expected at most, over the largest of that."""
    errors = [0.0]
    for result, right in zip(results, expected, strict=True):
        if result.shape != right.shape:
            return float("inf")
        difference = np.abs(result.astype("float64") - right)
        errors.append(float(difference.max() / max(np.abs(right).max(), np.finfo("float32").tiny)))
    return max(errors) if all(error == error for error in errors) else float("nan")  # noqa: PLR0124


def _timed(call: Any, calls: int) -> float:
    """Return milliseconds of a call, the mean of some."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) * 1e3 / calls


def _one_line(error: Exception) -> str:
    """Return the first line of what an error says that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    if isinstance(error, ImportError):
        return f"not installed: {text}"
    return text if isinstance(error, AutotmError) else f"{type(error).__name__}: {text}"[:300]


if __name__ == "__main__":
    main()
