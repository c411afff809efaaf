"""The command line as a whole: help, exit statuses, JSON, messages, pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from misuse_cases import COMMANDS

from autotm.cli.main import main

ROOT = Path(__file__).parents[2]
CONFIG = ("--config", str(ROOT / "config" / "config.yaml"))
HEAVY = {"numpy", "pandas", "pydantic", "tvm", "pyomo", "highspy", "matplotlib", "snakemake"}


def in_process(program: str, *arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False, **options
    )


@pytest.mark.parametrize("arguments", [("--help",), ("swep",), ()])
def test_help_and_misuse_import_nothing_heavy(arguments: tuple[str, ...]) -> None:
    program = "import sys; from autotm.cli.main import main; main(sys.argv[1:]); print('MODULES', *sys.modules)"
    assert not HEAVY & set(in_process(program, *arguments).stdout.partition("MODULES")[2].split())


def test_a_python_without_docstrings_is_refused_in_one_message() -> None:
    program = "import sys; from autotm.cli.main import main; sys.exit(main(sys.argv[1:]))"
    arguments = ("solve", "mlp", "static", "4:1", *CONFIG, "--write-mps", "mlp.mps")
    done = in_process(program, *arguments, env=os.environ | {"PYTHONOPTIMIZE": "2"})
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("autotm: Python runs without docstrings (-OO or PYTHONOPTIMIZE=2)")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_all_but_the_schema_answer_in_json(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--help"]) == 0
    help_text = capsys.readouterr().out
    assert f"Usage: autotm {command} [OPTIONS]" in help_text
    assert ("--json" in help_text) == (command != "schema")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("swep", "mlp"), "No such command 'swep'. Did you mean 'sweep'?"),
        (("solve", "mlp", "static", "4:1", "--scael", "tiny"), "(Did you mean one of: '--help', '--scale'?)"),
        (("solve", "mlp", "static"), "Missing argument 'LIMIT'"),
        (("solve", "mlp", "static", "4:1", "more"), "unexpected extra argument (more)"),
        (("solve", "mlp", "static", "4:1", "--threads", "0"), "0 is not in the range x>=1"),
        (("solve", "mlp", "static", "4:1", "--counts", "al"), "'al' is not one of"),
        (("sweep", "mlp", "--limits", ","), "none given; give some such as 8:1,4:1"),
        (("sensitivity", "mlp"), "Missing option '--limit'"),
        (("profile", "mlp", "--worst", "-1"), "'--worst': -1 is not in the range x>=0"),
        (("kernels", "export"), "Missing argument 'FILE'"),
    ],
)
def test_what_is_not_understood_ends_with_2(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_one_message_and_json_all_that_standard_output_holds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    options = ("--results", str(tmp_path), *CONFIG, "--scale", "tiny", "--threads", "1", "--json")
    assert main(["kernels", "export", str(tmp_path / "file" / "kernels.zip"), *options]) == 1
    assert "Give another place, or make this one accessible" in caplog.text
    assert str(tmp_path / "file") in json.loads(capsys.readouterr().out)["error"]
    file = str(tmp_path / "kernels.zip")
    assert main(["kernels", "export", file, *options]) == 0
    assert json.loads(capsys.readouterr().out) == {"file": file, "contexts": 0, "timings": 0}


def test_a_shell_completes_commands_options_and_names() -> None:
    def completed(*typed: str) -> set[str]:
        words = ["autotm", *typed]
        environment = {
            "_AUTOTM_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1),
        }  # fmt: skip
        process = in_process("from autotm.cli.main import main; main()", env=os.environ | environment)
        return {line.partition(",")[2] for line in process.stdout.splitlines()}

    assert completed("sw") == {"sweep"}
    assert completed("solve", *CONFIG, "inception") == {"inception_v4"}
    assert "memory-mode" in completed("solve", *CONFIG, "mlp", "")
    assert "tiny" in completed("solve", *CONFIG, "--scale", "t")
    assert completed("solve", "--thr") == {"--threads"}


def test_output_that_cannot_be_written_is_not_written_again_at_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["--version"]) == 1
        full.flush()  # As Python does at exit.
