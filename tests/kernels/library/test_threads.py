"""As many threads as asked for, each on its core, and the same bits on any number of them."""

import os
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest
import small_step
import two_ways

from autotm.kernels.code.target import host_target
from autotm.kernels.library.threads import check_cores, pinned
from autotm.lower.lower import lower_network
from autotm.model.files.errors import AutotmError

HELPERS = Path(__file__).parents[2] / "helpers"


def spin() -> None:
    end = time.perf_counter() + 0.002
    while time.perf_counter() < end:
        pass


def test_the_calling_thread_is_held_on_the_first_core_and_let_go() -> None:
    before, machine = os.sched_getaffinity(0), small_step.machine(1)
    with pinned(machine):
        assert os.sched_getaffinity(0) == {machine.cpus[0]}
    assert os.sched_getaffinity(0) == before


def test_a_machine_that_asks_for_more_threads_than_kernels_run_on_is_an_error() -> None:
    asked = replace(small_step.machine(1), threads=8)
    with (
        pinned(small_step.machine(1)),
        pytest.raises(AutotmError, match="kernels run on 1 threads, machine 'test' asks for 8 on cores"),
    ):
        check_cores(asked, spin, min_s=0.02)


def test_work_that_waits_is_told_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def waits() -> None:
        spin()
        time.sleep(0.01)

    machine = small_step.machine(1)
    with pinned(machine):
        check_cores(machine, waits)
    assert "of 1 cores busy: other processes hold them, or memory is short" in caplog.text


def in_new_process(code: str) -> subprocess.CompletedProcess[str]:
    start = f"""
import sys
sys.modules["torch"] = None  # TVM imports it where it is installed, which takes seconds
sys.path.insert(0, {str(HELPERS)!r})
import tvm, small_step
from autotm.kernels.library.threads import pinned
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
def test_threads_are_counted_whoever_holds_the_cores() -> None:
    neighbours = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * len(os.sched_getaffinity(0)))
    ]
    try:
        done = in_new_process("""
            import os, threading, time
            # A thread without work yields so many times before it sleeps, and as long before its process can end.
            os.environ["TVM_THREAD_POOL_SPIN_COUNT"] = "100"
            from autotm.kernels.library.threads import check_cores, kernel_threads
            threading.Thread(target=threading.Event().wait, daemon=True).start()
            with pinned(small_step.machine(2)):
                for busy in (None, 1):
                    check_cores(small_step.machine(2), lambda: time.sleep(0.01), min_s=1.0, busy=busy)
                assert threading.get_native_id() in kernel_threads()
                print(len(kernel_threads()))
        """)
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()
    assert (done.returncode, done.stdout.strip()) == (0, "2"), done.stderr
    assert "of 2 cores busy: other processes hold them" in done.stderr
    assert "of 1 cores busy: other processes hold them" in done.stderr


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


def bits_on(threads: int, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run two steps of the network in `folder` on so many threads.

    It prints how many have work, a digest of what they computed, and how many ran.
    """
    return in_new_process(f"""
        import hashlib
        from pathlib import Path
        from autotm.kernels.library import KernelLibrary
        from autotm.kernels.library.threads import kernel_threads
        from autotm.memory.tiers import open_tiers
        from autotm.model.files import load
        from autotm.model.step.graph import Graph
        from autotm.runtime.arguments import Arguments
        from autotm.runtime.executor import prepare
        from autotm.runtime.plain import plain_program

        folder, devices = Path({str(folder)!r}), Path({str(HELPERS.parents[1] / "config" / "devices")!r})
        machine = small_step.machine({threads})
        graph = load(folder / "graph.json", "graph", Graph)
        program, arguments = plain_program(graph), Arguments.allocate(graph)
        arguments.fill(0)
        with pinned(machine), open_tiers(machine, None, program.fast_bytes, 0, devices, stretch=1.0) as tiers:
            library = KernelLibrary.load(folder / "kernels.so")
            busy = library.busy_threads({threads})
            executor = prepare(graph, library, program, arguments, tiers)
            executor.step()
            executor.step()
            values = b"".join(arguments.value(t.name).tobytes() for t in graph.tensors if not t.role.is_movable)
            print(busy, hashlib.sha256(values).hexdigest(), len(kernel_threads()))
    """)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.parametrize("built_for", [1, 2])
def test_a_library_computes_the_same_bits_on_any_number_of_threads(tmp_path: Path, built_for: int) -> None:
    files = (tmp_path / "graph.json", tmp_path / "kernels.so")
    lower_network(two_ways.network(), "test", host_target(built_for), built_for, *files, {})
    one, two = (bits_on(threads, tmp_path) for threads in (1, 2))
    assert (one.returncode, two.returncode) == (0, 0), one.stderr + two.stderr
    assert one.stdout.split()[1] == two.stdout.split()[1]
    assert (one.stdout.split()[0], two.stdout.split()[0]) == ("1", str(built_for))
    assert (one.stdout.split()[2], two.stdout.split()[2]) == ("1", "2")
    assert "built for" not in one.stderr
    assert (f"built for {built_for} threads, about to run on 2" in two.stderr) == (built_for == 1)
    assert ("--config threads=2" in two.stderr) == (built_for == 1)
