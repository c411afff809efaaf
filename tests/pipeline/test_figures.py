"""Figures of several networks, of a GPU, and of the timing study: what runs again and is drawn again after a change."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from workplace import LASTS, ROOT, Workplace, jobs_in, make_workplace

from autotm.study.costs import figure_jobs
from autotm.study.figures.figures import FIGURES

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


def test_a_changed_batch_runs_that_network_again_and_redraws_what_shows_it(drawn: Workplace) -> None:
    change_sizes(drawn, "mlp", batch=8)
    assert due(drawn) == {
        "kernel_profile": 1, "ilp_solve": len(LIMITS) + 1, "compile": len(LIMITS) + 1, "run": len(LIMITS) + 1,
        "fig7": 1, "fig8": 1, "fig9": 1, "fig10a_all_fast": 1,
    }  # fmt: skip


def test_a_changed_batch_of_another_network_redraws_its_heap(drawn: Workplace) -> None:
    change_sizes(drawn, "test_vgg", batch=3)
    jobs = due(drawn)
    assert (jobs["heap"], jobs["kernel_profile"]) == (1, 1)
    assert "fig10a_all_fast" not in jobs, "it shows the other network"


def test_every_job_behind_a_figure_leaves_what_it_cost_and_that_makes_no_job_run_again(drawn: Workplace) -> None:
    jobs = figure_jobs(drawn.study, drawn.folder / "logs")
    files = {file for target in TARGETS for file in jobs[target]}
    assert {file.name.partition(".")[0] for file in files} >= {"calibrate", "kernel_profile", "ilp_solve", "run"}
    assert [file for file in files if not file.exists()] == []
    for number, file in enumerate(sorted(files)):
        file.unlink() if number % 2 else file.write_text("other")
    assert due(drawn) == {}


@pytest.mark.parametrize(
    ("keys", "value", "jobs"),
    [
        (("figures", "prices", "fast_per_gb"), 3.0, {"fig9": 1}),
        (("figures", "kernel_plot", "channels"), 64, {"convolution_profile": 1, "kernel_plot": 1}),
        (("figures", "heap", "limit"), "3:1", {"ilp_solve": 1, "compile": 1, "heap": 1}),
    ],
)
def test_a_changed_setting_redraws_what_shows_it(
    drawn: Workplace, keys: tuple[str, ...], value: Any, jobs: dict[str, int]
) -> None:
    drawn.change(*keys, value=value)
    assert due(drawn) == jobs


def test_a_workload_without_the_ends_is_named_before_any_job(drawn: Workplace) -> None:
    done = drawn.snakemake("figures/large/fig7.pdf")
    assert done.returncode != 0
    assert 'workloads.large.limits: these figures compare with "1:0"; add it' in done.stdout


def test_all_figures_but_that_of_several_machines_are_targets_of_make_figures(fresh: Workplace) -> None:
    jobs = fresh.jobs_due(target="figures")
    assert [name for name in FIGURES if name not in jobs] == ["devices"]
    assert jobs["figure_timing_study"] == 1


def test_rules_draw_no_figure_that_the_study_does_not_know() -> None:
    rules = (ROOT / "rules" / "figures.smk").read_text(encoding="utf-8")
    assert set(re.findall(r'^    "(\w+)": \(', rules, re.MULTILINE)) == set(FIGURES)


def test_figure_8_of_modelled_steps_needs_plans_and_no_run(drawn: Workplace) -> None:
    drawn.change("scale", value="tiny-modelled")
    drawn.change("workloads", "large", value={"networks": ["mlp"], "optimizers": ["static"], "limits": ["5:2"]})
    assert drawn.jobs_due(target="figures/fig8.pdf") == {
        "kernel_profile": 3, "extrapolate": 1, "ilp_solve": 1, "fig8": 1,
    }  # fmt: skip


# Figure 12 on a machine with a GPU: which jobs it needs, planned on a computer that has none.

RISKY = {"kind": "cuda", "device_index": 0, "overhead": "800MB", "managed_oversubscription": True}


def add_gpu(place: Workplace, **slow_tier: object) -> None:
    """A machine file `gpu`, which figure 12 is to be drawn on."""
    machine = {"description": "made up", "threads": 1, "slow_tier": slow_tier}
    (place.folder / "config" / "machines" / "gpu.yaml").write_text(yaml.safe_dump(machine), encoding="utf-8")
    place.change("figures", "fig12", "machine", value="gpu")
    place.change("figures", "fig12", "networks", value=["mlp", "mnist"])
    place.change("figures", "fig12", "timeline", value="mlp")


def test_records_of_plans_and_rivals_are_made_and_nothing_is_modelled(fresh: Workplace) -> None:
    add_gpu(fresh, **RISKY)
    six = 6  # managed memory, two optimizers, three rivals
    done = fresh.snakemake("figures/fig12.pdf", "figures/fig12_timeline.pdf", "--dry-run")
    assert jobs_in(done.stdout) == {
        "calibrate": 1, "kernel_profile": 2, "ilp_solve": 2 * six, "compile": 2 * six, "run": 2 * six,
        "save_on_cpu": 2, "fig12": 1, "fig12_timeline": 1,
    }  # fmt: skip
    assert "results/gpu-1t/tiny/mlp/managed-memory/2to3/record.json" in done.stdout
    assert "modelled" not in done.stdout.replace("modelled_gpu.smk", "")
    assert "results/gpu-1t/tiny/mlp/recompute/2to3/record.json" in done.stdout
    assert "results/gpu-1t/tiny/mlp/save-on-cpu/2to3/torch.json" in done.stdout


def test_the_jobs_run_with_what_they_ask_for(fresh: Workplace) -> None:
    add_gpu(fresh, **RISKY)
    folder = "results/gpu-1t/tiny/mlp"
    targets = (f"{folder}/recompute/2to3/record.json", f"{folder}/save-on-cpu/2to3/torch.json")
    done = fresh.snakemake(*targets, cores=24)
    assert done.returncode == 0, done.stdout
    assert all((fresh.folder / target).exists() for target in targets)


def test_the_timeline_needs_no_step_of_pytorch(fresh: Workplace) -> None:
    add_gpu(fresh, **RISKY)
    assert "save_on_cpu" not in fresh.jobs_due(target="figures/fig12_timeline.pdf")


RISK = "can hang a GPU; to risk it, set slow_tier.managed_oversubscription: true in config/machines/gpu.yaml"
NO_GPU = "figures.fig12.machine: laptop has slow memory of kind emulated; give a machine of kind cuda"


@pytest.mark.parametrize(("machine", "message"), [("gpu", RISK), ("laptop", NO_GPU)])
def test_a_gpu_that_nobody_risks_or_is_none_is_named_before_any_job(
    fresh: Workplace, machine: str, message: str
) -> None:
    add_gpu(fresh, kind="cuda")
    fresh.change("figures", "fig12", "machine", value=machine)
    done = fresh.snakemake("figures/fig12.pdf", "--dry-run")
    assert done.returncode != 0
    assert message in done.stdout


# The timing study is a target of its own: nothing else needs it.

TIMING = "figures/timing_study.pdf"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    place = make_workplace(tmp_path_factory.mktemp("timing") / "place", stand_in=True)
    done = place.snakemake(TIMING)
    assert done.returncode == 0, done.stdout
    return place


def test_only_its_own_settings_run_it_again(ran: Workplace) -> None:
    assert ran.study.paths("mnist").timing_study.is_file()
    assert ran.jobs_due(target=TIMING) == {}
    assert (ran.folder / "figures" / "timing_study_summary.csv").exists()
    ran.change("timing_study", "repeats", value=16)
    assert ran.jobs_due(target=TIMING) == {"timing_study": 1, "figure_timing_study": 1}
    ran.change("timing_study", "repeats", value=15)
    ran.change("style", "font_size_pt", value=9.0)
    assert ran.jobs_due(target=TIMING) == {"figure_timing_study": 1}
    ran.change("style", "font_size_pt", value=8.0)
    (ran.folder / "recorded.csv").write_text("kernel_id", encoding="utf-8")
    ran.change("timing_study", "recorded", value="recorded.csv")
    assert ran.jobs_due(target=TIMING) == {"figure_timing_study": 1}
