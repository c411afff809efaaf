"""Jobs that share a process: the first of a rule makes the results of the network's others, which take them.

What is made before its own job starts waits beside where its output will be, under a name that tells what it was made
from: contents of files, options, machine and seed. Its job takes it if all of that is the same by then, and works for
itself if not. A call that was interrupted leaves what it had made for the next. Jobs that run side by side make
different outputs.

Nothing here imports more than a job that only takes its output needs.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_VARIABLE = "AUTOTM_JOBS_DUE"
"""Environment variable that names the file with the jobs of a call."""
_WAITING, _TRIED = "ahead-{output}-{key}.json", "ahead-{output}-{key}.tried"

_ASKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals by which a person, Snakemake or a terminal ends a study; others mean that the process crashed."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """The files of a job.

    Attributes:
        output: that it writes, in the folder of its network, optimizer and limit.
        inputs: that it reads and others of its rule and network do not.
        log: of its job.
        made: those of `inputs` that jobs of the same call make first.
    """

    output: str
    inputs: tuple[str, ...]
    log: str
    made: tuple[str, ...] = ()

    @property
    def placement(self) -> tuple[str, str]:
        """Optimizer and limit, as paths have them."""
        optimizer, limit = Path(self.output).parts[-3:-1]
        return optimizer, limit

    def is_ready(self, since_s: float) -> bool:
        """Return whether a call that began at `since_s` has made its inputs as it wants them, and no output."""
        is_due = _changed_s(self.output) < since_s
        return is_due and all(map(_changed_s, self.inputs)) and all(_changed_s(path) >= since_s for path in self.made)


@dataclass(frozen=True)
class Call:
    """The jobs that a call of Snakemake is going to run.

    Attributes:
        since_s: when the call began, in the unit of files' times.
        jobs: those that can be done with others of their rule and network.
    """

    since_s: float
    jobs: tuple[Job, ...]

    def tell(self, path: Path) -> None:
        """Write the call to `path`, and set the environment variable that names the file to child processes."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        os.environ[_VARIABLE] = str(path.resolve())

    @classmethod
    def read(cls) -> Call:
        """Return the call that started this process, as `tell` wrote it; a call without jobs if nothing was written."""
        try:
            content = json.loads(Path(os.environ[_VARIABLE]).read_text(encoding="utf-8"))
            jobs = (Job(**{**one, **{key: tuple(one[key]) for key in ("inputs", "made")}}) for one in content["jobs"])
            return cls(content["since_s"], tuple(jobs))
        except (KeyError, OSError, ValueError, TypeError):
            return cls(0.0, ())

    def others(self, job: Job) -> list[Job]:
        """List the other jobs of the call with the rule and network of `job` that can be done by now.

        There are none if the call does not list `job` itself.
        """
        together = {other.output: other for other in self.jobs if _kind(other) == _kind(job)}
        if together.pop(job.output, None) is None:
            return []
        return [other for other in together.values() if other.is_ready(self.since_s)]


def _kind(job: Job) -> tuple[Path, str]:
    """Return the folder of a job's network and the name of its output, which tells the rule."""
    path = Path(job.output)
    return path.parents[2], path.name


Make = Callable[[Job, Path], None]
"""Makes the output of a job at a path."""


class Waiting:
    """Outputs that were made before their own jobs started.

    Args:
        settings: machine, options and so on: what decides an output besides files, optimizer and limit.
        shared: files that all jobs of the rule read for the network.
    """

    def __init__(self, settings: Mapping[str, Any], shared: Sequence[str]) -> None:
        known = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
        known.update(_digest(shared))
        self._known = known

    def file(self, job: Job) -> Path:
        """Return the path where the output of a job waits if it was made from the present inputs."""
        return self._path(_WAITING, job)

    def forget(self, job: Job) -> None:
        """Remove the output that waits for a job, and the notes about it."""
        output = Path(job.output)
        for path in output.parent.glob(f"ahead-{output.stem}-*"):
            path.unlink(missing_ok=True)

    def is_done(self, job: Job, number: int) -> bool:
        """Return whether a job that a signal ended had whole output (Snakemake removes an older one) and worked ahead.

        Its copy stays where the study was asked to end: Snakemake may still count the job as not done.
        """
        if not Path(job.output).exists():
            return False
        if number not in _ASKED:
            self.forget(job)
        return True

    def note(self, job: Job, call: Call) -> Path:
        """Write down that a call tries a job; return the note, to be removed where that ends well.

        So no job tries it ahead a second time: what fails, or ends this process, is left to its own job to meet.
        """
        note = self._path(_TRIED, job)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(str(call.since_s), encoding="utf-8")
        return note

    def was_tried(self, job: Job, call: Call) -> bool:
        """Return whether a job of that call began with this one, and did not come to its end."""
        with contextlib.suppress(OSError):
            return self._path(_TRIED, job).read_text(encoding="utf-8") == str(call.since_s)
        return False

    def _path(self, name: str, job: Job) -> Path:
        known, output = self._known.copy(), Path(job.output)
        known.update(_digest(job.inputs))
        return output.with_name(name.format(output=output.stem, key=known.hexdigest()[:16]))


def take(job: Job, waiting: Waiting) -> bool:
    """Make what was made ahead the output of its job, with the log of that; False where nothing waits."""
    output = waiting.file(job)
    if not output.exists():
        return False
    output.replace(job.output)
    waiting.forget(job)
    own, ahead = Path(job.log), _log_ahead(job)
    text = ahead.read_text(encoding="utf-8") if ahead.exists() else ""
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text(f"{text}This was done with other jobs of the network, before this one.\n", encoding="utf-8")
    ahead.unlink(missing_ok=True)
    return True


def work(
    job: Job,
    waiting: Waiting,
    make: Make,
    call: Call,
    *,
    begin: Callable[[Sequence[Job]], None] = lambda _: None,
    together: int = 1,
) -> None:
    """Make the output of a job; then those of other jobs that its call will start, for these to take.

    What fails ahead of its own job is left to it, which says why.

    Args:
        job: the one that is due.
        waiting: where others wait.
        make: what makes them.
        call: says what the others are.
        begin: called before others are made, with so many as `together` says.
        together: how many others are made at a time.

    Raises:
        Exception: whatever `make` raises for the job itself.
    """
    with _alone(job, waits=True):
        if not take(job, waiting):  # another job may just have made it
            # Other jobs of the call do not try again what fails here.
            waiting.note(job, call)
            # Waits too, until the end: Snakemake removes the output of a job that is interrupted.
            own = waiting.file(job)
            make(job, own)
            copy = own.with_suffix(".copy")
            shutil.copyfile(own, copy)
            copy.replace(job.output)
    seen: set[str] = set()
    while some := [one for one in call.others(job) if one.output not in seen][:together]:
        seen |= {one.output for one in some}
        with contextlib.ExitStack() as stack:
            mine = [one for one in some if stack.enter_context(_alone(one, waits=False))]
            # An output that another job has made meanwhile is not ready any more, or waits.
            ready = [one for one in mine if one.is_ready(call.since_s) and not waiting.file(one).exists()]
            if due := [one for one in ready if not waiting.was_tried(one, call)]:
                _make_ahead(due, waiting, make, call, begin)
    waiting.forget(job)


def _make_ahead(
    jobs: Sequence[Job], waiting: Waiting, make: Make, call: Call, begin: Callable[[Sequence[Job]], None]
) -> None:
    for job in jobs:
        _log_ahead(job).unlink(missing_ok=True)
        log.info("with it, for a job that comes later: %s", "/".join(job.placement))
    notes = {job: waiting.note(job, call) for job in jobs}
    with _logged(jobs):
        try:
            begin(jobs)
        except Exception as error:  # noqa: BLE001 - each of them meets it too
            log.warning("%s (they are made one by one)", error)
    for job in jobs:
        with _logged([job]):
            try:
                make(job, waiting.file(job))
                notes[job].unlink(missing_ok=True)
            except Exception as error:  # noqa: BLE001 - its own job meets it too, and tells
                log.warning("%s: %s (left to its own job)", "/".join(job.placement), error)


@contextlib.contextmanager
def _alone(job: Job, *, waits: bool) -> Iterator[bool]:
    """Keep other processes from working on a job, after those that do if `waits`; yield whether none does."""
    folder = Path(job.output).parent
    folder.mkdir(parents=True, exist_ok=True)
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        is_alone = True
    except BlockingIOError:
        is_alone = False
    except OSError:
        is_alone = True  # Some file systems have no locks; what two processes make there is the same.
    try:
        yield is_alone
    finally:
        os.close(opened)


@contextlib.contextmanager
def _logged(jobs: Sequence[Job]) -> Iterator[None]:
    """Write the log messages of the `with` block also to a file for each of these jobs, which the job reads later."""
    with contextlib.ExitStack() as stack:
        for job in jobs:
            path = _log_ahead(job)
            path.parent.mkdir(parents=True, exist_ok=True)
            handler = logging.FileHandler(path, encoding="utf-8")
            stack.callback(handler.close)
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
            logging.getLogger().addHandler(handler)
            stack.callback(logging.getLogger().removeHandler, handler)
        yield


def _log_ahead(job: Job) -> Path:
    return Path(job.log).with_suffix(".ahead.log")


def _changed_s(path: str) -> float:
    """Return when a file last changed, in seconds; 0 if it does not exist."""
    try:
        return Path(path).stat().st_mtime
    except OSError:
        return 0.0


def _digest(paths: Iterable[str]) -> bytes:
    """Return the SHA-256 of those of the contents of files, in order."""
    digests = hashlib.sha256()
    for path in paths:
        with Path(path).open("rb") as file:
            digests.update(hashlib.file_digest(file, "sha256").digest())
    return digests.digest()
