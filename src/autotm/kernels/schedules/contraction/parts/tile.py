"""One register tile: a few scalars of one operand times a few vectors of the other, summed in vector registers."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from autotm.kernels.code import Index, tir
from autotm.kernels.schedules.contraction.parts.problem import Problem


class RegisterTile:
    """`rows` x `width` sums; every access is unrolled, so that each vector of sums gets a register of its own."""

    def __init__(self, rows: int, width: int, lanes: int) -> None:
        self.rows, self.width, self.lanes = rows, width, lanes
        self.vectors = tir.segments(width, lanes)
        self.sums = tir.Registers(rows, width)

    def declare(self) -> tirx.Stmt:
        """Reserve the sums."""
        return self.sums.declare()

    def clear(self) -> tirx.Stmt:
        """Set every sum to zero."""
        return self._each(lambda m, o, n: self.sums.set(m, o, tir.zeros(n), n))

    def multiply(self, scalar: Callable[[int], tirx.Expr], vector: Callable[[int, int], tirx.Expr]) -> tirx.Stmt:
        """Add scalar(row) * vector(offset, lanes) to every sum."""
        return self.add(lambda m, o, n: tir.splat(scalar(m), n) * vector(o, n))

    def add(self, term: Callable[[int, int, int], tirx.Expr]) -> tirx.Stmt:
        """Add term(row, offset, lanes) to every sum."""
        return self._each(lambda m, o, n: self.sums.set(m, o, self.sums.get(m, o, n) + term(m, o, n), n))

    def save(self, buffer: tirx.Buffer, place: Callable[[int, int], Index]) -> tirx.Stmt:
        """Store the sums at flat place(row, offset) of a buffer."""
        return self._each(lambda m, o, n: tir.store(buffer, place(m, o), self.sums.get(m, o, n), n))

    def finish(
        self,
        problem: Problem,
        coordinates: Callable[[int, Index], tuple[Index, ...]],
        position: Callable[[int, Index], Index] | None = None,
    ) -> tirx.Stmt:
        """Store the epilogue's outputs at coordinates(row, offset), row-major at position(row, offset)."""

        def vector(m: int, offset: int, lanes: int) -> tirx.Stmt:
            def lane(number: Index) -> tirx.Stmt:
                at = offset + number
                known = position(m, at) if position is not None else None
                return problem.finish(coordinates(m, at), lambda: self.sums.get(m, at), known)

            return tir.loop(lanes, lane, "lane", tirx.ForKind.VECTORIZED)

        return self._each(vector)

    def _each(self, statement: Callable[[int, int, int], tirx.Stmt]) -> tirx.Stmt:
        return tir.sequence([statement(m, o, n) for m in range(self.rows) for o, n in self.vectors])
