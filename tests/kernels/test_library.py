"""Libraries of kernels: bound to views without copies, refused with a remedy; as many threads as asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_step

from autotm.kernels.library import FatbinLibrary, KernelLibrary, aligned_empty, check_cores, pinned
from autotm.kernels.target import host_target
from autotm.lower.lowering import lower_network
from autotm.model.errors import AutotmError, BadInputError, DamagedFileError
from autotm.model.graph import Initial, Launch
from autotm.zoo import Network, NetworkBuilder


def test_a_bound_kernel_reads_and_writes_the_views_themselves(library: KernelLibrary) -> None:
    source, target = aligned_empty((32, 64), "float32"), aligned_empty((32, 64), "float32")
    call = library.bind("relu", [source, target])
    for value in (-1.0, 3.0):
        source[...] = value
        call()
        assert (target == max(value, 0.0)).all()


def test_equal_files_have_equal_hashes(library: KernelLibrary, tmp_path: Path) -> None:
    copy = tmp_path / "other.so"
    copy.write_bytes(library.path.read_bytes())
    assert KernelLibrary.load(copy).content_hash == library.content_hash


@pytest.mark.parametrize("content", [None, b"", b"not a library"])
def test_a_missing_or_damaged_library_is_named_with_a_remedy(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "kernels.so"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"kernels\.so.*snakemake"):
        KernelLibrary.load(path)


def test_what_cannot_be_bound_is_refused_before_the_call(library: KernelLibrary) -> None:
    with pytest.raises(BadInputError, match="no kernel 'absent'"):
        library.bind("absent", [])
    good = aligned_empty((32, 64), "float32")
    shifted = np.ndarray((32, 64), "float32", buffer=aligned_empty((33 * 64,), "float32").data, offset=4)
    with pytest.raises(AutotmError, match="slot 1: memory starts 4 bytes past"):
        library.bind("relu", [good, shifted])
    with pytest.raises(AutotmError, match=r"slot 0.*contiguous"):
        library.bind("relu", [aligned_empty((64, 32), "float32").T, good])


LAUNCHES = {
    "matmul": (
        Launch("matmul_0", (0, 1, 2), (8, 1, 1), (256, 1, 1)),
        Launch("matmul_1", (2, 3), (1, 1, 1), (32, 1, 1)),
    ),
    "add": (Launch("add_0", (0, 1), (4, 2, 1), (128, 1, 1)),),
}


def test_what_was_written_is_read_and_equal_kernels_make_equal_files(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one.zip", "other.zip")]
    saved, again = (FatbinLibrary.save(file, b"code", ("sm_80", "sm_90"), LAUNCHES) for file in files)
    assert FatbinLibrary.load(files[0]) == saved
    assert (dict(saved.launches), saved.architectures) == (LAUNCHES, ("sm_80", "sm_90"))
    assert saved.content_hash == again.content_hash
    assert files[0].read_bytes() == files[1].read_bytes()
    assert FatbinLibrary.save(files[0], b"other", ("sm_90",), LAUNCHES).content_hash != saved.content_hash


def test_what_is_missing_or_damaged_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match="no such library of GPU kernels"):
        FatbinLibrary.load(tmp_path / "none.zip")
    (tmp_path / "cut.zip").write_bytes(b"PK")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("something", "else")
    with zipfile.ZipFile(tmp_path / "fields.zip", "w") as archive:
        archive.writestr("kernels.fatbin", b"code")
        archive.writestr("launches.json", json.dumps({"architectures": ["sm_90"], "kernels": {"add": [{}]}}))
    for name in ("cut.zip", "other.zip", "fields.zip"):
        with pytest.raises(DamagedFileError, match=r"damaged library of GPU kernels .*; .*lower the network again$"):
            FatbinLibrary.load(tmp_path / name)


# As many threads as asked for, each on its core, and the same bits on any number of them.

HELPERS = Path(__file__).parents[1] / "helpers"


def test_the_calling_thread_is_held_and_what_kernels_lack_is_told(caplog: pytest.LogCaptureFixture) -> None:
    before, machine = os.sched_getaffinity(0), small_step.machine(1)
    with pinned(machine):
        assert os.sched_getaffinity(0) == {machine.cpus[0]}
        with pytest.raises(AutotmError, match="kernels run on 1 threads, machine 'test' asks for 8 on cores"):
            check_cores(replace(machine, threads=8), lambda: None)
        check_cores(machine, lambda: time.sleep(0.01))
    assert "of 1 cores busy: other processes hold them, or memory is short" in caplog.text
    assert os.sched_getaffinity(0) == before


CHILD = """
import hashlib, json, os, sys, threading, time, traceback
from pathlib import Path
sys.modules["torch"] = None  # TVM imports it where it is installed, which takes seconds
sys.path.insert(0, {helpers!r})
import tvm, small_step
from autotm.kernels.library import KernelLibrary
from autotm.kernels.library import check_cores, kernel_threads, pinned
from autotm.memory.opening import open_tiers
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
outcomes = {{}}
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
    outcomes[name] = value, (folder / name).read_text()
print(json.dumps(outcomes))
"""


def network() -> Network:
    """A convolution and a classifier, large enough for two threads."""
    net = NetworkBuilder("small", 4, 0.01)
    x = net.conv(net.input("images", (4, 12, 12, 3), Initial("normal")), 64, 3, padding=1)
    return net.softmax_cross_entropy(net.dense(net.global_mean(x), 10, relu=False))


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory, objects: Path) -> dict[str, tuple[Any, str]]:
    """What each process without a thread pool returned, None where it failed, and what it wrote on standard error."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    folder = tmp_path_factory.mktemp("children")
    for built_for in (1, 2):
        files = (folder / f"{built_for}.json", folder / f"{built_for}.so")
        lower_network(network(), "test", host_target(built_for), built_for, *files, {}, objects)
    command = [sys.executable, "-c", CHILD.format(helpers=str(HELPERS), folder=str(folder))]
    results: dict[str, tuple[Any, str]] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return results


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
