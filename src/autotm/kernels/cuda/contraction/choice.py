"""How a contraction is computed: by tiles, exactly or on tensor cores, and the other ways that there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tvm import tirx

from autotm.kernels.code import Index, tir
from autotm.kernels.cuda.contraction.estimate import PARTS, Way, estimate_ns, fastest
from autotm.kernels.cuda.contraction.product import Conditions, Operand, Product, product_of, vector_of
from autotm.kernels.cuda.contraction.staging import Finish
from autotm.kernels.cuda.contraction.tile import Tile, tiled
from autotm.kernels.cuda.contraction.warp_tile import warp_tiled
from autotm.kernels.cuda.device import CudaDevice
from autotm.kernels.cuda.stage import Stage, device_memory, each, local
from autotm.kernels.schedules import Problem
from autotm.model.machine import Products
from autotm.model.step import DEFAULT_IMPLEMENTATION

LEAN, DIRECT, UNFOLDED = "lean", "direct", "unfolded"
"""The product without workspace; a thread for each result; the left operand laid out as a matrix before (im2col)."""
EXACT = "exact"
"""As the default would be without tensor cores."""
MOST_UNFOLDED_BYTES = 4 << 30
"""Beyond that an unfolded operand is not offered."""
Stages = tuple[list[Stage], list[tirx.Buffer]]


def implementations(problem: Problem, device: CudaDevice, products: Products = "float32") -> tuple[str, ...]:
    """Ways to compute a problem besides the default that are other code.

    Where `products` may be rounded, they are by the default or by an implementation of that name, as which one is
    faster is estimated; `exact` is there where the default is not. Only `default`, that name, and `lean` of a rounded
    default round.
    """
    product = product_of(problem)
    way = _preferred(product, device, products)
    names = [LEAN] if way.parts > 1 else []
    if products != "float32":
        names.append(products if _products_of(way) == "float32" else EXACT)
    if problem.kind.startswith("conv2d"):
        names.append(DIRECT)
        if _unfolded_bytes(product) <= MOST_UNFOLDED_BYTES:
            names.append(UNFOLDED)
    return tuple(names)


def _preferred(product: Product, device: CudaDevice, products: Products) -> Way:
    """The fastest way by estimate, on tensor cores if it may be and they are faster."""
    ways = [fastest(product, device, PARTS, kind) for kind in dict.fromkeys((products, "float32"))]
    return min(ways, key=lambda way: estimate_ns(product, way, device))


def contraction_stages(
    problem: Problem, device: CudaDevice, implementation: str, products: Products = "float32"
) -> tuple[Stages, Products]:
    """The stages of a contraction and its workspaces, and what its factors are rounded to.

    Raises:
        ValueError: there is no such implementation.
    """
    if implementation not in (DEFAULT_IMPLEMENTATION, *implementations(problem, device, products)):
        message = f"'{problem.kind}' has no implementation '{implementation}'"
        raise ValueError(message)
    product = product_of(problem)
    if implementation in _OTHERS:
        return _OTHERS[implementation](problem, product, device), "float32"
    way = _way(product, device, implementation, products)
    return by_tiles(problem, product, way), _products_of(way)


def _way(product: Product, device: CudaDevice, implementation: str, products: Products) -> Way:
    if implementation == EXACT:
        return fastest(product, device)
    if implementation == products:
        return fastest(product, device, PARTS, products)
    preferred = _preferred(product, device, products)
    if implementation == LEAN:
        return fastest(product, device, (1,), _products_of(preferred))
    return preferred


def _products_of(way: Way) -> Products:
    return "float32" if isinstance(way.tile, Tile) else way.tile.products


def by_tiles(problem: Problem, product: Product, way: Way) -> Stages:
    """A product by tiles; split sums are added up in the order of their parts by a second stage."""
    size = product.groups * product.rows * product.columns
    if way.parts == 1:
        return [_tiled(product, way, lambda _, *at: _finish(problem, product, *at))], []
    partial = device_memory((way.parts, size), "float32", "partial")

    def keep(part: Index, group: Index, m: Index, n: Index, value: tirx.Expr) -> tirx.Stmt:
        at = part * size + (group * product.rows + m) * product.columns + n
        return tir.store(partial, at, value)

    def add_up(index: tirx.Expr) -> tirx.Stmt:
        total = local(1, "float32", "total")

        def add(part: Index) -> tirx.Stmt:
            return tir.store(total, 0, tir.load(total, 0) + tir.load(partial, part * size + index))

        return tir.sequence([tirx.AllocBuffer(total), _clear(total), tir.loop(way.parts, add, "part"),
                             _at(problem, product, index, tir.load(total, 0))])  # fmt: skip

    return [_tiled(product, way, keep), each(size, 256, add_up)], [partial]


def _tiled(product: Product, way: Way, finish: Finish) -> Stage:
    if isinstance(way.tile, Tile):
        return tiled(product, way.tile, way.parts, finish)
    return warp_tiled(product, way.tile, way.parts, finish)


def _direct(problem: Problem, product: Product, _: CudaDevice) -> Stages:
    def one(index: tirx.Expr) -> tirx.Stmt:
        total = local(1, "float32", "total")
        group, m, n = _unraveled(product, index)

        def term(k: Index) -> tirx.Stmt:
            (left, inside), (right, _) = product.left.at(group, m, k), product.right.at(group, n, k)
            factors = tir.load(product.left.buffer, left) * tir.load(product.right.buffer, right)
            add = tir.store(total, 0, tir.load(total, 0) + factors)
            return tir.choose(tirx.all(*inside), add, None) if inside else add

        return tir.sequence([tirx.AllocBuffer(total), _clear(total), tir.loop(product.steps, term, "k"),
                             _at(problem, product, index, tir.load(total, 0))])  # fmt: skip

    return [each(product.groups * product.rows * product.columns, 256, one)], []


def _unfolded_bytes(product: Product) -> int:
    return 4 * product.groups * product.rows * product.steps


def _unfolded(problem: Problem, product: Product, device: CudaDevice) -> Stages:
    """The left operand as a matrix in device memory: its zeros and repeated pixels too."""
    rows, steps, left = product.rows, product.steps, product.left
    matrix = device_memory((product.groups, rows * steps), "float32", "unfolded")

    def position(group: Index, m: Index, k: Index) -> Index:
        return group * rows * steps + (m * steps + k if left.along_k else k * rows + m)

    def place(group: Index, m: Index, k: Index) -> tuple[Index, Conditions]:
        return position(group, m, k), []

    def lay(index: tirx.Expr) -> tirx.Stmt:
        group, first, second = tir.unravel(index, [product.groups, *((rows, steps) if left.along_k else (steps, rows))])
        m, k = (first, second) if left.along_k else (second, first)
        source, inside = left.at(group, m, k)
        write = tir.store(matrix, index, tir.load(left.buffer, source))
        if not inside:
            return write
        return tir.choose(tirx.all(*inside), write, tir.store(matrix, index, tir.zeros(1)))

    operand = Operand(matrix, place, left.along_k, vector_of(steps if left.along_k else rows))
    laid = replace(product, left=operand)
    stages, workspaces = by_tiles(problem, laid, fastest(laid, device, (1,)))
    return [each(product.groups * rows * steps, 256, lay), *stages], [matrix, *workspaces]


def _clear(total: tirx.Buffer) -> tirx.Stmt:
    return tir.store(total, 0, tirx.FloatImm("float32", 0.0))


def _unraveled(product: Product, index: Index) -> list[Index]:
    return tir.unravel(index, [product.groups, product.rows, product.columns])


def _at(problem: Problem, product: Product, index: Index, value: tirx.Expr) -> tirx.Stmt:
    group, m, n = _unraveled(product, index)
    return _finish(problem, product, group, m, n, value)


def _finish(problem: Problem, product: Product, group: Index, m: Index, n: Index, value: tirx.Expr) -> tirx.Stmt:
    """The epilogue of one element."""
    position = None
    if problem.kind != "batched_matmul":
        position = (m * product.groups + group) * product.columns + n
    return problem.finish(product.coordinates(group, m, n), lambda: value, position)


_OTHERS: dict[str, Callable[[Problem, Product, CudaDevice], Stages]] = {DIRECT: _direct, UNFOLDED: _unfolded}
