"""The stages of control flow: kernels that models need, cases that there are, and what is missing."""

import importlib.util
from pathlib import Path

import pytest
from tiny_study import CONFIG

from autotm.kernels.schedules import dispatch
from autotm.model.config import ControlFlowConfig
from autotm.model.control_study import WITH_CONTROL_FLOW, ControlStudy, SystemTimes
from autotm.model.errors import BadInputError
from autotm.model.files import save
from autotm.model.machine import load_machine
from autotm.stages.context import Context
from autotm.stages.control_flow import control_flow_search_stage, control_flow_stage, needed_kernels

RAE = {"width": 16, "leaves": 6}
HAS_TORCH = importlib.util.find_spec("torch") is not None


@pytest.fixture
def context():
    return Context(load_machine(CONFIG.parent / "machines" / "laptop.yaml", 1), CONFIG.parent / "devices", 20)


def test_every_kernel_has_a_schedule():
    needed = {kernel.kernel.rpartition("_")[0]: kernel for kernel in needed_kernels({"rae": RAE}, 20, 1)}
    assert needed["matmul"].schedule == "generated"
    assert not any(kernel.is_missing for kernel in needed.values())


def test_a_kernel_that_no_rule_knows_is_missing(monkeypatch):
    def refuse(*_):
        raise ValueError("no rule")

    monkeypatch.setitem(dispatch._GENERATED, "matmul", refuse)
    missing = [kernel.kernel.rpartition("_")[0] for kernel in needed_kernels({"rae": RAE}, 20, 1) if kernel.is_missing]
    assert missing == ["matmul"]


def test_unknown_models_and_wrong_sizes_are_named():
    with pytest.raises(BadInputError, match="unknown model 'rea'; did you mean 'rae'"):
        needed_kernels({"rea": RAE}, 20, 1)
    with pytest.raises(BadInputError, match=r"sizes of rae: .*'leafs'"):
        needed_kernels({"rae": {"width": 16, "leafs": 6}}, 20, 1)


@pytest.mark.skipif(HAS_TORCH, reason="PyTorch is installed here")
def test_without_pytorch_nothing_is_measured(context, tmp_path):
    with pytest.raises(
        BadInputError, match="compared with PyTorch, and torch is not installed here; `make figures/con"
    ):
        control_flow_search_stage(context, "rae", RAE, ControlFlowConfig(), tmp_path / "search.json")


@pytest.mark.skipif(not HAS_TORCH, reason="it needs PyTorch: make test-torch installs it")
def test_an_unknown_case_is_named(context, tmp_path):
    timed = SystemTimes("tvm-fused", WITH_CONTROL_FLOW, 1, RAE, 1, {"unroll": 1}, times_ms=(1.0,))
    save(tmp_path / "search.json", "control_study", ControlStudy("rae", {}, (timed,)), {})
    with pytest.raises(BadInputError, match="no case b0: there are hidden, ratio, and b with a batch"):
        control_flow_stage(context, "rae", RAE, "b0", ControlFlowConfig(), tmp_path / "search.json", Path("b0.json"))
