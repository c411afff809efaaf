"""The exported program is the one that is solved: HiGHS reads the file and finds the same optimum."""

from __future__ import annotations

import gzip
from pathlib import Path

import highspy
import pytest
from random_graphs import Case, exact_case, random_case

from autotm.model.errors import BadInputError, InfeasibleLimitError
from autotm.model.limit import Limit
from autotm.solve.options import SolveOptions
from autotm.solve.placing import ProgramSize, export, solve

EXACT = SolveOptions(gap=0.0, additive_tolerance=0.0)


def optimum_of(path: Path) -> float:
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("mip_rel_gap", 0.0)
    assert solver.readModel(str(path)) == highspy.HighsStatus.kOk
    assert solver.run() == highspy.HighsStatus.kOk
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return float(solver.getInfo().objective_function_value)


def with_moves(seed: int) -> Case:
    return exact_case(seed, kernels=6) if seed % 2 else random_case(seed, kernels=12)


@pytest.mark.parametrize("optimizer", ["static", "synchronous"])
@pytest.mark.parametrize("seed", range(6))
def test_the_file_has_the_optimum(seed: int, optimizer: str, tmp_path: Path) -> None:
    case, path = with_moves(seed), tmp_path / "program.mps.gz"
    size = export(case.graph, case.profile, case.links, optimizer, Limit(2, 1), EXACT, path)
    plan = solve(case.graph, case.profile, case.links, optimizer, Limit(2, 1), EXACT)
    assert optimum_of(path) * size.us_per_unit == pytest.approx(plan.objective_us, rel=1e-6)
    assert size == export(case.graph, case.profile, case.links, optimizer, Limit(2, 1), EXACT)


def test_names_are_those_of_the_formulation(tmp_path: Path) -> None:
    case, path = random_case(0, kernels=12), tmp_path / "program.mps.gz"
    size = export(case.graph, case.profile, case.links, "synchronous", Limit(4, 1), EXACT, path)
    text = gzip.decompress(path.read_bytes()).decode()
    rows = text.split("ROWS\n")[1].split("COLUMNS\n")[0].splitlines()
    assert len(rows) == size.rows + 1, "and one for the objective"
    assert any("capacity_chain[0]" in row for row in rows)
    assert any("born_fast_once_left_never_returns[" in row for row in rows)
    assert "u[0]" in text


def test_where_nothing_is_left_to_solve(tmp_path: Path) -> None:
    case = random_case(0)
    for optimizer, limit in (("synchronous", Limit(0, 1)), ("all-slow", Limit(1, 0))):
        assert export(case.graph, case.profile, case.links, optimizer, limit) == ProgramSize(0, 0, 0, 0.0)
        with pytest.raises(BadInputError, match="needs no integer program"):
            export(case.graph, case.profile, case.links, optimizer, limit, path=tmp_path / "program.mps")
    assert not list(tmp_path.iterdir())


def test_an_infeasible_limit_is_refused(tmp_path: Path) -> None:
    case, options = random_case(0, kernels=12), SolveOptions(fast_operands_only=True)
    path = tmp_path / "program.mps"
    with pytest.raises(InfeasibleLimitError, match="smallest feasible limit"):
        export(case.graph, case.profile, case.links, "synchronous", Limit(size_bytes=64), options, path)
    assert not path.exists()
