"""Work shared among processes: TVM's passes hold Python's lock, so threads would take turns."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable

from autotm.model.files import AutotmError


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def in_processes(tasks: int, work: Callable[[int], None]) -> None:
    """Call `work` with each number below `tasks` once; whoever is done takes the next.

    The others are forks of this process, which works too: sending them TVM's functions would take half as long as
    compiling them. So `work` must leave what it did in files.

    Raises:
        AutotmError: one of the other processes failed; what it said is on standard error.
    """
    fork = multiprocessing.get_context("fork")
    taken = fork.Value("q", 0)

    def take() -> int:
        with taken.get_lock():
            taken.value += 1
            return int(taken.value) - 1

    def work_on() -> None:
        while (task := take()) < tasks:
            work(task)

    def help_out() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal sends it to all; the first process tells the others.
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        work_on()

    others = [fork.Process(target=help_out) for _ in range(min(cores(), tasks) - 1)]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        try:
            for process in others:
                process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        work_on()
    finally:
        with taken.get_lock():
            taken.value = tasks  # After a failure here the others end with the task they have.
        for process in others:
            if process.pid is not None:
                process.join()
    failed = [process.exitcode for process in others if process.exitcode]
    if failed:
        raise AutotmError(
            f"compiling kernels failed in {len(failed)} of {len(others) + 1} processes (exit {failed[0]}); see above"
        )
