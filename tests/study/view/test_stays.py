"""The buffers of a plan open in the tools that pack such files, and are those of the plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from omnimalloc import validate_allocation
from omnimalloc.io import load_allocation
from synthetic_plans import solved

from autotm.model.errors import BadInputError
from autotm.model.files import hash_of
from autotm.model.graph import Tier
from autotm.study.placed import Placed, write_stays


@pytest.fixture(scope="module", params=["static", "asynchronous"])
def placed(request: pytest.FixtureRequest) -> Placed:
    return solved(request.param)


def written(placed: Placed, folder: Path) -> dict[Tier, Path]:
    files = {Tier.FAST: folder / "fast.csv", Tier.SLOW: folder / "slow.csv"}
    write_stays(placed, files)
    return files


def read_as_minimalloc(text: str) -> list[dict[str, str]]:
    """As its `FromCsv` reads: split at line feeds and commas, nothing trimmed, nothing quoted."""
    head, *lines = text.split("\n")
    columns = head.split(",")
    assert {"id", "lower", "upper", "size"} <= set(columns)
    rows = [line.split(",") for line in lines[: lines.index("")]]
    assert all(len(row) == len(columns) for row in rows)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def expected(placed: Placed, tier: Tier) -> set[tuple[int, int, int, int]]:
    sizes = placed.step.by_name
    return {
        (stay.start, stay.end, sizes[stay.tensor].allocated_bytes, offset)
        for stay, offset in zip(placed.plan.stays, placed.offsets, strict=True)
        if stay.tier is tier
    }


def test_omnimalloc_loads_them_and_finds_the_packing_valid(placed: Placed, tmp_path: Path) -> None:
    heights = {Tier.FAST: placed.program.fast_bytes, Tier.SLOW: placed.program.slow_bytes}
    for tier, path in written(placed, tmp_path).items():
        pool = load_allocation(path)
        assert pool.is_allocated
        assert pool.size == heights[tier]
        validate_allocation(pool)
        found = {(one.start, one.end, one.size, one.offset) for one in pool.allocations}
        assert found == expected(placed, tier)
        assert len(pool.allocations) == sum(stay.tier is tier for stay in placed.plan.stays)


def test_minimalloc_reads_them(placed: Placed, tmp_path: Path) -> None:
    for tier, path in written(placed, tmp_path).items():
        rows = read_as_minimalloc(path.read_bytes().decode())
        found = {tuple(int(row[name]) for name in ("lower", "upper", "size", "offset")) for row in rows}
        assert found == expected(placed, tier)
        assert len({row["id"] for row in rows}) == len(rows)
        tensors = {stay.tensor for stay in placed.plan.stays if stay.tier is tier}
        assert {row["id"].rpartition("@")[0] for row in rows} == tensors


def test_names_that_no_reader_could_take_are_written_in_other_letters(tmp_path: Path) -> None:
    placed = solved("static", ran=False)
    old, odd = placed.plan.stays[0].tensor, 'a,b "c"\n100 % ü'
    names = {tensor.name: odd if tensor.name == old else tensor.name for tensor in placed.graph.tensors}
    renamed = replace(
        placed.graph,
        tensors=tuple(replace(tensor, name=names[tensor.name]) for tensor in placed.graph.tensors),
        kernels=tuple(
            replace(
                kernel,
                inputs=tuple(replace(one, tensor=names[one.tensor]) for one in kernel.inputs),
                outputs=tuple(replace(one, tensor=names[one.tensor]) for one in kernel.outputs),
                workspaces=tuple(replace(one, tensor=names[one.tensor]) for one in kernel.workspaces),
            )
            for kernel in placed.graph.kernels
        ),
    )
    stays = tuple(replace(stay, tensor=names[stay.tensor]) for stay in placed.plan.stays)
    plan = replace(placed.plan, stays=stays)
    program = replace(placed.program, plan_hash=hash_of(plan))
    files = written(replace(placed, graph=renamed, plan=plan, program=program), tmp_path)
    ids = {row["id"] for path in files.values() for row in read_as_minimalloc(path.read_bytes().decode())}
    assert any(one.startswith("a%2Cb %22c%22%0A100 %25 %C3%BC@") for one in ids)


def test_a_program_of_another_plan_is_refused(tmp_path: Path) -> None:
    placed = solved("static", ran=False)
    other = replace(placed, plan=replace(placed.plan, objective_us=placed.plan.objective_us + 1))
    with pytest.raises(BadInputError, match="made from another plan"):
        written(other, tmp_path)
    assert not list(tmp_path.iterdir())


def test_offsets_that_the_plan_does_not_state_are_those_of_the_program() -> None:
    placed = solved("asynchronous", ran=False)
    plan = replace(placed.plan, offsets=())
    silent = replace(placed, plan=plan, program=replace(placed.program, plan_hash=hash_of(plan)))
    assert silent.offsets == list(placed.plan.offsets)
