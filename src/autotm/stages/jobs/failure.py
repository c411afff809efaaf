"""Why jobs failed, on one page: each leaves its reason in a file beside its log, and the page puts them together."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from autotm.model.files import AutotmError, DamagedFileError, read_json, write_json
from autotm.model.step import Limit

KIND = "failure"
_AGAIN = "then the same command again"


@dataclass(frozen=True)
class Reason:
    """Why a job failed, and what to do about it.

    Attributes:
        why: in one line.
        remedy: in one line.
    """

    why: str
    remedy: str

    @classmethod
    def of(cls, error: BaseException) -> Reason:
        """What an exception that ended a job means to a user."""
        if isinstance(error, AutotmError):
            return cls(_one_line(str(error)), f"as it says; {_AGAIN}")
        if isinstance(error, MemoryError):
            return cls("no memory was left", _OF_SIGNALS[signal.SIGKILL])
        if isinstance(error, OSError):
            return cls(_one_line(str(error)), f"make room or give access, as it says; {_AGAIN}")
        what = _one_line(f"{type(error).__name__}: {error}")
        return cls(what, "this is a fault of autotm: report it with the log, which says where")

    @classmethod
    def of_signal(cls, number: int) -> Reason:
        """What it means that a signal ended a job."""
        name = signal.Signals(number).name if number in list(signal.Signals) else "unknown"
        return cls(f"killed by signal {number} ({name})", _OF_SIGNALS.get(number, _FAULT))


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
    """A job that failed: what it was, where its log is, and why."""

    rule: str
    wildcards: Mapping[str, str]
    log: Path
    reason: Reason

    @classmethod
    def read(cls, rule: str, wildcards: Mapping[str, str], log: Path) -> FailedJob:
        """With the reason that the job left, if it did."""
        try:
            content = read_json(_file(log), KIND)
            return cls(rule, wildcards, log, Reason(content["why"], content["remedy"]))
        except (DamagedFileError, KeyError):
            return cls(rule, wildcards, log, _SILENT)

    @property
    def title(self) -> str:
        """Rule, network, optimizer and limit, as far as the job has them; a figure's rule says which."""
        known = [self.wildcards[key] for key in ("network", "optimizer") if key in self.wildcards]
        limit = [f"limit {Limit.parse(self.wildcards['limit'])}"] if "limit" in self.wildcards else []
        places = [self.wildcards[key] for key in ("scale", "machine") if key in self.wildcards]
        where = f" ({', '.join(places)})" if places else ""
        return f"{self.rule}: {', '.join([*known, *limit])}{where}" if known else f"{self.rule}{where}"


def forget(log: Path) -> None:
    """A job starts: what an earlier one left no longer holds."""
    _file(log).unlink(missing_ok=True)


def leave(log: Path, reason: Reason) -> None:
    """A job ends badly, and leaves its reason beside its log."""
    write_json(_file(log), KIND, asdict(reason))


def page(failed: Sequence[FailedJob], done: int, total: int, made: Iterable[str], missing: Iterable[str]) -> str:
    """What a user needs to go on: jobs that failed alike share their lines, and jobs that waited for them go unnamed.

    Args:
        failed: the jobs that failed.
        done: jobs whose files are there, from earlier calls too.
        total: jobs behind what was asked for.
        made: figures that are there.
        missing: figures that were asked for and are not.
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
    lines += [f"{text} {', '.join(names)}" for text, names in (("made:", [*made]), ("not made:", [*missing])) if names]
    return "\n".join(lines)


def _file(log: Path) -> Path:
    return log.with_suffix(".failure.json")


def _one_line(text: str) -> str:
    return " ".join(text.split())
