"""Systems measured in turn, each in processes of its own: one that hangs, crashes or is wrong ends no other.

A process prepares its program, is checked, and then calls it whenever it is asked to. To import PyTorch and TVM, to
read a model and to compute its results in float64 takes seconds, so one process, `python -m autotm.systems.worker`,
does it for all, and forks them. This one imports neither.
"""

from __future__ import annotations

import contextlib
import multiprocessing.connection as mpc
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.reduction import send_handle
from typing import Any

from autotm.model.control_study import RESOLVED, SystemTimes
from autotm.model.errors import AutotmError, BadInputError

SAMPLE_S = 0.005
"""Calls that are shorter are repeated until they take so long together, which a clock can tell."""
LONG_S = 0.5
"""A first call that takes longer tells that one call is a sample; a shorter one may be longer than all others."""
MOST_CALLS = 200
"""In one sample: a system that answers in less than some microseconds is not called for longer."""
ENOUGH_S = 2.0
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
        rewrites: of `tvm-fused`, by name; those of `Rewrites` if there are none.
    """

    model: str
    sizes: tuple[tuple[str, Any], ...]
    batch: int
    seed: int
    threads: int
    system: str
    variant: str
    rewrites: tuple[tuple[str, Any], ...] = ()


class Forks:
    """The process that has imported, read and computed everything once, and forks the others.

    Attributes:
        process: that one.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        """Start it, for tasks that its forks are going to be asked about."""
        self._control, theirs = Pipe()
        # What an earlier study compiled with PyTorch would make the time to build a system that of reading it.
        self._compiled = tempfile.TemporaryDirectory(prefix="autotm-", ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "autotm.systems.worker", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, **SPIN, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": self._compiled.name},
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
        self._compiled.cleanup()


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
                task.system, task.variant, task.batch, dict(task.sizes), task.threads, dict(task.rewrites)
            )
            for task in tasks
        }
        self.calls: dict[Task, int] = {}
        self.samples: dict[Task, list[float]] = {task: [] for task in tasks}
        self._forks = forks
        self.fork: tuple[int, mpc.Connection] | None = None

    def close(self) -> None:
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
                    call_ms = answer.pop("first_ms")
                    self.times[task] = replace(self.times[task], **answer)
                    if call_ms < LONG_S * 1e3:
                        call_ms = self.ask("call", task, limit_s, calls=1)["ms"]
                    self.calls[task] = max(1, min(MOST_CALLS, round(SAMPLE_S * 1e3 / max(call_ms, 1e-6))))
                except BadInputError as error:
                    self.fail(task, str(error))
                except AutotmError as error:
                    self.fail(task, str(error))
                    self.close()
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


def times_in_turn(
    tasks: Sequence[Task], rounds: int, build_s: float, at_once: int, searched: Task | None = None
) -> list[SystemTimes]:
    """Prepare all systems, `at_once` of them at a time, check their results, and call them in turn.

    A round calls each system once in each variant and size, the round after that in the opposite order.

    Args:
        tasks: one for each system, variant and size.
        rounds: samples of each.
        build_s: seconds that a system may take until the first results of a variant are there.
        at_once: processes that prepare side by side.
        searched: what is measured after each set of rewrites that makes another program of it.

    Raises:
        AutotmError: a system's results are wrong; nothing is timed then.
        BadInputError: what is searched cannot be read.
    """
    with contextlib.ExitStack() as stack:
        forks = Forks([*tasks, *([searched] if searched else [])])
        stack.callback(forks.close)
        if searched:
            with contextlib.closing(_Worker([searched], forks)) as worker:
                sets = worker.ask("rewrites", searched, START_S)["sets"]
            tasks = [*tasks, *(replace(searched, rewrites=each) for each in sets)]
        systems: dict[tuple[str, int, bool], list[Task]] = {}
        for task in tasks:
            # Thousands of operators in a row may take a compiler so long that its process is ended.
            systems.setdefault((task.system, task.threads, task.variant == RESOLVED), []).append(task)
        workers = {}
        for own in systems.values():
            worker = _Worker(own, forks)
            stack.callback(worker.close)
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
