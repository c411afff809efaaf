"""What jobs would ask of Slurm, and figures of several machines: by the rules, without a Slurm (see tests/slurm)."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from workplace import ROOT, Workplace, make_workplace

GPUS = ("gpu-24t", "h100-24t")
MEASURES = {
    "calibrate",
    "kernel_profile",
    "convolution_profile",
    "run",
    "timing_study",
    "save_on_cpu",
    "control_flow",
    "control_flow_search",
    "fusion_exhaustive",
    "fusion_search",
    "fusion_promises",
    "fusion_bench",
}
PROFILE = yaml.safe_load((ROOT / "profiles" / "slurm" / "profile.yaml").read_text(encoding="utf-8"))

STAND_IN = """
# Stands for a stage: writes what the job was given, and fails the first solve.
{
    for key in rule threads; do printf '%s=%s\\n' $key "${snakemake[$key]}"; done
    for key in "${!snakemake_wildcards[@]}"; do printf '%s=%s\\n' "$key" "${snakemake_wildcards[$key]}"; done
    for key in "${!snakemake_resources[@]}"; do printf '%s=%s\\n' "$key" "${snakemake_resources[$key]}"; done
} > job.$$.txt
if [ "${snakemake[rule]} ${snakemake_resources[mem_mb]}" = "ilp_solve 2000" ]; then exit 1; fi
for output in "${snakemake_output[@]}"; do echo made > "$output"; done
"""


def node(place: Workplace, name: str, slurm: dict[str, Any], **more: Any) -> None:
    """A machine file of a kind of node."""
    machine = yaml.safe_load((place.folder / "config" / "machines" / "laptop.yaml").read_text(encoding="utf-8"))
    machine |= {"threads": 24, "slurm": slurm, **more}
    (place.folder / "config" / "machines" / f"{name}.yaml").write_text(yaml.safe_dump(machine), encoding="utf-8")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each job of a study over two kinds of nodes was given."""
    place = make_workplace(tmp_path_factory.mktemp("slurm") / "place", stand_in=True)
    place.change("figures", "fig10", "limits", value=["1:1", "0:1"])
    place.change("figures", "fig10", "optimizers", value=["static"])
    node(place, "dram", {"cpus": 48})
    node(place, "cxl", {"partition": "big", "account": "cxl-lab", "constraint": "cxl&rome", "cpus": 64})
    node(place, "gpu", {"partition": "gpus"}, slow_tier={"kind": "cuda"})
    node(place, "h100", {"gres": "gpu:h100:1"}, slow_tier={"kind": "cuda"})
    for script in (place.folder / "workflow" / "scripts").glob("*.sh"):
        script.write_text(STAND_IN, encoding="utf-8")
    defaults = ["slurm_partition=main", "slurm_account=lab"]
    targets = [
        "figures/dram-24t/fig10.pdf",
        "figures/cxl-24t/fig10.pdf",
        *(f"results/{gpu}/links.json" for gpu in GPUS),
    ]
    done = place.snakemake(*targets, "--retries", "1", "--default-resources", *defaults, cores=64)
    assert done.returncode == 0, done.stdout
    assert all((place.folder / target).exists() for target in targets)
    texts = [path.read_text(encoding="utf-8") for path in place.folder.glob("job.*.txt")]
    jobs = [dict(line.split("=", 1) for line in text.splitlines()) for text in texts]
    return [{key: int(value) if value.isdigit() else value for key, value in job.items()} for job in jobs]


def test_a_node_is_asked_for_as_its_machine_file_says(jobs: list[dict[str, Any]]) -> None:
    measuring = [job for job in jobs if job["rule"] in MEASURES]
    assert {job["rule"] for job in measuring} == {"calibrate", "kernel_profile", "run"}
    keys = ("threads", "slurm_partition", "slurm_account", "constraint", "gres")
    asked = {job["machine"]: set() for job in measuring}
    for job in measuring:
        asked[job["machine"]].add(tuple(job.get(key) for key in keys))
    assert asked == {
        "dram-24t": {(48, "main", "lab", None, "")},
        "cxl-24t": {(64, "big", "cxl-lab", "cxl&rome", "")},
        "gpu-24t": {(24, "gpus", "lab", None, "gpu:1")},
        "h100-24t": {(24, "main", "lab", None, "gpu:h100:1")},
    }


def test_what_measures_nothing_goes_anywhere_and_gets_more_memory_when_it_is_tried_again(
    jobs: list[dict[str, Any]],
) -> None:
    for job in jobs:
        if job["rule"] in {"ilp_solve", "compile"}:
            assert (job["threads"], job["slurm_partition"], job.get("constraint")) == (1, "main", None)
    for machine in ("dram-24t", "cxl-24t"):
        solves = [job["mem_mb"] for job in jobs if job["rule"] == "ilp_solve" and job["machine"] == machine]
        assert sorted(solves) == [2000, 2000, 4000, 4000]


def test_what_measures_has_its_node_for_itself() -> None:
    rules = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "rules").glob("*.smk"))
    blocks = {block.split(":", 1)[0]: block for block in rules.split("\nrule ")[1:]}
    assert {name for name, block in blocks.items() if "timing=1," in block} == MEASURES
    assert {name for name, block in blocks.items() if "**NODE," in block} == MEASURES
    assert PROFILE["set-resources"] == {rule: {"slurm_extra": "'--exclusive'"} for rule in MEASURES}


def test_the_profile_has_what_the_default_one_has() -> None:
    default = yaml.safe_load((ROOT / "profiles" / "default" / "profile.yaml").read_text(encoding="utf-8"))
    assert {key: PROFILE[key] for key in default if key != "resources"} == {
        key: value for key, value in default.items() if key != "resources"
    }


def test_another_thread_count_is_another_machine(fresh: Workplace) -> None:
    due = fresh.jobs_due(target=("figures/fig10.pdf", "figures/laptop-1t/fig10.pdf"))
    assert due["calibrate"] == due["fig10"] == 2


def test_settings_of_a_node_do_not_depend_on_where_jobs_are_sent_from(fresh: Workplace) -> None:
    node(fresh, "cxl", {"partition": "big"})
    done = fresh.snakemake("results/cxl-24t/links.json", cores=24)
    assert done.returncode == 0, done.stdout
    node(fresh, "cxl", {"partition": "small"})
    assert fresh.jobs_due("--cores", "24", target="results/cxl-24t/links.json") == {}, "a partition decides no time"
