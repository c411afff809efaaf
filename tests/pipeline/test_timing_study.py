"""The timing study is a target of its own: nothing else needs it, and it runs again when its own settings change."""

from __future__ import annotations

from pathlib import Path

import pytest
from workplace import Workplace, make_workplace

from autotm.study.setup import load_study

TARGET = "figures/timing_study.pdf"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    place = make_workplace(tmp_path_factory.mktemp("timing") / "place", stand_in=True)
    done = place.snakemake(TARGET)
    assert done.returncode == 0, done.stdout
    return place


def test_only_its_own_settings_run_it_again(ran: Workplace) -> None:
    assert ran.jobs_due(target=TARGET) == {}
    assert (ran.folder / "figures" / "timing_study_summary.csv").exists()
    ran.change("timing_study", "repeats", value=16)
    assert ran.jobs_due(target=TARGET) == {"timing_study": 1, "figure_timing_study": 1}
    ran.change("timing_study", "repeats", value=15)
    ran.change("style", "font_size_pt", value=9.0)
    assert ran.jobs_due(target=TARGET) == {"figure_timing_study": 1}
    ran.change("style", "font_size_pt", value=8.0)
    (ran.folder / "recorded.csv").write_text("kernel_id", encoding="utf-8")
    ran.change("timing_study", "recorded", value="recorded.csv")
    assert ran.jobs_due(target=TARGET) == {"figure_timing_study": 1}


def test_the_paths_of_rule_and_library_agree(ran: Workplace) -> None:
    import yaml

    raw = yaml.safe_load(ran.config_file.read_text(encoding="utf-8"))
    study = load_study(raw, "config.yaml", ran.folder / "config", ran.folder / Path("results"))
    assert study.paths("mnist").timing_study.is_file()
