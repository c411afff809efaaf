"""Runs of a network that one call of Snakemake does: the first of its jobs measures them all, the others take theirs.

What is measured before its own job starts waits beside where its record will be, under a name that tells what it was
measured from: contents of files, options, machine and seed. Its job takes it if all of that is the same by then, and
measures for itself if not. A call that was interrupted leaves what it had measured for the next.

Nothing here imports more than a job that only takes its record needs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

_VARIABLE = "AUTOTM_RUNS_DUE"
"""Of the environment: names the file that says which runs a call does."""
_WAITING, _TRIED = "ahead-{key}.json", "ahead-{key}.tried"

_ASKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals by which a person, Snakemake or a terminal ends a study; others mean that the process crashed."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """The files of a run.

    Attributes:
        record: that it writes.
        plan, program: that it measures.
        log: of its job.
        made: those of `plan` and `program` that jobs of the same call make first.
    """

    record: str
    plan: str
    program: str
    log: str
    made: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Optimizer and limit, as paths have them."""
        return "/".join(Path(self.record).parts[-3:-1])

    def is_ready(self, since_s: float) -> bool:
        """Whether a call that began at `since_s` has made its plan and its program as it wants them, and no record."""
        record, *given = (_changed_s(path) for path in (self.record, self.plan, self.program))
        return record < since_s and min(given) > 0 and all(_changed_s(path) >= since_s for path in self.made)


@dataclass(frozen=True)
class Call:
    """What a call of Snakemake was found to do.

    Attributes:
        since_s: when it began, as files' times are given.
        jobs: its runs.
    """

    since_s: float
    jobs: tuple[Job, ...]

    def tell(self, path: Path) -> None:
        """Write it where the jobs that this process starts will look for it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        os.environ[_VARIABLE] = str(path.resolve())

    @classmethod
    def told(cls) -> Call:
        """What the call that started this process does; nothing where that was not told."""
        try:
            content = json.loads(Path(os.environ[_VARIABLE]).read_text(encoding="utf-8"))
            jobs = (Job(**{**one, "made": tuple(one["made"])}) for one in content["jobs"])
            return cls(content["since_s"], tuple(jobs))
        except (KeyError, OSError, ValueError, TypeError):
            return cls(0.0, ())

    def beside(self, job: Job) -> Iterator[Job]:
        """Its other runs of the same network that can be measured by now; none where it does not share its own."""
        folder = Path(job.record).parents[2]
        together = [other for other in self.jobs if Path(other.record).parents[2] == folder]
        if any(other.record == job.record for other in together):
            yield from (one for one in together if one.record != job.record and one.is_ready(self.since_s))


class Measure(Protocol):
    """What verifies and times a program."""

    def __call__(self, *, program: Path, plan: Path, record: Path) -> None:
        """Do so, and write the record."""


class Waiting:
    """Records that were measured before their own jobs started.

    Args:
        settings: machine, options and so on: what decides a record besides files.
        shared: files that all runs of the network are measured from.
    """

    def __init__(self, settings: Mapping[str, Any], shared: Sequence[str]) -> None:
        known = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
        known.update(_digest(shared))
        self._known = known

    def file(self, job: Job) -> Path:
        """Where the record of a run waits, if it was measured from what is there now."""
        return self._path(_WAITING, job)

    def take(self, job: Job) -> bool:
        """Make the record that waits, if one does, that of its job; whatever else waited there is removed."""
        waiting = self.file(job)
        is_there = waiting.exists()
        if is_there:
            waiting.replace(job.record)
        self.forget(job)
        return is_there

    def forget(self, job: Job) -> None:
        """Remove what waits for a job, and what was noted of it."""
        for path in Path(job.record).parent.glob("ahead-*"):
            path.unlink(missing_ok=True)

    def is_done(self, job: Job, number: int) -> bool:
        """Whether a job that a signal ended had its record, whole (Snakemake removed an older one), and worked ahead.

        Its copy stays where the study was asked to end: Snakemake may still count the job as not done.
        """
        if not Path(job.record).exists():
            return False
        if number not in _ASKED:
            self.forget(job)
        return True

    def note(self, job: Job, call: Call) -> Path:
        """Write down that a call tries a run; returns the note, to be removed where that ends well.

        So no job tries it ahead a second time: what fails, or ends this process, is left to its own job to meet.
        """
        note = self._path(_TRIED, job)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(str(call.since_s), encoding="utf-8")
        return note

    def was_tried(self, job: Job, call: Call) -> bool:
        """Whether a job of that call began to measure a run, and did not come to its end."""
        with contextlib.suppress(OSError):
            return self._path(_TRIED, job).read_text(encoding="utf-8") == str(call.since_s)
        return False

    def _path(self, name: str, job: Job) -> Path:
        known = self._known.copy()
        known.update(_digest((job.plan, job.program)))
        return Path(job.record).with_name(name.format(key=known.hexdigest()[:16]))


def take(job: Job, waiting: Waiting) -> bool:
    """Make what was measured ahead the record of its job, with the log of that; False where nothing waits."""
    if not waiting.take(job):
        return False
    own, ahead = Path(job.log), _log_ahead(job)
    text = ahead.read_text(encoding="utf-8") if ahead.exists() else ""
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text(f"{text}This was measured with other runs of the network, before this job.\n", encoding="utf-8")
    ahead.unlink(missing_ok=True)
    return True


def measure(job: Job, waiting: Waiting, run: Measure, call: Call) -> None:
    """Measure the run of a job; then those of other jobs that its call will start, for these to take.

    What fails ahead of its own job is left to it, which says why.

    Args:
        job: the one that is due.
        waiting: where others wait.
        run: what measures.
        call: says what the others are.

    Raises:
        Exception: whatever `run` raises at the job's own program.
    """
    # Other jobs of the call do not try again what fails here.
    waiting.note(job, call)
    # Waits too, until the end: Snakemake removes the record of a job that is interrupted.
    own = waiting.file(job)
    run(program=Path(job.program), plan=Path(job.plan), record=own)
    copy = own.with_suffix(".copy")
    shutil.copyfile(own, copy)
    copy.replace(job.record)
    for other in call.beside(job):
        if not waiting.file(other).exists() and not waiting.was_tried(other, call):
            _measure_ahead(other, waiting, run, call)
    waiting.forget(job)


def _measure_ahead(job: Job, waiting: Waiting, run: Measure, call: Call) -> None:
    log.info("with it, for a job that comes later: %s", job.title)
    note = waiting.note(job, call)
    try:
        with _logged(job):
            run(program=Path(job.program), plan=Path(job.plan), record=waiting.file(job))
    except KeyboardInterrupt:
        note.unlink()
        raise
    except Exception as error:  # noqa: BLE001 - its own job meets it too, and tells
        log.warning("%s: %s (left to its own job)", job.title, error)
    else:
        note.unlink()


@contextlib.contextmanager
def _logged(job: Job) -> Iterator[None]:
    """What is logged meanwhile also goes where the job will look for it."""
    path = _log_ahead(job)
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, mode="w", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


def _log_ahead(job: Job) -> Path:
    return Path(job.log).with_suffix(".ahead.log")


def _changed_s(path: str) -> float:
    """When a file changed; 0 where there is none."""
    try:
        return Path(path).stat().st_mtime
    except OSError:
        return 0.0


def _digest(paths: Iterable[str]) -> bytes:
    """Of the contents of files, in order."""
    found = hashlib.sha256()
    for path in paths:
        with Path(path).open("rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.digest()
