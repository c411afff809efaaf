"""Bytes of slow memory that a kernel reads and writes."""

from __future__ import annotations

from autotm.model.graph import Graph, Kernel, OpClass, Operand, Role, Tensor, slow_traffic
from autotm.model.limit import Counts, counting

ROWS, WIDTH, LOOKED_UP = 1000, 16, 8


def lookup_graph() -> Graph:
    """Eight rows of a table are looked up, then updated in place."""
    shapes = {
        "table": ((ROWS, WIDTH), "float32"),
        "indices": ((LOOKED_UP,), "int64"),
        "rows": ((LOOKED_UP, WIDTH), "float32"),
        "table_new": ((ROWS, WIDTH), "float32"),
    }

    def operands(*names: str) -> tuple[Operand, ...]:
        return tuple(Operand(name, *shapes[name]) for name in names)

    def tensor(
        name: str, role: Role, producer: int | None, readers: tuple[int, ...], alias: str | None = None
    ) -> Tensor:
        size = Operand(name, *shapes[name]).size_bytes
        return Tensor(name, role, *shapes[name], size, producer, readers, alias)

    kinds = (
        ("embedding", operands("table", "indices"), operands("rows")),
        (
            "embedding_update",
            operands("table", "indices", "rows"),
            operands("table_new"),
        ),
    )
    kernels = tuple(Kernel(op, op, op, op, OpClass.DATA_MOVEMENT, 0, inputs, outputs) for op, inputs, outputs in kinds)
    tensors = (
        tensor("table", Role.PARAMETER, None, (0, 1)),
        tensor("indices", Role.INPUT, None, (0, 1)),
        tensor("rows", Role.INTERMEDIATE, 0, (1,)),
        tensor("table_new", Role.RESULT, 1, (), "table"),
    )
    return Graph("lookups", "test", LOOKED_UP, kernels, tensors)


def test_of_a_slow_table_only_the_rows_that_are_looked_up_count() -> None:
    graph = counting(lookup_graph(), Counts.ALL)
    touched = LOOKED_UP * WIDTH * 4
    assert slow_traffic(graph, graph.kernels[0], "PDD") == ((touched,), ())
    assert slow_traffic(graph, graph.kernels[1], "PDDP") == ((touched,), (touched,))


def test_other_operands_count_whole() -> None:
    graph = counting(lookup_graph(), Counts.ALL)
    assert slow_traffic(graph, graph.kernels[0], "DPP") == ((LOOKED_UP * 8,), (LOOKED_UP * WIDTH * 4,))
