"""PyTorch's own step under `save_on_cpu`: what it copies, another network, too little memory, exact products."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the step is PyTorch's: make test-torch installs it")

import small_step  # noqa: E402

from autotm import zoo  # noqa: E402
from autotm.lower.lowering import outlined_step  # noqa: E402
from autotm.memory.torch_device import device_of  # noqa: E402
from autotm.model.errors import AutotmError  # noqa: E402
from autotm.model.graph import Graph, Role  # noqa: E402
from autotm.model.machine import CudaTier, Machine  # noqa: E402
from autotm.model.record import FrameworkRecord  # noqa: E402
from autotm.runtime.arguments import initial_value  # noqa: E402
from autotm.runtime.step_times import RunOptions  # noqa: E402
from autotm.runtime.streams.framework import (  # noqa: E402
    NoFrameworkError,
    SavedStep,
    framework_device,
    products_of,
    run_save_on_cpu,
)
from autotm.runtime.verify import VerificationError  # noqa: E402
from autotm.solve.gpu_rivals import saved  # noqa: E402
from autotm.zoo import Network  # noqa: E402

CPU = device_of(torch.device("cpu"))
OPTIONS = RunOptions(min_steps=2, min_seconds=0.01, patience_s=0.1)
Arrays = dict[str, np.ndarray]


def case(name: str = "mlp", **sizes: int) -> tuple[Network, Graph, Arrays]:
    network = zoo.build(name, sizes or {"batch": 16, "width": 64})
    graph = outlined_step(network, "tiny")
    arguments = (tensor for tensor in graph.tensors if tensor.role in {Role.INPUT, Role.PARAMETER})
    return network, graph, {tensor.name: initial_value(tensor, 0) for tensor in arguments}


def machine(**tier: Any) -> Machine:
    return replace(small_step.machine(), slow_tier=CudaTier(kind="cuda", **tier))


def known(limit_bytes: int, counts: str = "intermediates") -> FrameworkRecord:
    return FrameworkRecord(
        network="mlp", scale="tiny", batch=16, machine="gpu-1t", threads=1, tier_reality="real",
        optimizer="save-on-cpu", limit=f"{limit_bytes}B", counts=counts, dram_limit_bytes=limit_bytes,
        io_size=100_000, peak_live_bytes=1, seed=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("mlp", {"batch": 16, "width": 64}),
        ("test_vgg", {"batch": 2, "image": 64}),
        ("resnet50", {"batch": 2, "image": 64}),
        pytest.param("inception_v4", {"batch": 2, "image": 75}, marks=pytest.mark.slow),
    ],
)
def test_the_model_copies_about_what_pytorch_saves(name: str, sizes: dict[str, int]) -> None:
    network, graph, arrays = case(name, **sizes)
    step = SavedStep(network, arrays, CPU)
    packed_bytes = 0

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal packed_bytes
        packed_bytes += tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step._module()
    modelled_bytes = sum(graph.by_name[tensor].size_bytes * len(uses) for tensor, uses in saved(graph).items())
    assert 0.75 <= modelled_bytes / packed_bytes <= 1.0


def test_a_step_trains_and_leaves_no_gradients() -> None:
    network, _, arrays = case()
    step = SavedStep(network, arrays, CPU)
    losses = []
    for _ in range(5):
        step.step()
        losses.append(step.loss)
    assert losses == sorted(losses, reverse=True)
    assert len(step.device_s) == 5
    assert all(weight.grad is None for weight in step._module.parameters())


def test_another_network_is_found_out() -> None:
    network, _, arrays = case()
    first = SavedStep(network, arrays, CPU)
    first.step()
    measured = run_save_on_cpu(network, arrays, machine(), OPTIONS, CPU, [first.loss], known(10**9))
    assert measured.fits
    assert len(measured.samples_s) >= 2
    assert measured.tier_reality == "stand-in"
    wrong = first.loss * 1.01
    with pytest.raises(VerificationError, match="they are not one network"):
        run_save_on_cpu(network, arrays, machine(), OPTIONS, CPU, [wrong], known(10**9))
    with pytest.raises(VerificationError):
        run_save_on_cpu(network, arrays, machine(), OPTIONS, CPU, [float("nan")], known(10**9))
    uncompared = run_save_on_cpu(network, arrays, machine(), OPTIONS, CPU, [], known(10**9))
    assert (uncompared.exact_loss, len(uncompared.losses)) == (None, 1)


def test_a_limit_that_counts_all_counts_arguments() -> None:
    network, _, arrays = case()
    some = run_save_on_cpu(network, arrays, machine(), OPTIONS, CPU, [], known(1))
    everything = run_save_on_cpu(network, arrays, machine(), OPTIONS, CPU, [], known(1, "all"))
    assert not some.fits
    assert some.samples_s == ()
    assert everything.most_bytes == (some.most_bytes or 0) + 100_000


def failing(error: RuntimeError) -> Any:
    """A device on which nothing runs."""
    return SimpleNamespace(torch=CPU.torch, name="a device that fails", seconds=Mock(side_effect=error))


def test_running_out_of_memory_is_a_step_that_does_not_fit_and_other_failures_are_told() -> None:
    network, _, arrays = case()
    full = failing(torch.OutOfMemoryError("CUDA out of memory"))
    record = run_save_on_cpu(network, arrays, machine(), OPTIONS, full, [1.0], known(10**9))
    assert (record.fits, record.most_bytes, record.samples_s, record.left_out) == (False, None, (), "")
    unpinned = failing(RuntimeError("CUDA error: out of memory (cudaHostAlloc)"))
    with pytest.raises(AutotmError, match=r"save-on-cpu of mlp: PyTorch failed: CUDA error.*ulimit -l unlimited"):
        run_save_on_cpu(network, arrays, machine(), OPTIONS, unpinned, [1.0], known(10**9))


@pytest.mark.parametrize(("products", "rounds"), [("float32", False), ("tf32", True), ("bf16", True)])
def test_products_are_as_exact_as_the_machine_file_says(products: str, rounds: bool) -> None:
    def flags() -> tuple[bool, bool]:
        return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32

    before = flags()
    with products_of(machine(products=products)):
        assert flags() == (rounds, rounds)
    assert flags() == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_reason_is_for_a_caption() -> None:
    with pytest.raises(NoFrameworkError, match=r"^PyTorch has no CUDA here$"):
        framework_device(machine())
