"""Kernels that cannot be compiled: each is told with its reason, and the others are compiled all the same."""

from __future__ import annotations

import os
import signal
import time

import pytest
from tvm import te

from autotm.fusion.compiling import attempted
from autotm.kernels.compiler import KernelCompiler, KernelFacts, Request
from autotm.kernels.target import host_target
from autotm.model.errors import AutotmError

SIZES = 8, 16, 24


def scaled(size):
    """Return a function that doubles numbers."""
    data = te.placeholder((size,), name="data")
    return te.create_prim_func([data, te.compute((size,), lambda i: data[i] * 2.0, name="scaled")])


@pytest.fixture
def compiler(tmp_path):
    return KernelCompiler(tmp_path, host_target(1), 1)


def sick(monkeypatch, act):
    """Let the compiler do something else wherever it schedules the second function."""
    scheduled = Request.scheduled

    def schedule(self, target, threads):
        return act() if self.place[1][0] == (SIZES[1],) else scheduled(self, target, threads)

    monkeypatch.setattr(Request, "scheduled", schedule)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def refuse():
    raise ValueError("no registers left\nBacktrace")


@pytest.mark.parametrize(
    ("act", "reason"), [(refuse, "no registers left"), (die, "the compiler was killed by SIGKILL")]
)
def test_others_are_compiled_beside_a_kernel_that_fails(compiler, monkeypatch, act, reason):
    sick(monkeypatch, act)
    requests = [Request(scaled(size)) for size in (*SIZES, SIZES[0])]
    first, failed, last, again = attempted(compiler, requests)
    assert failed == reason
    assert isinstance(last, KernelFacts)
    assert first == again
    assert compiler.make([requests[0], requests[2]]) == [first, last]


def test_a_compiler_that_does_not_end_is_given_up(compiler, monkeypatch):
    sick(monkeypatch, lambda: time.sleep(3600))
    assert attempted(compiler, [Request(scaled(SIZES[1]))], 0.5) == ["the compiler took longer than 0.5 s"]


def test_what_no_kernel_is_to_blame_for_ends_the_work(compiler, monkeypatch):
    def full():
        raise OSError("no space left")

    sick(monkeypatch, full)
    with pytest.raises(AutotmError, match="ended with 1; see above"):
        attempted(compiler, [Request(scaled(SIZES[1]))])


def test_nothing_is_compiled_twice(compiler, monkeypatch):
    requests = [Request(scaled(size)) for size in SIZES]
    before = attempted(compiler, requests)
    monkeypatch.setattr("autotm.fusion.compiling._reasons", lambda *_: pytest.fail("compiled again"))
    assert attempted(compiler, requests) == before
