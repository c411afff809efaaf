"""Commits for `mutants.py`: clones with an environment of their own, which faults are put into, and tests run in."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutant_sites import Fault

ROOT = Path(__file__).resolve().parents[1]
MEMORY_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 3 // 4
"""What a process may allocate: a fault in a size must not take the machine with it."""
START = (
    "import resource, sys; resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[1]),) * 2);"
    "sys.path.insert(0, sys.argv[2]); del sys.argv[1:3]; import pytest; sys.exit(pytest.main())"
)


@dataclass
class Tree:
    """A clone that tests run in.

    Attributes:
        calls: what `make test` tells pytest, a list each call.
    """

    label: str
    folder: Path
    calls: list[list[str]]
    _last: int = 0
    _log: Path | None = None
    _stopped: bool = False

    def files(self) -> dict[str, str]:
        """Return the hash of each file, but for this program's own."""
        listed = [line.split("\t") for line in git(self.folder, "ls-tree", "-r", "HEAD").splitlines()]
        return {name: about.split()[2] for about, name in listed if not name.startswith("benchmarks/mutant")}

    @property
    def version(self) -> str:
        """One hash of all of them."""
        return hashlib.sha256(json.dumps(self.files()).encode()).hexdigest()

    def write(self, file: str, text: str) -> None:
        """Python knows a change by size and second: each writing is of another second."""
        path = self.folder / file
        path.write_text(text)
        self._last = max(int(time.time()), self._last + 1)
        os.utime(path, (self._last, self._last))

    @contextlib.contextmanager
    def changed(self, fault: Fault) -> Iterator[None]:
        """Put the fault in its place inside the `with` block."""
        path = self.folder / fault.file
        original, stamp = path.read_text(), path.stat()
        self.write(fault.file, fault.applied(self.folder))
        try:
            yield
        finally:
            path.write_text(original)
            os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))

    def pytest(
        self, arguments: Sequence[str], log: Path, timeout_s: float | None, tests: Path | None = None
    ) -> int | None:
        """Status; none where it took too long. What it started ends with it."""
        if self._stopped:
            return None
        environment = (
            os.environ | {"AUTOTM_MUTANTS_LOG": str(log)} | ({"AUTOTM_MUTANTS_TESTS": str(tests)} if tests else {})
        )
        plugin = ["-p", "mutant_plugin", "-p", "no:cacheprovider"]
        start = [".venv/bin/python", "-P", "-c", START, str(MEMORY_BYTES), str(Path(__file__).parent)]
        log.unlink(missing_ok=True)
        self._log = log
        with log.with_suffix(".out").open("w") as out:
            process = subprocess.Popen(
                [*start, *plugin, *arguments],
                cwd=self.folder,
                env=environment,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                return process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return None
            finally:
                _end(f"AUTOTM_MUTANTS_LOG={log}")
                process.wait()

    def stop(self) -> None:
        """End the tests that run, and let none begin."""
        self._stopped = True
        _end(f"AUTOTM_MUTANTS_LOG={self._log}")


def _end(variable: str) -> None:
    """Kills what still has this variable in its environment."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if variable.encode() in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)


def prepared(work: Path, label: str, revision: str | None) -> Tree:
    """Return a clone of a revision, or (none) of the working tree with all that is not committed."""
    folder = work / label
    if not folder.exists():
        git(work, "clone", "--quiet", "--no-checkout", str(ROOT), str(folder))
    git(folder, "fetch", "--quiet", "origin")
    commit = git(ROOT, "rev-parse", f"{revision or 'HEAD'}^{{commit}}").strip()
    git(folder, "checkout", "--quiet", "--force", "--detach", commit)
    git(folder, "clean", "-dfq")
    if revision is None:
        wanted, there = _files(ROOT), _files(folder)
        for name in wanted:
            source, target = ROOT / name, folder / name
            if not target.is_file() or source.read_bytes() != target.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        for name in there - wanted:
            (folder / name).unlink()
        git(folder, "add", "--all")
        if git(folder, "status", "--porcelain"):
            git(
                folder,
                "-c",
                "user.name=mutants",
                "-c",
                "user.email=mutants",
                "commit",
                "--quiet",
                "--message=working tree",
            )
    print(f"{label}: {commit[:9]}, its environment is made", flush=True)
    subprocess.run(["make", "setup-test"], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return Tree(label, folder, _calls(folder))


def git(folder: Path, *arguments: str) -> str:
    """Return what git answers in this folder."""
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def _files(folder: Path) -> set[str]:
    listed = git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    return {name for name in listed if name and (folder / name).is_file()}


def _calls(folder: Path) -> list[list[str]]:
    """Return what `make test` tells each pytest to choose; how many processes it takes is our matter."""
    text = subprocess.run(["make", "-n", "test"], cwd=folder, check=True, capture_output=True, text=True).stdout
    calls = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        at = next((at for at, word in enumerate(words) if word.endswith("/pytest")), None)
        if at is None:
            continue
        call, words = [], words[at + 1 :]
        for word, following in zip(words, [*words[1:], ""], strict=True):
            if word in {"||", "&&", ";", "|"}:
                break
            if word in {"-m", "-k"}:
                call += [word, following]
            elif word.startswith(("--ignore", "--deselect")) or (folder / word).exists():
                call.append(word)
        calls.append(call)
    return calls
