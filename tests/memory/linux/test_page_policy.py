"""Policies of Linux, really asked for, with the one node that every machine has; and switches on a made-up machine."""

from __future__ import annotations

import mmap
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from autotm.memory.linux.page_policy import POLICIES, PagePolicy, apply_policy, balancing
from autotm.memory.linux.system_calls import NOWHERE, pages_by_node
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.machine import SWITCHES
from autotm.model.system import SystemMemory
from autotm.solve.options import optimizer_names

PAGES = 64


def mapping() -> np.ndarray:
    return np.frombuffer(mmap.mmap(-1, PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)


def asked(memory: np.ndarray, policy: PagePolicy, nodes: list[int]) -> None:
    """Apply a policy, or skip where a container forbids it."""
    try:
        apply_policy(memory.ctypes.data, memory.size, policy, nodes)
    except AutotmError as error:
        if "EPERM" in str(error) or "ENOSYS" in str(error):
            pytest.skip(str(error))
        if policy is PagePolicy.WEIGHTED_INTERLEAVE and "Linux 6.9 is the first" in str(error):
            pytest.skip(str(error))
        raise


def test_every_simulated_policy_can_be_asked_for() -> None:
    assert set(POLICIES) == {name for name in optimizer_names() if name.startswith("linux-")}


@pytest.mark.parametrize("policy", PagePolicy)
def test_touched_pages_are_on_the_node_asked_for(policy: PagePolicy) -> None:
    memory = mapping()
    asked(memory, policy, [] if policy is PagePolicy.LOCAL else [0])
    try:
        before = pages_by_node(memory.ctypes.data, memory.size)
    except AutotmError as error:
        pytest.skip(str(error))
    assert before == {NOWHERE: PAGES}, "nothing was touched yet"
    memory[:: mmap.PAGESIZE] = 1
    found = pages_by_node(memory.ctypes.data, memory.size)
    assert sum(found.values()) == PAGES
    if policy is not PagePolicy.LOCAL:
        assert found == {"0": PAGES}


@pytest.mark.parametrize(("policy", "nodes"), [(PagePolicy.PREFERRED, []), (PagePolicy.PREFERRED, [0, 1]),
                                               (PagePolicy.INTERLEAVE, []), (PagePolicy.LOCAL, [0])])  # fmt: skip
def test_a_policy_takes_its_number_of_nodes(policy: PagePolicy, nodes: list[int]) -> None:
    memory = mapping()
    with pytest.raises(BadInputError, match="it takes"):
        apply_policy(memory.ctypes.data, memory.size, policy, nodes)


def test_a_node_without_memory_is_refused_before_the_kernel_is_asked(tmp_path: Path) -> None:
    for number, size_kb in ((0, 4096), (1, 0), (2, 4096)):
        told = tmp_path / f"sys/devices/system/node/node{number}/meminfo"
        told.parent.mkdir(parents=True)
        told.write_text(f"Node {number} MemTotal:       {size_kb} kB\n")
    memory, system = mapping(), SystemMemory(tmp_path)
    for node, why in ((1, "has no memory"), (3, "does not exist")):
        with pytest.raises(BadInputError, match=f"node {node} {why} on this machine; nodes with memory: 0, 2"):
            apply_policy(memory.ctypes.data, memory.size, PagePolicy.INTERLEAVE, [0, node], system)


def test_what_the_kernel_refuses_is_told() -> None:
    memory = mapping()
    asked(memory, PagePolicy.PREFERRED, [0])
    with pytest.raises(AutotmError, match="EINVAL"):
        apply_policy(memory.ctypes.data + 1, memory.size, PagePolicy.PREFERRED, [0])


def machine(folder: Path) -> dict[Path, str]:
    """A made-up tree with both switches off."""
    found = dict.fromkeys((folder / name for name in SWITCHES), "0")
    for path, value in found.items():
        path.parent.mkdir(parents=True)
        path.write_text(value)
    return found


def contents(paths: dict[Path, str]) -> list[str]:
    return [path.read_text() for path in paths]


def test_switches_are_on_within_and_as_before_after(tmp_path: Path) -> None:
    switches = machine(tmp_path)
    with balancing(tmp_path):
        assert contents(switches) == ["2", "1"]
    assert contents(switches) == ["0", "0"]
    with pytest.raises(ZeroDivisionError), balancing(tmp_path):
        _ = 1 / 0
    assert contents(switches) == ["0", "0"]


def test_a_killed_process_leaves_no_switch_on(tmp_path: Path) -> None:
    switches = machine(tmp_path)
    program = (
        "import sys, time; from pathlib import Path; from autotm.memory.linux.page_policy import balancing\n"
        "with balancing(Path(sys.argv[1])):\n    print('on', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"on\n"
    assert contents(switches) == ["2", "1"]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    while contents(switches) != ["0", "0"]:  # what watches over it puts them back
        time.sleep(0.02)


def test_a_switch_that_may_not_be_changed_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    first, second = machine(tmp_path)
    second.unlink()
    second.symlink_to("/proc/version")
    with pytest.raises(AutotmError, match="needs to be run as root"), balancing(tmp_path):
        pass
    assert first.read_text() == "0"


def test_a_kernel_without_switches_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="needs a Linux of 6"), balancing(tmp_path):
        pass
