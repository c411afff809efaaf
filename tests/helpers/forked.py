"""A function in a fork of this process: for what changes a process for good, or may have it killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from autotm.model.errors import AutotmError

UNEXPECTED = 70


def forked(work: Callable[[], object]) -> str:
    """What the AutotmError says that ends `work`; empty where none does. Fails where the fork was killed."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        status = UNEXPECTED
        try:
            work()
            status = 0
        except AutotmError as error:
            os.write(write, str(error).encode())
            status = 0
        except BaseException as error:  # noqa: BLE001 anything else must not go on as a second pytest
            os.write(write, repr(error).encode())
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as pipe:
        said = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status >= 0, f"killed by {signal.Signals(-status).name}"
    assert status == 0, said
    return said
