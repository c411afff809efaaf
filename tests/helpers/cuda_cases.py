"""One function of each op class, at shapes that no block or vector divides, with values for its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from memory_bound_cases import CONCATS, POOLS, SUMS
from tvm import te, tirx

from autotm.kernels import along_axis, normalization, windowed
from autotm.kernels.along_axis import running_sum
from autotm.kernels.cuda.device import DEVICES
from autotm.kernels.tables import Scatter, Use, embedding, embedding_concat, embedding_update, scatter_sum

SMALL = replace(DEVICES["h100"], name="small", multiprocessors=4)
"""Four multiprocessors: few results are enough for it, and long sums are split into few parts."""
Tensors = list[te.Tensor]


@dataclass(frozen=True)
class Case:
    """A function, its inputs, and outputs that lie in the memory of inputs."""

    tensors: Tensors
    inputs: list[np.ndarray]
    shared: dict[int, int] = field(default_factory=dict)


def case(function: Callable[..., te.Tensor | Tensors], *inputs: np.ndarray) -> Case:
    """`function` of tensors like the inputs."""
    operands = [te.placeholder(array.shape, str(array.dtype), f"p{slot}") for slot, array in enumerate(inputs)]
    results = function(*operands)
    return Case([*operands, *(results if isinstance(results, list) else [results])], list(inputs))


def random(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def _chain(x: te.Tensor, y: te.Tensor) -> Tensors:
    """Two results in one pass, of which the second reads the first at its own element."""
    state = te.compute(x.shape, lambda *i: x(*i) * 0.5 + y(*i), name="state")
    return [state, te.compute(x.shape, lambda *i: tirx.exp(-state(*i)) + x(*i), name="value")]


def _turned(x: te.Tensor) -> te.Tensor:
    return te.compute(x.shape[::-1], lambda *i: x(*i[::-1]), name="turned")


def _extreme(x: te.Tensor) -> Tensors:
    k = te.reduce_axis((0, x.shape[1]), "k")
    return [te.compute((x.shape[0],), lambda i: te.max(x[i, k], axis=k), name="peak")]


def _summed(x: te.Tensor, axes: tuple[int, ...]) -> te.Tensor:
    terms = {axis: te.reduce_axis((0, x.shape[axis]), f"r{axis}") for axis in axes}
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]

    def element(*outer: tirx.Var) -> tirx.Expr:
        place = {**terms, **dict(zip(kept, outer, strict=True))}
        return te.sum(x(*(place[axis] for axis in range(len(x.shape)))), axis=list(terms.values()))

    return te.compute([x.shape[axis] for axis in kept] or (), element, name="total")


def _lookups() -> Case:
    generator = np.random.default_rng(5)
    tables = [random((rows, width), rows) for rows, width in ((9, 16), (3, 33))]
    indices = [generator.integers(len(table), size=21, dtype="int32") for table in tables]
    return case(
        lambda first, at, matrix, second, there: embedding_concat([(first, at), (matrix,), (second, there)]),
        tables[0], indices[0], random((21, 20)), tables[1], indices[1],
    )  # fmt: skip


def _update() -> Case:
    tables, uses = [random((11, 16), 1), random((5, 33), 2)], [Use(0, 0, 1, 0), Use(1, 2, 1, 16), Use(0, 2, 1, 3)]
    generator = np.random.default_rng(6)
    others = [generator.integers(5, size=30, dtype="int32"), random((30, 60), 3),
              generator.integers(5, size=30, dtype="int64")]  # fmt: skip
    made = case(lambda *slots: embedding_update(slots[:2], slots[2:], uses, 0.25), *tables, *others)
    return replace(made, shared={5: 0, 6: 1})


def _scattered(shape: tuple[int, ...], axis: int, count: int) -> Case:
    indices = np.random.default_rng(0).integers(-shape[axis], shape[axis], count, dtype="int32")
    dy = random((*shape[:axis], count, *shape[axis + 1 :]))
    scatter = Scatter.of_axis(dy.shape, shape, axis, indices.shape)
    return case(lambda slope, places: scatter_sum(slope, [places], shape, scatter), dy, indices)


def _pools() -> dict[str, Case]:
    found = {}
    for number, (shape, pool, stride, padding) in enumerate(POOLS[:6]):
        geometry, x = (pool, stride, padding), random(shape)
        made = case(lambda x, geometry=geometry: windowed.max_pool2d(x, *geometry), x)
        found[f"max pool {number}"] = made
        pooled = tuple(int(extent) for extent in made.tensors[-1].shape)
        found[f"average pool {number}"] = case(lambda x, g=geometry: windowed.avg_pool2d(x, *g), x)
        found[f"average pool gradient {number}"] = case(
            lambda dy, g=geometry, shape=shape: windowed.avg_pool2d_gradient(dy, shape, *g), random(pooled, 1)
        )
    return found


ROWS = (7, 150)
CASES: dict[str, Case] = {
    "elementwise": case(lambda x: te.compute(x.shape, lambda *i: tirx.tanh(x(*i)) * 2.0, name="e"), random((5, 7, 33))),
    "chain": case(_chain, random((3, 1001)), random((3, 1001), 1)),
    "turned": case(_turned, random((5, 7, 33))),
    **{f"sum {shape} {axes}": case(lambda x, axes=axes: _summed(x, axes), random(shape)) for shape, axes in SUMS},
    "largest": case(_extreme, random((5, 300))),
    "softmax": case(normalization.softmax, random(ROWS)),
    "softmax gradient": case(normalization.softmax_gradient, random(ROWS), random(ROWS, 1)),
    "log softmax": case(normalization.log_softmax, random(ROWS)),
    "log softmax gradient": case(normalization.log_softmax_gradient, -np.abs(random(ROWS)), random(ROWS, 1)),
    "layer norm": case(lambda *p: normalization.layer_norm(*p, 1e-5), random((33, 70)), *random((2, 70), 1)),
    "layer norm gradient": case(
        lambda *p: normalization.layer_norm_gradient(*p, 1e-5), random((33, 70)), random((70,), 1), random((33, 70), 2)
    ),
    "batch norm statistics": case(lambda x: normalization.statistics(x, 1e-5), random((4, 5, 7, 33))),
    "batch norm sums": case(
        normalization.gradient_sums, random((4, 5, 7, 33)), random((4, 5, 7, 33), 1), random((33,), 2), random((33,), 3)
    ),
    "depthwise": case(
        lambda x, w: windowed.depthwise_conv2d(x, w, (2, 1), (1,) * 4), random((2, 9, 8, 24)), random((3, 3, 1, 24))
    ),
    "concat channels": case(
        lambda *p: along_axis.concat(list(p), CONCATS[0][1]), *(random(shape) for shape in CONCATS[0][0])
    ),
    "concat rows": case(
        lambda *p: along_axis.concat(list(p), CONCATS[2][1]), *(random(shape) for shape in CONCATS[2][0])
    ),
    "embedding": case(embedding, random((9, 16)), np.array([[3, 8], [0, 3]], "int32")),
    "lookups": _lookups(),
    "embedding update": _update(),
    "scatter": _scattered((4, 50, 33), 1, 70),
    "scatter few": _scattered((9, 16), 0, 5),
    "running sum": case(lambda x: running_sum(x, 1, "float32", reverse=True), random((3, 20, 5))),
    "running sum of lines": case(lambda x: running_sum(x, 1, "float32", exclusive=True), random((30, 20))),
    **_pools(),
}  # fmt: skip
SLOW = frozenset(name for name in CASES if "pool" in name and name[-1] not in "01")
"""More geometries of what others have shown already."""
