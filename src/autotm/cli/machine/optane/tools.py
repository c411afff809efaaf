"""Running the system's tools: those that only look, and the steps of a change."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotm.model.files import AutotmError, BadInputError

_LOOK_S = 60.0
PACKAGES = {
    "ipmctl": "ipmctl", "ndctl": "ndctl", "findmnt": "util-linux", "lsblk": "util-linux", "blkid": "util-linux",
    "mkfs.ext4": "e2fsprogs", "mount": "mount", "install": "coreutils",
}  # fmt: skip
"""The Debian package of each tool."""


@dataclass(frozen=True)
class Step:
    """A command that changes the machine.

    Attributes:
        command: program and arguments; `{device}` stands for the block device that an earlier step makes.
        why: what it does, in words.
        device_of: finds that block device in what the command writes; None where it makes none.
    """

    command: tuple[str, ...]
    why: str
    device_of: Callable[[str], str] | None = None

    @property
    def text(self) -> str:
        """As one would type it."""
        return shlex.join(self.command).replace("'{device}'", "DEVICE").replace("{device}", "DEVICE")


def look(*command: str, empty: Sequence[int] = ()) -> str:
    """What a tool that changes nothing writes; nothing where it ends with a status of `empty`.

    Raises:
        BadInputError: the tool is not installed.
        AutotmError: it fails.
    """
    require_tools(command[0])
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LOOK_S, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise AutotmError(f"{shlex.join(command)}: no answer within {_LOOK_S:.0f} s; nothing was changed") from None
    if done.returncode in empty:
        return ""
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "without a word").splitlines()[-1]
        raise AutotmError(
            f"{shlex.join(command)}: exit status {done.returncode}: {said}; nothing was changed. Most of these tools "
            "must run as root: sudo"
        )
    return done.stdout


def require_tools(*names: str) -> None:
    """Raise where a tool is missing.

    Raises:
        BadInputError: names the tool and its package.
    """
    for name in names:
        if shutil.which(name) is None:
            raise BadInputError(f"{name} is not installed: apt-get install {PACKAGES.get(name, name)}")


def require_root() -> None:
    """Raise for whoever may not change the machine.

    Raises:
        BadInputError: this process is not root's.
    """
    if os.geteuid() != 0:
        raise BadInputError("--execute changes the machine's memory, which only root may do: run it with sudo")


def run_steps(steps: Sequence[Step]) -> list[str]:
    """Run one after the other, and stop at the first that fails.

    Returns:
        what was run, as one would type it.

    Raises:
        BadInputError: not root, or a tool is missing; before the first step.
        AutotmError: a step fails; names it and what was done before it.
    """
    require_root()
    require_tools(*dict.fromkeys(step.command[0] for step in steps))
    device = ""
    ran: list[str] = []
    for step in steps:
        command = [part.replace("{device}", device) for part in step.command]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip() or "without a word").splitlines()[-1]
            before = "; ".join(ran) or "nothing"
            raise AutotmError(f"{shlex.join(command)}: exit status {done.returncode}: {said}. Done before it: {before}")
        if step.device_of:
            device = step.device_of(done.stdout)
        ran.append(shlex.join(command))
    return ran
