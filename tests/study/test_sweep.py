"""The table of a sweep on a hand-made step, its answers, its picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from random_graphs import training_step_case
from synthetic_records import PROVENANCE

from autotm.model.config import StyleConfig
from autotm.model.limit import Limit
from autotm.model.plan import Refusal, Status
from autotm.solve.options import SolveOptions
from autotm.stages.solve import place_each, program_of
from autotm.study.columns import MEANINGS
from autotm.study.figures.limits import draw_sweep
from autotm.study.sweep import SweepPoint, SweepResult, sweep_table

PEAK = 100_000_000


def row(share: float, predicted: float, bound: float | None = None, **more: Any) -> dict[str, Any]:
    """A row of a table as the answers read it."""
    return {
        "dram_limit_bytes": share * PEAK,
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
    case = training_step_case(layers=4, branches=3)
    limits = [Limit.parse(text) for text in ("4:1", "0:1", "1:0")]
    points = []
    for found in place_each(case.graph, case.profile, case.links, "synchronous", limits, SolveOptions()):
        assert not isinstance(found, Refusal)
        points.append(SweepPoint(found[0], program_of(case.graph, *found)))
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
    for part in ("slow memory EMULATED", "ms PREDICTED from measured kernels", "5B: no synchronous placement keeps"):
        assert part in text
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
