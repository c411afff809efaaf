"""`autotm view`, `autotm stays` and `autotm trace`: files beside the plan, or one message and nothing written."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import random_graphs
import small_step
from omnimalloc.io import load_allocation
from synthetic_figures import QUICK, SOURCE
from synthetic_plans import solved
from synthetic_records import record
from tiny_study import network_in, run

from autotm.layout.compile import compile_program
from autotm.model.files import hash_of, load, save
from autotm.model.graph import Tier
from autotm.model.limit import Limit
from autotm.model.plan import Plan
from autotm.model.profile import Profile, write_profile
from autotm.model.program import MoveStep, Program
from autotm.solve.placing import solve_and_pack

KERNELS = [kernel.name for kernel in small_step.graph().kernels]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What the pipeline would have left behind for a network called mlp; returns the folder of its plan."""
    placed, network = solved("synchronous", layers=3), network_in(tmp_path)
    save(network / "graph.json", "graph", placed.graph, SOURCE)
    write_profile(network / "profile.parquet", placed.profile)
    save(tmp_path / "laptop-1t" / "links.json", "links", placed.links, SOURCE)
    save(network / "synchronous" / "3to1" / "plan.json", "plan", placed.plan, SOURCE)
    save(network / "synchronous" / "3to1" / "program.json", "program", placed.program, SOURCE)
    return network / "synchronous" / "3to1"


def measured(path: Path) -> str:
    data = path.read_text(encoding="utf-8").split('id="data">')[1].split("</script>")[0]
    rows: list[dict[str, str]] = json.loads(data)["summary"]
    return next(row["value"] for row in rows if row["label"] == "measured step")


def test_a_page_lies_beside_its_plan_or_where_it_is_asked_for(folder: Path, tmp_path: Path) -> None:
    assert run(tmp_path, "view", "mlp", "synchronous", "3:1") == 0
    assert measured(folder / "view.html") == "none"
    assert run(tmp_path, "view", "mlp", "synchronous", "3:1", "--to", str(tmp_path / "new" / "mine.html")) == 0
    assert (tmp_path / "new" / "mine.html").read_bytes() == (folder / "view.html").read_bytes()


def test_a_record_is_shown_if_it_is_of_this_plan(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    placed = load(folder / "plan.json", "plan", Plan)
    ran = replace(
        record("synchronous", "3:1", step_s=0.5),
        kernel_times_us={f"kernel_{index}": 2.0 for index in range(len(placed.configurations))},
    )
    save(folder / "record.json", "record", ran, SOURCE | {"plan_hash": hash_of(placed)})
    assert run(tmp_path, "view", "mlp", "synchronous", "3:1") == 0
    assert measured(folder / "view.html") == f"{ran.actual_runtime_median_s * 1e3:.4g} ms"
    save(folder / "record.json", "record", ran, SOURCE | {"plan_hash": "another"})
    assert run(tmp_path, "view", "mlp", "synchronous", "3:1") == 0
    assert measured(folder / "view.html") == "none"
    assert "record.json: of another plan than the one shown; left out" in caplog.text


def test_stays_open_in_omnimalloc(folder: Path, tmp_path: Path) -> None:
    assert run(tmp_path, "stays", "mlp", "synchronous", "3:1") == 0
    assert run(tmp_path, "stays", "mlp", "synchronous", "3:1", "--folder", str(tmp_path / "new")) == 0
    placed, total = load(folder / "plan.json", "plan", Plan), 0
    for name in ("stays_fast.csv", "stays_slow.csv"):
        assert (tmp_path / "new" / name).read_bytes() == (folder / name).read_bytes()
        total += len(load_allocation(folder / name).allocations)
    assert total == len(placed.stays)


def test_files_that_do_not_belong_together_are_refused(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = solved("synchronous", layers=2)
    save(folder.parents[1] / "graph.json", "graph", other.graph, SOURCE)
    assert run(tmp_path, "view", "mlp", "synchronous", "3:1") == 1
    assert "plan.json: made for another step than" in caplog.text
    save(folder.parents[1] / "graph.json", "graph", solved("synchronous", layers=3).graph, SOURCE)
    save(folder / "program.json", "program", other.program, SOURCE)
    for command in ("view", "stays"):
        assert run(tmp_path, command, "mlp", "synchronous", "3:1") == 1
        assert "was made from another plan; make it again: autotm compile" in caplog.text
    assert not list(folder.glob("view.html")) + list(folder.glob("*.csv"))


def test_a_page_that_cannot_be_written_leaves_the_old_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "view.html").write_text("old")

    def full(path: Path, *_: object, **__: object) -> int:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert run(tmp_path, "view", "mlp", "synchronous", "3:1") == 1
    assert (folder / "view.html").read_text() == "old"
    assert {path.name for path in folder.iterdir()} == {"plan.json", "program.json", "view.html"}


@pytest.fixture
def compiled(library_path: Path, tmp_path: Path) -> Path:
    """A step with kernels that run, as the network mlp, with a plan and a program; returns the folder of its plan."""
    network = network_in(tmp_path)
    graph, links = small_step.graph(), small_step.links()
    profile = random_graphs.random_profile(graph, 0)
    plan, layout = solve_and_pack(graph, profile, links, "synchronous", Limit.parse("1:1"), QUICK)
    save(network / "graph.json", "graph", graph, SOURCE)
    save(tmp_path / "laptop-1t" / "links.json", "links", links, SOURCE)
    write_profile(network / "profile.parquet", Profile(profile.graph_hash, profile.timings, SOURCE))
    save(network / "synchronous" / "1to1" / "plan.json", "plan", plan, SOURCE)
    save(network / "synchronous" / "1to1" / "program.json", "program", compile_program(graph, plan, layout), SOURCE)
    (network / "kernels.so").write_bytes(library_path.read_bytes())
    return network / "synchronous" / "1to1"


def test_a_trace_is_of_a_step_that_ran(compiled: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert run(tmp_path, "trace", "mlp", "synchronous", "1:1", "--steps", "0") == 2
    assert run(tmp_path, "view", "mlp", "synchronous", "1:1") == 0
    with caplog.at_level(logging.INFO):
        assert run(tmp_path, "trace", "mlp", "synchronous", "1:1", "--steps", "2") == 0
    assert "ms measured" in caplog.text
    document = json.loads((compiled / "trace.json").read_text())
    assert "Of 2 steps the one with the median time" in document["otherData"]["measured"]
    assert document["otherData"]["tier_reality"] == "emulated"
    assert document["otherData"]["plan_hash"] == hash_of(load(compiled / "plan.json", "plan", Plan))
    spans = [event["name"] for event in document["traceEvents"] if event["ph"] == "X"]
    assert [name for name in spans if name in KERNELS] == KERNELS
    moves = [
        f"{step.tensor} to {'fast' if step.destination.tier is Tier.FAST else 'slow'}"
        for step in load(compiled / "program.json", "program", Program).steps
        if isinstance(step, MoveStep)
    ]
    assert [name for name in spans if name in moves] == moves
