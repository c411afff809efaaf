"""The page holds the plan, its predicted times add up, and what is written about it says what it is."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic_plans import solved

from autotm.model.graph import Graph, Tier
from autotm.study.placed import Placed
from autotm.study.view.page import contents, page_of, write_page


@pytest.fixture(scope="module", params=["static", "synchronous", "asynchronous", "numa", "all-slow", "memory-mode"])
def placed(request: pytest.FixtureRequest) -> Placed:
    return solved(request.param, "1:0" if request.param == "all-slow" else "3:1", layers=4)


@pytest.fixture(scope="module")
def held(placed: Placed) -> dict[str, Any]:
    return contents(placed)


def test_stays_and_moves_are_the_plans(placed: Placed, held: dict[str, Any]) -> None:
    names, tiers = held["tensors"]["name"], (Tier.FAST, Tier.SLOW)
    found = [
        (names[tensor], tiers[tier], start, end, offset)
        for tensor, tier, start, end, offset in zip(*held["stays"].values(), strict=True)
    ]
    stays = zip(placed.plan.stays, placed.offsets, strict=True)
    assert found == [(stay.tensor, stay.tier, stay.start, stay.end, offset) for stay, offset in stays]
    moves = [(names[tensor], tiers[to], before, since) for tensor, to, before, since, _ in rows_of(held["moves"])]
    assert moves == [(move.tensor, move.destination, move.before, move.since) for move in placed.plan.moves]


def rows_of(columns: dict[str, list[Any]]) -> list[tuple[Any, ...]]:
    return list(zip(*columns.values(), strict=True))


def test_predicted_times_add_up_to_the_objective(placed: Placed, held: dict[str, Any]) -> None:
    kernels = held["kernels"]
    total = sum(sum(kernels[name]) for name in ("predicted_us", "blocking_us", "beside_us"))
    assert total == pytest.approx(placed.plan.objective_us, rel=1e-5)
    assert sum(held["moves"]["us"]) == pytest.approx(sum(kernels["blocking_us"]) + sum(kernels["beside_us"]), rel=1e-5)


def test_prices_are_those_of_the_certificate(placed: Placed, held: dict[str, Any]) -> None:
    found = held["kernels"]["price_us_per_mb"]
    if placed.plan.certificate is None:
        assert found is None
        return
    fast = placed.plan.certificate.fast
    assert {index: price for index, price in enumerate(found) if price} == pytest.approx(
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
    silent = {row["label"]: row for row in contents(replace(placed, record=None))["summary"]}
    assert silent["measured step"] == {
        "label": "measured step",
        "value": "none",
        "note": "no record of a run beside the plan",
    }
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
    assert text == page_of(odd)
    assert text.count("</script>") == 2
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    assert json.loads(data.group(1))["heading"]["network"] == graph.network
    assert "<title>&lt;/script&gt;" in text
    assert not re.search(r"https?://(?!.*\bw3\.org)", text.replace(data.group(1), ""))
