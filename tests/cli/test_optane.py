"""Optane from mode to mode: only told unless asked, refused where data, mounts or doubt are, nothing twice.

No such modules are at hand: made-up tools on the path answer as the real ones do, and write down what they are asked.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from autotm.cli import optane
from autotm.cli.main import main

TOOL = """#!/bin/sh
call="${{0##*/}} $*"
echo "$call" >> {home}/calls
. {home}/answers.sh
"""
TOOLS = ("ipmctl", "ndctl", "findmnt", "lsblk", "blkid", "mkfs.ext4", "mount", "install", "umount", "wipefs")
CHANGING = ("ipmctl create", "ndctl create", "ndctl destroy", "mkfs", "mount", "umount", "wipefs", "install")
NO_GOAL = (
    "There are no goal configs defined in the system.\nPlease use 'show -region' to display currently valid regions."
)
GOAL_HEAD = " SocketID | DimmID | MemorySize | AppDirect1Size | AppDirect2Size\n" + "=" * 66


def modules(memory: str, app_direct: str) -> str:
    return "\n".join(
        f"---DimmID=0x{socket}001---\n   SocketID=0x000{socket}\n   MemoryCapacity={memory} GiB\n"
        f"   AppDirectCapacity={app_direct} GiB"
        for socket in (0, 1)
    )


def goal(memory: str, app_direct: str) -> str:
    return f"{GOAL_HEAD}\n 0x0001   | 0x1001 | {memory} GiB | {app_direct} GiB | 0.0 GiB"


def namespace(**changes: Any) -> dict[str, Any]:
    return {"dev": "namespace1.0", "mode": "fsdax", "map": "dev", "blockdev": "pmem1", "size": 1 << 37} | changes


def regions(*namespaces: dict[str, Any]) -> str:
    one = {"dev": "region1", "type": "pmem", "size": 1 << 37, "numa_node": 1}
    return json.dumps({"regions": [one | ({"namespaces": list(namespaces)} if namespaces else {})]})


def mounts(*rows: tuple[str, str, str]) -> str:
    found = [("/dev/sda1", "/", "rw"), *rows]
    return json.dumps(
        {"filesystems": [{"source": s, "target": t, "fstype": "ext4", "options": o} for s, t, o in found]}
    )


def blocks(mountpoint: str | None = None, **more: Any) -> str:
    return json.dumps({"blockdevices": [{"name": "pmem1", "mountpoint": mountpoint} | more]})


class Bench:
    """Tools on the path that answer what a test gives them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.answers: dict[str, tuple[int, str]] = {}
        self.say("ipmctl show -units GiB -d SocketID,MemoryCapacity,AppDirectCapacity -dimm", modules("0.0", "126.4"))
        self.say("ipmctl show -units GiB -goal", NO_GOAL)
        self.say("ndctl list --regions --namespaces --idle", regions())
        self.say("findmnt", mounts())
        self.say("lsblk", blocks())
        self.say("blkid", "", 2)

    def say(self, start: str, text: str, status: int = 0) -> None:
        self.answers[start] = (status, text)
        cases = []
        for number, (begins, (ends, answer)) in enumerate(self.answers.items()):
            file = self.home / f"answer{number}"
            file.write_text(f"{answer}\n", encoding="utf-8")
            cases.append(f'"{begins}"*) /bin/cat {file}; exit {ends};;')
        text = "\n".join(['case "$call" in', *cases, "esac", "exit 0"])
        (self.home / "answers.sh").write_text(text, encoding="utf-8")

    def changes(self) -> list[str]:
        """What was asked that changes a machine."""
        file = self.home / "calls"
        calls = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        return [call for call in calls if call.startswith(CHANGING)]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    home = tmp_path / "tools"
    home.mkdir()
    for name in TOOLS:
        (home / name).write_text(TOOL.format(home=home), encoding="utf-8")
        (home / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(home))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("autotm.cli.optane._socket", lambda node, _: node)
    return Bench(home)


def test_without_execute_steps_are_told_and_nothing_is_changed(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["optane", "memory-mode", "--socket", "1"]) == 0
    told = capsys.readouterr().out
    assert "ipmctl create -f -goal -socket 1 MemoryMode=100\n" in told
    assert "reboot" in told
    assert main(["optane", "file-system", "--region", "region1", "--folder", "/mnt/pmem-of-nobody"]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert told == [
        "ndctl create-namespace --region region1 --mode fsdax",
        "mkfs.ext4 -q -b 4096 -E stride=512 -L autotm-optane DEVICE",
        "install -d /mnt/pmem-of-nobody",
        "mount -o dax DEVICE /mnt/pmem-of-nobody",
        "install -d -m 1777 /mnt/pmem-of-nobody/public",
    ]
    assert bench.changes() == []


def test_a_goal_is_asked_for_once(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optane", "memory-mode", "--socket", "1", "--execute"]) == 0
    assert bench.changes() == ["ipmctl create -f -goal -socket 1 MemoryMode=100"]
    bench.say("ipmctl show -units GiB -goal", goal("126.0", "0.0"))
    for _ in range(2):
        assert main(["optane", "memory-mode", "--socket", "1", "--execute"]) == 0
        assert "nothing to do" in capsys.readouterr().out.splitlines()[-1]
    assert len(bench.changes()) == 1
    assert main(["optane", "app-direct", "--socket", "1", "--execute"]) == 0, (
        "the goal that waits is not the one asked for"
    )
    assert bench.changes()[1:] == ["ipmctl create -f -goal -socket 1 MemoryMode=0 PersistentMemoryType=AppDirect"]


def test_what_is_in_effect_is_left_alone(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optane", "app-direct", "--socket", "0", "--execute"]) == 0
    assert "nothing to do" in capsys.readouterr().out
    assert bench.changes() == []


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"blkid": "TYPE=ext4\nLABEL=home"}, "namespace1.0 holds data: ext4"),
        ({"blkid": "PTTYPE=gpt"}, "namespace1.0 holds data: gpt"),
        ({"lsblk": blocks("/data")}, "namespace1.0 is in use: /data"),
        ({"lsblk": blocks("[SWAP]")}, "namespace1.0 is in use: [SWAP]"),
        ({"lsblk": blocks(children=[{"name": "vg-data", "mountpoint": None}])}, "namespace1.0 is in use: /dev/vg-data"),
        (
            {"ndctl list --regions": regions(namespace(mode="devdax", blockdev=""))},
            "namespace1.0 is devdax, whose contents",
        ),
    ],
)
def test_what_holds_something_is_never_destroyed(
    bench: Bench, caplog: pytest.LogCaptureFixture, found: dict[str, str], message: str
) -> None:
    bench.answers.pop("ndctl list --regions --namespaces --idle")
    bench.say("ndctl list --regions", regions(namespace()))
    for start, text in found.items():
        bench.say(start, text)
    for command in (
        ["memory-mode", "--socket", "1", "--destroy", "namespace1.0"],
        ["file-system", "--region", "region1", "--folder", "/mnt/pmem-of-nobody"],
    ):
        caplog.clear()
        assert main(["optane", *command, "--execute"]) == 1
        told = caplog.text
        assert message in told or "not fsdax" in told
    assert bench.changes() == []


def test_an_empty_namespace_goes_only_if_it_is_named(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.say("ndctl list --regions --namespaces --idle", regions(namespace()))
    assert main(["optane", "memory-mode", "--socket", "1", "--execute"]) == 1
    assert "--destroy namespace1.0" in caplog.text
    assert bench.changes() == []
    assert main(["optane", "memory-mode", "--socket", "1", "--destroy", "namespace1.0", "--execute"]) == 0
    assert bench.changes() == [
        "ndctl destroy-namespace --force namespace1.0",
        "ipmctl create -f -goal -socket 1 MemoryMode=100",
    ]


def test_a_region_of_unknown_socket_counts_for_each(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotm.cli.optane._socket", lambda *_: None)
    bench.say("ndctl list --regions --namespaces --idle", regions(namespace()))
    assert main(["optane", "memory-mode", "--socket", "0", "--execute"]) == 1
    assert "namespace1.0 is in the way" in caplog.text


def test_a_file_system_is_made_once_and_mounted_again_after_a_boot(
    bench: Bench, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    folder = tmp_path / "pmem"
    command = ["optane", "file-system", "--region", "region1", "--folder", str(folder), "--execute"]
    bench.say("ndctl create-namespace", json.dumps(namespace()))
    bench.say("ndctl list --namespace", json.dumps([namespace()]))
    assert main(command) == 1, "these made-up tools change nothing, and that is noticed"
    assert "findmnt does not show region1 there" in caplog.text
    made = bench.changes()
    assert made[1] == "mkfs.ext4 -q -b 4096 -E stride=512 -L autotm-optane /dev/pmem1"
    assert made[3] == f"mount -o dax /dev/pmem1 {folder}"
    bench.say("ndctl list --regions --namespaces --idle", regions(namespace()))
    bench.say("blkid", "TYPE=ext4\nLABEL=autotm-optane")
    main(command)
    again = bench.changes()[len(made) :]
    assert again == [f"install -d {folder}", f"mount -o dax /dev/pmem1 {folder}", f"install -d -m 1777 {folder}/public"]
    capsys.readouterr()
    bench.say("findmnt", mounts(("/dev/pmem1", str(folder), "rw,relatime,dax=always")))
    assert main(command) == 0
    assert "nothing to do" in capsys.readouterr().out
    bench.say("findmnt", mounts(("/dev/pmem1", str(folder), "rw,relatime")))
    assert main(command) == 1
    assert "mounted without DAX" in caplog.text
    assert len(bench.changes()) == len(made) + len(again)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["app-direct", "--socket", "7"], "socket 7 has no Optane modules; sockets that have: [0, 1]"),
        (["memory-mode", "--socket", "1", "--destroy", "namespace9.0"], "unknown namespace 'namespace9.0'"),
        (["file-system", "--region", "region7", "--folder", "/mnt/x"], "unknown region 'region7'"),
        (["file-system", "--region", "region1", "--folder", "mnt"], "give the whole path"),
        (["file-system", "--region", "region1", "--folder", "/"], "/dev/sda1 is mounted there"),
        (["file-system", "--region", "region1", "--folder", "/etc"], "/etc: not an empty folder"),
    ],
)
def test_what_was_meant_otherwise_is_named(
    bench: Bench, caplog: pytest.LogCaptureFixture, arguments: list[str], message: str
) -> None:
    assert main(["optane", *arguments, "--execute"]) == 1
    assert message in caplog.text
    assert bench.changes() == []


def test_the_device_must_be_named(bench: Bench) -> None:
    for command in ("app-direct", "memory-mode", "file-system"):
        assert main(["optane", command]) == 2
    assert bench.changes() == []


def test_only_root_may_execute(bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["optane", "memory-mode", "--socket", "1", "--execute"]) == 1
    assert "sudo" in caplog.text
    assert bench.changes() == []


def test_a_missing_tool_and_one_that_fails_end_it_before_anything_is_changed(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.say("blkid", "blkid: error: /dev/pmem1: Permission denied", 1)
    bench.say("ndctl list --regions --namespaces --idle", regions(namespace()))
    assert main(["optane", "memory-mode", "--socket", "1", "--destroy", "namespace1.0", "--execute"]) == 1
    assert "Permission denied" in caplog.text
    bench.say("blkid", "", 2)
    bench.say("ipmctl show -units GiB -goal", goal("126.0 GB", "0.0"))
    assert main(["optane", "memory-mode", "--socket", "1", "--execute"]) == 1
    assert "ipmctl show -goal: cannot read" in caplog.text
    (bench.home / "ndctl").unlink()
    assert main(["optane", "status"]) == 1
    assert "ndctl is not installed: apt-get install ndctl" in caplog.text
    assert bench.changes() == []


def test_a_step_that_fails_says_what_was_done_before(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.say("ndctl list --regions --namespaces --idle", regions(namespace()))
    bench.say("ipmctl create", "Create Goal: Error 102 - invalid goal", 1)
    assert main(["optane", "memory-mode", "--socket", "1", "--destroy", "namespace1.0", "--execute"]) == 1
    told = " ".join(caplog.text.split())
    assert "invalid goal. Done before it: ndctl destroy-namespace --force namespace1.0" in told


def test_status_tells_modules_goals_and_what_namespaces_hold(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.say("ndctl list --regions --namespaces --idle", regions(namespace()))
    bench.say("ipmctl show -units GiB -goal", goal("126.0", "0.0"))
    bench.say("lsblk", blocks("/data"))
    assert main(["optane", "status"]) == 0
    told = capsys.readouterr().out
    assert "module 0x1001 socket 1: 0 GiB memory mode, 126.4 GiB App Direct" in told
    assert "after the next boot: module 0x1001 socket 1: 126 GiB memory mode" in told
    assert "namespace1.0 fsdax pmem1: is in use: /data" in told
    assert main(["optane", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["regions"][0]["namespaces"][0]["used_by"] == ["/data"]


def test_each_tool_has_its_package() -> None:
    assert set(optane.PACKAGES) == set(TOOLS) - {"umount", "wipefs"}
