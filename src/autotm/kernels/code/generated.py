"""Kernels whose loops are written out instead of scheduled: their code, and how it takes a function's place."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import s_tir, tirx


@dataclass(frozen=True)
class Code:
    """Generated statements and the root-level buffers they use."""

    body: tirx.Stmt
    workspaces: tuple[tirx.Buffer, ...]


OPAQUE = {"op_pattern": 8}
"""Attributes of a function that must not be fused: its whole body is replaced by generated code."""


def parameters(sch: s_tir.Schedule) -> list[tirx.Buffer]:
    """Inputs, then outputs, of the function in `sch`."""
    return list(_function(sch).params)


def replace_body(sch: s_tir.Schedule, code: Code) -> None:
    """Let the function in `sch` run `code` in place of its blocks."""
    root = sch.get_sref(sch.get_sblock(_function(sch).body.block.name_hint))
    block = root.stmt
    body = s_tir.SBlock(
        iter_vars=[],
        reads=block.reads,
        writes=block.writes,
        name_hint=block.name_hint,
        body=code.body,
        alloc_buffers=list(code.workspaces),
        annotations=block.annotations,
    )
    sch.state.replace(root, body)


def _function(sch: s_tir.Schedule) -> tirx.PrimFunc:
    return next(iter(sch.mod.functions.values()))
