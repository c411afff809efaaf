"""A stage as a job of Snakemake: its log, the reason why it failed, and the page of failures.

Also: the process that waits for a job, and how Ctrl-C or SIGTERM ends all jobs.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from types import FrameType
from typing import Any

from autotm.model.errors import AutotmError, DamagedFileError
from autotm.model.files import read_json, write_json
from autotm.model.limit import Counts, Limit
from autotm.model.machine import load_machine
from autotm.model.paths import Paths
from autotm.model.slurm import keep_to_allocation
from autotm.stages.context import Context

# Why jobs failed, on one page: each leaves its reason in a file beside its log, and the page puts them together.

KIND = "failure"
_AGAIN = "then the same command again"


@dataclass(frozen=True)
class Reason:
    """Why a job failed, and what to do about it.

    Attributes:
        why: the reason, in one line.
        remedy: the remedy, in one line.
    """

    why: str
    remedy: str

    @classmethod
    def of(cls, error: BaseException) -> Reason:
        """Return the reason and remedy, for a user, of an exception that ended a job."""
        if isinstance(error, AutotmError):
            return cls(_one_line(str(error)), f"as it says; {_AGAIN}")
        if isinstance(error, MemoryError):
            return cls("no memory was left", _OF_SIGNALS[signal.SIGKILL])
        if isinstance(error, OSError):
            return cls(_one_line(str(error)), f"make room or give access, as it says; {_AGAIN}")
        why = _one_line(f"{type(error).__name__}: {error}")
        return cls(why, "this is a fault of autotm: report it with the log, which says where")

    @classmethod
    def of_signal(cls, number: int) -> Reason:
        """Return the reason and remedy, for a user, of a signal that ended a job."""
        name = signal.Signals(number).name if number in list(signal.Signals) else "unknown"
        return cls(f"killed by signal {number} ({name})", _OF_SIGNALS.get(number, _FAULT))

    def leave(self, log: Path) -> None:
        """Write the reason to a file beside the log of the failed job."""
        write_json(_reason_file(log), KIND, asdict(self))


_FAULT = (
    "compiled code failed, the log says where; remove results/MACHINE/objects, which compiles it anew, and give the "
    "same command again; report it if it fails again"
)
_OF_SIGNALS: Mapping[int, str] = {
    signal.SIGKILL: "the system does that when memory runs out (sudo dmesg | grep -i 'out of memory' tells): close "
    f"other programs, or take a smaller scale or batch; {_AGAIN}",
    signal.SIGINT: f"it was interrupted; {_AGAIN}",
    signal.SIGHUP: f"its terminal was closed; {_AGAIN}",
    signal.SIGTERM: f"something asked it to end, a batch system's time limit, say; {_AGAIN}",
    signal.SIGILL: "machine code for another processor: were results copied from another machine? Remove "
    f"results/MACHINE/objects and the network's kernels.so; {_AGAIN}",
}
_SILENT = Reason(
    "it ended without a word",
    f"the log says how far it came; on Slurm, the one in logs/slurm whether it took too much memory or time; {_AGAIN}",
)


@dataclass(frozen=True)
class FailedJob:
    """A failed job: rule, wildcards, log and reason."""

    rule: str
    wildcards: Mapping[str, str]
    log: Path
    reason: Reason

    @classmethod
    def read(cls, rule: str, wildcards: Mapping[str, str], log: Path) -> FailedJob:
        """Return the failed job with the reason that it left in a file, or with a general one if it left none."""
        try:
            content = read_json(_reason_file(log), KIND)
            return cls(rule, wildcards, log, Reason(content["why"], content["remedy"]))
        except (DamagedFileError, KeyError):
            return cls(rule, wildcards, log, _SILENT)

    @property
    def title(self) -> str:
        """Rule, figure, network, optimizer and limit, as far as the job has them."""
        known = [self.wildcards[key] for key in ("figure", "network", "optimizer") if key in self.wildcards]
        limit = [f"limit {Limit.parse(self.wildcards['limit'])}"] if "limit" in self.wildcards else []
        places = [self.wildcards[key] for key in ("scale", "machine") if key in self.wildcards]
        where = f" ({', '.join(places)})" if places else ""
        return f"{self.rule}: {', '.join([*known, *limit])}{where}" if known else f"{self.rule}{where}"


def page(failed: Sequence[FailedJob], done: int, total: int, drawn: Iterable[str], missing: Iterable[str]) -> str:
    """Return the page that tells a user which jobs failed, why, and how to go on.

    Jobs that failed for the same reason share its lines. Jobs that only waited for failed ones are not named.

    Args:
        failed: the jobs that failed.
        done: number of jobs whose files exist, from earlier calls too.
        total: number of jobs of the request.
        drawn: requested figures that exist.
        missing: requested figures that do not.
    """
    alike: dict[Reason, list[FailedJob]] = {}
    for job in sorted(failed, key=lambda job: job.title):
        alike.setdefault(job.reason, []).append(job)
    head = f"autotm: {len(failed)} job{'s' if len(failed) != 1 else ''} failed" if failed else "autotm: interrupted"
    lines = ["", "-" * len(head), head, ""]
    for reason, jobs in alike.items():
        lines += [job.title for job in jobs]
        lines += [f"  why:    {reason.why}", f"  remedy: {reason.remedy}"]
        lines += [f"  log:    {job.log}" for job in jobs]
        lines.append("")
    lines.append(f"{done} of {total} jobs are done; the same command does the rest, and none of these again.")
    lines += [f"{text} {', '.join(names)}" for text, names in (("made:", [*drawn]), ("not made:", [*missing])) if names]
    return "\n".join(lines)


def _reason_file(log: Path) -> Path:
    return log.with_suffix(".failure.json")


def _one_line(text: str) -> str:
    return " ".join(text.split())


# A job is two processes: one works, and one waits for it. A process that a signal kills, as the system does when memory
# runs out, can neither write why it ended, nor keep the output that it finished before it worked for other jobs.

_PR_SET_PDEATHSIG = 1
_STATUS_OF_SIGNAL = 128
"""A shell's exit status for a process that a signal killed is this and the signal's number."""


def supervised(on_signal: Callable[[int], bool]) -> None:
    """Go on in a child process; this process waits for it and ends with its status.

    Call it early, before threads and large memory. The child ends with this process. `on_signal` is called here, with
    the number of the signal that killed the child; where it says that all is done, the status is 0.
    """
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until there is somebody to pass it on
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # It died before it could be bound to it.
            sys.exit(1)
        return

    def pass_on(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal sends it to both.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status < 0:
        status = 0 if on_signal(-status) else _STATUS_OF_SIGNAL - status
    sys.exit(status)


# The work of every script of a rule around its stage: it logs to the rule's file, and ends with one message.

CONFIG, RESULTS = Path("config"), Path("results")
"""Folders of config and results, relative to Snakemake's working folder."""


@dataclass(frozen=True)
class RuleJob:
    """A job of Snakemake: what its stage runs on, and its files, by its wildcards."""

    _job: Any

    @cached_property
    def context(self) -> Context:
        """The context of the job's stage, with the machine that the path of its output names."""
        wildcards, params = self._job.wildcards, self._job.params
        name, _, threads = wildcards.machine.removesuffix("t").rpartition("-")
        machine = load_machine(CONFIG / "machines" / f"{name}.yaml", int(threads))
        return Context(machine, CONFIG / "devices", params.seed, Counts(params.get("counts", Counts.INTERMEDIATES)))

    @property
    def paths(self) -> Paths:
        """The files of the job's network."""
        return Paths(RESULTS, self.context.machine, self._job.wildcards.scale, self._job.wildcards.network)


@contextmanager
def rule(job: Any, is_done: Callable[[int], bool] = lambda _: False) -> Iterator[RuleJob]:
    """Log to the rule's log file, and yield the job.

    A fault that the user can mend ends the process with status 1 and its message; any other also with a traceback,
    which the log file keeps in both cases. The reason is written next to the log, for the page of failures.

    Args:
        job: Snakemake's object of the job.
        is_done: says, of the number of a signal that ended the process, whether all outputs are there. Then the job
            has not failed.
    """
    log = Path(job.log[0])
    _reason_file(log).unlink(missing_ok=True)  # what an earlier job left no longer holds

    def ended(number: int) -> bool:
        """Leave the reason where a signal ended the job before it was done, else tell it in the log."""
        reason, was_done = Reason.of_signal(number), is_done(number)
        if was_done:
            with log.open("a", encoding="utf-8") as file:
                file.write(f"After its own work was done, while it worked ahead for other jobs: {reason.why}\n")
        else:
            reason.leave(log)
        return was_done

    supervised(ended)
    _log_to(log)
    keep_to_allocation()
    gc.freeze()  # Modules stay: no collection needs to look at them, before a measurement or within a solve.
    try:
        yield RuleJob(job)
    except Exception as error:
        Reason.of(error).leave(log)
        if isinstance(error, AutotmError):
            logging.getLogger(__name__).debug("%s", traceback.format_exc())
            logging.getLogger(__name__).error("%s", error)  # noqa: TRY400 - the message is all a user needs
        else:
            logging.getLogger(__name__).exception("rule %s failed", job.rule)
        sys.exit(1)


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


# A study that is asked to end (Ctrl-C, SIGTERM) ends its jobs too: Snakemake itself would wait until they are done.

_TERMINATE_AGAIN_S = 0.1
"""Time after which jobs that were just being started are looked for again."""
_BY_THEMSELVES_S = 2.0
"""Time for jobs to end by themselves: Ctrl-C in a terminal reaches them too, but Python may lose it as it imports."""


def end_jobs_when_asked() -> None:
    """Let SIGTERM and SIGINT also end, after a while, all processes below this one, until it ends itself.

    What these signals did before they still do; one that is ignored, as SIGINT behind nohup, still is. Call it in the
    main thread, after Snakemake's scheduler has set its own handlers.
    """

    def end_jobs_and(before: Any, number: int, frame: FrameType | None) -> None:
        threading.Thread(target=_end_jobs, daemon=True).start()
        if callable(before):
            before(number, frame)

    for number in (signal.SIGTERM, signal.SIGINT):
        if (before := signal.getsignal(number)) is not signal.SIG_IGN:
            signal.signal(number, partial(end_jobs_and, before))


def _end_jobs() -> None:
    import psutil  # jobs must not wait for it

    time.sleep(_BY_THEMSELVES_S)
    while True:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        time.sleep(_TERMINATE_AGAIN_S)
