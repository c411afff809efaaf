"""Records as a tidy table: a row a run, with the promised columns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_records import IO_BYTES, LIMITS, PEAK_BYTES, PROVENANCE, record, write_study

from autotm.model.errors import BadInputError, DamagedFileError
from autotm.model.files import save
from autotm.study.figures.limits import with_fast_memory
from autotm.study.tables import table_of_records

REQUIRED = {
    "network", "scale", "machine", "tier_reality", "threads", "optimizer", "limit", "dram_limit_bytes", "io_bytes",
    "predicted_runtime_s", "bound_s", "gap", "actual_runtime_s", "actual_runtime_median_s", "slowdown",
    "dram_input_fraction", "dram_output_fraction", "bytes_moved_dram", "bytes_moved_pmem",
}  # fmt: skip


def test_a_row_a_run_with_the_promised_columns(tmp_path: Path) -> None:
    table = table_of_records(write_study(tmp_path))
    assert len(table) == 2 * len(LIMITS)
    assert set(table.columns) >= REQUIRED
    assert not table[sorted(REQUIRED)].isna().any().any()


def test_rows_follow_optimizer_then_limit(tmp_path: Path) -> None:
    table = table_of_records(write_study(tmp_path)[::-1])
    assert list(dict.fromkeys(table["optimizer"])) == ["synchronous", "static"]
    for _, runs in table.groupby("optimizer"):
        assert list(runs["dram_limit_bytes"]) == sorted(runs["dram_limit_bytes"])


def test_a_run_is_compared_with_the_all_fast_steps_beside_it(tmp_path: Path) -> None:
    paths = write_study(tmp_path)
    save(tmp_path / "static" / "1to1" / "record.json", "record", record("static", "1:1", step_s=1.2), PROVENANCE)
    table = table_of_records(paths).set_index(["optimizer", "limit"])
    assert table.loc[("static", "1:1"), "all_fast_runtime_s"] == 1.2
    assert table.loc[("static", "1:1"), "slowdown"] == pytest.approx(1 + 3.5 * 0.25), "a slower machine cancels out"
    assert table.loc[("static", "0:1"), "slowdown"] == 1.0


def test_without_steps_beside_it_the_all_fast_runs_are_pooled(tmp_path: Path) -> None:
    paths = write_study(tmp_path, side_by_side=False)
    slower = record("static", "0:1", step_s=1.2, side_by_side=False)
    save(tmp_path / "static" / "0to1" / "record.json", "record", slower, PROVENANCE)
    table = table_of_records(paths)
    # Samples are 0.98, 1, 1.05 and 1.176, 1.2, 1.26 seconds: their median lies between the two runs.
    assert table["all_fast_runtime_s"].unique() == pytest.approx([(1.05 + 1.176) / 2])
    all_fast = table[(table["limit"] == "0:1") & (table["optimizer"] == "synchronous")]
    assert all_fast["slowdown"].item() == pytest.approx(1.0 / 1.113)


def test_values_are_the_records(tmp_path: Path) -> None:
    table = table_of_records(write_study(tmp_path)).set_index(["optimizer", "limit"])
    row = table.loc[("static", "1:1")]
    assert row["dram_limit_bytes"] == PEAK_BYTES // 2
    assert row["io_bytes"] == IO_BYTES
    assert row["slowdown"] == pytest.approx(1 + 3.5 * 0.25)
    assert row["dram_output_fraction"] == pytest.approx(0.5)
    assert row["predicted_slowdown"] == pytest.approx(1 + 1.04 * 3.5 * 0.25), "what is added is predicted 4 % too long"
    assert "apache-tvm 0.27.0.post1" in row["versions"]


def test_what_the_limit_counts_is_not_counted_again(tmp_path: Path) -> None:
    paths = write_study(tmp_path)
    assert set(table_of_records(paths)["uncounted_bytes"]) == {IO_BYTES}
    for path in paths:
        run = replace(record(path.parts[-3], path.parts[-2]), counts="all")
        save(path, "record", run, PROVENANCE)
    table = table_of_records(paths)
    assert set(table["uncounted_bytes"]) == {0}
    _, enough = with_fast_memory(table[table["optimizer"] == "static"])
    assert enough == PEAK_BYTES


def test_without_an_all_fast_run_there_is_no_slowdown(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no all-fast run"):
        table_of_records(write_study(tmp_path, ("1:0", "1:1"), side_by_side=False))


def test_records_that_were_timed_beside_the_all_fast_step_need_no_other(tmp_path: Path) -> None:
    paths = write_study(tmp_path, ("1:0", "1:1"))
    table = table_of_records(paths)
    assert table["predicted_slowdown"].tolist() == pytest.approx((1 + 1.04 * (table["slowdown"] - 1)).tolist())
    older = replace(record("static", "1:0"), all_fast_predicted_s=None)
    save(paths[0], "record", older, PROVENANCE)
    with pytest.raises(BadInputError, match="no all-fast run"):
        table_of_records(paths)


def test_runs_of_two_studies_do_not_mix(tmp_path: Path) -> None:
    paths = write_study(tmp_path)
    save(paths[0], "record", record("static", "1:0", scale="tiny"), PROVENANCE)
    with pytest.raises(BadInputError, match="records of one scale make a figure; got laptop, tiny"):
        table_of_records(paths)


def test_a_cut_record_is_named(tmp_path: Path) -> None:
    paths = write_study(tmp_path)
    text = paths[3].read_text(encoding="utf-8")
    paths[3].write_text(text[: len(text) // 2], encoding="utf-8")
    with pytest.raises(DamagedFileError, match=str(paths[3])):
        table_of_records(paths)
