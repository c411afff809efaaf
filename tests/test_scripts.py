"""The scripts for Optane modules print their commands, run them only with --execute, and never touch what holds data.

No such modules are at hand: stand-ins for the tools print what the real ones would, and log their calls.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
PROGRAMS = ("bash", "cat", "grep", "ls", "sort")
TOOLS = ("ipmctl", "ndctl", "lsblk", "blkid", "lscpu", "head", "findmnt", "mkfs.ext4", "mount", "install", "id")
CHANGES = ("ipmctl create", "ndctl create", "ndctl destroy", "mkfs", "mount", "install")
TEMPLATE = {"dev": "namespace1.1", "mode": "raw", "size": 0, "state": "disabled"}
NAMESPACE = {"dev": "namespace1.0", "mode": "fsdax", "size": 1 << 37, "blockdev": "pmem1"}
OTHER = NAMESPACE | {"dev": "namespace1.2", "blockdev": "pmem1.2"}
GOALS = {"1lm": "MemoryMode=0 PersistentMemoryType=AppDirect", "2lm": "MemoryMode=100"}


class Machine:
    """Stand-ins for the tools, the only programs that the scripts find, and what they print."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers: dict[str, tuple[str, int]] = {}
        for name in PROGRAMS:
            (folder / name).symlink_to(shutil.which(name) or name)
        self._write("python3", f'exec {sys.executable} "$@"')
        for name in TOOLS:
            self._write(name, f'call="{name} $*"; echo "$call" >> {folder}/calls; . {folder}/answers')
        self.lists(namespaces=())
        self.answer("ndctl list --regions --region region1", '{"dev":"region1"}')
        self.answer("ndctl create", json.dumps(NAMESPACE, indent=2))
        self.answer("lscpu", "# Socket,Node\n0,0\n1,1\n1,1")
        self.answer("lsblk", "pmem1 ")
        self.answer("lsblk --noheadings --raw --output NAME,MOUNTPOINT /dev/pmem1.2", "pmem1.2")
        self.answer("blkid", status=2)
        self.answer("findmnt --mountpoint", status=1)
        self.answer("findmnt --noheadings", "rw,relatime,dax=always")
        self.answer("id", "0")

    def _write(self, name: str, line: str) -> None:
        (self.folder / name).write_text(f"#!/bin/bash\n{line}\n", encoding="utf-8")
        (self.folder / name).chmod(0o755)

    def answer(self, start: str, text: str = "", status: int = 0) -> None:
        """Have calls that begin with `start` print a text and end with a status; the longest start counts."""
        self.answers[start] = text, status
        ordered = sorted(self.answers.items(), reverse=True)
        cases = [f"'{start}'*) echo -n '{text}'; exit {status} ;;" for start, (text, status) in ordered]
        (self.folder / "answers").write_text("\n".join(['case "$call" in', *cases, "esac"]), encoding="utf-8")

    def lists(self, *, namespaces: tuple[dict[str, Any], ...], indent: int | None = None, node: int = 1) -> None:
        """Have ndctl list region0 without namespaces and region1, of this memory node, with these."""
        region = {"dev": "region1", "size": 1 << 37, "numa_node": node, "namespaces": [*namespaces, TEMPLATE]}
        regions = [{"dev": "region0", "numa_node": 0}, region]
        self.answer("ndctl list --regions --namespaces", json.dumps({"regions": regions}, indent=indent))
        self.answer("ndctl list --namespaces", json.dumps([*namespaces, TEMPLATE], indent=indent))

    def run(self, script: str, *arguments: str) -> tuple[int, list[str], str]:
        """Run a script; return its exit status, the commands that it printed, and its messages."""
        done = subprocess.run(
            [SCRIPTS / script, *arguments],
            env={"PATH": str(self.folder)}, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        return done.returncode, done.stdout.splitlines(), done.stderr

    def changes(self) -> list[str]:
        """Calls so far that would change a machine."""
        calls = (self.folder / "calls").read_text(encoding="utf-8").splitlines()
        return [call for call in calls if call.startswith(CHANGES)]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    folder = tmp_path / "bin"
    folder.mkdir()
    return Machine(folder)


@pytest.mark.parametrize("mode", GOALS)
@pytest.mark.parametrize("indent", [None, 2])
def test_a_mode_is_set_after_its_empty_namespaces_are_destroyed(
    machine: Machine, mode: str, indent: int | None
) -> None:
    machine.lists(namespaces=(NAMESPACE, OTHER), indent=indent)
    commands = [
        "ndctl destroy-namespace --force namespace1.0",
        "ndctl destroy-namespace --force namespace1.2",
        f"ipmctl create -f -goal -socket 1 {GOALS[mode]}",
    ]
    status, printed, messages = machine.run("optane_mode.sh", mode, "1")
    assert (status, printed, machine.changes()) == (0, commands, [])
    assert "nothing was changed" in messages
    assert machine.run("optane_mode.sh", mode, "1", "--execute")[:2] == (0, commands)
    assert machine.changes() == commands


def test_a_socket_without_namespaces_needs_no_region_and_no_look_at_another_sockets_data(machine: Machine) -> None:
    machine.lists(namespaces=(NAMESPACE,))
    machine.answer("blkid", "ext4")
    assert machine.run("optane_mode.sh", "2lm", "0", "--execute")[0] == 0
    machine.answer("ndctl list --regions --namespaces", "")
    assert machine.run("optane_mode.sh", "2lm", "1", "--execute")[0] == 0
    assert machine.changes() == [f"ipmctl create -f -goal -socket {socket} MemoryMode=100" for socket in (0, 1)]


@pytest.mark.parametrize(
    ("start", "text", "exit_status", "message"),
    [
        ("lsblk", "pmem1 /data", 0, "/dev/pmem1 is in use: pmem1 /data"),
        ("lsblk", "pmem1 \npmem1p1 ", 0, "/dev/pmem1 is in use: pmem1 , pmem1p1"),
        ("lsblk", "", 1, "lsblk failed"),
        ("blkid", "autotm-optane\next4", 0, "/dev/pmem1 holds data: autotm-optane, ext4"),
        ("blkid", "blkid: error: /dev/pmem1: Input/output error", 2, "Input/output error"),
        ("blkid", "", 8, "/dev/pmem1 holds data"),
        ("head", "", 1, "cannot read /dev/pmem1"),
        ("ndctl list", "", 1, "ndctl list failed"),
        ("ndctl list", "{", 0, "cannot read what ndctl list printed"),
        ("lscpu", "0,0", 0, "there is no socket"),
        ("id", "1000", 0, "run it with sudo"),
    ],
)
def test_a_mode_is_refused_where_there_may_be_data(
    machine: Machine, start: str, text: str, exit_status: int, message: str
) -> None:
    machine.lists(namespaces=(NAMESPACE,))
    if start == "ndctl list":
        del machine.answers["ndctl list --regions --namespaces"]
    machine.answer(start, text, exit_status)
    status, printed, messages = machine.run("optane_mode.sh", "1lm", "1", "--execute")
    assert (status, printed, machine.changes()) == (1, [], [])
    assert message in messages


def test_a_namespace_that_cannot_be_searched_a_wrong_call_and_a_missing_tool_are_refused(machine: Machine) -> None:
    devdax = {"dev": "namespace1.2", "mode": "devdax", "size": 1, "chardev": "dax1.2"}
    machine.lists(namespaces=(devdax,), node=-1)  # It may belong to any socket.
    assert "namespace1.2 has no block device" in machine.run("optane_mode.sh", "2lm", "0", "--execute")[2]
    for wrong in (("3lm", "1"), ("2lm", ""), ("2lm", "1", "--excute"), ("2lm",)):
        assert machine.run("optane_mode.sh", *wrong)[0] == 1
    (machine.folder / "ipmctl").unlink()
    assert "ipmctl is not installed" in machine.run("optane_mode.sh", "2lm", "1", "--execute")[2]
    assert machine.changes() == []


def test_a_region_becomes_a_file_system(machine: Machine, tmp_path: Path) -> None:
    folder = str(tmp_path / "pmem")
    status, printed, messages = machine.run("optane_filesystem.sh", "region1", folder)
    assert (status, machine.changes()) == (0, [])
    assert "nothing was changed" in messages
    assert printed == [
        "ndctl create-namespace --region region1 --mode fsdax",
        "mkfs.ext4 -q -b 4096 -E stride=512 -L autotm-optane DEVICE",
        f"install -d {folder}",
        f"mount -o dax DEVICE {folder}",
        f"install -d -m 1777 {folder}/public",
    ]
    executed = [command.replace("DEVICE", "/dev/pmem1") for command in printed]
    status, printed, messages = machine.run("optane_filesystem.sh", "region1", folder, "--execute")
    assert (status, printed) == (0, executed)
    assert f"the folder of slow memory for the machine file: {folder}/public" in messages
    assert machine.changes() == executed
    for options in ("rw,relatime", "rw,dax=never"):
        machine.answer("findmnt --noheadings", options)
        status, _, messages = machine.run("optane_filesystem.sh", "region1", folder, "--execute")
        assert (status, "mounted without DAX" in messages) == (1, True)


def test_a_file_system_is_refused_where_something_is(machine: Machine, tmp_path: Path) -> None:
    script, folder = "optane_filesystem.sh", str(tmp_path / "pmem")
    assert "give its whole path" in machine.run(script, "region1", "pmem", "--execute")[2]
    assert "not an empty folder" in machine.run(script, "region1", str(machine.folder), "--execute")[2]
    assert "there is no region" in machine.run(script, "region7", folder, "--execute")[2]
    machine.answer("findmnt --mountpoint", "/data")
    assert "something is mounted" in machine.run(script, "region1", folder, "--execute")[2]
    for indent in (None, 2):
        machine.lists(namespaces=(NAMESPACE,), indent=indent)
        assert "region1 has a namespace" in machine.run(script, "region1", folder, "--execute")[2]
    machine.answer("id", "1000")
    assert "run it with sudo" in machine.run(script, "region1", folder, "--execute")[2]
    assert machine.changes() == []
