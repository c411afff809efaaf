"""Steps too large to run: a table of predictions that says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import random_graphs
from synthetic_figures import QUICK, SOURCE

from autotm.model.config import StyleConfig
from autotm.model.errors import BadInputError
from autotm.model.files import load, save
from autotm.model.limit import Limit
from autotm.model.plan import Plan
from autotm.solve.placing import solve_and_pack
from autotm.stages.figures import figure_8_stage
from autotm.study.columns import MEANINGS
from autotm.study.figures import comparisons
from autotm.study.tables import read_table, table_of_plans

EXTRAPOLATED = {"batches": [2, 4, 8], "step_error": -0.031, "kernel_error": 0.012}
MODELLED = SOURCE | {"tier_reality": "modelled", "extrapolated": EXTRAPOLATED}
OPTIMIZERS = ("memory-mode", "static", "synchronous")


LAYERS = 4


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[Path]]:
    """Plans of a modelled step, and its graph."""
    folder, case = tmp_path_factory.mktemp("modelled"), random_graphs.training_step_case(LAYERS)
    graph = folder / "graph.json"
    save(graph, "graph", case.graph, MODELLED)
    plans = []
    for optimizer in OPTIMIZERS:
        plan, _ = solve_and_pack(case.graph, case.profile, case.links, optimizer, Limit.parse("5:2"), QUICK)
        plans.append(folder / optimizer / "plan.json")
        save(plans[-1], "plan", plan, SOURCE)
    return plans, [graph]


def test_figure_8_of_modelled_steps_divides_predictions(files: tuple[list[Path], list[Path]]) -> None:
    plans, graphs = files
    predicted = {path.parent.name: load(path, "plan", Plan).objective_us for path in plans}
    table = table_of_plans(plans, graphs)
    assert set(table) <= set(MEANINGS)
    found = comparisons.speedups(table).set_index("optimizer")["speedup"]
    for optimizer in ("static", "synchronous"):
        assert found[optimizer] == pytest.approx(predicted["memory-mode"] / predicted[optimizer])


def test_its_caption_says_what_is_not_measured(files: tuple[list[Path], list[Path]], tmp_path: Path) -> None:
    plans, graphs = files
    csv = tmp_path / "figures" / "fig8.csv"
    figure_8_stage(StyleConfig(), records=[], plans=plans, graphs=graphs, csv=csv)
    _, text = comparisons.draw_fig8(read_table(csv), StyleConfig())
    for part in ("MODELLED, not run", "batches 2 4 8", "-3.1 %", "single kernels 1.2 %", "slow memory MODELLED"):
        assert part in text
        assert part.encode() in csv.with_suffix(".png").read_bytes()


def test_steps_that_were_not_modelled_or_are_others_are_refused(
    files: tuple[list[Path], list[Path]], tmp_path: Path
) -> None:
    plans, _ = files
    other, run = tmp_path / "other.json", tmp_path / "run.json"
    save(other, "graph", random_graphs.training_step_case(2).graph, MODELLED)
    with pytest.raises(BadInputError, match="made for another graph"):
        table_of_plans(plans, [other])
    save(run, "graph", random_graphs.training_step_case(LAYERS).graph, SOURCE)
    with pytest.raises(BadInputError, match="was not modelled"):
        table_of_plans(plans, [run])
