"""The program `autotm`: one command, with temporary files in a folder of its own, that Ctrl-C ends at any moment."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile

from autotm.cli.process import INTERRUPTED, INTERRUPTED_TEXT, interrupts


def program() -> int:
    """Run the command of `sys.argv`, and nothing else: signals are not as before afterwards.

    Returns:
        The exit status. From then on SIGINT is ignored: the command is done, and Python is on its way out.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    interrupts.take()
    status = None
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # What needs a temporary file will say so.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="autotm-", ignore_cleanup_errors=True))
            # This process, and the compilers that it starts, write there.
            tempfile.tempdir = os.environ["TMPDIR"] = folder
        try:
            try:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
                from autotm.cli.main import main  # noqa: PLC0415 - whoever presses Ctrl-C meanwhile is heard

                status = main()
            finally:
                interrupts.end()
        except BaseException:
            interrupts.end()
            if not interrupts.pressed:
                raise
    if status is None:
        status = INTERRUPTED
        with contextlib.suppress(OSError):
            sys.stderr.write(f"autotm: {INTERRUPTED_TEXT}\n")
    return status


if __name__ == "__main__":
    sys.exit(program())
