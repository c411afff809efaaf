"""The records of a study: as a table, verified or not, the headline numbers; what a report shows of files."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pandas as pd
import pytest
from docutils.core import publish_string
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from shipped_study import shipped_study
from synthetic_records import PROVENANCE, record

from autotm.model.cache import CacheCounts
from autotm.model.errors import BadInputError
from autotm.model.files import save
from autotm.model.plan import RUN_RIVALS
from autotm.model.record import Record
from autotm.study.records import (
    UnverifiedError,
    describe,
    headlines,
    table_of_runs,
    verify_records,
    wanted_records,
    write_runs,
)
from autotm.study.report import register_directives
from autotm.study.setup import Study, optimizer_names
from autotm.study.tables import read_table, table_of_records
from autotm.zoo import networks

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
    files = []
    for number, one in enumerate([record("static", "4:1"), cached, record("linux-balancing", "4:1")]):
        files.append(tmp_path / f"{number}.json")
        save(files[-1], "record", replace(one, tensor_size_map={"a": 1}), PROVENANCE)
    return files


def test_a_row_a_run_and_every_scalar_a_column_in_both_kinds_of_file(paths: list[Path], tmp_path: Path) -> None:
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
    for name, read in (("runs.csv", pd.read_csv), ("runs.parquet", pd.read_parquet)):
        write_runs(table, tmp_path / name)
        back = read(tmp_path / name)
        assert list(back.columns) == list(table.columns)
        assert list(back["actual_runtime_s"]) == list(table["actual_runtime_s"])
    with pytest.raises(BadInputError, match=r"\.parquet"):
        write_runs(table, tmp_path / "runs.xlsx")


def test_an_unverified_program_fails_by_name_after_the_table_is_written(tmp_path: Path) -> None:
    csv = tmp_path / "verification.csv"
    verified, unverified, unfit = paths = [tmp_path / f"{name}.json" for name in ("verified", "unverified", "unfit")]
    save(verified, "record", record("static", "4:1", network="net0"), PROVENANCE)
    save(unverified, "record", replace(record("static", "4:1", network="net1"), verified_steps=0), PROVENANCE)
    save(unfit, "record", replace(record("swap-all", "4:1"), verified_steps=0, fits=False), PROVENANCE)
    verify_records([verified, unfit], csv)
    assert list(read_table(csv)["is_verified"]) == [True, False], "what exceeds its limit did not run: no failure"
    with pytest.raises(UnverifiedError, match="1 of 3 programs ran unverified: net1 static 4:1"):
        verify_records(paths, csv)
    assert list(read_table(csv)["verified_steps"]) == [2, 0, 0]


def test_every_network_meets_every_optimizer() -> None:
    shipped = shipped_study()
    pairs = {(path.parents[2].name, path.parents[1].name) for path in shipped.verification_records()}
    able = shipped.runnable(optimizer_names())
    assert pairs == {(network, optimizer) for network in shipped.scale.networks for optimizer in able}
    assert {*optimizer_names()} - {*able} == {*RUN_RIVALS}, "what others do on a GPU needs one"
    assert {network for network, _ in pairs} == set(networks()), "the tiny scale leaves no network out"
    limits = {(path.parents[1].name == "all-fast", path.parent.name) for path in shipped.verification_records()}
    assert limits == {(True, "0to1"), (False, "4to1")}


def test_config_narrows_it_down() -> None:
    narrowed = shipped_study(verification={"networks": ["mlp"], "optimizers": ["numa", "static"], "limit": "8:1"})
    records = narrowed.verification_records()
    assert [path.parts[-4:-1] for path in records] == [("mlp", "numa", "8to1"), ("mlp", "static", "8to1")]
    for key, name in (("network", "mpl"), ("optimizer", "statik")):
        with pytest.raises(BadInputError, match=f"verification: unknown {key} '{name}'"):
            shipped_study(verification={f"{key}s": [name]}).verification_records()


@pytest.fixture
def study(tmp_path: Path) -> Study:
    workload = {"networks": ["mlp", "vgg19"], "optimizers": ["synchronous"], "limits": ["1:0", "4:1", "1:1", "0:1"]}
    return shipped_study(tmp_path / "results", workloads={"two": workload})


def write(study: Study, leave_out: str = "none") -> list[Path]:
    """Synthetic records of all that is wanted: slow-downs at 4:1 are 1 + t x 0.64 with t 1.4 or, first touch, 4.2."""
    paths = [path for path in wanted_records(study, "two") if leave_out not in str(path)]
    for path in paths:
        network, optimizer, slug = path.parts[-4:-1]
        step_s = 1.0 if network == "mlp" else 2.0
        save(path, "record", record(optimizer, slug.replace("to", ":"), network=network, step_s=step_s), PROVENANCE)
    return paths


def test_losses_and_speed_ups_are_geometric_means(study: Study) -> None:
    paths = write(study)
    slower = next(path for path in paths if path.parts[-4:-1] == ("vgg19", "synchronous", "4to1"))
    save(slower, "record", replace(record("static", "4:1", network="vgg19"), optimizer="synchronous"), PROVENANCE)
    by_limit = {str(one.limit): one for one in headlines(table_of_records(paths))}
    assert list(by_limit) == ["1:1", "4:1"], "the ends are what the others are compared with"
    at, both = by_limit["4:1"], ((1 + 1.4 * 0.64) * (1 + 3.5 * 0.64)) ** 0.5
    assert at.losses["synchronous"].value == pytest.approx(1 - 1 / both)
    assert at.losses["numa"] == (pytest.approx(1 - 1 / (1 + 4.2 * 0.64)), ("mlp", "vgg19"))
    assert at.speed_ups["numa"].value == pytest.approx((1 + 4.2 * 0.64) / both)
    assert set(at.speed_ups) == {"numa", "memory-mode"}


def test_what_was_run_is_told_beside_what_was_published_and_how_to_make_what_is_missing(study: Study) -> None:
    published = ("loses 27.7 %", "loses 71.9 %")
    runs = (
        "synchronous loses 47.3 % against all fast (mlp, vgg19)",
        "synchronous is 1.95 times as fast as first touch (numa) (mlp, vgg19)",
    )
    # A speed-up is told for the networks that have both.
    missing = ("missing: 2 of 14 records", "snakemake --cores 1 \\\n", "vgg19/memory-mode/4to1/record.json")
    for left_out, parts in (
        ("", ("missing: 14 of 14", *published)),
        ("vgg19/memory-mode", ("memory mode (2LM) (mlp)", *missing)),
        ("none", (*runs, *published)),
    ):
        write(study, leave_out=left_out)
        text = describe(study, "two")
        for part in parts:
            assert part in text
    assert "missing" not in text


def test_without_an_all_fast_step_there_are_speed_ups_but_no_losses(study: Study) -> None:
    for path in write(study, leave_out="vgg19/synchronous/0to1"):
        if "vgg19" in str(path):
            network, optimizer, slug = path.parts[-4:-1]
            alone = record(optimizer, slug.replace("to", ":"), network=network, step_s=2.0, side_by_side=False)
            save(path, "record", alone, PROVENANCE)
    text = describe(study, "two")
    assert "synchronous loses 47.3 % against all fast (mlp)" in text
    assert "synchronous is 1.95 times as fast as first touch (numa) (mlp, vgg19)" in text
    assert "vgg19/synchronous/0to1" in text
    with pytest.raises(BadInputError, match="workload"):
        describe(study, "too")


def shown(directive: str, path: Path) -> str:
    register_directives()
    text = publish_string(f".. {directive}:: {path}", writer="pseudoxml", settings_overrides={"report_level": 5})
    return " ".join(str(text, "utf-8").split())


def test_a_file_tells_where_it_comes_from(tmp_path: Path) -> None:
    path, came_from = tmp_path / "plan.json", {"seed": 20, "options": {"gap": 0.01}, "load": [0.5, 1], "note": None}
    save(path, "links", {}, came_from)
    rendered = shown("provenance", path)
    for name, text in (("seed", "20"), ("options", "gap 0.01"), ("load", "0.5, 1")):
        assert f"<field_name> {name} <field_body> <paragraph> {text}" in rendered
    assert "note" not in rendered


def test_a_picture_shows_its_caption_a_log_its_lines_and_what_cannot_be_read_why(tmp_path: Path) -> None:
    caption = PngInfo()
    caption.add_text("Description", "Emulated; seed 20.")
    Image.new("L", (1, 1)).save(tmp_path / "fig.png", pnginfo=caption)
    (tmp_path / "run.log").write_text("measured *here*\n", encoding="utf-8")
    assert "<paragraph> Emulated; seed 20." in shown("picture-caption", tmp_path / "fig.png")
    assert "measured *here*" in shown("log-file", tmp_path / "run.log")
    (tmp_path / "cut.json").write_text("{", encoding="utf-8")
    for directive in ("provenance", "picture-caption", "log-file"):
        assert f"{tmp_path}/gone cannot be read: " in shown(directive, tmp_path / "gone")
    assert f"{tmp_path}/cut.json cannot be read: " in shown("provenance", tmp_path / "cut.json")
