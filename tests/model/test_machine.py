"""Which cores kernels are pinned to, on a made-up server of two sockets with four cores of two threads each."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from autotm.model import cores
from autotm.model.cores import Topology, described, parse_cpu_list
from autotm.model.errors import BadInputError
from autotm.model.machine import Machine, load_machine
from autotm.model.provenance import provenance

CPUS = range(16)
"""As servers count: the first thread of every core, socket 0 then 1, then the second threads likewise."""


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    root = tmp_path / "system"
    for cpu in CPUS:
        folder = root / "cpu" / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        core = cpu % 8
        (folder / "thread_siblings_list").write_text(f"{core},{core + 8}\n", encoding="ascii")
        (folder / "physical_package_id").write_text(f"{core // 4}\n", encoding="ascii")
    for node, cpus in enumerate(("0-3,8-11", "4-7,12-15")):
        folder = root / "node" / f"node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n", encoding="ascii")
    (root / "node" / "node2").mkdir()
    (root / "node" / "node2" / "cpulist").write_text("\n", encoding="ascii")
    return root


@pytest.fixture
def server(sysfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Loads a machine file with these lines, on the server."""
    monkeypatch.setattr(cores, "usable_cpus", lambda: tuple(CPUS))
    monkeypatch.setattr(Topology, "of", functools.partial(Topology.of, sysfs=sysfs))

    def load(lines: str, threads: int | None = None) -> Machine:
        tier = "slow_tier: {kind: emulated, device: optane-dcpmm}"
        path = tmp_path / "server.yaml"
        path.write_text(f"description: two sockets\n{tier}\n{lines}\n", encoding="utf-8")
        return load_machine(path, threads, "config.yaml")

    return load


@pytest.mark.parametrize(
    ("lines", "threads", "cpus"),
    [
        ("", None, range(8)),
        ("", 3, [0, 1, 2]),
        ("threads: 5", None, range(5)),
        ("threads: 5", 6, range(6)),
        ("socket: 1", None, [4, 5, 6, 7]),
        ("numa_node: 1\nthreads: 2", None, [4, 5]),
        ("threads_per_core: 2", None, [0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15]),
        ("threads_per_core: 2\nsocket: 1\nthreads: 4", None, [4, 12, 5, 13]),
        ("threads_per_core: 2\nsocket: 1", 3, [4, 12, 5]),
        ("cpus: [6, 2, 9]", None, [6, 2, 9]),
        ("cpus: [6, 2, 9]\nthreads: 2", None, [6, 2]),
        ("cpus: [6, 2, 9]", 1, [6]),
    ],
)
def test_threads_have_places(server, lines: str, threads: int | None, cpus: list[int]) -> None:
    loaded = server(lines, threads)
    assert loaded.cpus == tuple(cpus)
    assert loaded.slug == f"server-{len(loaded.cpus)}t"


@pytest.mark.parametrize(
    ("lines", "threads", "spare"),
    [
        ("", None, range(8, 16)),
        ("threads: 7", None, [7, 15]),
        ("threads: 4", None, [8, 9, 10, 11]),
        ("threads_per_core: 2", 8, [4, 12, 5, 13, 6, 14, 7, 15]),
        ("socket: 1\nthreads: 2", None, [6, 14, 7, 15]),
        ("threads_per_core: 2\nsocket: 1", 7, [15]),
        ("threads_per_core: 2", None, []),
        ("cpus: [6, 2, 9]", 1, [2, 9]),
        ("cpus: [6, 2, 9]", None, []),
    ],
)
def test_copies_beside_kernels_get_what_kernels_leave(
    server, lines: str, threads: int | None, spare: list[int]
) -> None:
    loaded = server(lines, threads)
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
    ],
)
def test_places_that_do_not_exist_are_named(server, lines: str, threads: int | None, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        server(lines, threads)


def test_a_record_says_where_its_threads_ran(server) -> None:
    found = provenance(server("threads_per_core: 2\nsocket: 1\nthreads: 4"), 0)
    assert found["cpus"] == [4, 12, 5, 13]
    assert (found["threads_per_core"], found["sockets"], found["numa_nodes"]) == (2, [1], [1])
    assert described([0, 4]) == {"threads_per_core": 1, "sockets": [0, 1], "numa_nodes": [0, 1]}


def test_part_of_a_core_may_be_all_that_is_usable(sysfs: Path) -> None:
    topology = Topology.of([8, 9, 1], sysfs)
    assert topology.pinned("m", None, 1) == (8, 1)
    assert topology.pinned("m", None, 2) == (1, 9)


def test_where_the_system_does_not_tell_each_thread_is_a_core(tmp_path: Path) -> None:
    topology = Topology.of([3, 5], tmp_path)
    assert topology.cores == {3: (3,), 5: (5,)}
    assert {thread.numa_node for thread in topology.threads} == {0}


def test_this_machine_has_cores() -> None:
    topology = Topology.of(os.sched_getaffinity(0))
    assert topology.pinned("here", 1, 1)[0] in os.sched_getaffinity(0)


def test_lists_of_cpus() -> None:
    assert parse_cpu_list("0-3,8,10-11\n") == [0, 1, 2, 3, 8, 10, 11]
    assert parse_cpu_list("\n") == []
