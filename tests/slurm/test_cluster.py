"""A study on a real Slurm of two nodes: plans, failures, memory, cancelling, shared nodes. Run by make test-slurm."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cluster import Cluster
from workplace import Workplace, make_workplace

from autotm.model.files import load, load_with_provenance
from autotm.model.plan import Plan
from autotm.model.record import Record

pytestmark = pytest.mark.timeout(1200)

BROKEN, HUNGRY = "results/cxl-1t/tiny/broken/profile.parquet", "results/dram-1t/tiny/hungry/profile.parquet"
NODE_OF = {"dram-1t": "n1", "cxl-1t": "n2"}
FIGURE = "figures/cxl-1t/heap.pdf"
RECORDS = tuple(f"results/{machine}/tiny/mlp/synchronous/1to1/record.json" for machine in NODE_OF)
PLANS = tuple(
    f"results/{machine}/tiny/mlp/{name}/1to1/plan.json" for machine in NODE_OF for name in ("static", "synchronous")
)
STUDY = (FIGURE, *RECORDS, *PLANS)


@pytest.fixture(scope="module")
def said(cluster: Cluster) -> str:
    """What Snakemake says to one call for both kinds of nodes, of which one job cannot be done."""
    call = cluster.start(*STUDY, BROKEN, HUNGRY)
    assert call.status(within_s=900) == 1, call.said
    return call.said


def test_one_call_measures_on_both_kinds_of_nodes(cluster: Cluster, said: str) -> None:
    assert (cluster.folder / FIGURE).read_bytes().startswith(b"%PDF"), said
    for record, (machine, node) in zip(RECORDS, NODE_OF.items(), strict=True):
        _, came_from = load_with_provenance(cluster.folder / record, "record", Record)
        assert (came_from["slurm"]["node"], came_from["slurm"]["is_shared"]) == (node, False)
        assert (came_from["machine"], len(came_from["cpus"])) == (machine, 1)


def test_what_measures_asks_for_the_gpu_of_its_node(cluster: Cluster, said: str) -> None:
    """The cluster gives it to the jobs; no device is behind it."""
    assert cluster.folder, said
    asked = {}
    for line in listed("%b %N %k"):
        resource, nodes, comment = line.split(maxsplit=2)
        if "kernel_profile" in comment:
            asked.setdefault(nodes, set()).add("gpu" in resource)
    assert asked == {"n1": {False}, "n2": {True}}


def test_solves_went_as_job_arrays(said: str) -> None:
    assert said.count("Submitted array job") == len(NODE_OF), said


@pytest.mark.slow
def test_plans_equal_those_made_here(cluster: Cluster, said: str, tmp_path: Path) -> None:
    assert said
    here = make_workplace(tmp_path / "here", stand_in=False)
    shutil.rmtree(here.folder / "config")
    shutil.copytree(cluster.folder / "config", here.folder / "config")
    shutil.copy(cluster.folder / "own.py", here.folder)
    for machine in NODE_OF:
        for kind in ("links.json", "tiny/mlp/graph.json", "tiny/mlp/profile.parquet", "tiny/mlp/kernels.so"):
            there = Path("results") / machine / kind
            (here.folder / there).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(cluster.folder / there, here.folder / there)
    done = here.snakemake(*PLANS, "--rerun-triggers", "mtime")
    assert done.returncode == 0, done.stdout
    for plan in PLANS:
        assert placement(here, plan) == placement(cluster.place, plan)


def placement(place: Workplace, plan: str) -> Plan:
    """Read a plan with the seconds that it took set to zero."""
    return dataclasses.replace(load(place.folder / plan, "plan", Plan), build_s=0.0, solve_s=0.0, attempts_s=())


def test_a_failed_job_is_named_with_its_log(cluster: Cluster, said: str) -> None:
    log = "logs/cxl-1t/tiny/broken/kernel_profile.log"
    page = said[said.index("\nautotm: ") :]
    assert "autotm: 1 job failed" in page, page
    assert "kernel_profile: broken (tiny, cxl-1t)" in page
    assert "ValueError: this network was never finished" in page
    assert log in page
    assert "this network was never finished" in (cluster.folder / log).read_text(encoding="utf-8")
    assert re.search(r"logs/slurm/rule_kernel_profile/\S+\.log", said), "Slurm's log of the job is named too"


def test_a_job_killed_for_its_memory_gets_more(cluster: Cluster, said: str) -> None:
    assert said
    folder = cluster.folder / "logs" / "slurm" / "rule_kernel_profile"
    logs = [
        log.read_text(encoding="utf-8") for log in sorted(folder.glob("*hungry*/*.log"), key=lambda log: int(log.stem))
    ]
    assert (cluster.folder / HUNGRY).exists(), logs[-1]
    assert "exceeded memory limit" in logs[0]
    assert memory_of_jobs("hungry") == ["1800M", "3600M"]


def memory_of_jobs(network: str) -> list[str]:
    """What each job that profiled a network asked for, the oldest first."""
    return [line.split()[0] for line in listed("%m %k") if network in line]


def listed(form: str) -> list[str]:
    """What `squeue` says of each job that there ever was, the oldest first."""
    command = ["squeue", "--noheader", "--states=all", "--sort=i", f"--format={form}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_cancelled_study_goes_on_and_does_nothing_twice(cluster: Cluster, said: str) -> None:
    assert said
    modified_ns = {path: path.stat().st_mtime_ns for path in cluster.folder.glob("results/**/*.json")}
    done, left = "results/cxl-1t/tiny/small/profile.parquet", "results/dram-1t/tiny/waiting/profile.parquet"
    cancelled = cluster.start(done, left)
    cancelled.until(lambda: "(Rule: kernel_profile)" in cancelled.said and "RUNNING" in queue())
    cancelled.interrupt()
    assert cancelled.status(within_s=60) != 0
    assert ((cluster.folder / done).exists(), (cluster.folder / left).exists()) == (True, False)
    deadline = time.monotonic() + 30
    while queue():
        assert time.monotonic() < deadline, "jobs of a cancelled study still run"
        time.sleep(0.2)
    modified_ns |= {cluster.folder / done: (cluster.folder / done).stat().st_mtime_ns}

    (cluster.folder / "go").touch()
    again = cluster.start(done, left)
    assert again.status(within_s=300) == 0, again.said
    assert re.search(r"kernel_profile +1\n", again.said), again.said
    assert (cluster.folder / left).exists()
    assert {path: path.stat().st_mtime_ns for path in modified_ns} == modified_ns

    third = cluster.start(done, left, *STUDY)
    assert third.status(within_s=120) == 0, third.said
    assert "Nothing to be done" in third.said


def queue() -> str:
    """States of all jobs that are not over."""
    return subprocess.run(["squeue", "-h", "-o", "%T"], capture_output=True, text=True, check=True).stdout


def test_a_shared_node_is_refused_unless_the_machine_file_allows_it(cluster: Cluster, said: str) -> None:
    assert said
    refused = cluster.autotm_in_job("-p", "small", "-c", "1", command="calibrate --machine dram --results refused")
    assert refused.returncode == 1
    assert re.search(r"Slurm job \d+ has 1 of the 2 CPUs of node n1, and other jobs may run beside it", refused.stderr)
    assert not (cluster.folder / "refused").exists()
    # A run takes seconds; `calibrate` would take half a minute.
    place = shutil.copytree(cluster.folder / "results" / "dram-1t", cluster.folder / "allowed" / "shared-1t")
    command = "run mlp synchronous 1:1 --machine shared --results allowed"
    allowed = cluster.autotm_in_job("-p", "small", "-c", "1", command=command)
    assert allowed.returncode == 0, allowed.stderr
    _, came_from = load_with_provenance(place / "tiny/mlp/synchronous/1to1/record.json", "record", Record)
    assert (came_from["machine"], came_from["slurm"]["is_shared"]) == ("shared-1t", True)


def test_a_job_starts_no_more_threads_than_it_has_cpus(cluster: Cluster) -> None:
    script = "import os; from autotm.model.slurm import keep_to_allocation as k; k(); print(os.sched_getaffinity(0))"
    for bind in ("--cpu-bind=none", "--cpu-bind=cores"):
        done = subprocess.run(
            ["srun", "--mem=500", "-c", "1", bind, sys.executable, "-c", script],
            env=cluster.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() in {"{0}", "{1}"}


def test_a_machine_that_is_no_kind_of_node_is_refused_before_anything_is_sent(cluster: Cluster) -> None:
    call = cluster.start("results/laptop-1t/links.json")
    assert call.status(within_s=120) == 1
    assert "config/machines/laptop.yaml is this computer, not a kind of node" in call.said
    assert "has been submitted" not in call.said
