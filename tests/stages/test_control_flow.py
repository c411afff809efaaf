"""The stages of control flow: kernels that models need, and cases that there are."""

from autotm.kernels.schedules import dispatch
from autotm.stages.control_flow import needed_kernels

RAE = {"rae": {"width": 16, "leaves": 6}}


def test_every_kernel_has_a_schedule():
    needed = {kernel.kernel.rpartition("_")[0]: kernel for kernel in needed_kernels(RAE, 20, 1)}
    assert needed["matmul"].schedule == "generated"
    assert not any(kernel.is_missing for kernel in needed.values())


def test_a_kernel_that_no_rule_knows_is_missing(monkeypatch):
    def refuse(*_):
        raise ValueError("no rule")

    monkeypatch.setitem(dispatch._GENERATED, "matmul", refuse)
    missing = [kernel.kernel.rpartition("_")[0] for kernel in needed_kernels(RAE, 20, 1) if kernel.is_missing]
    assert missing == ["matmul"]
