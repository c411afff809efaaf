"""Operators that PyTorch runs: those that have no kernel here, or all; and what kernels of ours do at the edges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the operators are PyTorch's: make test-torch installs it")

import plain_steps  # noqa: E402
import small_step  # noqa: E402
from torch_cases import Made, compare, images, words  # noqa: E402

from autotm.kernels.library import pinned  # noqa: E402
from autotm.model.errors import BadInputError  # noqa: E402
from autotm.zoo import from_torch  # noqa: E402

nn, F = torch.nn, torch.nn.functional
Case = tuple[Callable[[], nn.Module], tuple[torch.Tensor, ...]]


def line(forward: Callable[..., object]) -> Callable[[], nn.Module]:
    """A module that hands what a linear layer gives to a function."""
    return lambda: Made(lambda self, x: forward(self.line(x)), line=nn.Linear(6, 8))


X, ROWS = images(9, 6), images(4, 6)
CASES: dict[str, Case] = {
    "an inverse": (line(lambda y: torch.linalg.inv(y.T @ y + torch.eye(8))), X),
    "complex numbers": (
        line(lambda y: torch.fft.irfft(torch.fft.rfft(y) * torch.polar(torch.ones(5), torch.arange(5.0)))), X
    ),
    "a determinant of columns": (line(lambda y: torch.det(y[:4, :4]) + torch.det(y[:4, :4].T @ y[:4, 2:6])), X),
    "distances": (line(lambda y: torch.cdist(y, y + 1)), X),
    "float64 within": (line(lambda y: y.double().logcumsumexp(1).float()), X),
    "bfloat16 within": (line(lambda y: y.bfloat16().float()), X),
    "pooled volumes": (
        lambda: nn.Sequential(nn.Conv3d(2, 4, 3), nn.MaxPool3d(2), nn.AvgPool3d(2)), images(2, 2, 9, 9, 9)
    ),
    "bags of words": (lambda: nn.EmbeddingBag(10, 4, mode="max"), words(10, 3, 5)),
    "frequent words": (lambda: nn.Embedding(10, 4, scale_grad_by_freq=True), words(4, 3, 5)),
    "samples of a grid": (line(lambda y: F.grid_sample(y[None, None], y[None, None, :, :2], align_corners=True)), X),
    "antialiased": (
        line(lambda y: F.interpolate(y[None, None], size=(5, 5), mode="bilinear", antialias=True)), X
    ),
    "places of maxima": (line(lambda y: y[:, :4] * F.max_pool1d(y, 2, return_indices=True)[1]), X),
    "indices that a step computes": (line(lambda y: y[(y[:, 0].abs() * 3).long() % 9]), X),
    "nothing in a part": (line(lambda y: torch.cat([y, y[:, 3:3]], 1) @ torch.block_diag(y[:4, :4], y[:4, :4])), X),
    "no rows between": (line(lambda y: y[:, :4] + y[:, 8:] @ torch.ones(0, 4).to(y)), X),
    "numbers": (line(lambda y: torch.stack([torch.tensor(2.0), y.sum()])), X),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_step_with_operators_of_pytorchs_is_as_exact_as_its_own(name: str, tmp_path: Path) -> None:
    build, inputs = CASES[name]
    torch.manual_seed(1)
    compared = compare(build(), inputs, tmp_path)
    assert compared.is_exact(), (compared.loss, compared.error)


@pytest.mark.parametrize("name", ["an inverse", "complex numbers", "pooled volumes", "bags of words"])
def test_with_all_kernels_of_pytorchs_a_step_is_its_own(name: str, tmp_path: Path) -> None:
    build, inputs = CASES[name]
    torch.manual_seed(1)
    ours, theirs = compare(build(), inputs, tmp_path, kernels="torch").error
    assert ours <= 1.1 * theirs  # Of a sum here and there PyTorch takes another order for operands that lie otherwise.


def outputs_of(function: Callable[..., object], *inputs: torch.Tensor, folder: Path, **options: object) -> object:
    """What a function gives for some inputs, by one plain step."""
    network = from_torch(Made(lambda _self, *arguments: function(*arguments)), inputs, mode="inference", **options)
    after = plain_steps.compiled(network, folder).run(1).after[0]
    assert network.origin is not None
    return network.origin.outputs([torch.from_numpy(np.array(after[name])) for name in network.results])


ODD = torch.tensor([1.0, np.nan, -2.0, 3.0, np.inf, -np.inf, 0.5, -1.0])
OTHER = torch.tensor([np.nan, 2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0])
LOWEST, MATRIX = torch.full((64, 96), -np.inf), images(9, 6)[0]
OURS: dict[str, Callable[[torch.Tensor], object]] = {
    "relu": F.relu,
    "clamp": lambda x: x.clamp(-1, 1),
    "one bound": lambda x: x.clamp(min=0),
    "maximum": lambda x: torch.maximum(x, OTHER),
    "minimum": lambda x: torch.minimum(OTHER, x),
    "softplus": F.softplus,
    "softmax": lambda x: F.softmax(x[:4].view(1, 4), 1),
    "log softmax": lambda x: F.log_softmax(x[:4].view(1, 4), 1),
}

EDGES: dict[str, tuple[Callable[[torch.Tensor], object], torch.Tensor, str]] = {
    **{name: (function, ODD, "tvm") for name, function in OURS.items()},
    "the place of NaN is that of the largest": (
        lambda x: (
            x.argmax(), x.amax(), x.view(2, 4).amin(1), tuple(x.view(2, 4).max(1)), tuple(x.topk(3)), x.argsort()
        ), ODD, "auto",
    ),
    "only NaN differs from itself": (lambda x: x != x, ODD, "auto"),  # noqa: PLR0124 - that is the case
    "the largest of infinities": (lambda x: (x.amax(1), x.amin(0), F.max_pool2d(x[None, None], 2)), LOWEST, "auto"),
    "complex, empty and nested outputs": (
        lambda x: (torch.fft.fft(x), x[:, 3:3], {"half": x.half()}), MATRIX, "auto"
    ),
    "a failure that PyTorch does not raise": (lambda x: torch.linalg.inv_ex(x)[1], torch.zeros(3, 3), "auto"),
}  # fmt: skip
"""A function, what it is called with, and whose kernels compute it."""


@pytest.mark.parametrize("name", EDGES)
def test_numbers_at_the_edges_are_pytorchs(name: str, tmp_path: Path) -> None:
    function, x, kernels = EDGES[name]
    output = outputs_of(function, x, folder=tmp_path, kernels=kernels)
    torch.testing.assert_close(output, function(x), equal_nan=True)


def test_with_all_kernels_of_pytorchs_views_are_none() -> None:
    module = Made(lambda _self, x: x.view(2, 27).exp().view(6, 9).T)
    text = from_torch(module, MATRIX, mode="inference", kernels="torch").module.script()
    assert "torch_exp" in text
    assert "torch_view" not in text


def test_rows_of_a_table_with_padding_are_looked_up_by_a_kernel_of_ours() -> None:
    from_torch(nn.Embedding(10, 4, padding_idx=0), words(10, 3, 5), mode="inference", kernels="tvm")


def test_an_index_that_a_step_computes_is_checked_where_it_is_used(tmp_path: Path) -> None:
    def picked(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return table[(x * 3).long()]

    assert outputs_of(picked, torch.tensor([0.4, 1.1]), torch.arange(4.0), folder=tmp_path).tolist() == [1.0, 3.0]
    with pytest.raises(BadInputError, match=r"aten::index.Tensor: PyTorch refuses .* index 6 is out of bounds"):
        outputs_of(picked, torch.tensor([0.4, 2.1]), torch.arange(4.0), folder=tmp_path)


@pytest.mark.parametrize("invert", [torch.linalg.inv, lambda x: torch.linalg.solve(x, ROWS[0]), torch.linalg.cholesky])
def test_a_singular_matrix_raises_as_in_pytorch(invert: Callable[..., torch.Tensor], tmp_path: Path) -> None:
    matrix = torch.eye(4)
    torch.testing.assert_close(outputs_of(invert, matrix, folder=tmp_path), invert(matrix))
    matrix[1, 1] = 0
    with pytest.raises(
        BadInputError, match=r"aten::_?linalg_\w+_ex.default: PyTorch refuses .* matrix is singular|minor"
    ):
        outputs_of(invert, matrix, folder=tmp_path)


def test_what_pytorch_draws_is_drawn_anew_each_step_and_the_same_again(tmp_path: Path) -> None:
    torch.manual_seed(1)
    network = from_torch(Made(lambda _self, x: torch.empty_like(x).exponential_() + 0 * x), X, mode="inference",
                         kernels="torch")  # fmt: skip
    compiled = plain_steps.compiled(network, tmp_path)
    state = torch.get_rng_state()
    first, again = (compiled.run(2).after for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert not np.array_equal(first[0]["output"], first[1]["output"])
    assert all(np.array_equal(one["output"], other["output"]) for one, other in zip(first, again, strict=True))
    assert (first[0]["output"] > 0).all()


def test_what_pytorch_allocates_is_workspace(tmp_path: Path) -> None:
    network = from_torch(Made(lambda _self, x: torch.linalg.inv(x)), (torch.eye(64)[None],), mode="inference")
    graph = plain_steps.compiled(network, tmp_path).graph
    (kernel,) = (kernel for kernel in graph.kernels if kernel.op == "torch_linalg_inv_ex")
    assert sum(operand.size_bytes for operand in kernel.workspaces) >= 64 * 64 * 4


def test_pytorch_keeps_its_own_number_of_threads(tmp_path: Path) -> None:
    network = from_torch(Made(lambda _self, x: torch.linalg.inv(x)), (torch.eye(8),), mode="inference")
    compiled = plain_steps.compiled(network, tmp_path)
    before, during = torch.get_num_threads(), []
    torch.set_num_threads(before + 1)
    try:
        with pinned(small_step.machine(1)):
            compiled.run(1)
            during.append(torch.get_num_threads())
        assert during == [1]
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
