"""Figures of fusion: from what was found to tables, pictures and what their captions conclude."""

from dataclasses import replace

import pandas as pd
import pytest
from synthetic_records import PROVENANCE

from autotm.model.config import StyleConfig
from autotm.model.files import save
from autotm.model.fusion import (
    Decision,
    FusionOptimum,
    FusionSearch,
    FusionTimes,
    GroupingTimes,
    Kind,
    RegionSearch,
    SearchStep,
    Trial,
)
from autotm.stages.fusion import OPTIMUM, SEARCH, fusion_figure_stage
from autotm.study.columns import MEANINGS
from autotm.study.figures.fusion import AGAIN, FUSION_FIGURES, summary, table_of_optima
from autotm.study.figures.fusion_learning import LEARNING_FIGURES
from autotm.study.figures.fusion_search import EXHAUSTIVE, search_summary, table_of_searches
from autotm.study.inputs import FUSION_FIGURES as NAMES

SOURCE = {**PROVENANCE, "machine": "laptop-2t", "seed": 20}


def times(ratio, error=0.01):
    return FusionTimes(ratio * 1e-3, 1e-3, ratio, error, 1.0, 0.01, 0.1, disturbed=False)


def grouping(kind, sum_ratio, ratio):
    own = None if ratio is None else times(ratio)
    return GroupingTimes(kind, {}, 3, 100, sum_ratio * 2e-3, own, "" if own else "network a: 'w' differs")


def optimum(network, best, *, is_training=True, error=0.01, copies=(0.99, 1.01)):
    groupings = (
        grouping(Kind.CHEAPEST, 0.9, best),
        grouping(Kind.CHEAPEST, 0.95, None),
        grouping(Kind.UNFUSED, 1.2, 1.2),
        grouping(Kind.RANDOM, 1.1, 1.1),
        *(grouping(Kind.DEFAULT, 1.0, ratio) for ratio in copies),
    )
    regions = (RegionSearch(3, 2, 2, 5), RegionSearch(9, 30, 1, 0, "9999 groups, of at most 1000 that are compiled"))
    again = replace(times(best), ratio_error=error)
    return FusionOptimum(network, "tiny", is_training, "0" * 16, 20, 5, 200, 2e-3, 30, regions, groupings, 0, again)


def write(folder, *found):
    paths = [folder / f"{number}.json" for number in range(len(found))]
    for path, one in zip(paths, found, strict=True):
        save(path, OPTIMUM, one, SOURCE)
    return paths


def test_every_figure_that_there_is_can_be_drawn():
    assert {*FUSION_FIGURES, *LEARNING_FIGURES, "search"} == set(NAMES)


@pytest.mark.parametrize("name", FUSION_FIGURES)
@pytest.mark.parametrize("has_inference", [True, False])
def test_drawn(name, has_inference, tmp_path):
    found = [optimum("a", 0.9), *([optimum("b", 0.95, is_training=False)] if has_inference else [])]
    csv = tmp_path / f"{name}.csv"
    fusion_figure_stage(StyleConfig(), {"optima": write(tmp_path, *found)}, csv)
    table = pd.read_csv(csv)
    assert set(table) <= set(MEANINGS)
    assert (csv.with_suffix(".pdf").exists(), csv.with_suffix(".png").exists()) == (True, True)
    assert table["failure"].notna().sum() == len(found)


def test_a_row_says_what_was_measured_and_what_was_predicted(tmp_path):
    table = table_of_optima(write(tmp_path, optimum("a", 0.9)))
    first, again = table.iloc[0], table[table["grouping"] == AGAIN].iloc[0]
    assert (first["sum_ratio"], first["step_ratio"], first["sum_error"]) == pytest.approx((0.9, 0.9, 1.0))
    assert (first["searched_operators"], first["left_operators"], first["peak_ratio"]) == (6, 9, 0.5)
    assert again["ratio_error"] == pytest.approx(0.009)


@pytest.mark.parametrize(("error", "copy", "faster"), [(0.01, 0.99, 1), (0.06, 0.99, 0), (0.01, 0.91, 0)])
def test_only_what_is_beyond_the_noise_is_faster(error, copy, faster, tmp_path):
    """An interval below one copy of TVM's fusion says little: another one may be as fast."""
    found = [optimum("a", 0.9, error=error, copies=(1.05, copy)), optimum("b", 1.0)]
    line = next(summary(table_of_optima(write(tmp_path, *found))))
    assert "Of training the best grouping takes 0.949 of the time" in line
    assert line.endswith(f"beyond the noise it is faster on {faster}")


def test_the_noise_is_that_of_all_copies(tmp_path):
    found = [optimum("a", 0.9, copies=(0.9, 1.1)), optimum("b", 0.9, copies=())]
    line = next(summary(table_of_optima(write(tmp_path, *found))))
    # Three of a and one of b: the second copy of each has a ratio of 1.
    assert "95 % of the 4 between 0.907 and 1.093" in line


def test_sums_are_held_against_equality(tmp_path):
    exact = table_of_optima(write(tmp_path, optimum("a", 0.9)))
    assert any("explain 1.00" in line for line in summary(exact))
    off = table_of_optima(write(tmp_path, optimum("a", 1.2)))
    assert any("explain -" in line or "explain 0." in line for line in summary(off))


def search(folder, algorithm, seed, *ratios, noises=(0.99, 1.01)):
    """A search whose trials took so long; None is one that failed."""
    state = (("add.1/matmul.0", Decision.INLINE),)
    steps = []
    for number, ratio in enumerate(ratios):
        own = None if ratio is None else replace(times(ratio), noise=noises[number % 2])
        trial = Trial(state, None if own is None else 3, own, "" if own else "took longer than 120 s")
        steps.append(SearchStep(number, trial, 0.04 if algorithm == "annealing" else None, own is not None))
    path = folder / f"{algorithm}-{seed}.json"
    save(path, SEARCH, FusionSearch("a", "tiny", True, algorithm, seed, tuple(steps)), SOURCE)
    return path


def searches(folder):
    return [
        search(folder, "annealing", 1, 1.1, 0.9, 0.8, 0.85),
        search(folder, "annealing", 2, 1.0, None, 0.9, 0.8),
        search(folder, "independent", 1, 1.2, 0.995, 1.3, 1.1),
    ]


def test_searches_are_drawn_beside_the_best_grouping(tmp_path):
    csv = tmp_path / "search.csv"
    fusion_figure_stage(
        StyleConfig(), {"optima": write(tmp_path, optimum("a", 0.9)), "searches": searches(tmp_path)}, csv
    )
    table = pd.read_csv(csv)
    assert set(table) <= set(MEANINGS)
    assert csv.with_suffix(".pdf").exists()
    first = table[(table["algorithm"] == "annealing") & (table["search_seed"] == 1)]
    assert list(first["best_ratio"]) == [1.0, 0.9, 0.8, 0.8]
    assert table["failure"].notna().sum() == 1
    assert table[table["algorithm"] == EXHAUSTIVE]["best_ratio"].item() == 0.9


def test_a_search_says_how_soon_it_found_most_or_that_it_found_nothing(tmp_path):
    (line,) = search_summary(table_of_searches(searches(tmp_path), write(tmp_path, optimum("a", 0.9))))
    assert "annealing 0.800, 0.800, most of it after 3, 4 trials" in line
    assert "independent 0.995, no gain beyond the noise" in line
    assert "the best of all groupings 0.900" in line
