"""`autotm sweep`: a table, an answer, files; what cannot be kept is a row, and what is missing is made."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import small_step
from random_graphs import Case, training_step_case

from autotm.cli.main import main
from autotm.model.files import load, save
from autotm.model.limit import Limit
from autotm.model.links import MachineRates
from autotm.model.plan import Plan
from autotm.model.profile import write_profile
from autotm.model.program import Program
from autotm.model.record import Record
from autotm.stages.solve import SERIES

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"


@pytest.fixture(scope="module")
def case() -> Case:
    return training_step_case(layers=4, branches=3)


@pytest.fixture
def results(case: Case, tmp_path: Path) -> Path:
    """What profiling and calibration would have left behind for a network called mlp."""
    network = network_in(tmp_path)
    save(network / "graph.json", "graph", case.graph, {})
    save(tmp_path / "laptop-1t" / "links.json", "links", case.links, {})
    write_profile(network / "profile.parquet", case.profile)
    return tmp_path


def network_in(results: Path) -> Path:
    return results / "laptop-1t" / "tiny" / "mlp"


def run(results: Path, *arguments: str) -> int:
    config = ("--config", str(CONFIG), "--results", str(results))
    return main(["sweep", "mlp", *arguments, *config, "--scale", "tiny", "--threads", "1"])


def test_a_sweep_writes_the_files_of_the_pipeline(results: Path) -> None:
    limits = ("1:0", "4:1", "1:1", "0:1")
    assert run(results, "static", "--limits", ",".join(limits)) == 0
    folders = [network_in(results) / "static" / Limit.parse(limit).slug for limit in limits]
    plans = [load(folder / "plan.json", "plan", Plan) for folder in folders]
    assert [str(plan.limit) for plan in plans] == list(limits)
    assert sorted((plan.objective_us for plan in plans), reverse=True) == [plan.objective_us for plan in plans]
    programs = [load(folder / "program.json", "program", Program) for folder in folders]
    assert [str(program.limit) for program in programs] == list(limits)


def test_without_limits_it_goes_from_all_fast_to_none(
    case: Case, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(results) == 0
    table = pd.read_csv(network_in(results) / "synchronous" / "sweep" / "sweep.csv")
    assert list(table["limit"]) == list(SERIES)
    assert list(table["dram_limit_bytes"]) == sorted(table["dram_limit_bytes"], reverse=True)
    assert table["dram_limit_bytes"].iloc[0] == case.graph.peak_live_bytes
    assert (table["bound_slowdown"] <= table["predicted_slowdown"]).all()
    told = capsys.readouterr().out
    assert told.startswith("synthetic (tiny), synchronous, on laptop-1t, 1 thread; slow memory EMULATED")
    assert told.count("is predicted to be at most") == 3
    assert (network_in(results) / "synchronous" / "sweep" / "sweep.pdf").exists()


def test_the_series_ends_where_the_optimizer_ends(case: Case, results: Path) -> None:
    assert run(results, "all-fast", "--folder", str(results / "there")) == 0
    table = pd.read_csv(results / "there" / "sweep.csv")
    assert list(table["dram_limit_bytes"]) == [case.graph.peak_live_bytes]


def test_limits_that_nothing_keeps_are_rows(
    case: Case, results: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert run(results, "all-fast", "--limits", "4:1,0:1", "--limits", "8:1") == 0
    smallest = f"the smallest feasible limit is {case.graph.peak_live_bytes} bytes"
    assert caplog.text.count(smallest) == 2
    told = capsys.readouterr().out
    assert told.count("impossible") == 2
    assert smallest in told
    table = pd.read_csv(network_in(results) / "all-fast" / "sweep" / "sweep.csv")
    assert list(table["limit"]) == ["0:1", "4:1", "8:1"]
    assert [path.parent.name for path in results.rglob("plan.json")] == ["0to1"]


def test_where_no_limit_can_be_kept_there_is_a_table_and_no_picture(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(results, "all-fast", "--limits", "4:1") == 0
    assert "impossible" in capsys.readouterr().out
    assert [path.name for path in (network_in(results) / "all-fast" / "sweep").iterdir()] == ["sweep.csv"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("statik",), "unknown optimizer 'statik'; did you mean 'static'?"),
        (("static", "--limits", "0:0"), "0:0 is not a limit"),
    ],
)
def test_a_fault_is_one_message(
    arguments: tuple[str, ...], message: str, results: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert run(results, *arguments) == 1
    assert message in caplog.text


def test_what_is_missing_is_made_and_plans_are_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    links = replace(small_step.links(), rates=MachineRates(1e11, 1e10))
    save(tmp_path / "laptop-1t" / "links.json", "links", links, {})
    assert run(tmp_path, "--limits", "0:1,4:1", "--run") == 0
    assert (network_in(tmp_path) / "kernels.so").exists()
    record = load(network_in(tmp_path) / "synchronous" / "4to1" / "record.json", "record", Record)
    table = pd.read_csv(network_in(tmp_path) / "synchronous" / "sweep" / "sweep.csv")
    assert table["measured_runtime_s"].iloc[1] == record.actual_runtime_median_s
    assert table["bytes_moved"].iloc[1] == record.bytes_moved + record.bytes_async_moved
    assert table["pmem_alloc_bytes"].iloc[1] == record.pmem_alloc_size
    assert "(measured: " in capsys.readouterr().out
