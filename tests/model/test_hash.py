"""A hash is worked out piece by piece, and is that of the whole text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import TypeAdapter
from random_graphs import random_case

from autotm.model import files
from autotm.model.files import content_hash, hash_of
from autotm.model.graph import Graph
from autotm.model.limit import Limit
from autotm.model.plan import Plan
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve


def whole_hash(value: object) -> str:
    return content_hash(TypeAdapter(type(value)).dump_python(value, mode="json"))


@pytest.mark.parametrize("seed", range(3))
def test_steps_and_plans(seed: int) -> None:
    case = random_case(seed, kernels=6)
    plan = solve(case.graph, case.profile, case.links, "synchronous", Limit(2, 1))
    assert isinstance(plan, Plan)
    assert hash_of(case.graph) == whole_hash(case.graph)
    assert hash_of(plan) == whole_hash(plan)


def test_empty_fields_and_no_long_ones() -> None:
    empty = Graph("none", "tiny", 1, (), ())
    assert hash_of(empty) == whole_hash(empty)
    options = SolveOptions()
    assert hash_of(options) == whole_hash(options)


def test_a_hash_is_worked_out_once_and_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, hashed = replace(random_case(0).graph), []
    pieces = files._pieces
    monkeypatch.setattr(files, "_pieces", lambda value: hashed.append(value) or pieces(value))
    assert hash_of(graph) == hash_of(graph)
    assert hashed == [graph]
    assert hash_of(replace(graph, batch=graph.batch + 1)) != hash_of(graph)
    assert len(hashed) == 2
