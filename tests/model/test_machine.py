"""Machine files: which cores kernels get, what is said of slow memory, nodes of Slurm, and what can run where."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotm.model import cores, slurm
from autotm.model.cores import Topology, described
from autotm.model.errors import BadInputError
from autotm.model.machine import (
    SWITCHES,
    DaxTier,
    EmulatedTier,
    Machine,
    NumaTier,
    cannot_run,
    deciding,
    load_machine,
    require_runnable,
)
from autotm.model.provenance import provenance, slow_memory_text
from autotm.model.slurm import Allocation
from autotm.model.system import SystemMemory

CPUS = range(16)
"""Hardware threads of two sockets of four cores: 0-3 and 4-7 are the first of each core, 8-11 and 12-15 the second."""

EMULATED_TIER = "{kind: emulated, device: optane-dcpmm}"


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    root = tmp_path / "system"
    texts = {f"node/node{node}/cpulist": cpus for node, cpus in enumerate(("0-3,8-11", "4-7,12-15", ""))}
    for cpu in CPUS:
        folder, core = f"cpu/cpu{cpu}/topology", cpu % 8
        texts |= {
            f"{folder}/thread_siblings_list": f"{core},{core + 8}",
            f"{folder}/physical_package_id": f"{core // 4}",
        }
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n", encoding="ascii")
    return root


@pytest.fixture
def server(sysfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Loads a machine file with these lines, on the server."""
    monkeypatch.setattr(cores, "usable_cpus", lambda: tuple(CPUS))
    monkeypatch.setattr(Topology, "of", functools.partial(Topology.of, sysfs=sysfs))

    def load(lines: str = "", threads: int | None = None, tier: str = EMULATED_TIER) -> Machine:
        path = tmp_path / "server.yaml"
        path.write_text(f"description: two sockets\nslow_tier: {tier}\n{lines}\n", encoding="utf-8")
        return load_machine(path, threads, "config.yaml")

    return load


@pytest.mark.parametrize(
    ("lines", "threads", "cpus", "spare"),
    [
        ("", None, range(8), range(8, 16)),
        ("", 3, [0, 1, 2], [3, 11]),
        ("threads: 4", None, range(4), [8, 9, 10, 11]),
        ("threads: 5", None, range(5), [5, 13, 6, 14, 7, 15]),
        ("threads: 5", 6, range(6), [6, 14, 7, 15]),
        ("threads: 7", None, range(7), [7, 15]),
        ("socket: 1", None, [4, 5, 6, 7], [12, 13, 14, 15]),
        ("numa_node: 1\nthreads: 2", None, [4, 5], [6, 14, 7, 15]),
        ("threads_per_core: 2", None, [0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15], []),
        ("threads_per_core: 2\nsocket: 1\nthreads: 4", None, [4, 12, 5, 13], [6, 14, 7, 15]),
        ("threads_per_core: 2\nsocket: 1", 3, [4, 12, 5], [6, 14, 7, 15]),
        ("threads_per_core: 2\nsocket: 1", 7, [4, 12, 5, 13, 6, 14, 7], [15]),
        ("cpus: [6, 2, 9]", None, [6, 2, 9], []),
        ("cpus: [6, 2, 9]\nthreads: 2", None, [6, 2], [9]),
        ("cpus: [6, 2, 9]", 1, [6], [2, 9]),
    ],
)
def test_threads_have_places_and_copies_beside_kernels_get_what_kernels_leave(
    server, lines: str, threads: int | None, cpus: list[int], spare: list[int]
) -> None:
    loaded = server(lines, threads)
    assert loaded.cpus == tuple(cpus)
    assert loaded.slug == f"server-{len(loaded.cpus)}t"
    assert loaded.spare_cpus == tuple(spare)
    assert loaded.copying_cpus == (tuple(spare) or loaded.cpus)
    assert provenance(loaded, 0)["copying_cpus"] == list(loaded.copying_cpus)


@pytest.mark.parametrize(
    ("lines", "threads", "message"),
    [
        ("socket: 2", None, r"server.yaml: socket: 2 is not allowed: this process may use cores of socket 0, 1"),
        ("numa_node: 2", None, r"numa_node: 2 is not allowed: this process may use cores of numa_node 0, 1"),
        ("socket: 0\nnuma_node: 1", None, r"numa_node: 1 is not allowed: .* of numa_node 0"),
        ("threads_per_core: 3", None, r"threads_per_core: 3 is not allowed: .* have 2 hardware threads each"),
        ("threads_per_core: 0", None, r"server.yaml: threads_per_core: 0 is not allowed"),
        ("threads: 9", None, r"server.yaml: threads: 9 is not allowed: 8 physical cores .* or threads_per_core: 2"),
        ("", 9, r"config.yaml: threads: 9 is not allowed: 8 physical cores .*1 to 8, or threads_per_core: 2"),
        ("", 1024, r"config.yaml: threads: 1024 is not allowed: 8 physical cores .* give auto or 1 to 8$"),
        ("socket: 1\nthreads_per_core: 2", 9, r"4 physical cores are usable, 2 threads each; give auto or 1 to 8$"),
        ("cpus: [1, 16]", None, r"server.yaml: cpus: this process may not use \[16\]"),
        ("cpus: [1, 1]", None, r"cpus: \[1\] appear twice"),
        ("cpus: [1, 2]", 3, r"config.yaml: threads: 3 is not allowed: .* names 2 cpus"),
        ("cpus: []", None, r"names 0 cpus"),
        ("cpus: [1]\nsocket: 0", None, r"cpus names the cores itself: leave out socket, or cpus"),
        ("sockets: 1", None, r"unknown key 'sockets'; did you mean 'socket'\?"),
        ("slurm: {}", None, "threads: auto cannot be counted from where jobs are sent"),
        ("threads: 4\nslurm: {partitions: big}", None, "unknown key 'slurm.partitions'; did you mean 'partition'"),
        ("threads: 4\nslurm: {cpus: 8}", 9, "threads: 9 is not allowed"),
    ],
)
def test_a_wrong_machine_file_is_refused(server, lines: str, threads: int | None, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        server(lines, threads)


@pytest.mark.parametrize(
    ("tier", "message"),
    [
        ("{kind: numa}", r"server.yaml: key 'slow_tier.fast_nodes' is missing"),
        ("{kind: nma, fast_nodes: [0]}", r"slow_tier.kind: 'nma' is not allowed; did you mean 'numa'"),
        ("{node: 1}", r"key 'slow_tier.kind' is missing"),
        ("numa", r"slow_tier: 'numa' is not allowed"),
        ("{kind: numa, fast_nodes: [0], slow_node: [1]}", r"unknown key 'slow_tier.slow_node'; .*'slow_nodes'"),
        ("{kind: numa, fast_nodes: [0], slow_nodes: [0]}", r"both name \[0\].*stand_in: true"),
        ("{kind: numa, fast_nodes: [0], slow_nodes: []}", r"slow_tier.slow_nodes: \[\] is not allowed"),
        ("{kind: numa, fast_nodes: [0], slow_nodes: [-1]}", r"slow_tier.slow_nodes.0: -1 is not allowed"),
        ("{kind: numa, fast_nodes: [0], slow_nodes: [1], capacity: much}", "capacity: 'much' is not allowed: it is"),
        ("{kind: numa, fast_nodes: [0], slow_nodes: [1], huge_pages: big}", r"slow_tier.huge_pages: 'big'"),
        ("{kind: dax, path: pmem}", r"slow_tier.path: 'pmem' is not allowed"),
        ("{kind: dax, path: /mnt, huge_pages: reserved}", r"slow_tier.huge_pages: 'reserved' is not allowed"),
        ("{kind: cuda, overhead: some}", r"overhead: 'some' is not allowed: it is no size"),
        ("{kind: cuda, device_index: -1}", r"slow_tier.device_index: -1 is not allowed"),
        ("{kind: cuda, products: fp16}", r"slow_tier.products: 'fp16' is not allowed.*'float32', 'tf32' or 'bf16'"),
        ("{kind: emulated, device: cxl-x8, products: tf32}", r"unknown key 'slow_tier.products'"),
        ("{kind: modelled, device: h200}", r"server.yaml: a machine of kind modelled.*begins with modelled-"),
        ("{kind: numa, fast_nodes: [0], slow_nodes: [1]}\nmemory_mode: true", r"memory_mode: .* give slow_tier kind"),
        ("{kind: numa, fast_nodes: [2], slow_nodes: [0]}", r"fast_nodes: \[2\] is not allowed: .* of numa_node 0, 1"),
        ("{kind: numa, fast_nodes: [1], slow_nodes: [2]}\ncpus: [3, 5]", r"cpus: \[3\] are not next to .*_nodes \[1\]"),
        ("{kind: numa, fast_nodes: [1], slow_nodes: [2]}\nnuma_node: 0", r"\[1\] is not allowed: .* numa_node 0"),
    ],
)
def test_slow_memory_that_makes_no_sense_is_named(server, tier: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        server(tier=tier)


def test_a_record_says_where_its_threads_ran(server) -> None:
    source = provenance(server("threads_per_core: 2\nsocket: 1\nthreads: 4"), 0)
    assert source["cpus"] == [4, 12, 5, 13]
    assert (source["threads_per_core"], source["sockets"], source["numa_nodes"]) == (2, [1], [1])
    assert described([0, 4]) == {"threads_per_core": 1, "sockets": [0, 1], "numa_nodes": [0, 1]}


def test_part_of_a_core_may_be_all_that_is_usable_and_each_thread_a_core_if_the_system_does_not_tell(
    sysfs: Path, tmp_path: Path
) -> None:
    topology = Topology.of([8, 9, 1], sysfs)
    assert topology.pinned("m", None, 1) == (8, 1)
    assert topology.pinned("m", None, 2) == (1, 9)
    unknown = Topology.of([3, 5], tmp_path)
    assert unknown.cores == {3: (3,), 5: (5,)}
    assert {thread.numa_node for thread in unknown.threads} == {0}


def test_kernels_and_copies_run_next_to_fast_memory(server) -> None:
    far = server("threads: 3", tier="{kind: numa, fast_nodes: [1], slow_nodes: [2]}")
    assert (far.cpus, far.spare_cpus) == ((4, 5, 6), (7, 15))
    assert server(tier="{kind: numa, fast_nodes: [0, 1], slow_nodes: [2]}").cpus == tuple(range(8))
    assert server(tier="{kind: dax, path: /mnt, fast_nodes: [1]}").cpus == (4, 5, 6, 7)
    assert server(tier="{kind: dax, path: /mnt}").cpus == tuple(range(8))
    assert server("cpus: [6, 5]", tier="{kind: numa, fast_nodes: [1], slow_nodes: [2]}").cpus == (6, 5)


def test_real_memory_is_said_to_be_real_and_a_stand_in_not(server) -> None:
    assert server(tier="{kind: numa, fast_nodes: [0], slow_nodes: [2]}").tier_reality == "real"
    assert server(tier="{kind: numa, fast_nodes: [0], slow_nodes: [0], stand_in: true}").tier_reality == "stand-in"
    assert server(tier="{kind: dax, path: /tmp, stand_in: true}").tier_reality == "stand-in"
    assert server(tier="{kind: emulated, device: optane-dcpmm}").tier_reality == "emulated"


def test_how_much_a_run_may_take_decides_no_measurement() -> None:
    tiers = [DaxTier(kind="dax", path="/mnt", capacity=capacity) for capacity in (None, "3GB")]
    assert deciding(tiers[0]) == deciding(tiers[1])
    assert tiers[1].capacity_bytes == 3_000_000_000
    nodes = [NumaTier(kind="numa", fast_nodes=(0,), slow_nodes=(node,)) for node in (1, 2)]
    assert deciding(nodes[0]) != deciding(nodes[1])


def test_products_that_are_rounded_are_told(server) -> None:
    exact, rounding = server(tier="{kind: cuda}"), server(tier="{kind: cuda, products: bf16}")
    assert (exact.products, rounding.products) == ("float32", "bf16")
    assert deciding(exact.slow_tier) != deciding(rounding.slow_tier)
    sources = [provenance(machine, 0) for machine in (exact, rounding)]
    assert [source.get("products") for source in sources] == [None, "bf16"]
    rounded = "of the host of a GPU, whose contractions round their factors to bf16"
    assert [slow_memory_text(source) for source in sources] == ["", rounded]


JOB = (
    "JobId=7 JobName=autotm UserId=ada(1000) Priority=429 JobState=RUNNING NumNodes=1 NumCPUs={cpus} NumTasks=1 "
    "CPUs/Task={cpus} TRES=cpu={cpus},mem=900M,node=1,billing={cpus} JOB_GRES=(null)   Nodes=n1 CPU_IDs={numbers} "
    "Mem=900 GRES= MinCPUsNode={cpus} OverSubscribe={sharing} Contiguous=0 Command=(null)\n"
)
NODE = "NodeName=n1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=2 CPUEfctv=24 CPUTot=24 CPULoad=0.04 Partitions=small\n"
ENVIRONMENT = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "SLURM_CPUS_ON_NODE": "2"}


def saying(sharing: str, numbers: str, cpus: str) -> Callable[..., str]:
    """An scontrol that tells of job 7 on node n1 with 24 CPUs."""
    answers = {
        ("show", "job", "-d", "7"): JOB.format(cpus=cpus, numbers=numbers, sharing=sharing),
        ("show", "node", "n1"): NODE,
    }
    return lambda *arguments: answers[arguments]


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
    allocation = Allocation.read(ENVIRONMENT | {"SLURM_CPUS_ON_NODE": cpus}, saying(sharing, numbers, cpus))
    assert allocation is not None
    assert (allocation.job, allocation.node, allocation.cpus, allocation.node_cpus) == ("7", "n1", int(cpus), 24)
    assert allocation.numbers == ((4, 6) if numbers == "4,6" else tuple(range(24)))
    assert allocation.is_shared == is_shared


@pytest.mark.parametrize(("cpus", "is_shared"), [(os.cpu_count(), False), ((os.cpu_count() or 1) - 1, True)])
def test_without_scontrol_the_environment_decides(cpus: int, is_shared: bool) -> None:
    allocation = Allocation.read(ENVIRONMENT | {"SLURM_CPUS_ON_NODE": str(cpus)}, lambda *_: "")
    assert allocation is not None
    assert allocation.is_shared == is_shared


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


def written(folder: Path, lines: str) -> Machine:
    path = folder / "config" / "machines" / "cxl.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"description: a node\nslow_tier: {EMULATED_TIER}\n{lines}\n", encoding="utf-8")
    return load_machine(path)


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
def test_a_shared_node_is_refused_unless_the_machine_file_takes_it_which_is_stated(
    tmp_path: Path, job, lines: str
) -> None:
    job("OK")
    with pytest.raises(BadInputError, match=r"job 7 has 2 of the 24 CPUs of node n1.*cxl.yaml: slurm: .shared: true"):
        written(tmp_path, lines).to_measure_on()
    there = written(tmp_path, "threads: 2\nslurm: {shared: true}").to_measure_on()
    assert provenance(there, 0)["slurm"]["is_shared"] is True


def test_a_job_with_too_few_cores_is_refused(tmp_path: Path, job, monkeypatch: pytest.MonkeyPatch) -> None:
    job("NO")
    monkeypatch.setattr(cores, "usable_cpus", lambda: (4, 6))
    with pytest.raises(BadInputError, match=r"Slurm job 7 \(2 CPUs of n1\): threads: 24 is not allowed"):
        written(tmp_path, "threads: 24\nslurm: {}").to_measure_on()


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


EMULATED = Machine("m", 1, (0,), "host", EmulatedTier(kind="emulated", device="optane-dcpmm"), "hash")
NUMA = replace(EMULATED, slow_tier=NumaTier(kind="numa", fast_nodes=(0,), slow_nodes=(1,)))
DAX = replace(EMULATED, slow_tier=DaxTier(kind="dax", path="/mnt"))
POLICIES = ("linux-preferred", "linux-interleave", "linux-weighted-interleave", "linux-balancing")


@pytest.fixture
def system(tmp_path: Path) -> SystemMemory:
    """A kernel that has all that policies take."""
    (tmp_path / "sys/kernel/mm/mempolicy/weighted_interleave").mkdir(parents=True)
    for name in SWITCHES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("0\n")
    return SystemMemory(tmp_path)


@pytest.mark.parametrize("machine", [NUMA, DAX])
def test_real_slow_memory_has_no_cache_and_emulated_all(machine: Machine) -> None:
    assert not any(cannot_run(EMULATED, name) for name in (*POLICIES, "memory-mode", "static"))
    assert cannot_run(machine, "synchronous") is None
    with pytest.raises(BadInputError, match=r"memory-mode cannot run on config/machines/m\.yaml: .* no cache .* kind"):
        require_runnable(machine, "memory-mode")


@pytest.mark.parametrize("name", POLICIES)
def test_linux_places_pages_on_nodes_only(name: str, system: SystemMemory) -> None:
    assert cannot_run(NUMA, name, system) is None
    assert "no pages in memory behind DAX" in (cannot_run(DAX, name, system) or "")
    one = NumaTier(kind="numa", fast_nodes=(0,), slow_nodes=(0,), stand_in=True)
    assert "nothing to choose" in (cannot_run(replace(NUMA, slow_tier=one), name, system) or "")
    reserved = NUMA.slow_tier.model_copy(update={"huge_pages": "reserved"})
    assert "huge_pages: transparent or none" in (cannot_run(replace(NUMA, slow_tier=reserved), name, system) or "")


def test_policies_need_a_kernel_that_has_them_and_switches_on_or_a_process_that_may_set_them(
    system: SystemMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SystemMemory, "may_set", lambda *_: False)
    for name, text in zip(SWITCHES, ("3", "true"), strict=True):
        assert f"/{name} is 0, it needs {SWITCHES[name]}" in (cannot_run(NUMA, "linux-balancing", system) or "")
        (tmp_path / name).write_text(text)
    assert cannot_run(NUMA, "linux-balancing", system) is None, "both are on"
    assert "Linux 6.9" in (cannot_run(NUMA, "linux-weighted-interleave", SystemMemory(tmp_path / "bare")) or "")
    (tmp_path / next(iter(SWITCHES))).unlink()
    assert "Linux 6.1 or later" in (cannot_run(NUMA, "linux-balancing", system) or "")
