"""The commands `optane status`, `optane app-direct`, `optane memory-mode` and `optane file-system`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from autotm.cli.answer import Answer, answering
from autotm.cli.machine.optane.changes import change_goal, make_file_system
from autotm.cli.machine.optane.state import Module, State, read_state
from autotm.cli.machine.optane.tools import Step, run_steps
from autotm.model.files import AutotmError

log = logging.getLogger("autotm")

_GIB = 1 << 30


@click.group()
def optane() -> None:
    """What changes the machine only tells its steps, unless --execute is given; nothing that holds data is touched.

    Never run on Optane modules: tried with made-up answers of ipmctl, ndctl, findmnt, lsblk and blkid.
    """


def _executing(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--execute", is_flag=True, help="Run the steps (as root); without it they are only told.")(
        function
    )


def _of_socket(function: Callable[..., Any]) -> Callable[..., Any]:
    function = click.option(
        "--destroy",
        "destroys",
        multiple=True,
        metavar="NAMESPACE",
        help="An empty namespace that may go, e.g. namespace1.0.",
    )(function)
    return click.option("--socket", type=click.IntRange(min=0), required=True, help="Whose modules.")(function)


@optane.command("status")
@answering
def status() -> Answer:
    """Modules, the goal of the next boot, regions, namespaces, and what they hold. Changes nothing."""
    state = read_state()
    return Answer(asdict(state), _text(state))


@optane.command("app-direct")
@_of_socket
@_executing
@answering
def app_direct(*, socket: int, destroys: tuple[str, ...], execute: bool) -> Answer:
    """All of a socket's modules as persistent memory, 1LM (the artifact's change_1lm). Then reboot."""
    steps = change_goal(read_state(), socket, memory_mode=False, destroys=destroys)
    return _done(
        steps,
        execute,
        f"socket {socket} is in App Direct mode, or will be after the next boot",
        "reboot, then: autotm optane file-system",
    )


@optane.command("memory-mode")
@_of_socket
@_executing
@answering
def memory_mode(*, socket: int, destroys: tuple[str, ...], execute: bool) -> Answer:
    """All of a socket's modules as memory behind a DRAM cache, 2LM (the artifact's change_2lm). Then reboot."""
    steps = change_goal(read_state(), socket, memory_mode=True, destroys=destroys)
    return _done(
        steps,
        execute,
        f"socket {socket} is in memory mode, or will be after the next boot",
        "reboot; then memory_mode: true in the machine file",
    )


@optane.command("file-system")
@click.option("--region", required=True, help="All of whose memory, e.g. region1.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    required=True,
    help="Where it is mounted; an empty folder, or none yet.",
)
@_executing
@answering
def file_system(*, region: str, folder: Path, execute: bool) -> Answer:
    """A region in App Direct mode as a file system with DAX (the artifact's setup_1lm), and in it public/, for all."""
    steps = make_file_system(read_state(), region, folder)
    answer = _done(
        steps, execute, f"{folder} has the memory of {region} already", f"slow memory's folder: {folder / 'public'}"
    )
    if execute and steps:
        left = make_file_system(read_state(), region, folder)
        if left:
            raise AutotmError(f"{folder}: all steps ran, but findmnt does not show {region} there; look at dmesg")
    return answer


def _done(steps: Sequence[Step], execute: bool, already: str, then: str) -> Answer:
    """Tell the steps, or run them and tell what was run."""
    if not steps:
        return Answer({"steps": [], "executed": False}, f"{already}: nothing to do")
    if execute:
        ran = run_steps(steps)
        return Answer({"steps": ran, "executed": True}, "\n".join([*ran, f"done; next: {then}"]))
    told = [f"# {step.why}\n{step.text}" for step in steps]
    log.info("only told, nothing was changed; --execute runs it")
    return Answer({"steps": [step.text for step in steps], "executed": False}, "\n".join([*told, f"# next: {then}"]))


def _of_module(module: Module) -> str:
    return (
        f"module {module.name} socket {module.socket}: {module.memory_gib:g} GiB memory mode, "
        f"{module.app_direct_gib:g} GiB App Direct"
    )


def _text(state: State) -> str:
    lines = [_of_module(module) for module in state.modules] or ["no Optane modules"]
    lines += [f"after the next boot: {_of_module(module)}" for module in state.goals] or [
        "no goal waits for the next boot"
    ]
    for region in state.regions:
        where = "unknown socket" if region.socket is None else f"socket {region.socket}"
        lines.append(f"{region.name} {where}: {region.size_bytes / _GIB:.1f} GiB")
        lines += [
            f"  {each.name} {each.mode} {each.block_device}: {each.holds or 'empty'}" for each in region.namespaces
        ]
    return "\n".join(lines)
