"""What every script of a rule does around its stage: log to the rule's file, and end with one message."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from autotm.model.files import AutotmError
from autotm.model.machine import keep_to_allocation, load_machine
from autotm.model.step import Counts
from autotm.stages.context import Context
from autotm.stages.jobs.failure import Reason, forget, leave
from autotm.stages.jobs.supervisor import supervised

CONFIG_DIR = Path("config")


@contextmanager
def rule(job: Any, is_done: Callable[[int], bool] = lambda _: False) -> Iterator[Context | None]:
    """Log to the rule's log file, yield the context of its machine, if its paths name one, and end the process.

    Where a signal ends it, `is_done` is asked, with its number, whether all outputs are there: then it has not failed.

    What the user can mend ends the process with status 1 and its message; anything else also with a traceback, which
    the log file keeps in both cases. Why it ended stands beside the log, for the page of `failure.py`.
    """
    log = Path(job.log[0])
    forget(log)
    supervised(lambda number: _ended(number, log, is_done(number)))
    _log_to(log)
    keep_to_allocation()
    gc.freeze()  # Modules stay: no collection needs to look at them, before a measurement or within a solve.
    try:
        yield _context(job)
    except AutotmError as error:
        leave(log, Reason.of(error))
        logging.getLogger(__name__).debug("%s", traceback.format_exc())
        logging.getLogger(__name__).error("%s", error)  # noqa: TRY400 - the message is all a user needs
        sys.exit(1)
    except Exception as error:
        leave(log, Reason.of(error))
        logging.getLogger(__name__).exception("rule %s failed", job.rule)
        sys.exit(1)
    _end()


def _ended(number: int, log: Path, is_done: bool) -> int | None:
    """What the supervisor does where a signal ended the job: the status to end with, if not that of the signal."""
    reason = Reason.of_signal(number)
    if not is_done:
        leave(log, reason)
        return None
    with log.open("a", encoding="utf-8") as file:
        file.write(f"After its own work was done, while it worked ahead for other jobs: {reason.why}\n")
    return 0


def _end() -> NoReturn:
    """End this process: all is written, and to free its modules and memory would take a tenth of a second."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _context(job: Any) -> Context | None:
    path = job.wildcards.get("machine")
    if path is None:
        return None
    name, _, threads = path.removesuffix("t").rpartition("-")
    machine = load_machine(CONFIG_DIR / "machines" / f"{name}.yaml", int(threads))
    counts = Counts(job.params.get("counts", Counts.INTERMEDIATES))
    return Context(machine, CONFIG_DIR / "devices", job.params.seed, counts)


def _log_to(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("", encoding="utf-8")
    file = logging.FileHandler(path, mode="a", encoding="utf-8")  # `ahead.take` may write it anew meanwhile
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    console = logging.StreamHandler(sys.stderr)
    console.setLevel(logging.INFO)
    console.setFormatter(logging.Formatter("autotm: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[file, console], force=True)
    logging.getLogger("autotm").setLevel(logging.DEBUG)
    faulthandler.enable(file.stream)
