"""Figures of several networks: a change of one reruns and redraws what shows it, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from workplace import LASTS, ROOT, Workplace, make_workplace

from autotm.study.costs import figure_jobs
from autotm.study.figures.figures import FIGURES
from autotm.study.setup import load_study

NETWORKS = ["mlp", "test_vgg"]
LIMITS = ["1:0", "0:1"]
SHOWN = ("fig7", "fig8", "fig9", "fig10a_all_fast", "heap", "kernel_plot")
TARGETS = tuple(f"figures/{name}.pdf" for name in SHOWN)


@pytest.fixture(scope="module")
def drawn_once(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    place = make_workplace(tmp_path_factory.mktemp("figures") / "place", stand_in=True)
    place.change("workloads", "conventional", value={"networks": NETWORKS, "optimizers": ["static"], "limits": LIMITS})
    place.change("workloads", "large", value={"networks": NETWORKS, "optimizers": ["static"], "limits": ["5:2"]})
    place.change("figures", "fig10", "limits", value=["0:1", "1:0"])
    place.change("figures", "fig10", "optimizers", value=["static"])
    place.change("figures", "heap", value={"network": "test_vgg", "optimizer": "static", "limit": "1:0"})
    place.set_stand_in("run", LASTS)
    done = place.snakemake(*TARGETS, cores=24)
    assert done.returncode == 0, done.stdout
    return place


@pytest.fixture
def drawn(drawn_once: Workplace, tmp_path: Path) -> Workplace:
    return drawn_once.copied_to(tmp_path / "place")


def due(place: Workplace) -> dict[str, int]:
    return place.jobs_due(target=TARGETS)


def change_sizes(place: Workplace, network: str, **sizes: int) -> None:
    file = place.folder / "config" / "scales" / "tiny.yaml"
    scale = yaml.safe_load(file.read_text(encoding="utf-8"))
    scale["networks"][network] |= sizes
    file.write_text(yaml.safe_dump(scale), encoding="utf-8")


def test_a_changed_batch_reruns_that_network_and_redraws_what_shows_it(drawn: Workplace) -> None:
    change_sizes(drawn, "mlp", batch=8)
    assert due(drawn) == {
        "kernel_profile": 1, "ilp_solve": len(LIMITS) + 1, "compile": len(LIMITS) + 1, "run": len(LIMITS) + 1,
        "fig7": 1, "fig8": 1, "fig9": 1, "fig10a_all_fast": 1,
    }  # fmt: skip


def test_a_changed_batch_of_another_network_redraws_its_heap(drawn: Workplace) -> None:
    change_sizes(drawn, "test_vgg", batch=3)
    found = due(drawn)
    assert found["heap"] == 1
    assert found["kernel_profile"] == 1
    assert "fig10a_all_fast" not in found, "it shows the other network"


def test_every_job_behind_a_figure_leaves_what_it_cost_and_that_reruns_nothing(drawn: Workplace) -> None:
    config = drawn.folder / "config"
    study = load_study(yaml.safe_load(drawn.config_file.read_text()), drawn.config_file, config, Path("results"))
    jobs = figure_jobs(study, drawn.folder / "logs")
    files = {file for target in TARGETS for file in jobs[target]}
    assert {file.name.partition(".")[0] for file in files} >= {"calibrate", "kernel_profile", "ilp_solve", "run"}
    assert [file for file in files if not file.exists()] == []
    for number, file in enumerate(sorted(files)):
        file.unlink() if number % 2 else file.write_text("other")
    assert due(drawn) == {}


def test_prices_redraw_what_shows_prices(drawn: Workplace) -> None:
    drawn.change("figures", "prices", "fast_per_gb", value=3.0)
    assert due(drawn) == {"fig9": 1}


def test_the_kernel_plot_profiles_its_kernel_alone(drawn: Workplace) -> None:
    drawn.change("figures", "kernel_plot", "channels", value=64)
    assert due(drawn) == {"convolution_profile": 1, "kernel_plot": 1}


def test_another_heap_needs_its_plan_and_no_run(drawn: Workplace) -> None:
    drawn.change("figures", "heap", "limit", value="3:1")
    assert due(drawn) == {"ilp_solve": 1, "compile": 1, "heap": 1}


def test_a_workload_without_the_ends_is_named_before_any_job(drawn: Workplace) -> None:
    done = drawn.snakemake("figures/large/fig7.pdf")
    assert done.returncode != 0
    assert 'workloads.large.limits: these figures compare with "1:0"; add it' in done.stdout


def test_all_figures_but_that_of_several_machines_are_targets_of_make_figures(fresh: Workplace) -> None:
    found = fresh.jobs_due(target="figures")
    assert [name for name in FIGURES if name not in found] == ["devices"]
    assert found["figure_timing_study"] == 1


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("figures/test_vgg/fig10.pdf", "this figure shows no workload; leave test_vgg/ out"),
        ("figures/laptop-1t/fig12.pdf", "the config names its machines; leave laptop-1t/ out"),
    ],
)
def test_a_folder_that_a_figure_cannot_have_is_named(fresh: Workplace, target: str, message: str) -> None:
    done = fresh.snakemake(target, "--dry-run")
    assert done.returncode != 0
    assert f"{target}: {message}" in done.stdout


def test_rules_draw_no_figure_that_the_study_does_not_know() -> None:
    rules = (ROOT / "rules" / "figures.smk").read_text(encoding="utf-8")
    assert set(re.findall(r'^    "(\w+)": \(', rules, re.MULTILINE)) == set(FIGURES)


def test_figure_8_of_modelled_steps_needs_plans_and_no_run(drawn: Workplace) -> None:
    drawn.change("scale", value="tiny-modelled")
    drawn.change("workloads", "large", value={"networks": ["mlp"], "optimizers": ["static"], "limits": ["5:2"]})
    assert drawn.jobs_due(target="figures/fig8.pdf") == {
        "kernel_profile": 3, "extrapolate": 1, "ilp_solve": 1, "fig8": 1,
    }  # fmt: skip
