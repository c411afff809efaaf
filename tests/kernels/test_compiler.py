"""Kernels made of unscheduled functions: each once, kept with what is known of them; the cores' best rate."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import small_step
import tvm
from compiled_kernels import TARGET, kernel_of, placeholders
from tvm import te

from autotm.kernels import compiler, contractions
from autotm.kernels.calibration_kernels import make_rate_kernels
from autotm.kernels.compiler import (
    KernelCompiler,
    Request,
    _listed,
    build_library,
    function_hash,
    identity,
    in_processes,
)
from autotm.kernels.compute_rates import multiply_add_flop_per_s
from autotm.kernels.library import KernelLibrary
from autotm.kernels.target import host_target
from autotm.model.cores import Watch
from autotm.model.errors import AutotmError


def more(width, operand="x", name="more"):
    """One more than an operand, in a block of that name."""
    x = te.placeholder((4, width), name=operand)
    return te.create_prim_func([x, te.compute(x.shape, lambda *i: x(*i) + 1.0, name=name)])


def convolution(padding=(1, 1, 1, 1), channels=32):
    """One that has a lean way."""
    x, w = placeholders((2, 20, 20, channels), (3, 3, channels, 32))
    return te.create_prim_func([x, w, contractions.conv2d(x, w, (1, 1), padding)])


def test_what_is_kept_is_neither_scheduled_nor_compiled_again(tmp_path, monkeypatch):
    requests = [Request(more(width)) for width in (3, 4, 5, 3)]
    first = KernelCompiler(tmp_path, TARGET, 1).make(requests)
    assert first[0] == first[3]
    assert len({facts.symbol for facts in first}) == 3
    monkeypatch.setattr(compiler, "schedule", None)
    monkeypatch.setattr(compiler, "machine_code", None)
    again = KernelCompiler(tmp_path, TARGET, 1)
    assert again.make(requests) == first
    again.link(first, tmp_path / "kernels.so")
    library = KernelLibrary.load(tmp_path / "kernels.so")
    for facts in first:
        library.function(facts.symbol)


def test_made_kernels_are_those_that_scheduling_alone_gives(tmp_path):
    requests = [Request(more(7)), Request(convolution()), Request(convolution(), "lean")]
    scheduled = [request.scheduled(TARGET, 2) for request in requests]
    compiled = KernelCompiler(tmp_path, TARGET, 2).make(requests)
    assert compiled == [facts for _, facts in scheduled]
    assert len({one.symbol for one in compiled}) == 3, "the lean way is other code"


def test_code_that_is_not_wanted_is_not_made_until_it_is(tmp_path):
    request = Request(convolution(), "lean")
    least = request.scheduled(TARGET, 1)[1].workspace_bytes
    shop = KernelCompiler(tmp_path, TARGET, 1)
    (facts,) = shop.make([replace(request, most_workspace_bytes=least - 1)])
    assert not list(tmp_path.glob("*.o"))
    assert shop.make([replace(request, most_workspace_bytes=least)]) == [facts]
    shop.link([facts], tmp_path / "kernels.so")
    KernelLibrary.load(tmp_path / "kernels.so").function(facts.symbol)


def test_a_kernel_is_known_by_all_that_decides_it():
    request = Request(convolution())
    keys = [
        request.key(host_target(1), 1),
        request.key(host_target(1), 2),
        request.key(tvm.target.Target({"kind": "llvm", "mcpu": "haswell"}), 1),
        replace(request, implementation="lean").key(host_target(1), 1),
        Request(more(3)).key(host_target(1), 1),
    ]
    assert len(set(keys)) == len(keys)
    assert Request(convolution()).key(host_target(1), 1) == keys[0]


def matmul(rows=12, depth=40, columns=48):
    a, b = placeholders((rows, depth), (depth, columns))
    return te.create_prim_func([a, b, contractions.matmul(a, b)])


def padded(before, after):
    """A sum of two columns of a padded matrix, whose shapes do not tell how it is padded."""
    (x,) = placeholders((8, 8))
    inside = lambda j: tvm.tirx.all(j >= before, j < 8 + before)  # noqa: E731
    wide = te.compute((8, 10), lambda i, j: tvm.tirx.if_then_else(inside(j), x[i, j - before], 0.0))
    return te.create_prim_func([x, te.compute((8, 8), lambda i, j: wide[i, j] + wide[i, j + after], name="sum")])


def test_equal_functions_share_a_hash_and_others_do_not():
    products = [matmul(), matmul(rows=13), matmul(depth=41), matmul(columns=49)]
    # Names of blocks count because schedules find blocks by them.
    others = [padded(1, 1), padded(2, 1), padded(1, 2), more(8, name="one"), more(8, name="other")]
    hashes = list(map(function_hash, (*products, *others)))
    assert len(set(hashes)) == len(hashes)
    assert function_hash(matmul()) == hashes[0]


def identity_of(function, target=TARGET):
    return identity(kernel_of(function).func, target)


def test_identity_knows_shapes_target_and_padding_but_no_names():
    assert identity_of(more(50)) == identity_of(more(50, "y", "add"))
    windows = [identity_of(convolution(padding, 16)) for padding in ((1, 1, 1, 1), (0, 2, 2, 0), (2, 2, 0, 0))]
    haswell = tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})
    assert len({identity_of(more(50)), identity_of(more(51)), identity_of(more(50), haswell), *windows}) == 6


def test_kept_machine_code_is_not_made_again(tmp_path, monkeypatch):
    kernels = {f"more{width}": kernel_of(more(width)).func for width in range(1, 40)}
    build_library(kernels, TARGET, tmp_path / "first.so", tmp_path / "objects")
    compiled = []
    make = compiler.add_object

    def record(folder, missing, *rest):
        compiled.extend(symbol for symbol, _ in missing.values())
        make(folder, missing, *rest)

    monkeypatch.setattr(compiler, "add_object", record)
    build_library(kernels, TARGET, tmp_path / "second.so", tmp_path / "objects")
    assert compiled == []
    library = KernelLibrary.load(tmp_path / "second.so")
    for name in kernels:
        library.function(name)
    build_library({"more1": kernel_of(more(90)).func}, TARGET, tmp_path / "third.so", tmp_path / "objects")
    assert compiled == ["more1"], "the same symbol with other code is other code"
    for object_file in (tmp_path / "objects").glob("*.o"):
        object_file.write_bytes(b"cut")
    with pytest.raises(AutotmError, match=r"remove .*objects"):
        build_library(kernels, TARGET, tmp_path / "fourth.so", tmp_path / "objects")


def test_library_without_a_compiler_is_refused_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(AutotmError, match="apt-get install gcc"):
        build_library({"more": kernel_of(more(50)).func}, TARGET, tmp_path / "kernels.so")
    assert not list(tmp_path.iterdir())


def test_a_failed_link_keeps_the_old_library(tmp_path, monkeypatch):
    path = tmp_path / "kernels.so"
    path.write_text("old")
    monkeypatch.setenv("CC", "false")
    with pytest.raises(AutotmError, match="linking"):
        build_library({"more": kernel_of(more(50)).func}, TARGET, path)
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["kernels.so"]


@pytest.mark.parametrize("damage", ["object", "list"])
def test_lost_or_damaged_files_are_made_again(tmp_path, monkeypatch, damage):
    shop, requests = KernelCompiler(tmp_path, TARGET, 1), [Request(more(9))]
    compiled = shop.make(requests)
    if damage == "object":
        next(tmp_path.glob("*.o")).unlink()
    else:
        next(tmp_path.glob("*.json")).write_text('{"code": ["mo')
        monkeypatch.setattr("autotm.kernels.compiler._HELD", {})  # as another process would find it
        _listed.cache_clear()
    assert shop.make(requests) == compiled
    shop.link(compiled, tmp_path / "kernels.so")


def test_tasks_are_shared_and_each_is_done_once(tmp_path, monkeypatch):
    monkeypatch.setattr("autotm.kernels.compiler.cores", lambda: 3)

    def work(task):
        with (tmp_path / str(task)).open("x") as file:
            file.write(str(os.getpid()))

    in_processes(200, work)
    assert {path.name for path in tmp_path.iterdir()} == {str(task) for task in range(200)}
    in_processes(0, work)


def test_a_process_that_fails_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("autotm.kernels.compiler.cores", lambda: 2)
    parent, reached, here = os.getpid(), tmp_path / "reached", tmp_path / "here"

    def fail_elsewhere(_task):
        if os.getpid() != parent:
            reached.touch()
            os._exit(3)
        while not reached.exists():
            pass

    with pytest.raises(AutotmError, match=r"1 of 2 processes \(exit 3\)"):
        in_processes(2, fail_elsewhere)

    def fail_here(_task):
        if os.getpid() == parent:
            message = "here"
            here.touch()
            raise ValueError(message)
        while not here.exists():
            pass

    with pytest.raises(ValueError, match="here"):
        in_processes(1000, fail_here)


def test_a_rate_is_measured(tmp_path: Path) -> None:
    machine, path = small_step.machine(), tmp_path / "rates.so"
    known = make_rate_kernels(host_target(machine.threads), machine.threads, path)
    rate = multiply_add_flop_per_s(KernelLibrary.load(path), known, machine, Watch(machine.cpus, 0.0))
    assert 0 < rate < math.inf
