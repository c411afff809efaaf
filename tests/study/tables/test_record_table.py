"""All runs in one table: a row each, every scalar of the record, readable from both kinds of file."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pandas as pd
import pytest
from synthetic_records import PROVENANCE, record

from autotm.model.cache import CacheCounts
from autotm.model.errors import BadInputError
from autotm.model.files import save
from autotm.model.record import Record
from autotm.study.records import table_of_runs, write_runs

SEVERAL = {
    "pages_by_node", "pages_by_node_before",
    "samples_s", "all_fast_samples_s", "waited_s", "all_fast_waited_s",
    "kernel_times_us", "implementations", "tensor_size_map", "config_map", "cache", "pages",
}  # fmt: skip
"""Fields that hold more than one value."""


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    counts = CacheCounts(4096, 5, 6, 7, 20480, 24576, 28672)
    cached = replace(record("memory-mode", "4:1"), cache=counts, waited_s=(0.1, 0.3, 0.2))
    found = []
    for number, one in enumerate([record("static", "4:1"), cached, record("linux-balancing", "4:1")]):
        found.append(tmp_path / f"{number}.json")
        save(found[-1], "record", replace(one, tensor_size_map={"a": 1}), PROVENANCE)
    return found


def test_a_row_a_run_and_every_scalar_a_column(paths: list[Path]) -> None:
    table = table_of_runs(paths)
    assert list(table["optimizer"]) == ["static", "memory-mode", "linux-balancing"]
    assert {each.name for each in fields(Record)} - SEVERAL <= set(table.columns)
    assert not SEVERAL & set(table.columns)
    assert list(table["samples"]) == [3, 3, 3]
    assert list(table["all_fast_runtime_median_s"]) == [1.0, 1.0, 1.0]
    assert list(table["drift_s"]) == pytest.approx([-0.04, -0.04, -0.04])
    assert table["waited_median_s"].fillna(-1).tolist() == [-1, 0.2, -1], "older records do not know"
    assert list(table["optimization_times"]) == [sum(record("static", "4:1").optimization_times)] * 3
    assert table["cache_dirty_misses"].isna().tolist() == [True, False, True]
    assert table["cache_dirty_miss_bytes"][1] == 28672
    assert table["pages_placed_by"].fillna("").tolist() == ["", "", "simulated"]
    assert set(table["cpu_model"]) == {PROVENANCE["cpu_model"]}


def test_both_files_hold_the_table(paths: list[Path], tmp_path: Path) -> None:
    table = table_of_runs(paths)
    for name, read in (("runs.csv", pd.read_csv), ("runs.parquet", pd.read_parquet)):
        write_runs(table, tmp_path / name)
        back = read(tmp_path / name)
        assert list(back.columns) == list(table.columns)
        assert list(back["actual_runtime_s"]) == list(table["actual_runtime_s"])
    with pytest.raises(BadInputError, match=r"\.parquet"):
        write_runs(table, tmp_path / "runs.xlsx")
