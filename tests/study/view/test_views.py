"""Views of a plan: the page's contents add up and say what they are; buffers are those that packers read."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omnimalloc import validate_allocation
from omnimalloc.io import load_allocation
from synthetic_plans import solved

from autotm.model.errors import BadInputError
from autotm.model.files import hash_of
from autotm.model.graph import Graph, Tier
from autotm.model.plan import Move, Stay
from autotm.study.placed import Placed, write_stays
from autotm.study.view.page import contents, write_page


@pytest.fixture(scope="module", params=["static", "synchronous", "asynchronous", "numa", "all-slow", "memory-mode"])
def placed(request: pytest.FixtureRequest) -> Placed:
    return solved(request.param, "1:0" if request.param == "all-slow" else "3:1", layers=4)


@pytest.fixture(scope="module")
def held(placed: Placed) -> dict[str, Any]:
    return contents(placed)


def test_stays_and_moves_are_the_plans(placed: Placed, held: dict[str, Any]) -> None:
    names, tiers = held["tensors"]["name"], (Tier.FAST, Tier.SLOW)
    stays = zip(*held["stays"].values(), strict=True)
    assert [(Stay(names[tensor], tiers[tier], *span), offset) for tensor, tier, *span, offset in stays] == [
        *zip(placed.plan.stays, placed.offsets, strict=True)
    ]
    moves = zip(*held["moves"].values(), strict=True)
    assert [Move(names[tensor], tiers[to], *when) for tensor, to, *when, _ in moves] == list(placed.plan.moves)


def test_predicted_times_add_up_to_the_objective(placed: Placed, held: dict[str, Any]) -> None:
    kernels = held["kernels"]
    total = sum(sum(kernels[name]) for name in ("predicted_us", "blocking_us", "beside_us"))
    assert total == pytest.approx(placed.plan.objective_us, rel=1e-5)
    assert sum(held["moves"]["us"]) == pytest.approx(sum(kernels["blocking_us"]) + sum(kernels["beside_us"]), rel=1e-5)


def test_prices_are_those_of_the_certificate(placed: Placed, held: dict[str, Any]) -> None:
    prices = held["kernels"]["price_us_per_mb"]
    if placed.plan.certificate is None:
        assert prices is None
        return
    fast = placed.plan.certificate.fast
    assert {index: price for index, price in enumerate(prices) if price} == pytest.approx(
        {index: 1e6 * price for index, price in zip(fast.kernels, fast.prices_us, strict=True) if price}, rel=1e-5
    )


def test_words_say_what_was_measured_and_what_not(placed: Placed, held: dict[str, Any]) -> None:
    summary = {row["label"]: row for row in held["summary"]}
    assert summary["predicted step"]["note"].endswith("times all fast")
    assert summary["measured step"]["note"].endswith("slow memory emulated")
    said = {row["label"]: row["value"] for row in held["provenance"]}
    assert "slow memory EMULATED" in said["machine"]
    assert "predicted" in said["kernel times"]
    assert said["versions"].startswith("seed 20; autotm 0.1.0")
    silent = {row["label"]: row for row in contents(replace(placed, record=None))["summary"]}["measured step"]
    assert (silent["value"], silent["note"]) == ("none", "no record of a run beside the plan")
    modelled = replace(placed.profile, provenance=dict(placed.profile.provenance) | {"tier_reality": "modelled"})
    rows = {row["label"]: row["value"] for row in contents(replace(placed, profile=modelled))["provenance"]}
    assert rows["kernel times"].startswith("modelled")
    assert "MODELLED" in rows["machine"]


def test_no_name_ends_the_data_or_the_page(tmp_path: Path) -> None:
    placed = solved("all-fast", "0:1", layers=2, ran=False)
    graph = replace(placed.graph, network="</script><!--&\"'")
    odd = replace(placed, graph=Graph(graph.network, graph.scale, graph.batch, graph.kernels, graph.tensors))
    write_page(odd, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count("</script>") == 2
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    assert json.loads(data.group(1))["heading"]["network"] == graph.network
    assert "<title>&lt;/script&gt;" in text
    assert not re.search(r"https?://(?!.*\bw3\.org)", text.replace(data.group(1), ""))


@pytest.fixture(scope="module", params=["static", "asynchronous"])
def packed(request: pytest.FixtureRequest) -> Placed:
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


def test_omnimalloc_and_minimalloc_load_them_and_the_packing_is_valid(packed: Placed, tmp_path: Path) -> None:
    heights = {Tier.FAST: packed.program.fast_bytes, Tier.SLOW: packed.program.slow_bytes}
    for tier, path in written(packed, tmp_path).items():
        pool = load_allocation(path)
        assert pool.is_allocated
        assert pool.size == heights[tier]
        validate_allocation(pool)
        rows = read_as_minimalloc(path.read_bytes().decode())
        assert sorted(row["id"] for row in rows) == sorted({row["id"] for row in rows})
        boxes = sorted(tuple(int(row[name]) for name in ("lower", "upper", "size", "offset")) for row in rows)
        assert sorted((one.start, one.end, one.size, one.offset) for one in pool.allocations) == boxes
        assert boxes == sorted(
            (stay.start, stay.end, packed.step.by_name[stay.tensor].allocated_bytes, offset)
            for stay, offset in zip(packed.plan.stays, packed.offsets, strict=True)
            if stay.tier is tier
        )
        tensors = {stay.tensor for stay in packed.plan.stays if stay.tier is tier}
        assert {row["id"].rpartition("@")[0] for row in rows} == tensors


def test_names_that_no_reader_could_take_are_written_in_other_letters(tmp_path: Path) -> None:
    placed, odd = solved("static", ran=False), 'a,b "c"\n100 % ü'
    stay, *others = placed.plan.stays
    plan = replace(placed.plan, stays=(replace(stay, tensor=odd), *others))
    renamed = replace(placed, plan=plan, program=replace(placed.program, plan_hash=hash_of(plan)))
    by_name = placed.step.by_name | {odd: placed.step.by_name[stay.tensor]}
    renamed.__dict__["step"] = SimpleNamespace(by_name=by_name)
    files = written(renamed, tmp_path)
    ids = {row["id"] for path in files.values() for row in read_as_minimalloc(path.read_bytes().decode())}
    assert any(one.startswith("a%2Cb %22c%22%0A100 %25 %C3%BC@") for one in ids)


def test_a_program_of_another_plan_is_refused(tmp_path: Path) -> None:
    placed = solved("static", ran=False)
    other = replace(placed, plan=replace(placed.plan, objective_us=placed.plan.objective_us + 1))
    with pytest.raises(BadInputError, match="made from another plan"):
        written(other, tmp_path)
    assert not list(tmp_path.iterdir())
