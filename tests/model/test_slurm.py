"""Kinds of Slurm nodes, and what a job was given of its node: as Slurm 22.05 says it, without a Slurm."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from autotm.model import cores, slurm
from autotm.model.errors import BadInputError
from autotm.model.machine import Machine, load_machine
from autotm.model.provenance import provenance
from autotm.model.slurm import Allocation

JOB = (
    "JobId=7 JobName=autotm UserId=ada(1000) Priority=429 JobState=RUNNING NumNodes=1 NumCPUs={cpus} NumTasks=1 "
    "CPUs/Task={cpus} TRES=cpu={cpus},mem=900M,node=1,billing={cpus} JOB_GRES=(null)   Nodes=n1 CPU_IDs={numbers} "
    "Mem=900 GRES= MinCPUsNode={cpus} OverSubscribe={sharing} Contiguous=0 Command=(null)\n"
)
NODE = "NodeName=n1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=2 CPUEfctv=24 CPUTot=24 CPULoad=0.04 Partitions=small\n"
ENVIRONMENT = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "SLURM_CPUS_ON_NODE": "2"}
TIER = "slow_tier: {kind: emulated, device: optane-dcpmm}"


def saying(sharing: str, numbers: str, cpus: str) -> Callable[..., str]:
    """An scontrol that tells of job 7 on node n1 with 24 CPUs."""
    answers = {
        ("show", "job", "-d", "7"): JOB.format(cpus=cpus, numbers=numbers, sharing=sharing),
        ("show", "node", "n1"): NODE,
    }
    return lambda *arguments: answers[arguments]


def allocation(sharing: str, numbers: str = "4,6", cpus: str = "2") -> Allocation:
    found = Allocation.read(ENVIRONMENT | {"SLURM_CPUS_ON_NODE": cpus}, saying(sharing, numbers, cpus))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("sharing", "cpus", "numbers", "is_shared"),
    [
        ("NO", "2", "4,6", False),  # --exclusive, or a partition whose nodes are
        ("OK", "2", "4,6", True),
        ("OK", "24", "0-23", False),  # the node is its own, as it has every CPU
        ("YES", "24", "0-23", True),
        ("USER", "2", "4,6", True),
    ],
)
def test_a_node_is_shared_where_others_may_run(sharing: str, cpus: str, numbers: str, is_shared: bool) -> None:
    found = allocation(sharing, numbers, cpus)
    assert (found.job, found.node, found.cpus, found.node_cpus) == ("7", "n1", int(cpus), 24)
    assert found.is_shared == is_shared


def test_cpus_are_those_that_slurm_names() -> None:
    assert allocation("OK", "0-2,9", "4").numbers == (0, 1, 2, 9)


@pytest.mark.parametrize(("cpus", "is_shared"), [(os.cpu_count(), False), ((os.cpu_count() or 1) - 1, True)])
def test_without_scontrol_the_environment_decides(cpus: int, is_shared: bool) -> None:
    found = Allocation.read(ENVIRONMENT | {"SLURM_CPUS_ON_NODE": str(cpus)}, lambda *_: "")
    assert found is not None
    assert found.is_shared == is_shared


@pytest.mark.parametrize("missing", ["SLURM_JOB_ID", "SLURMD_NODENAME"])
def test_outside_of_jobs_and_in_the_shell_of_salloc_there_is_no_allocation(missing: str) -> None:
    environment = {key: value for key, value in ENVIRONMENT.items() if key != missing}
    assert Allocation.read(environment, lambda *_: pytest.fail("nobody is to be asked")) is None


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch):
    """Makes this process part of job 7, on a node whose 24 CPUs it may use; before that it is part of none."""
    for key in ENVIRONMENT:
        monkeypatch.delenv(key, raising=False)
    slurm.allocation.cache_clear()
    monkeypatch.setattr(cores, "usable_cpus", lambda: tuple(range(24)))

    def start(sharing: str, numbers: str = "4,6", cpus: str = "2") -> None:
        slurm.allocation.cache_clear()
        monkeypatch.setattr(slurm, "_scontrol", saying(sharing, numbers, cpus))
        for key, value in (ENVIRONMENT | {"SLURM_CPUS_ON_NODE": cpus}).items():
            monkeypatch.setenv(key, value)

    yield start
    slurm.allocation.cache_clear()


def written(folder: Path, lines: str, threads: int | None = None) -> Machine:
    path = folder / "config" / "machines" / "cxl.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"description: a node\n{TIER}\n{lines}\n", encoding="utf-8")
    return load_machine(path, threads)


def test_cores_of_a_node_are_chosen_in_its_job(tmp_path: Path, job) -> None:
    here = written(tmp_path, "threads: 12\nslurm: {partition: big, constraint: cxl, cpus: 24}")
    assert (here.slug, here.cpus, here.copying_cpus) == ("cxl-12t", (), ())
    assert provenance(here, 0)["cpus"] == []
    job("NO", "0-23", "24")
    there = here.to_measure_on()
    assert (len(there.cpus), there.cores) == (12, None)
    assert provenance(there, 0)["slurm"] == {"job": "7", "node": "n1", "is_shared": False}


@pytest.mark.usefixtures("job")
def test_measuring_needs_a_job_on_such_a_node(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no job on one: measure with snakemake --workflow-profile profiles/slurm"):
        written(tmp_path, "threads: 2\nslurm: {}").to_measure_on()


@pytest.mark.parametrize("lines", ["threads: 2\nslurm: {}", "threads: 1"])
def test_a_shared_node_is_refused(tmp_path: Path, job, lines: str) -> None:
    job("OK")
    with pytest.raises(BadInputError, match=r"job 7 has 2 of the 24 CPUs of node n1.*cxl.yaml: slurm: .shared: true"):
        written(tmp_path, lines).to_measure_on()


def test_a_shared_node_is_taken_where_the_machine_file_says_so_and_stated(tmp_path: Path, job) -> None:
    job("OK")
    there = written(tmp_path, "threads: 2\nslurm: {shared: true}").to_measure_on()
    assert provenance(there, 0)["slurm"]["is_shared"] is True


def test_a_job_with_too_few_cores_is_refused(tmp_path: Path, job, monkeypatch: pytest.MonkeyPatch) -> None:
    job("NO")
    monkeypatch.setattr(cores, "usable_cpus", lambda: (4, 6))
    with pytest.raises(BadInputError, match=r"Slurm job 7 \(2 CPUs of n1\): threads: 24 is not allowed"):
        written(tmp_path, "threads: 24\nslurm: {}").to_measure_on()


@pytest.mark.parametrize(
    ("lines", "threads", "said"),
    [
        ("slurm: {}", None, "threads: auto cannot be counted from where jobs are sent"),
        ("threads: 4\nslurm: {partitions: big}", None, "unknown key 'slurm.partitions'; did you mean 'partition'"),
        ("threads: 4\nslurm: {cpus: 8}", 9, "threads: 9 is not allowed"),
    ],
)
def test_a_wrong_machine_file_is_refused(tmp_path: Path, lines: str, threads: int | None, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        written(tmp_path, lines, threads)


@pytest.mark.parametrize(
    ("numbers", "kept"),
    [("4,6", {4, 6}), ("30-31", {0, 1})],  # what Slurm numbers otherwise is no CPU of ours: as many as were given
)
def test_a_job_keeps_to_as_many_cpus_as_it_has(
    job, monkeypatch: pytest.MonkeyPatch, numbers: str, kept: set[int]
) -> None:
    held: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(24)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: held.append(set(cpus)))
    slurm.keep_to_allocation()
    assert held == [], "outside of a job nothing is held"
    job("OK", numbers)
    slurm.keep_to_allocation()
    assert held == [kept]


def test_a_job_that_slurm_holds_already_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 6})
    monkeypatch.setattr(slurm, "allocation", lambda: pytest.fail("asked"))
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "2")
    slurm.keep_to_allocation()
