"""Operators, their gradients and update rules against PyTorch in float64; the benchmark of `torch.compile`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="compares with PyTorch: make test-torch installs it")

import plain_steps  # noqa: E402
import tvm  # noqa: E402
from central_differences import Operator, differentiated  # noqa: E402
from plain_steps import distance  # noqa: E402
from tvm import relax  # noqa: E402

import torch_compiled  # noqa: E402
from autotm import zoo  # noqa: E402
from autotm.model.training import Adam, AdamW, Sgd, Training  # noqa: E402
from autotm.zoo import Network  # noqa: E402
from autotm.zoo.torch_reference import TorchNetwork, optimizer_of  # noqa: E402
from step_vs_pytorch import geometric_means  # noqa: E402
from torch_compiled import NotCompiledError, compile_within  # noqa: E402

F = torch.nn.functional
op, nn, image = relax.op, relax.op.nn, relax.op.image


def places(values: object) -> relax.Constant:
    return relax.const(np.array(values), "int64")


def tensor(values: object) -> torch.Tensor:
    return torch.tensor(values)


def resized(method: str, corners: bool | None, wanted: tuple[int, int]) -> tuple[Operator, Callable[..., torch.Tensor]]:
    ours = {"bilinear": "linear", "bicubic": "cubic", "nearest": "nearest_neighbor"}[method]
    mode = "align_corners" if corners else "asymmetric" if method == "nearest" else "half_pixel"
    named = {"method": ours, "coordinate_transformation_mode": mode}
    named |= {"rounding_method": "floor"} if method == "nearest" else {}
    return (
        lambda x: image.resize2d(x, wanted, layout="NCHW", **named),
        lambda x: F.interpolate(x, wanted, mode=method, align_corners=corners),
    )


IMAGE, LINE, VOLUME = (2, 4, 7, 6), (2, 4, 9), (1, 2, 4, 5, 4)
POOLS = {
    "max": (lambda x: nn.max_pool2d(x, 3, 2, 1), lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE),
    "max to the end": (
        lambda x: nn.max_pool2d(x, 3, 2, 0, 1, True), lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), IMAGE,
    ),
    "max, dilated": (lambda x: nn.max_pool2d(x, 2, 1, 1, 2), lambda x: F.max_pool2d(x, 2, 1, 1, 2), IMAGE),
    "max of lines": (lambda x: nn.max_pool1d(x, 3, 2, 1), lambda x: F.max_pool1d(x, 3, 2, 1), LINE),
    "mean": (lambda x: nn.avg_pool2d(x, 3, 2, 1, count_include_pad=True), lambda x: F.avg_pool2d(x, 3, 2, 1), IMAGE),
    "mean without padding": (
        lambda x: nn.avg_pool2d(x, 3, 2, 1), lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), IMAGE,
    ),
    "mean to the end": (
        lambda x: nn.avg_pool2d(x, (3, 2), (2, 3), 1, 1, True, count_include_pad=True),
        lambda x: F.avg_pool2d(x, (3, 2), (2, 3), 1, ceil_mode=True), (2, 4, 6, 8),
    ),
    "adaptive": (lambda x: nn.adaptive_avg_pool2d(x, (7, 3)), lambda x: F.adaptive_avg_pool2d(x, (7, 3)), IMAGE),
}  # fmt: skip
PADS = {
    mode: (
        lambda x, mode=mode: nn.pad(x, (0, 0, 0, 0, 2, 1, 3, 0), pad_mode=mode),
        lambda x, mode=mode: F.pad(x, (3, 0, 2, 1), mode),
        IMAGE,
    )
    for mode in ("reflect", "replicate", "circular", "constant")
}
RESIZED = {
    f"{method} {corners} {wanted}": (*resized(method, corners, wanted), IMAGE)
    for method, corners in [
        ("bilinear", False), ("bilinear", True), ("bicubic", False), ("bicubic", True), ("nearest", None)
    ]
    for wanted in ([(9, 5), (14, 12), (3, 2)] if method == "bicubic" else [(9, 5)])
}  # fmt: skip
CONVOLUTIONS = {
    "dilated": (lambda x, w: nn.conv2d(x, w, 1, 2, 2), lambda x, w: F.conv2d(x, w, None, 1, 2, 2), IMAGE, (3, 4, 3, 2)),
    "dilated with a stride, grouped": (
        lambda x, w: nn.conv2d(x, w, (2, 1), (2, 1), (2, 3), 2),
        lambda x, w: F.conv2d(x, w, None, (2, 1), (2, 1), (2, 3), 2), IMAGE, (6, 2, 3, 2),
    ),
    "transposed, grouped, dilated": (
        lambda x, w: nn.conv2d_transpose(x, w, (2, 1), (0, 1), 0, (1, 2), 2),
        lambda x, w: F.conv_transpose2d(x, w, None, (2, 1), (0, 1), 0, 2, (1, 2)), IMAGE, (4, 3, 2, 3),
    ),
    "lines": (lambda x, w: nn.conv1d(x, w, 2, 3, 2), lambda x, w: F.conv1d(x, w, None, 2, 3, 2), LINE, (5, 4, 3)),
    "transposed lines": (
        lambda x, w: nn.conv1d_transpose(x, w, 3, 1, 2), lambda x, w: F.conv_transpose1d(x, w, None, 3, 1, 2), LINE,
        (4, 2, 4),
    ),
    "volumes": (
        lambda x, w: nn.conv3d(x, w, (1, 2, 1), (1, 1, 0), 1), lambda x, w: F.conv3d(x, w, None, (1, 2, 1), (1, 1, 0)),
        VOLUME, (3, 2, 3, 3, 2),
    ),
}  # fmt: skip
NORMS = {
    "groups": (
        lambda x, a, b: nn.group_norm(x, a, b, 2, 1, [2, 3]), lambda x, a, b: F.group_norm(x, 2, a, b), IMAGE, (4,),
        (4,),
    ),
    "groups of the last axis": (
        lambda x, a, b: nn.group_norm(x, a, b, 3, 3, [1, 2]),
        lambda x, a, b: F.group_norm(x.movedim(3, 1), 3, a, b).movedim(1, 3), IMAGE, (6,), (6,),
    ),
    "root mean square": (
        lambda x, a: nn.rms_norm(x, a, (-2, -1), 1e-5), lambda x, a: F.rms_norm(x, (7, 6), a, 1e-5), IMAGE, (7, 6),
    ),
}  # fmt: skip
VALUES = {
    "topk": (lambda x: op.topk(x, 3, 1, "values"), lambda x: torch.topk(x, 3, 1).values, (4, 9)),
    "cumsum": (lambda x: op.cumsum(x, 1), lambda x: torch.cumsum(x, 1), (3, 7, 2)),
    "gather": (
        lambda x: op.gather_elements(x, places([[0, 3, 3, 1, 3]] * 2), 1),
        lambda x: torch.gather(x, 1, tensor([[0, 3, 3, 1, 3]] * 2)), (2, 4),
    ),
    "indexed": (
        lambda x: op.index_tensor(x, (places([[1], [2]]), places([0, 3, -1]))),
        lambda x: x[tensor([[1], [2]]), tensor([0, 3, -1])], (3, 4, 2),
    ),
    "selected": (
        lambda x: op.take(x, places([3, 0, 3]), 1), lambda x: torch.index_select(x, 1, tensor([3, 0, 3])), (2, 4, 3),
    ),
    "scattered sums": (
        lambda x, y: op.scatter_elements(x, places([[0, 0], [2, 2]]), y, 1, "add"),
        lambda x, y: torch.scatter_add(x, 1, tensor([[0, 0], [2, 2]]), y), (2, 4), (2, 2),
    ),
    "product": (lambda x: op.prod(x, 1), lambda x: torch.prod(x, 1), (3, 4)),
    "softmax": (lambda x: nn.softmax(x, 1), lambda x: F.softmax(x, 1), (3, 5, 2)),
    "log_softmax": (lambda x: nn.log_softmax(x, 0), lambda x: F.log_softmax(x, 0), (3, 5, 2)),
    "broadcast products": (op.matmul, torch.matmul, (2, 1, 3, 4), (5, 4, 2)),
}  # fmt: skip
KINKS = {
    "abs": (op.abs, torch.abs),
    "relu": (nn.relu, F.relu),
    "clip": (lambda x: op.clip(x, -1, 2), lambda x: torch.clamp(x, -1, 2)),
    "selu": (nn.selu, F.selu),
    "leaky": (lambda x: nn.leakyrelu(x, 0.1), lambda x: F.leaky_relu(x, 0.1)),
    "squares": (lambda x: op.power(x, relax.const(2.0, "float64")), lambda x: x**2),
    "largest": (lambda x: op.max(x, 1), lambda x: torch.amax(x, 1)),
}
EVERY = {**POOLS, **PADS, **RESIZED, **CONVOLUTIONS, **NORMS, **VALUES}


def assert_as_in_pytorch(ours: Operator, theirs: Callable[..., torch.Tensor], arrays: list[np.ndarray]) -> None:
    machine, shape = differentiated(ours, [array.shape for array in arrays])
    weights = np.random.default_rng(1).standard_normal(shape)
    operands = [torch.tensor(array, requires_grad=True) for array in arrays]
    result = theirs(*operands)
    assert tuple(result.shape) == shape
    loss = (result * torch.tensor(weights)).sum()
    loss.backward()
    our_loss, slopes = machine["main_adjoint"](*(tvm.runtime.tensor(array) for array in [weights, *arrays]))
    np.testing.assert_allclose(our_loss.numpy(), loss.item(), rtol=1e-10, atol=1e-10)
    for slope, operand in zip(slopes, operands, strict=True):
        np.testing.assert_allclose(slope.numpy(), operand.grad.numpy(), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", EVERY)
def test_as_in_pytorch(name: str) -> None:
    ours, theirs, *shapes = EVERY[name]
    generator = np.random.default_rng(0)
    assert_as_in_pytorch(ours, theirs, [generator.standard_normal(shape) for shape in shapes])


@pytest.mark.parametrize("name", KINKS)
def test_where_slopes_change(name: str) -> None:
    ours, theirs = KINKS[name]
    assert_as_in_pytorch(
        ours, theirs, [np.array([[-2.0, -1.0, 0.0, 2.0], [6.0, 6.0, 0.0, -1.0], [7.0, 2.0, 0.5, 3.0]])]
    )


def test_largest_of_equal_pixels() -> None:
    values = np.random.default_rng(0).integers(0, 3, (1, 2, 6, 6)).astype(np.float64)
    assert_as_in_pytorch(lambda x: nn.max_pool2d(x, 3, 2, 1), lambda x: F.max_pool2d(x, 3, 2, 1), [values])


# Ten steps by every update rule are as close to `torch.optim` in float64 as its own float32 is.


STEPS, STARTS = 10, 3
ALLOWED = 3.0

CASES = {
    "nesterov": ("mlp", Training(Sgd(0.005, momentum=0.9, weight_decay=0.01, nesterov=True))),
    "adamw, clipped": ("mlp", Training(AdamW(1e-3), clip_norm=1.0)),
    "adam of tables": ("dlrm", Training(Adam(1e-3, weight_decay=0.01))),
}
"""A network and its rules; test_updates has every rule against its formula, test_torch_schedules against PyTorch."""
SIZES = {"mlp": {"batch": 16, "width": 64}, "dlrm": {"batch": 16, "rows": 50}}


def torch_run(network: Network, arrays: plain_steps.Arrays, dtype: torch.dtype) -> plain_steps.Arrays:
    model = TorchNetwork(network, arrays, dtype, sparse=False)
    optimizer = optimizer_of(network, model)
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        model().backward()
        if network.training.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), network.training.clip_norm)
        optimizer.step()
    return {name: model.array(name).astype(np.float64) for name in network.parameters}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["nesterov", "adamw, clipped", pytest.param("adam of tables", marks=pytest.mark.slow)])
def test_weights_are_as_close_to_float64_as_pytorchs(name: str, tmp_path: Path) -> None:
    kind, training = CASES[name]
    network = zoo.build(kind, SIZES[kind])
    # Weight decay is for matrices only: vectors are a group of parameters with a rule of their own.
    free = dataclasses.replace(training.rule, weight_decay=0.0)
    vectors = {var.name for var in network.module["main"].params if len(var.ty.shape) == 1} & {*network.parameters}
    training = dataclasses.replace(training, rules=dict.fromkeys(vectors, free))
    network = dataclasses.replace(network, training=training)
    ratios, step = [], plain_steps.compiled(network, tmp_path)
    for seed in range(STARTS):
        steps = step.run(STEPS, seed)
        exact = torch_run(network, steps.start, torch.float64)
        rounded = distance(torch_run(network, steps.start, torch.float32), exact)
        assert rounded <= distance(steps.start, exact), "nothing to compare with"
        ratios.append(distance(steps.after[-1], exact) / rounded)
    # The median, as in test_training_numerics: where rounding decides a ReLU the other way, a gradient jumps.
    assert np.median(ratios) <= ALLOWED, ratios


# `torch.compile` in another process: ended at its limit, honest about failures.


def test_what_takes_too_long_is_ended_with_all_that_it_started(tmp_path, monkeypatch):
    script, mark = tmp_path / "script.py", tmp_path / "child"
    script.write_text(
        f"import subprocess, time\nchild = subprocess.Popen(['sleep', '600'])\nopen({str(mark)!r}, 'w').write("
        "str(child.pid))\ntime.sleep(600)\n"
    )
    monkeypatch.setattr(torch_compiled, "__file__", str(script))
    with pytest.raises(NotCompiledError, match="not compiled in 5 s"):
        compile_within("mlp", "tiny", 1, tmp_path, 5)
    child = Path("/proc") / mark.read_text()
    deadline = time.monotonic() + 10
    while child.exists() and "State:\tZ" not in (child / "status").read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not child.exists() or "State:\tZ" in (child / "status").read_text()


def test_a_failure_says_why(tmp_path):
    with pytest.raises(NotCompiledError, match=r"failed \(exit 1\): .*no_network"):
        compile_within("no_network", "tiny", 1, tmp_path, 600)


def test_means_say_over_how_many_networks_they_are():
    assert geometric_means([(2.0, 1.0), (8.0, None)]) == ["eager/autotm 4.00", "compile/autotm 1.00 (of 1 networks)"]
    assert geometric_means([(2.0, None)]) == ["eager/autotm 2.00"]
