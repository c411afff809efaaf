"""The tables that figures are drawn from: of records, of disturbed runs, of modelled steps, of a sweep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import random_graphs
from matplotlib.figure import Figure
from synthetic_figures import QUICK, SOURCE, tables
from synthetic_records import IO_BYTES, LIMITS, PEAK_BYTES, PROVENANCE, record, write_study

from autotm.model.config import StyleConfig
from autotm.model.errors import BadInputError, DamagedFileError
from autotm.model.files import load, save
from autotm.model.limit import Limit
from autotm.model.plan import Plan, Refusal, Status
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve_and_pack
from autotm.stages.figures import figure_stage
from autotm.stages.solve import place_each, program_of
from autotm.study.columns import MEANINGS
from autotm.study.drawing import caption, disturbed_text, styled
from autotm.study.figures import comparisons
from autotm.study.figures.figures import FIGURES
from autotm.study.figures.limits import draw_sweep, with_fast_memory
from autotm.study.sweep import SweepPoint, SweepResult, sweep_table
from autotm.study.tables import (
    DISTURBED,
    DISTURBED_BEFORE,
    disturbed_at,
    is_disturbed,
    read_table,
    table_of_plans,
    table_of_records,
)


def test_rows_are_runs_by_optimizer_then_limit(tmp_path: Path) -> None:
    table = table_of_records(write_study(tmp_path)[::-1])
    assert len(table) == 2 * len(LIMITS)
    assert set(table.columns[table.isna().any()]) == {"moves_s", "waited_median_s", "all_fast_waited_median_s"}
    assert list(dict.fromkeys(table["optimizer"])) == ["synchronous", "static"]
    for _, runs in table.groupby("optimizer"):
        assert list(runs["dram_limit_bytes"]) == sorted(runs["dram_limit_bytes"])


def test_values_are_the_records_and_a_run_is_compared_with_the_all_fast_steps_beside_it(tmp_path: Path) -> None:
    paths = write_study(tmp_path)
    save(tmp_path / "static" / "1to1" / "record.json", "record", record("static", "1:1", step_s=1.2), PROVENANCE)
    table = table_of_records(paths).set_index(["optimizer", "limit"])
    row = table.loc[("static", "1:1")]
    assert row["all_fast_runtime_s"] == 1.2
    assert row["slowdown"] == pytest.approx(1 + 3.5 * 0.25), "a slower machine cancels out"
    assert table.loc[("static", "0:1"), "slowdown"] == 1.0
    assert (row["dram_limit_bytes"], row["io_bytes"]) == (PEAK_BYTES // 2, IO_BYTES)
    assert row["dram_output_fraction"] == pytest.approx(0.5)
    assert row["predicted_slowdown"] == pytest.approx(1 + 1.04 * 3.5 * 0.25), "what is added is predicted 4 % too long"
    assert "apache-tvm 0.27.0.post1" in row["versions"]


def test_without_steps_beside_it_the_all_fast_runs_are_pooled(tmp_path: Path) -> None:
    paths = write_study(tmp_path, side_by_side=False)
    slower = record("static", "0:1", step_s=1.2, side_by_side=False)
    save(tmp_path / "static" / "0to1" / "record.json", "record", slower, PROVENANCE)
    table = table_of_records(paths)
    # Samples are 0.98, 1, 1.05 and 1.176, 1.2, 1.26 seconds: their median lies between the two runs.
    assert table["all_fast_runtime_s"].unique() == pytest.approx([(1.05 + 1.176) / 2])
    all_fast = table[(table["limit"] == "0:1") & (table["optimizer"] == "synchronous")]
    assert all_fast["slowdown"].item() == pytest.approx(1.0 / 1.113)


def test_what_the_limit_counts_is_not_counted_again(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for counts, uncounted_bytes in (("intermediates", IO_BYTES), ("all", 0)):
        save(path, "record", replace(record("static", "4:1"), counts=counts), PROVENANCE)
        table = table_of_records([path])
        assert table["uncounted_bytes"].tolist() == [uncounted_bytes]
        assert with_fast_memory(table)[1] == PEAK_BYTES + uncounted_bytes


def test_only_records_that_were_timed_beside_the_all_fast_step_need_no_other(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no all-fast run"):
        table_of_records(write_study(tmp_path, ("1:0", "1:1"), side_by_side=False))
    paths = write_study(tmp_path, ("1:0", "1:1"))
    table = table_of_records(paths)
    assert table["predicted_slowdown"].tolist() == pytest.approx((1 + 1.04 * (table["slowdown"] - 1)).tolist())
    save(paths[0], "record", replace(record("static", "1:0"), all_fast_predicted_s=None), PROVENANCE)
    with pytest.raises(BadInputError, match="no all-fast run"):
        table_of_records(paths)


def test_runs_of_two_studies_do_not_mix_and_a_cut_record_is_named(tmp_path: Path) -> None:
    paths = write_study(tmp_path)
    save(paths[0], "record", record("static", "1:0", scale="tiny"), PROVENANCE)
    with pytest.raises(BadInputError, match="records of one scale make a figure; got laptop, tiny"):
        table_of_records(paths)
    text = paths[3].read_text(encoding="utf-8")
    paths[3].write_text(text[: len(text) // 2], encoding="utf-8")
    with pytest.raises(DamagedFileError, match=str(paths[3])):
        table_of_records(paths)


OF_RUNS = (
    "fig7", "fig8", "fig9", "fig10", "fig10a_all_slow", "fig10a_synchronous", "fig11", "front", "price_performance",
    "cost_performance", "devices",
)  # fmt: skip


@pytest.fixture(scope="module")
def all_tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pd.DataFrame]:
    return tables(tmp_path_factory.mktemp("figures"))


def one_of(table: pd.DataFrame) -> pd.Series:
    """One of the synchronous runs, between the ends if there is one."""
    planned = table[table["optimizer"] == "synchronous"]
    between = planned[~planned["limit"].isin(["1:0", "0:1"])]
    return (planned if between.empty else between).iloc[0]


def hollow_shapes(figure: Figure) -> int:
    """Bars without a filling, and marks filled with white."""
    count = 0
    for axes in figure.axes:
        count += sum(bar.get_facecolor()[3] == 0 and bar.get_edgecolor()[3] > 0 for bar in axes.patches)
        lines = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
        count += sum(len(line.get_xdata()) for line in lines)
        for marks in axes.collections:
            count += sum(tuple(color[:3]) == (1.0, 1.0, 1.0) for color in marks.get_facecolors())
    return count


@pytest.mark.parametrize("name", OF_RUNS)
def test_a_disturbed_run_is_hollow_and_named(name: str, all_tables: dict[str, pd.DataFrame]) -> None:
    table = all_tables[name]
    run = one_of(table[table["limit"] == "1:0"] if name == "fig10a_all_slow" else table)
    marked = table.assign(**{DISTURBED: table.index == run.name})
    with styled(StyleConfig()):
        sound, text = FIGURES[name](table, StyleConfig())
        shown, named = FIGURES[name](marked, StyleConfig())
    assert hollow_shapes(sound) == 0
    assert hollow_shapes(shown) >= 1
    assert "Hollow" not in text
    assert f"{run['network']} " in named.split("Hollow, too slow: ")[1]


def test_where_all_slow_was_disturbed_all_speed_ups_over_it_are(all_tables: dict[str, pd.DataFrame]) -> None:
    table = all_tables["fig7"]
    network = table["network"].iloc[0]
    slow = table.assign(**{DISTURBED: (table["network"] == network) & (table["limit"] == "1:0")})
    with styled(StyleConfig()):
        figure, _ = FIGURES["fig7"](slow, StyleConfig())
    bars = [bar for bar in figure.axes[0].patches if bar.get_height() > 0]
    assert hollow_shapes(figure) == len(bars) > 0


def test_captions_name_disturbed_runs_and_measurements(all_tables: dict[str, pd.DataFrame]) -> None:
    table = all_tables["fig7"]
    marked = table.assign(**{DISTURBED: table["limit"].isin(["4:1", "1:1"]) & (table["optimizer"] == "static")})
    assert caption(marked).count(" static ") == is_disturbed(marked).sum() == 2 * table["network"].nunique()
    assert "predictions are made from" not in caption(table)
    text = caption(table.assign(**{DISTURBED_BEFORE: "kernels of inception_v4; copies"}))
    assert text.count("kernels of inception_v4; copies. ") == 1
    assert "Hollow" not in text
    older = table.drop(columns=[DISTURBED, DISTURBED_BEFORE])
    assert not is_disturbed(older).any()
    assert disturbed_text(older) == ""
    assert disturbed_at(older, ["4:1", "none"]) == [False, False]


EXTRAPOLATED = {"batches": [2, 4, 8], "step_error": -0.031, "kernel_error": 0.012}
MODELLED = SOURCE | {"tier_reality": "modelled", "extrapolated": EXTRAPOLATED}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[Path]]:
    """Plans of a modelled step, and its graph."""
    folder, case = tmp_path_factory.mktemp("modelled"), random_graphs.training_step_case(4)
    graph = folder / "graph.json"
    save(graph, "graph", case.graph, MODELLED)
    plans = []
    for optimizer in ("memory-mode", "static", "synchronous"):
        plan, _ = solve_and_pack(case.graph, case.profile, case.links, optimizer, Limit.parse("5:2"), QUICK)
        plans.append(folder / optimizer / "plan.json")
        save(plans[-1], "plan", plan, SOURCE)
    return plans, [graph]


def test_figure_8_of_modelled_steps_divides_predictions_and_says_so(
    files: tuple[list[Path], list[Path]], tmp_path: Path
) -> None:
    csv, predicted = tmp_path / "fig8.csv", [load(path, "plan", Plan).objective_us for path in files[0]]
    figure_stage(StyleConfig(), {"plans": files[0], "graphs": files[1]}, csv=csv)
    table = read_table(csv)
    assert set(table) <= set(MEANINGS)
    expected = [predicted[0] / plan_us for plan_us in predicted[1:]]
    assert comparisons.speedups(table)["speedup"].tolist() == pytest.approx(expected)
    _, text = comparisons.draw_fig8(table, StyleConfig())
    for part in ("MODELLED, not run", "batches 2 4 8", "-3.1 %", "single kernels 1.2 %", "slow memory MODELLED"):
        assert part in text
        assert part.encode() in csv.with_suffix(".png").read_bytes()


@pytest.mark.parametrize(
    ("layers", "source", "message"), [(2, MODELLED, "made for another graph"), (4, SOURCE, "was not modelled")]
)
def test_plans_of_steps_that_are_others_or_were_not_modelled_are_refused(
    files: tuple[list[Path], list[Path]], tmp_path: Path, layers: int, source: dict[str, Any], message: str
) -> None:
    save(tmp_path / "graph.json", "graph", random_graphs.training_step_case(layers).graph, source)
    with pytest.raises(BadInputError, match=message):
        table_of_plans(files[0], [tmp_path / "graph.json"])


def row(share: float, predicted: float, bound: float | None = None, **more: Any) -> dict[str, Any]:
    """A row of a table as the answers read it."""
    return {
        "dram_limit_bytes": share * 100_000_000,
        "share_of_peak": share,
        "predicted_slowdown": predicted,
        "bound_slowdown": predicted if bound is None else bound,
        "measured_slowdown": float("nan"),
        "optimizer": "synchronous",
        "solver_status": str(Status.WITHIN_GAP),
        "refused": "",
        **more,
    }


def answers(*rows: dict[str, Any]) -> list[str]:
    return SweepResult(pd.DataFrame(rows), ()).answers


def test_the_least_memory_that_is_enough_answers() -> None:
    one, five, ten = answers(row(1, 1.0), row(0.5, 1.008), row(0.2, 1.04, 1.03), row(0.1, 1.2, 1.08), row(0, 2.0))
    assert one == (
        "With 50 MB of fast memory (50 % of the step's peak) the step is predicted to be at most 1 % slower than all "
        "fast; proven: with 20 MB or less, no synchronous plan is."
    )
    assert five.startswith("With 20 MB of fast memory (20 % of the step's peak)")
    assert "proven: with 10 MB or less" in five
    assert "proven: with none at all" in ten


def test_no_limit_may_be_enough_no_memory_may_be_and_what_was_measured_is_said() -> None:
    assert "at most 5 % slower than all fast (measured: +6.2 %)." in answers(row(0.5, 1.04, measured_slowdown=1.062))[1]
    assert answers(row(0.1, 1.5))[0].startswith("With none of these limits the step is predicted")
    assert answers(row(0.0, 1.0))[0].startswith("With no fast memory the step is predicted")
    one, *_ = answers(row(1, 1.0), row(0.1, 1.5, solver_status=str(Status.NOT_OPTIMIZED)))
    assert "proven" not in one, "an optimizer that searches nothing proves nothing"


@pytest.fixture(scope="module")
def swept() -> SweepResult[str]:
    case = random_graphs.training_step_case(layers=4, branches=3)
    limits = [Limit.parse(text) for text in ("4:1", "0:1", "1:0")]
    points = []
    for placement in place_each(case.graph, case.profile, case.links, "synchronous", limits, SolveOptions()):
        assert not isinstance(placement, Refusal)
        points.append(SweepPoint(placement[0], program_of(case.graph, *placement)))
    refused = [Refusal(Limit.parse("5B"), 64, "no synchronous placement keeps limit 5B")]
    source = {**PROVENANCE, "machine": "desk-2t", "threads": 2, "seed": 20, "tier_reality": "emulated"}
    table = sweep_table(case.graph, case.profile, "synchronous", points, refused, source)
    return SweepResult(table, tuple(str(point.plan.limit) for point in points))


def test_the_table_goes_from_all_fast_down_and_ends_with_what_cannot_be(swept: SweepResult[str]) -> None:
    table = swept.table
    assert set(table) <= set(MEANINGS)
    assert list(table["limit"]) == ["0:1", "4:1", "1:0", "5B"]
    assert list(swept) == ["4:1", "0:1", "1:0"]
    kept = table[table["refused"] == ""]
    assert kept["predicted_slowdown"].iloc[0] == pytest.approx(1.0)
    assert kept["bytes_moved"].iloc[0] == 0
    assert (kept["dram_alloc_bytes"] <= kept["dram_limit_bytes"]).iloc[1:].all()
    assert kept["gap"].to_numpy() == pytest.approx(1 - kept["bound_s"] / kept["predicted_runtime_s"])
    assert table["smallest_bytes"].iloc[-1] == 64


def test_text_and_picture_say_what_is_predicted_proven_and_impossible(swept: SweepResult[str]) -> None:
    text = str(swept)
    for part in ("slow memory EMULATED", "5B: no synchronous placement keeps"):
        assert part in text
    milliseconds = 1e3 * swept.table["all_fast_predicted_s"].iloc[0]
    assert f"All-fast step: {milliseconds:.4g} ms PREDICTED from measured kernels" in text
    assert text.splitlines()[-1] == swept.answers[-1]
    figure, caption = draw_sweep(swept.table, StyleConfig())
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert labels == ["ruled out (proven bound)", "predicted", "too little for any placement"]
    for part in ("PREDICTED", "Nothing was run", "slow memory EMULATED"):
        assert part in caption


def test_the_same_table_gives_the_same_picture(swept: SweepResult[str], tmp_path: Path) -> None:
    for name in ("a", "b"):
        swept.write(tmp_path / name, StyleConfig(dots_per_inch=60))
    for file in ("sweep.csv", "sweep.pdf", "sweep.png"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
