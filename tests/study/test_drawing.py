"""Captions as they are set."""

from __future__ import annotations

import pandas as pd
import pytest
from matplotlib.figure import Figure

from autotm.model.config import StyleConfig
from autotm.study.drawing import gap_text, proven_text, write_caption


def test_a_number_keeps_its_percent_sign_and_a_name_its_hyphen() -> None:
    figure = Figure(figsize=(3.0, 2.0))
    write_caption(figure, "apache-tvm 1.7 % of " * 20, StyleConfig())
    lines = figure.texts[0].get_text().split("\n")
    assert len(lines) > 5
    assert not any(line.startswith("%") or line.endswith("-") for line in lines)
    assert " ".join(lines).replace("\N{NO-BREAK SPACE}", " ") == ("apache-tvm 1.7 % of " * 20).strip()


@pytest.mark.parametrize(("gap", "said"), [(1.7e-15, "0 %"), (0.0, "0 %"), (0.0096, "0.96 %")])
def test_rounding_errors_are_no_gap(gap: float, said: str) -> None:
    assert gap_text(gap) == f"within {said} of a proven bound"
    row = {"solver_status": "within_gap", "optimizer": "static", "gap": gap}
    assert proven_text(pd.DataFrame([row])).startswith(f"Plans (static) within {said} ")
