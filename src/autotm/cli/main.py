"""The command `autotm`: its commands, its messages, its exit status."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from click.shell_completion import shell_complete

from autotm.cli.command import AnsweredError, LazyGroup
from autotm.cli.process import INTERRUPTED, INTERRUPTED_TEXT, TerminalHandler, interrupts

log = logging.getLogger("autotm")

DONE, FAULT, MISUSE, CLOSED = 0, 1, 2, 141
"""Exit statuses; the last is what a shell reports for a program that SIGPIPE ended."""

_COMPLETE = "_AUTOTM_COMPLETE"
"""The variable by which a shell asks for completions."""

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Stages of the pipeline": {
        "calibrate": ("pipeline:calibrate", "measure the copies between the machine's memories"),
        "profile": ("pipeline:profile", "compile a step, time its kernels, and tell where the time goes"),
        "solve": ("pipeline:solve", "place a step's tensors within a limit"),
        "compile": ("pipeline:compile_", "give the tensors of a plan their addresses"),
        "run": ("pipeline:run", "verify and time a program"),
        "check": ("pipeline:check", "tell whether plan and program are legal"),
    },
    "Questions": {
        "sweep": ("questions:sweep", "tell how little fast memory a step needs"),
        "explain": ("questions:explain", "tell what binds a limit, or why a tensor lives where it does"),
        "compare": ("questions:compare", "tell how two plans, or two records, differ"),
        "potential": ("questions:potential", "bound what lies beyond placement: recomputing, another order"),
        "fits": ("questions:fits", "tell what memory a training step of PyTorch needs"),
        "sensitivity": ("questions:sensitivity", "tell whether optimizers differ by more than noise"),
    },
    "Pictures of a plan": {
        "view": ("pipeline:view", "write a page that shows where each tensor is when"),
        "stays": ("pipeline:stays", "write its buffers as MiniMalloc and OmniMalloc read them"),
        "trace": ("pipeline:trace", "run it, and write one measured step as a trace"),
    },
    "Records of the study": {
        "records": ("questions:records", "put the study's records into one table, a row a run"),
        "describe": ("questions:describe", "tell the paper's headline numbers for the study"),
        "remeasure": ("questions:remeasure", "rerun measurements that never got an undisturbed round"),
        "costs": ("questions:costs", "tell what each figure's jobs took, time and memory"),
    },
    "Machine, files and kernels": {
        "doctor": ("machine:doctor", "tell what this machine has, and what of it is usable"),
        "fusion": (
            "fusion:fusion",
            "fuse the operators of a step as a file of decisions says, and time that; audit TVM's fusion",
        ),
        "kernels": ("machine:kernels", "export and import what was measured of kernels; check that none is missing"),
        "export": ("machine:export", "write a network's measurements and plans to one file"),
        "import": ("machine:import_", "take such a file's measurements and plans in"),
        "bundle": ("machine:bundle", "pack a program for a host without a compiler"),
        "schema": ("machine:schema", "print the JSON schema of the study (config/schema.json)"),
    },
}
"""Commands by their names, by the titles of sections: `module:function` in this package, and what each does."""

_HELP = """How little fast memory a training step needs, where each tensor lives, when it moves, and what that costs.

Commands work on the files of the pipeline. Answers go to standard output, messages to standard error. Exit status: 0
done; 1 a fault, whose message says how to mend it; 2 a command that is not understood; 130 Ctrl-C; 141 a reader that
closed its pipe.
"""


@click.group("autotm", cls=LazyGroup, sections=SECTIONS, help=_HELP)
@click.option("-v", "--verbose", is_flag=True, help="Log what happens in detail.")
@click.version_option(package_name="autotm")
def autotm(*, verbose: bool) -> None:
    """Say how much every command tells."""
    if verbose:
        logging.getLogger().setLevel(logging.DEBUG)
        logging.getLogger("fontTools").setLevel(logging.WARNING)  # It tells of every table of every font.


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit status; files are written whole or not at all, whatever it is.
    """
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    # Messages go to standard error, unless a handler is set already.
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[TerminalHandler()])
    try:
        return _called(words)
    except click.ClickException as misuse:
        misuse.show()
        return _failed(words, MISUSE, misuse.format_message())
    except BrokenPipeError:
        _drop_output()
        return CLOSED
    except (Exception, KeyboardInterrupt) as error:
        if interrupts.pressed or isinstance(error, KeyboardInterrupt):  # compiled code makes other errors of it
            log.error(INTERRUPTED_TEXT)  # noqa: TRY400 - the message is all a user needs
            return _failed(words, INTERRUPTED, INTERRUPTED_TEXT)
        text = _message_of(error)
        if text is None:
            raise
        log.error("%s", text)  # noqa: TRY400 - as above
        return _failed(words, FAULT, None if isinstance(error, AnsweredError) else text)


def _failed(words: list[str], status: int, text: str | None) -> int:
    """Write the error as JSON where that was asked for and not written yet; return the exit status."""
    if text is not None and "--json" in words:
        with contextlib.suppress(OSError):
            click.echo(json.dumps({"error": text, "exit_status": status}))
    _drop_output()
    return status


def _called(arguments: list[str]) -> int:
    if asked := os.environ.get(_COMPLETE):
        return shell_complete(autotm, {}, "autotm", _COMPLETE, asked)
    try:
        with autotm.make_context("autotm", arguments) as context:
            autotm.invoke(context)
    except click.exceptions.Exit as ended:  # help was shown, or the version
        return ended.exit_code
    sys.stdout.flush()
    return DONE


def _drop_output() -> None:
    """Drop output that could not be written: Python would try again at exit, and print an error."""
    try:
        sys.stdout.flush()
    except OSError:
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _message_of(error: Exception) -> str | None:
    """Return the message of an error that the user can mend; None for a defect of autotm, which needs its traceback."""
    from autotm.model.errors import AutotmError  # noqa: PLC0415 - help need not wait for it

    if isinstance(error, (AutotmError, AnsweredError)):
        return str(error)
    if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return (
            f"{os.strerror(error.errno)}, for a file or standard output; no file is half written. Free some space, "
            "then give the same command again"
        )
    if isinstance(error, OSError) and error.filename is not None:
        where = error.filename if error.filename2 is None else error.filename2
        return f"{where}: {error.strerror}; nothing was written there. Give another place, or make this one accessible"
    return None
