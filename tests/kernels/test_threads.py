import os
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

import small_step
from autotm.kernels.threads import check_cores, measure_cores, pinned
from autotm.model.errors import AutotmError

TESTS = Path(__file__).parents[1]


def spin() -> None:
    end = time.perf_counter() + 0.002
    while time.perf_counter() < end:
        pass


def test_the_calling_thread_is_held_on_the_first_core_and_let_go() -> None:
    before, machine = os.sched_getaffinity(0), small_step.machine(1)
    with pinned(machine):
        assert os.sched_getaffinity(0) == {machine.cpus[0]}
    assert os.sched_getaffinity(0) == before


def test_one_busy_thread_wants_one_core() -> None:
    assert measure_cores(spin, sorted(os.sched_getaffinity(0)), 0.05).wanting == pytest.approx(1.0, abs=0.2)


def test_a_process_that_uses_fewer_threads_than_asked_is_stopped() -> None:
    asked = replace(small_step.machine(1), threads=8)
    with pytest.raises(AutotmError, match="asks for 8 threads"):
        check_cores(asked, lambda: time.sleep(0.002), min_s=0.02, attempts=2)


def in_new_process(code: str) -> subprocess.CompletedProcess[str]:
    start = f"""
import sys
sys.modules["torch"] = None  # TVM imports it where it is installed, which takes seconds
sys.path.insert(0, {str(TESTS)!r})
import tvm, small_step
from autotm.kernels.threads import pinned
"""
    command = [sys.executable, "-c", start + textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_the_pool_gets_the_threads_that_were_asked_for() -> None:
    done = in_new_process("""
        with pinned(small_step.machine(2)):
            print(tvm.get_global_func("runtime.NumThreads")())
    """)
    assert (done.returncode, done.stdout.strip()) == (0, "2"), done.stderr


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_pool_that_was_started_too_small_is_an_error() -> None:
    done = in_new_process("""
        import os
        os.environ["TVM_NUM_THREADS"] = "1"
        tvm.get_global_func("runtime.NumThreads")()
        with pinned(small_step.machine(2)):
            print("not reached")
    """)
    assert done.returncode != 0
    assert "not reached" not in done.stdout
    assert "start a new process" in done.stderr
