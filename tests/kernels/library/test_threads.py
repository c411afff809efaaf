"""As many threads as asked for, each on its core, and the same bits on any number of them."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import small_step

from autotm.kernels.library import check_cores, pinned
from autotm.kernels.target import host_target
from autotm.lower.lowering import lower_network
from autotm.model.errors import AutotmError
from autotm.model.graph import Initial
from autotm.zoo import Network, NetworkBuilder

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


CHILD = """
import hashlib, json, os, sys, threading, time, traceback
from pathlib import Path
sys.modules["torch"] = None  # TVM imports it where it is installed, which takes seconds
sys.path.insert(0, {helpers!r})
import tvm, small_step
from autotm.kernels.library import KernelLibrary
from autotm.kernels.library import check_cores, kernel_threads, pinned
from autotm.memory.tiers import open_tiers
from autotm.model.files import load
from autotm.model.graph import Graph
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import prepare
from autotm.runtime.verify import plain_program
folder = Path({folder!r})

def too_small():
    os.environ["TVM_NUM_THREADS"] = "1"
    tvm.get_global_func("runtime.NumThreads")()
    with pinned(small_step.machine(2)):
        return "not reached"

def counted():
    # A thread without work yields so many times before it sleeps, and as long before its process can end.
    os.environ["TVM_THREAD_POOL_SPIN_COUNT"] = "100"
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    with pinned(small_step.machine(2)):
        for busy in (None, 1):  # No core is kept busy, as if others held all of them.
            check_cores(small_step.machine(2), lambda: time.sleep(0.01), busy=busy)
        assert threading.get_native_id() in kernel_threads()
        return len(kernel_threads())

def ran(built_for, threads):
    # How many threads have work in two steps, a digest of what they computed, and how many ran.
    machine, graph = small_step.machine(threads), load(folder / f"{{built_for}}.json", "graph", Graph)
    program, arguments = plain_program(graph), Arguments.allocate(graph)
    arguments.fill(0)
    with pinned(machine), open_tiers(machine, None, program.fast_bytes, 0, small_step.DEVICES, stretch=1.0) as tiers:
        library = KernelLibrary.load(folder / f"{{built_for}}.so")
        busy = library.busy_threads(threads)
        executor = prepare(graph, library, program, arguments, tiers)
        executor.step()
        executor.step()
        values = b"".join(arguments.value(t.name).tobytes() for t in graph.tensors if not t.role.is_movable)
        return busy, hashlib.sha256(values).hexdigest(), len(kernel_threads())

work = {{"too small": too_small, "counted": counted}}
work |= {{f"{{b}} on {{t}}": lambda b=b, t=t: ran(b, t) for b in (1, 2) for t in (1, 2)}}
found = {{}}
for name, one in work.items():
    # No thread of TVM's has been started here, so that each fork starts its own.
    if not (child := os.fork()):
        with (folder / name).open("w") as errors:
            os.dup2(errors.fileno(), 2)
            try:
                (folder / "returned").write_text(json.dumps(one()))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            sys.stderr.flush()
            os._exit(0)
    _, status = os.waitpid(child, 0)
    value = None if status else json.loads((folder / "returned").read_text())
    found[name] = value, (folder / name).read_text()
print(json.dumps(found))
"""


def network() -> Network:
    """A convolution and a classifier, large enough for two threads."""
    net = NetworkBuilder("small", 4, 0.01)
    x = net.conv(net.input("images", (4, 12, 12, 3), Initial("normal")), 64, 3, padding=1)
    return net.softmax_cross_entropy(net.dense(net.global_mean(x), 10, relu=False))


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory, objects: Path) -> dict[str, tuple[Any, str]]:
    """What processes without a thread pool returned, None where one failed, and what they wrote on standard error."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    folder = tmp_path_factory.mktemp("children")
    for built_for in (1, 2):
        files = (folder / f"{built_for}.json", folder / f"{built_for}.so")
        lower_network(network(), "test", host_target(built_for), built_for, *files, {}, objects)
    command = [sys.executable, "-c", CHILD.format(helpers=str(HELPERS), folder=str(folder))]
    found: dict[str, tuple[Any, str]] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return found


def test_threads_are_counted_whoever_holds_the_cores(children: dict[str, tuple[Any, str]]) -> None:
    threads, errors = children["counted"]
    assert threads == 2, errors
    assert "of 2 cores busy: other processes hold them" in errors
    assert "of 1 cores busy: other processes hold them" in errors


def test_a_pool_that_was_started_too_small_is_an_error(children: dict[str, tuple[Any, str]]) -> None:
    returned, errors = children["too small"]
    assert returned is None
    assert "start a new process" in errors


@pytest.mark.parametrize("built_for", [1, 2])
def test_a_library_computes_the_same_bits_on_any_number_of_threads(
    children: dict[str, tuple[Any, str]], built_for: int
) -> None:
    (one, one_errors), (two, two_errors) = children[f"{built_for} on 1"], children[f"{built_for} on 2"]
    assert None not in {one and one[1], two and two[1]}, one_errors + two_errors
    assert one[1] == two[1]
    assert (one[0], two[0]) == (1, built_for)
    assert (one[2], two[2]) == (1, 2)
    assert "built for" not in one_errors
    assert (f"built for {built_for} threads, about to run on 2" in two_errors) == (built_for == 1)
    assert ("--config threads=2" in two_errors) == (built_for == 1)
