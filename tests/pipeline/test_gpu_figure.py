"""Figure 12 on a machine with a GPU: which jobs it needs, planned on a computer that has none."""

from __future__ import annotations

import yaml
from workplace import Workplace, jobs_in

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


def test_a_gpu_that_nobody_risks_is_named_before_any_job(fresh: Workplace) -> None:
    add_gpu(fresh, kind="cuda")
    done = fresh.snakemake("figures/fig12.pdf", "--dry-run")
    assert done.returncode != 0
    for part in ("can hang a GPU", "slow_tier.managed_oversubscription: true in config/machines/gpu.yaml"):
        assert part in done.stdout


def test_the_timeline_needs_no_step_of_pytorch(fresh: Workplace) -> None:
    add_gpu(fresh, **RISKY)
    assert "save_on_cpu" not in fresh.jobs_due(target="figures/fig12_timeline.pdf")


def test_rivals_run_on_gpus_only(fresh: Workplace) -> None:
    done = fresh.snakemake("results/laptop-1t/tiny/mlp/save-on-cpu/4to1/torch.json", "--dry-run")
    assert done.returncode != 0
    assert "save-on-cpu cannot run on config/machines/laptop.yaml: that is for GPUs" in done.stdout
    done = fresh.snakemake("results/laptop-1t/tiny/mlp/lru-paging/4to1/record.json", "--dry-run")
    assert done.returncode != 0
    assert "lru-paging cannot run on config/machines/laptop.yaml: that is for GPUs" in done.stdout
    place = "figures.fig12.machine: laptop has slow memory of kind emulated; give a machine of kind cuda"
    fresh.change("figures", "fig12", "machine", value="laptop")
    assert place in fresh.snakemake("figures/fig12.pdf", "--dry-run").stdout
