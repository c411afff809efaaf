"""A measured profile on which no plan could be packed once: it gives one."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from autotm.check import check_plan, check_program
from autotm.layout import compile_program
from autotm.model.files.files import load
from autotm.model.measurement.link import Links
from autotm.model.measurement.profile_file import read_profile
from autotm.model.step.counting import Counts, counting
from autotm.model.step.graph import Graph
from autotm.model.step.limit import Limit
from autotm.solve import SolveOptions, solve_and_pack

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "unpackable-inception-19to1"
GAP = 0.01

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the profile is not kept in this repository")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    file = tmp_path_factory.mktemp("unpackable") / "graph.json"
    file.write_bytes(gzip.decompress((FOLDER / "graph.json.gz").read_bytes()))
    return counting(load(file, "graph", Graph), Counts.INTERMEDIATES)


@pytest.mark.parametrize("limit", ["19:1", "29:1", "39:1"])
@pytest.mark.parametrize("optimizer", ["static", "synchronous", "asynchronous"])
def test_a_plan_comes_out(graph: Graph, optimizer: str, limit: str) -> None:
    profile, links = read_profile(FOLDER / "profile.parquet"), load(FOLDER / "links.json", "links", Links)
    plan, layout = solve_and_pack(graph, profile, links, optimizer, Limit.parse(limit), SolveOptions(gap=GAP))
    check_plan(graph, profile, links, plan)
    check_program(graph, plan, compile_program(graph, plan, layout))
    assert layout.fast_bytes <= plan.dram_limit_bytes
    assert plan.gap <= GAP
