"""What every command does with what its users get wrong: one message, the documented exit status, nothing half written.

The cases of each command are in `misuse_cases`; a new command without any fails here. Ctrl-C is in `test_interrupts`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import click
import prepared_study
import pytest
from command_server import CommandServer, Ended, mounts_allowed
from misuse_cases import COMMANDS, LIBRARY, Command, Misuse

from autotm.cli.main import CLOSED, DONE, FAULT, MISUSE, SECTIONS, autotm


def cases() -> Iterator[object]:
    """The misuses of each command; of those that are common to all, each command has its own in `make test`."""
    for turn, (name, command) in enumerate(COMMANDS.items()):
        common = [case for case in command.misuses if case.is_common]
        others = [case for case in common if case is not common[turn % len(common)]]
        yield pytest.param(command, [case for case in command.misuses if case not in others], id=name)
        if others:
            yield pytest.param(command, others, id=f"{name}-others", marks=pytest.mark.slow)


def each(*quick: str) -> pytest.MarkDecorator:
    """Every command; those that are not `quick` only in `make test-all`, as what they end in is the same code."""
    return pytest.mark.parametrize(
        "command",
        [
            pytest.param(command, id=name, marks=[] if name in quick else [pytest.mark.slow])
            for name, command in COMMANDS.items()
            if command.works_here
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


@pytest.mark.parametrize(("command", "misuses"), list(cases()))
def test_misuse_is_one_message_and_nothing_is_written(
    server: CommandServer, study: Path, command: Command, misuses: list[Misuse]
) -> None:
    """The first is a process of its own, as is what loads a library; one process answers the others."""
    # Every other one is answered in JSON.
    asked = [
        (
            case,
            [*command.with_options(case.arguments), *(["--json"] if number % 2 and command.call != "schema" else [])],
        )
        for number, case in enumerate(misuses)
    ]
    in_turn = [one for one in asked[1:] if LIBRARY not in one[0].damaged]
    for one in asked:
        if one not in in_turn:
            require_misuse(server, study, *one)
    with server.in_turn():
        for one in in_turn:
            require_misuse(server, study, *one)


def require_misuse(server: CommandServer, study: Path, case: Misuse, arguments: list[str]) -> None:
    """Raise where it ends otherwise; the study is as before."""
    whole = {file: (study / file).read_bytes() for file in case.damaged}
    for file, content in case.damaged.items():
        (study / file).unlink() if content is None else (study / file).write_bytes(content)
    before = prepared_study.contents(study)
    ended = server.call(arguments, study)
    require_one_message(ended, case.status, case.message)
    if "--json" in arguments:
        answer = json.loads(ended.output)
        assert answer.keys() == {"error", "exit_status"}, case
        assert answer["exit_status"] == case.status, case
        assert answer["error"] in ended.errors, case
    else:
        assert ended.output == "", case
    assert prepared_study.contents(study) == before, case
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
