"""What every command does with what its users get wrong: one message, the documented exit status, nothing half written.

The cases of each command are in `misuse_cases`; a new command without any fails here. Ctrl-C is in `test_interrupts`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import prepared_study
import pytest
from command_server import CommandServer, Ended, mounts_allowed
from misuse_cases import COMMANDS, COMMON, LIBRARY, Command, Misuse

from autotm.cli.main import CLOSED, DONE, FAULT, MISUSE, SECTIONS, autotm

TURNS = tuple((kind, number) for kind, most in COMMON.items() for number in range(most))
"""What all commands of a study can be given wrongly, and hear from the same code."""


class Asked(NamedTuple):
    """A misuse with the arguments that it is asked with."""

    name: str
    arguments: list[str]
    case: Misuse


def cases() -> Iterator[object]:
    """The misuses of each command, every other one answered in JSON. Of `TURNS` each has its own in `make test`."""
    total = 0
    for turn, (name, command) in enumerate(COMMANDS.items()):
        quick: list[Asked] = []
        others: list[Asked] = []
        for kind in ("missing", "wrong", "unknown"):
            given = getattr(command, kind)
            for number, case in enumerate(() if isinstance(given, str) else given):
                is_others = (kind, number) in TURNS and TURNS[turn % len(TURNS)] != (kind, number)
                as_json = ["--json"] if total % 2 and "schema" not in name else []
                asked = Asked(f"{kind} {number}", [*command.with_options(case.arguments), *as_json], case)
                (others if command.is_of_study and is_others else quick).append(asked)
                total += 1
        yield pytest.param(quick, id=name)
        if others:
            yield pytest.param(others, id=f"{name}-others", marks=pytest.mark.slow)


def each(*quick: str) -> pytest.MarkDecorator:
    """Every command; those that are not `quick` only in `make test-all`, as what they end in is the same code."""
    return pytest.mark.parametrize(
        "command",
        [
            pytest.param(
                command,
                id=name,
                marks=[
                    *([] if name in quick else [pytest.mark.slow]),
                    *([pytest.mark.skip(f"needs {command.needs}")] if command.lacks else []),
                ],
            )
            for name, command in COMMANDS.items()
        ],
    )


def all_commands() -> Iterator[str]:
    for name in (name for section in SECTIONS.values() for name in section):
        command = autotm.get_command(click.Context(autotm), name)
        yield from (f"{name} {inner}" for inner in command.commands) if isinstance(command, click.Group) else [name]


def test_every_command_has_its_misuses() -> None:
    assert set(COMMANDS) == set(all_commands())
    for name, command in COMMANDS.items():
        for kind in ("missing", "wrong", "unknown"):
            assert getattr(command, kind), f"{name}: what happens with a {kind} one?"


def require_one_message(ended: Ended, status: int, said: str) -> None:
    assert ended.status == status, (said, ended)
    assert said in ended.errors, ended
    assert ended.errors.endswith("\n")
    if status == MISUSE:
        assert ended.errors.count("Error: ") == 1
    else:
        assert ended.errors.count("\n") == 1, ended.errors
        assert ended.errors.startswith("autotm: ")
    assert "\x1b" not in ended.errors
    assert ended.left == 0


@pytest.mark.parametrize("asked", list(cases()))
def test_misuse_is_one_message_and_nothing_is_written(server: CommandServer, study: Path, asked: list[Asked]) -> None:
    """The first is a process of its own, as is what loads a library; one process answers the others."""
    alone = [one for one in asked if one is asked[0] or LIBRARY in one.case.damaged]
    for one in alone:
        require_misuse(server, study, one)
    with server.in_turn():
        for one in asked:
            if one not in alone:
                require_misuse(server, study, one)


def require_misuse(server: CommandServer, study: Path, asked: Asked) -> None:
    """Raise where one ends otherwise; the study is as before."""
    name, arguments, case = asked
    whole = {file: (study / file).read_bytes() for file in case.damaged}
    for file, content in case.damaged.items():
        (study / file).unlink() if content is None else (study / file).write_bytes(content)
    before = prepared_study.contents(study)
    ended = server.call(arguments, study)
    require_one_message(ended, case.status, case.said)
    if "--json" in arguments:
        told = json.loads(ended.output)
        assert told.keys() == {"error", "exit_status"}, name
        assert told["exit_status"] == case.status, name
        assert told["error"] in ended.errors, name
    else:
        assert ended.output == "", name
    assert prepared_study.contents(study) == before, name
    for file, content in whole.items():
        (study / file).write_bytes(content)


@each("profile", "run", "sweep", "explain", "potential", "doctor")
def test_without_a_terminal_there_are_no_colours_and_no_progress(
    server: CommandServer, study: Path, command: Command
) -> None:
    ended = server.call(command.arguments, study)
    assert ended.status == DONE, ended
    for text in (ended.output, ended.errors):
        assert not {"\x1b", "\r", "\b"} & set(text)
    assert all((study / name).exists() for name in command.writes)
    prepared_study.require_whole(study)


@each("schema", "compare", "view", "run", "kernels export")
def test_a_reader_that_is_gone_ends_it_quietly(server: CommandServer, study: Path, command: Command) -> None:
    wanted = () if command.call == "schema" else ("--json",)
    ended = server.call([*command.arguments, *wanted], study, output=None)
    assert ended.status == CLOSED, ended
    assert all(line.startswith("autotm: ") for line in ended.errors.splitlines()), ended.errors
    assert "ipe" not in ended.errors
    assert not {"\x1b", "\r", "\b"} & set(ended.errors)
    prepared_study.require_whole(study)


@each("schema", "compare", "view", "run", "kernels export")
def test_output_on_a_full_disk_is_one_message(server: CommandServer, study: Path, command: Command) -> None:
    wanted = () if command.call == "schema" else ("--json",)
    ended = server.call([*command.arguments, *wanted], study, output="/dev/full")
    assert ended.status == FAULT, ended
    *before, last = ended.errors.splitlines()
    assert last == (
        "autotm: No space left on device, for a file or standard output; no file is half written. Free some space, "
        "then give the same command again"
    )
    assert all(line.startswith("autotm: ") for line in before), ended.errors
    prepared_study.require_whole(study)


@pytest.fixture
def disk(server: CommandServer, study: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The study on a file system of its own that is full, or read-only, as only the server sees it."""
    if not mounts_allowed():
        pytest.skip("NOT TESTED: full disks and read-only folders need mounts, which this user may not make")
    size = sum(map(len, prepared_study.contents(study).values()))
    place = study.with_name("disk")
    place.mkdir()
    server.shell(f"mount -t tmpfs -o size={2 * size // 1024}k tmpfs {place} && cp -a {study} {place}/study")
    if request.param == "full":
        server.shell(f"head -c {4 * size} /dev/zero > {place}/rest || true")
    else:
        server.shell(f"mount -o remount,ro {place}")
    yield place / "study"
    server.shell(f"umount {place}")


@pytest.mark.parametrize("disk", ["full", "read-only"], indirect=True)
@each("profile", "solve", "check", "view", "doctor", "kernels import", "export")
def test_a_disk_that_takes_nothing_is_one_message(
    server: CommandServer, disk: Path, study: Path, command: Command, request: pytest.FixtureRequest
) -> None:
    seen = server.root() / os.path.relpath(disk, "/")
    ended = server.call(command.arguments, disk, scratch=study.with_name("scratch"))
    assert "Traceback" not in ended.errors
    assert ended.status == (FAULT if command.writes else DONE), ended
    *before, last = ended.errors.splitlines() or [""]
    if command.writes:
        assert last.startswith("autotm: ")
        assert any(word in last for word in ("No space left", "Read-only file system", "disk", "readonly")), last
        assert all(line.startswith("autotm: ") for line in before), ended.errors
    assert prepared_study.contents(seen) == prepared_study.contents(study), request.node.name


@pytest.mark.parametrize("disk", ["full", "read-only"], indirect=True)
def test_what_measures_long_asks_for_room_first(server: CommandServer, disk: Path, study: Path) -> None:
    compiler, used = (study.with_name(name) for name in ("compiler", "used"))
    compiler.write_text(f"#!/bin/sh\ntouch {used}\n", encoding="utf-8")
    compiler.chmod(0o755)
    asked = COMMANDS["calibrate"].arguments
    ended = server.call(asked, disk, scratch=study.with_name("scratch"), environment={"CC": str(compiler)})
    assert ended.status == FAULT, ended
    assert "No space left" in ended.errors or "Read-only file system" in ended.errors
    assert not used.exists(), "it linked kernels first"
