"""Contractions against float64: any width, stride, padding and order of axes, with and without epilogues."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_step
import tvm
from compiled_kernels import call, fused, host, kernel_of, placeholders
from contraction_cases import WINDOWS, Window, error, random_array, random_windows
from tvm import relax, s_tir, te

from autotm.kernels.contractions import (
    Subscripts,
    batched_matmul,
    conv2d,
    conv2d_data_gradient,
    conv2d_weight_gradient,
    matmul,
    matmul_nt,
    matmul_tn,
)
from autotm.kernels.schedules.contraction import IMPLEMENTATIONS, others, schedule_contraction
from autotm.kernels.target import (
    CHAIN_STEPS,
    TargetInfo,
    _l2_bytes,
    cut,
    machine_target,
    register_tiles,
    target_info,
)
from autotm.model.errors import BadInputError
from autotm.model.graph import DEFAULT_IMPLEMENTATION, OpClass, ScheduleKind

LIMIT = 3e-6
PRODUCTS = [(form, name) for form in (matmul, matmul_nt, matmul_tn) for name in ("default", *others(form.__name__))]
"""Each product of matrices with the name of each of its implementations."""


def computed(
    function: Sequence[te.Tensor] | Sequence[tvm.tirx.PrimFunc],
    inputs: Sequence[np.ndarray],
    name: str = DEFAULT_IMPLEMENTATION,
    threads: int = 2,
    target: tvm.target.Target | None = None,
    shared: Mapping[int, int] | None = None,
) -> np.ndarray:
    """The one result of a TE graph, or of the one function that Relax fused, by generated code."""
    function = function[0] if isinstance(function[0], tvm.tirx.PrimFunc) else function
    target = target or host(threads)
    kernel = kernel_of(function, threads, target, name)
    assert kernel.kind == ScheduleKind.GENERATED
    (result,) = call(kernel, inputs, target, shared)
    return result


UPDATED = [WINDOWS[0], WINDOWS[2], WINDOWS[4], WINDOWS[10], WINDOWS[14], WINDOWS[8]]


@pytest.fixture(params=IMPLEMENTATIONS)
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of each implementation; with "winograd", that of the default, which takes that form wherever it can."""
    if request.param != "winograd":
        return request.param
    winograd = "autotm.kernels.schedules.winograd"
    for limit in ("LEAST_SQUARES", "LEAST_CHANNELS", "LEAST_PRODUCTS"):
        monkeypatch.setattr(f"{winograd}.{limit}", 1)
    return DEFAULT_IMPLEMENTATION


def cases(windows: Sequence[Window], quick: Mapping[str, Collection[int]], *values: object) -> list[Any]:
    """Each window in every implementation; all are marked slow but those whose places are in `quick`.

    Winograd's form is for 3 x 3 and stride 1: elsewhere its case would repeat the default.
    """
    return [
        pytest.param(
            *(window, name, *values),
            marks=() if number in quick.get(name, ()) else pytest.mark.slow,
            id="-".join(map(str, (*values, name, window))),
        )
        for name in (*IMPLEMENTATIONS, "winograd")
        for number, window in enumerate(windows)
        if name != "winograd" or (window.w[:2], window.stride) == ((3, 3), (1, 1))
    ]


def with_cases(windows: Sequence[Window], quick: Mapping[str, Collection[int]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("window", "name"), cases(windows, quick), indirect=["name"])


@pytest.mark.parametrize(
    ("window", "name", "mcpu", "threads", "l2_bytes"),
    [
        # A larger one of Winograd's form is below.
        *cases(WINDOWS, {"default": range(0, 16, 4), "lean": range(2, 16, 4), "winograd": (8,)}, None, 2, None),
        *cases(random_windows(8), {"default": (1,), "lean": (1,)}, None, 3, None),  # others take seconds
        *cases([WINDOWS[n] for n in (1, 2, -1)], {"default": (1,), "lean": (2,), "winograd": (0,)}, None, 2, 16 << 10),
        *cases(WINDOWS[1:7:2], {"default": (0,), "lean": (2,)}, "core-avx2", 2, None),
    ],
    indirect=["name"],
)
def test_windows(window: Window, name: str, mcpu: str | None, threads: int, l2_bytes: int | None, monkeypatch) -> None:
    if l2_bytes is not None:
        monkeypatch.setattr("autotm.kernels.target._l2_bytes", lambda: l2_bytes)
    x, w, dy = random_array(window.x, 1), random_array(window.w, 2), random_array(window.y, 3)
    tx, tw, tdy = placeholders(window.x, window.w, window.y)
    geometry = window.stride, window.padding
    for tensors, inputs, exact in (
        ([tx, tw, conv2d(tx, tw, *geometry)], [x, w], window.forward(x, w)),
        ([tdy, tw, conv2d_data_gradient(tdy, tw, window.x, *geometry)], [dy, w], window.data_gradient(dy, w)),
        ([tx, tdy, conv2d_weight_gradient(tx, tdy, window.w, *geometry)], [x, dy], window.weight_gradient(x, dy)),
    ):
        result = computed(tensors, inputs, name, threads, host(threads, mcpu))
        assert error(result, exact) < LIMIT, tensors[-1].op.name


SIZES = [
    (16, 1000, 37),
    (130, 70, 129),
    (1, 5, 3),
    (7, 2000, 64),
    (300, 9, 48),
    (40, 300, 1003),
    (30, 5000, 300),
    (70, 3000, 520),
]


@pytest.mark.parametrize(
    ("form", "name", "m", "k", "n"),
    [
        pytest.param(
            *(form, name, *sizes),
            marks=() if (row + column) % 3 == 0 else pytest.mark.slow,
            id=f"{form.__name__}-{name}-{sizes}",
        )
        for row, (form, name) in enumerate(PRODUCTS)
        for column, sizes in enumerate(SIZES)
    ],
)
def test_matrix_products(form: object, name: str, m: int, k: int, n: int) -> None:
    shapes = {matmul: ((m, k), (k, n)), matmul_nt: ((m, k), (n, k)), matmul_tn: ((k, m), (k, n))}[form]
    a, b = random_array(shapes[0], 1), random_array(shapes[1], 2)
    tensors, target = placeholders(*shapes), host(2, "core-avx2" if n % 2 else None)
    left = a.T if form is matmul_tn else a
    right = b.T if form is matmul_nt else b
    result = computed([*tensors, form(*tensors)], [a, b], name, target=target)
    assert error(result, left.astype(np.float64) @ right.astype(np.float64)) < LIMIT


@pytest.mark.parametrize(("rows", "form"), [(12, matmul), (12, matmul_nt), (40, matmul)])
def test_matrix_product_with_bias_and_relu(rows: int, form: object) -> None:
    shapes = {"a": (rows, 100), "b": (100, 70) if form is matmul else (70, 100), "bias": (70,)}

    def build(builder: relax.BlockBuilder, a: relax.Var, b: relax.Var, bias: relax.Var) -> relax.Expr:
        return relax.op.nn.relu(builder.emit(relax.op.add(builder.emit_te(form, a, b), bias)))

    a, b, bias = (random_array(shape, seed) for seed, shape in enumerate(shapes.values()))
    right = (b if form is matmul else b.T).astype(np.float64)
    result = computed(fused(build, shapes), [a, b, bias])
    assert error(result, np.maximum(a.astype(np.float64) @ right + bias, 0)) < LIMIT


@pytest.mark.parametrize(("batch", "features"), [(8, 100), (200, 520)])
@pytest.mark.parametrize("name", ["default", *others("matmul_tn")])
def test_dense_weights_are_updated_in_place(batch: int, features: int, name: str) -> None:
    shapes = {"x": (batch, 300), "dy": (batch, features), "w": (300, features)}

    def build(builder: relax.BlockBuilder, x: relax.Var, dy: relax.Var, w: relax.Var) -> relax.Expr:
        dw = builder.emit_te(matmul_tn, x, dy)
        return relax.op.subtract(w, builder.emit(relax.op.multiply(relax.const(0.05), dw)))

    x, dy, w = (random_array(shape, seed) for seed, shape in enumerate(shapes.values()))
    expected = w - 0.05 * (x.T.astype(np.float64) @ dy)
    assert error(computed(fused(build, shapes), [x, dy, w], name, shared={3: 2}), expected) < LIMIT


@with_cases([WINDOWS[1], WINDOWS[4]], {"lean": (1,), "winograd": (0,)})
def test_bias_and_relu_are_fused(window: Window, name: str) -> None:
    def build(builder: relax.BlockBuilder, x: relax.Var, w: relax.Var, b: relax.Var) -> relax.Expr:
        y = builder.emit_te(conv2d, x, w, window.stride, window.padding)
        return relax.op.nn.relu(builder.emit(relax.op.add(y, b)))

    x, w, b = random_array(window.x, 1), random_array(window.w, 2), random_array(window.w[-1:], 3)
    result = computed(fused(build, {"x": x.shape, "w": w.shape, "b": b.shape}), [x, w, b], name)
    assert error(result, np.maximum(window.forward(x, w) + b, 0)) < LIMIT


@pytest.mark.parametrize("activation", ["silu", "tanh"])
@with_cases([WINDOWS[1]], dict.fromkeys(("default", "lean", "winograd"), (0,)))
def test_functions_after_a_contraction_are_arithmetic(window: Window, name: str, activation: str) -> None:
    """The C library computes one number a call; they took longer than the convolution before them."""

    def build(builder: relax.BlockBuilder, x: relax.Var, w: relax.Var) -> relax.Expr:
        y = builder.emit_te(conv2d, x, w, window.stride, window.padding)
        return relax.op.nn.silu(y) if activation == "silu" else relax.op.tanh(y)

    x, w = random_array(window.x, 1), random_array(window.w, 2)
    w /= np.abs(window.forward(x, w)).max().astype(np.float32)  # Where the functions bend.
    function = fused(build, {"x": x.shape, "w": w.shape})
    y = window.forward(x, w)
    expected = y / (1 + np.exp(-y)) if activation == "silu" else np.tanh(y)
    assert error(computed(function, [x, w], name), expected) < LIMIT
    assert not re.search(r"T\.(exp|tanh|sigmoid)\(", kernel_of(function[0], implementation=name).func.script())


@with_cases([WINDOWS[1], WINDOWS[4], WINDOWS[6]], {"default": (2,), "lean": (1,), "winograd": (0,)})
def test_mask_and_other_gradients_are_fused(window: Window, name: str) -> None:
    def build(builder: relax.BlockBuilder, *variables: relax.Var) -> relax.Expr:
        dy, w, other, y, zero = variables
        dx = builder.emit_te(conv2d_data_gradient, dy, w, window.x, window.stride, window.padding)
        total = builder.emit(relax.op.add(dx, other))
        return relax.op.where(builder.emit(relax.op.greater(y, relax.const(0.0))), total, zero)

    dy, w = random_array(window.y, 1), random_array(window.w, 2)
    other, y, zero = random_array(window.x, 3), random_array(window.x, 4), np.zeros((), np.float32)
    shapes = {"dy": dy.shape, "w": w.shape, "other": other.shape, "y": y.shape, "zero": ()}
    result = computed(fused(build, shapes), [dy, w, other, y, zero], name)
    assert error(result, np.where(y > 0, window.data_gradient(dy, w) + other, 0)) < LIMIT


@pytest.mark.parametrize(
    ("window", "name", "l2_bytes"),
    [
        *cases(UPDATED, {"default": (3, 4), "lean": (2,)}, 1 << 20),
        *cases(UPDATED, {"default": (0, 2), "lean": (1,), "winograd": (5,)}, 16 << 10),
    ],
    indirect=["name"],
)
def test_update_in_place(window: Window, name: str, l2_bytes: int, monkeypatch) -> None:
    monkeypatch.setattr("autotm.kernels.target._l2_bytes", lambda: l2_bytes)

    def build(builder: relax.BlockBuilder, x: relax.Var, dy: relax.Var, w: relax.Var) -> relax.Expr:
        dw = builder.emit_te(conv2d_weight_gradient, x, dy, window.w, window.stride, window.padding)
        return relax.op.subtract(w, builder.emit(relax.op.multiply(relax.const(0.05), dw)))

    x, dy, w = random_array(window.x, 1), random_array(window.y, 2), random_array(window.w, 3)
    expected = w - 0.05 * window.weight_gradient(x, dy)
    function = fused(build, {"x": x.shape, "dy": dy.shape, "w": w.shape})
    assert error(computed(function, [x, dy, w], name, shared={3: 2}), expected) < LIMIT


def test_many_pixels_keep_the_weight_gradient_accurate(name: str) -> None:
    window = Window((1, 300, 300, 2), (1, 1, 2, 16), (1, 1), (0, 0, 0, 0))
    x, dy = np.abs(random_array(window.x, 1)), np.abs(random_array(window.y, 2))
    tx, tdy = placeholders(window.x, window.y)
    gradient = conv2d_weight_gradient(tx, tdy, window.w, window.stride, window.padding)
    assert error(computed([tx, tdy, gradient], [x, dy], name), window.weight_gradient(x, dy)) < LIMIT


def test_a_block_that_is_no_contraction_is_refused() -> None:
    x = te.placeholder((4, 4), name="x")
    sch = s_tir.Schedule(te.create_prim_func([x, te.compute((4, 4), lambda i, j: x[i, j] + 1.0, name="increment")]))
    with pytest.raises(ValueError, match="'increment' is no contraction"):
        schedule_contraction(sch, sch.get_sblock("increment"), target_info(host()), 2)


@pytest.mark.parametrize("extent", [1, 2, 5, 8, 17, 35, 69, 147])
def test_pieces_cover_the_extent(extent: int) -> None:
    pieces = cut(extent, 14)
    assert pieces.longer * pieces.size + (pieces.count - pieces.longer) * (pieces.size - 1) == extent
    assert pieces.size <= 14


@pytest.mark.parametrize(("lanes", "registers"), [(16, 32), (8, 16)])
def test_tiles_fit_the_registers(lanes: int, registers: int) -> None:
    info = TargetInfo(lanes=lanes, registers=registers, l2_bytes=1 << 20)
    for columns in (1, 3, 7, 14, 69):
        tiles = register_tiles(8, columns, 224, 500, info)
        assert tiles.rows.size * tiles.columns.size * tiles.vectors.size + tiles.vectors.size + 1 <= registers


@pytest.mark.parametrize(
    "threads", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("steps", [4 * CHAIN_STEPS, 4 * CHAIN_STEPS + 37])
def test_blocks_of_steps_need_small_panels(steps, threads):
    arrays = a, b, c = random_array((29, steps), 0), random_array((600, steps), 1), random_array((29, 600), 2)
    left, right, old = placeholders(*(array.shape for array in arrays))
    product = matmul_nt(left, right)
    exact = a.astype(np.float64) @ b.T.astype(np.float64)
    plain = kernel_of([left, right, product], threads)
    assert error(call(plain, [a, b])[0], exact) < 1e-6
    assert max(shape[0] for shape, _ in plain.workspaces) < b.size // 4
    new = te.compute(product.shape, lambda i, j: old(i, j) - product(i, j) * 0.5, name="new")
    assert error(computed([left, right, old, new], arrays, threads=threads), c - exact * 0.5) < 1e-6


# Batched products against NumPy in float64: every order of axes that attention and matmul need, odd extents.

SLOW = pytest.mark.slow
SUBSCRIPTS = [
    "bihd,bjhd->bhij",
    "bhij,bjhd->bihd",
    "bihd,bhij->bjhd",
    "abij,abjk->abik",
    "aik,ajk->aij",
    "aji,ajk->aik",
    "ij,ajk->iak",
    "jai,bkj->abik",
]
EXTENTS = [
    {"a": 2, "b": 3, "h": 2, "i": 5, "j": 7, "k": 33, "d": 37},
    {"a": 1, "b": 1, "h": 8, "i": 16, "j": 48, "k": 50, "d": 64},
    {"a": 5, "b": 2, "h": 1, "i": 40, "j": 3, "k": 4, "d": 2},
]


def operands(subscripts, extents):
    letters = Subscripts.parse(subscripts)
    shapes = [tuple(extents[letter] for letter in text) for text in (letters.left, letters.right)]
    return [random_array(shape, seed) for seed, shape in enumerate(shapes)]


def exact(subscripts, left, right):
    return np.einsum(subscripts, left.astype(np.float64), right.astype(np.float64))


@pytest.mark.parametrize(
    ("extents", "threads"),
    [
        pytest.param(extents, threads, id=f"{number}-{threads}", marks=() if threads == (2, 3, 1)[number] else SLOW)
        for number, extents in enumerate(EXTENTS)
        for threads in (1, 2, 3)
    ],
)
@pytest.mark.parametrize("subscripts", SUBSCRIPTS)
def test_any_order_of_axes(subscripts, extents, threads):
    arrays = operands(subscripts, extents)
    tensors = placeholders(*(array.shape for array in arrays))
    kernel = kernel_of([*tensors, batched_matmul(*tensors, subscripts)], threads)
    assert kernel.op_class == OpClass.MATMUL
    expected = exact(subscripts, *arrays)
    assert kernel.flops == 2 * int(np.prod([extents[letter] for letter in set(subscripts) - set(",->")]))
    assert error(call(kernel, arrays)[0], expected) < 1e-6


@pytest.mark.parametrize("subscripts", [*SUBSCRIPTS[:3], *(pytest.param(one, marks=SLOW) for one in SUBSCRIPTS[3:])])
def test_vectors_of_another_width(subscripts):
    arrays = operands(subscripts, EXTENTS[0])
    tensors = placeholders(*(array.shape for array in arrays))
    result = computed([*tensors, batched_matmul(*tensors, subscripts)], arrays, target=host(2, "haswell"))
    assert error(result, exact(subscripts, *arrays)) < 1e-6


def test_long_sums_are_summed_in_parts():
    extents = {"a": 1, "i": 3, "j": 3 * CHAIN_STEPS + 5, "k": 17}
    arrays = [np.abs(array) + 1 for array in operands("aij,ajk->aik", extents)]
    tensors = placeholders(*(array.shape for array in arrays))
    result = computed([*tensors, batched_matmul(*tensors, "aij,ajk->aik")], arrays)
    assert error(result, exact("aij,ajk->aik", *arrays)) < 3e-6


def test_scale_and_mask_are_an_epilogue():
    arrays = [*operands("bihd,bjhd->bhij", EXTENTS[0]), random_array((5, 7), 2)]
    left, right, mask = placeholders(*(array.shape for array in arrays))
    product = batched_matmul(left, right, "bihd,bjhd->bhij")
    scores = te.compute(product.shape, lambda b, h, i, j: product(b, h, i, j) * 0.125 + mask(i, j), name="scores")
    kernel = kernel_of([left, right, mask, scores])
    assert (kernel.op, sum(len(shape) for shape, _ in kernel.workspaces)) == ("batched_matmul", 1)
    expected = exact("bihd,bjhd->bhij", *arrays[:2]) * 0.125 + arrays[2]
    assert error(call(kernel, arrays)[0], expected) < 1e-6


def test_gradients_swap_the_subscripts():
    letters = Subscripts.parse("bihd,bjhd->bhij")
    assert str(letters.left_gradient) == "bhij,bjhd->bihd"
    assert str(letters.right_gradient) == "bihd,bhij->bjhd"


@pytest.mark.parametrize("subscripts", ["ij,jk->ki ", "aij,ajk->ak", "aii,aik->aik", "ij,jk->ijk", "abi,abj->abij"])
def test_what_is_a_product(subscripts):
    assert Subscripts.parse(subscripts).is_product == (subscripts == "ij,jk->ki ")


@pytest.mark.parametrize("subscripts", ["ij,jk", "ij,jk,kl->il", "ij->ji"])
def test_other_subscripts_are_refused(subscripts):
    with pytest.raises(ValueError, match="left,right->result"):
        Subscripts.parse(subscripts)


# Vector width follows the target's CPU, not the host's.


@pytest.mark.parametrize(
    ("cpu", "lanes", "registers"),
    [("x86-64", 4, 16), ("core-avx2", 8, 16), ("znver3", 8, 16), ("znver5", 16, 32), ("sapphirerapids", 16, 32)],
)
def test_lanes_follow_the_instruction_set(cpu: str, lanes: int, registers: int) -> None:
    info = target_info(tvm.target.Target({"kind": "llvm", "mcpu": cpu}))
    assert (info.lanes, info.registers) == (lanes, registers)
    assert info.l2_bytes >= 8 << 10


@pytest.mark.parametrize("text", ["no such target", '{"kind": "llvm", "mcpu": 3}'])
def test_a_target_that_tvm_does_not_know_is_refused_with_an_example(text: str) -> None:
    machine = replace(small_step.machine(), target=text)
    with pytest.raises(BadInputError, match=r"^machine 'test': target: .* is not a TVM target \(.+\); give host, or"):
        machine_target(machine)


@pytest.mark.parametrize(("size", "read"), [("48K", 48 << 10), ("0K", 512 << 10), ("0", 512 << 10)])
def test_a_cache_without_a_size_counts_as_unknown(
    size: str, read: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "index0").mkdir()
    for file, text in {"level": "2", "type": "Unified", "size": size}.items():
        (tmp_path / "index0" / file).write_text(text, encoding="utf-8")
    monkeypatch.setattr("autotm.kernels.target._CACHES", tmp_path)
    assert _l2_bytes.__wrapped__() == read
