"""How many faults in `src/autotm` the tests of `make test` catch: an older commit's, and the working tree's.

    python3 -m venv /tmp/mutants && /tmp/mutants/bin/pip install cosmic-ray pyyaml
    /tmp/mutants/bin/python benchmarks/mutants.py --before 55f1c42        # everything: an hour or two on two cores
    /tmp/mutants/bin/python benchmarks/mutants.py --packages layout check --tests tests/layout tests/check --faults 100

cosmic-ray chooses: one change of a line (an operator, a number, a condition, a loop that does nothing, ...). Lines are
drawn with a seed, for each package as many as its share of the code. Types are left out; faults that change nothing
that can be seen are dropped by hand, in `mutants.yaml`, where survivors that may stay are named as well.

Each commit is cloned, with an environment of its own (`make setup-test`). Its tests run once on a copy that notes which
test reaches which of the lines, in processes that tests start, too, except where these see no variable of the
environment. A test that gets a shared fixture reaches what made it. A line that runs at import is reached by what calls
a function that uses the name it defines; a function's head, by what runs its body. Tests that fail there, twice, are
left out, and named.

With a fault in its place, the tests that reach it run, those of quick files first, until one fails, twice in a row,
or takes far longer than it did. If none does, the others of the same files run (something may have been kept between
tests), and for lines that run at import those of the package; these further ones for a bounded time. The older commit
is asked first for the test that catches the fault in the working tree.

Every result is kept below --work, and a run that was interrupted goes on from there. After edits, the test that caught
a fault before is asked first, again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from threading import Event, Lock
from typing import Any

import yaml

from mutant_sites import HITS, HITS_TEXT, Fault, faults, insert_probes, packages, place, shares
from mutant_trees import Tree, git, prepared

KNOWN = Path(__file__).with_name("mutants.yaml")
SPARE = 3
"""Faults of a package that are drawn beyond those that count: dropping one by hand needs no new run of all tests."""


# --- which tests reach what ------------------------------------------------------------------------------------------
@dataclass
class Test:
    """A test on the unchanged sources; `fixtures` are those that it shares with others."""

    order: int
    fixtures: list[str]
    seconds: float = 0.0
    outcome: str = "not run"


@dataclass
class Reached:
    """What one run of all tests told.

    Attributes:
        files: the hash of each file that was there.
        asked: the tests that it was narrowed to, if any.
        faults: the names of those whose lines were looked at.
        hits: fault's name → pairs of a test and what it was in the midst of.
    """

    files: dict[str, str]
    asked: list[str]
    faults: list[str]
    tests: dict[str, Test]
    hits: dict[str, list[tuple[str, str]]]

    def without(self, files: Collection[str]) -> Reached:
        """Return what is known of tests in other files."""
        tests = {name: test for name, test in self.tests.items() if _file(name) not in files}
        hits = {name: [hit for hit in hits if hit[1] or _file(hit[0]) not in files] for name, hits in self.hits.items()}
        return Reached(self.files, self.asked, self.faults, tests, hits)

    def directly(self, fault: Fault) -> list[str]:
        """Return the tests that reach its line, or share a fixture, or a list of cases, that did."""
        hits = self.hits.get(fault.name, [])
        tests, shared = {test for test, _ in hits}, {at for _, at in hits if at}
        return [
            name
            for name, test in self.tests.items()
            if test.outcome == "passed"
            and (
                name in tests
                or f"file {_file(name)}" in shared
                or any(f"fixture {each}" in shared for each in test.fixtures)
            )
        ]

    def further(self, fault: Fault, folder: Path, bound_s: float) -> list[str]:
        """Others of the same files; for lines that run at import, those of the package. Quick ones, up to the bound."""
        direct = set(self.directly(fault))
        files = {_file(name) for name in direct}
        homes = (f"tests/{fault.package}/", f"tests/test_{fault.package}") if place(folder, fault).at_import else ()
        others = [
            name
            for name, test in self.tests.items()
            if test.outcome == "passed" and name not in direct and (_file(name) in files or name.startswith(homes))
        ]
        chosen, spent_s = [], 0.0
        for name in sorted(others, key=lambda name: self.tests[name].seconds):
            spent_s += self.tests[name].seconds
            if spent_s <= bound_s:
                chosen.append(name)
        return chosen


def _file(test: str) -> str:
    return test.partition("::")[0]


def reached(tree: Tree, asked: Sequence[str], wanted: Mapping[str, Fault], work: Path, jobs: int) -> Reached:
    """Run all tests once on sources that note what is reached, or take what such a run left.

    Where nothing but files of tests changed since, only these run again.
    """
    kept, files = work / f"reached-{tree.label}.json", tree.files()
    coverage, again = Reached({}, list(asked), list(wanted), {}, {}), None
    if kept.exists():
        earlier = _read_reached(kept)
        changed = {name for name, _ in files.items() ^ earlier.files.items()}
        of_tests = all(name.startswith("tests/") and Path(name).match("test_*.py") for name in changed)
        if earlier.asked == list(asked) and set(wanted) <= set(earlier.faults) and of_tests:
            coverage, again = earlier.without(changed), sorted(changed & set(files))
            coverage.faults = list(wanted)
    if again is None or again:
        print(f"{tree.label}: {again or 'all tests'} run once, to see what they reach", flush=True)
        _run_with_probes(tree, coverage, again, wanted, work, jobs)
    coverage.files = files
    kept.write_text(json.dumps(asdict(coverage)))
    return coverage


def _run_with_probes(
    tree: Tree, coverage: Reached, again: list[str] | None, wanted: Mapping[str, Fault], work: Path, jobs: int
) -> None:
    names, hits = list(wanted), work / f"hits-{tree.label}.jsonl"
    hits.unlink(missing_ok=True)
    (tree.folder / HITS).write_text(HITS_TEXT.format(file=str(hits)))
    insert_probes(tree.folder, dict(enumerate(wanted.values())))
    tests: dict[str, Test] = {}
    apart = ["-n", str(jobs), "--dist", "loadfile"] if jobs > 1 else []
    folders = [Path(each) for each in coverage.asked]
    chosen = coverage.asked if again is None else [name for name in again if not folders or _within(name, folders)]
    for number, call in enumerate(tree.calls if chosen or again is None else []):
        log = work / f"reached-{tree.label}-{number}.log"
        tree.pytest([*call, *apart, *chosen], log, None)
        _add(tests, log)
    failed = {name: test for name, test in tests.items() if test.outcome == "failed"}
    if failed:
        log, once_more = work / f"reached-{tree.label}-again.log", dict[str, Test]()
        tree.pytest(sorted({_file(name) for name in failed}), log, None, _chosen(failed, tests, log))
        _add(once_more, log)
        for name in failed:
            tests[name].outcome = once_more[name].outcome if name in once_more else "failed"
    git(tree.folder, "checkout", "--quiet", "--force", "HEAD")
    (tree.folder / HITS).unlink()
    coverage.tests.update(tests)
    for site, test, at in _entries(hits):
        coverage.hits.setdefault(names[site], []).append((test.rpartition(" (")[0], at))


def _within(name: str, folders: Sequence[Path]) -> bool:
    return any(Path(name) == folder or folder in Path(name).parents for folder in folders)


def _add(tests: dict[str, Test], log: Path) -> None:
    for entry in _entries(log):
        if "deselected" in entry:
            tests.setdefault(entry["deselected"], Test(0, [], outcome="not chosen"))
        elif "test" in entry:
            tests[entry["test"]] = Test(entry["order"], entry["fixtures"])
        elif "report" in entry:
            test = tests.setdefault(entry["report"], Test(0, []))
            test.seconds += entry["seconds"]
            if entry["outcome"] == "failed" or (entry["outcome"] == "skipped" and test.outcome != "failed"):
                test.outcome = entry["outcome"]
            elif entry["when"] == "call" and entry["outcome"] == "passed" and test.outcome == "not run":
                test.outcome = "passed"


def _read_reached(path: Path) -> Reached:
    read = json.loads(path.read_text())
    return Reached(**read | {"tests": {name: Test(**test) for name, test in read["tests"].items()}})


def _entries(file: Path) -> Iterator[Any]:
    if file.exists():
        with contextlib.suppress(json.JSONDecodeError):  # the last line of what was killed
            yield from (json.loads(line) for line in file.read_text().splitlines())


# --- one fault -------------------------------------------------------------------------------------------------------
@dataclass
class Verdict:
    """What the tests of one tree said to one fault.

    Attributes:
        by: the test that caught it, or none.
        how: failed, hung, ended (the process) or collecting.
        directly: tests that reach the line.
        ran: tests that were asked.
    """

    by: str | None = None
    how: str = ""
    text: str = ""
    directly: int = 0
    ran: int = 0
    seconds: float = 0.0
    passed_again: list[str] = field(default_factory=list)


_NUMBERS = count()


def judged(tree: Tree, fault: Fault, coverage: Reached, hints: Collection[str], bound_s: float) -> Verdict:
    """Run what may catch the fault, until something does."""
    started, further = time.perf_counter(), coverage.further(fault, tree.folder, bound_s)
    verdict, passed = Verdict(directly=len(direct := coverage.directly(fault))), set[str]()
    known = [name for name in hints if name in coverage.tests and coverage.tests[name].outcome == "passed"]
    with tree.changed(fault):
        for asked in (known, direct, further):
            if _caught(tree, asked, coverage.tests, verdict, passed):
                break
    verdict.ran, verdict.seconds = len(passed), time.perf_counter() - started
    return verdict


def _caught(tree: Tree, asked: Sequence[str], tests: Mapping[str, Test], verdict: Verdict, passed: set[str]) -> bool:
    """Whether one of these tests fails; the verdict then says which."""
    while left := [name for name in asked if name not in passed]:
        by, how, text, done = _first_failure(tree, left, tests)
        passed |= done
        if by is None:
            passed.update(left)
        # A failure that is luck, or a neighbour's, does not come twice in a row.
        elif how == "collecting" or _first_failure(tree, [by], tests)[0] is not None:
            verdict.by, verdict.how, verdict.text = by, how, text
            return True
        else:
            verdict.passed_again.append(by)
            passed.add(by)
    return False


def _first_failure(
    tree: Tree, names: Sequence[str], tests: Mapping[str, Test]
) -> tuple[str | None, str, str, set[str]]:
    """Return the test that fails first, how, with which words, and which passed before."""
    log = tree.folder.parent / f"{tree.label}-{next(_NUMBERS)}.log"
    expected_s = {name: tests[name].seconds if name in tests else 0.0 for name in names}
    files: dict[str, float] = {}
    for name in names:
        files[_file(name)] = files.get(_file(name), 0.0) + expected_s[name]
    chosen = _chosen(names, tests, log)
    limit_s = 300 + 5 * sum(expected_s.values())
    status = tree.pytest(["-x", "-q", *sorted(files, key=files.__getitem__)], log, limit_s, chosen)
    started, done, failure = None, set[str](), None
    for entry in _entries(log):
        if "collect" in entry:
            failure = (entry["collect"], "collecting", entry["text"])
        elif "start" in entry:
            started = entry["start"]
        elif entry.get("outcome") == "failed" and failure is None:
            failure = (entry["report"], "hung" if "Timeout" in entry["text"][:60] else "failed", entry["text"])
        elif entry.get("when") == "teardown":
            done.add(entry["report"])
            started = None
    if failure is None and started is not None and status not in {0, 1}:
        failure = (started, "hung" if status is None else "ended", f"status {status}")
    out = log.with_suffix(".out")
    if failure is None and status not in {0, 5}:
        failure = (_file(names[0]), "collecting", out.read_text()[-300:])
    for file in (log, out, chosen):
        file.unlink(missing_ok=True)
    return (*(failure or (None, "", "")), done - {failure[0] if failure else ""})


def _chosen(names: Collection[str], tests: Mapping[str, Test], log: Path) -> Path:
    """Return the file that tells pytest what to run, and for how long."""
    file = log.with_suffix(".tests")
    seconds = {name: 20 + 5 * (tests[name].seconds if name in tests else 0.0) for name in names}
    file.write_text(json.dumps({"seconds": seconds, "known": list(tests)}))
    return file


# --- all of them -----------------------------------------------------------------------------------------------------
def main() -> int:
    """Draws faults, runs tests, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", metavar="COMMIT", help="an older commit, whose tests are asked as well")
    parser.add_argument("--faults", type=int, default=64, help="in all packages together")
    parser.add_argument("--packages", nargs="+", help="only faults of these")
    parser.add_argument("--tests", nargs="+", default=[], help="only tests of these files and folders")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time, each in a clone of its own")
    parser.add_argument("--bound", type=float, default=120.0, help="seconds of tests beyond those that reach the line")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "autotm-mutants")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what runs, as Ctrl-C does
    asked.work.mkdir(parents=True, exist_ok=True)
    before = prepared(asked.work, "before", asked.before) if asked.before else None
    trees = [prepared(asked.work, "after" if number == 0 else f"after-{number}", None) for number in range(asked.jobs)]
    after = trees[0]
    known = yaml.safe_load(KNOWN.read_text()) if KNOWN.exists() else {}
    counted, spare = _drawn(asked, known, after, before)
    wanted = {fault.name: fault for fault in [*counted, *spare]}
    columns: dict[str, dict[str, Verdict]] = {}
    results = Results(asked.work / "results.json")
    coverage_after = reached(after, asked.tests, wanted, asked.work, asked.jobs)
    columns["after"] = _column(results, trees, coverage_after, counted, {}, asked.bound)
    coverages = {"after": coverage_after}
    if before is not None:
        clones = [before, *(prepared(asked.work, f"before-{number}", asked.before) for number in range(1, asked.jobs))]
        coverages["before"] = reached(before, asked.tests, wanted, asked.work, asked.jobs)
        hints = {name: verdict.by for name, verdict in columns["after"].items() if verdict.by}
        columns["before"] = _column(results, clones, coverages["before"], counted, hints, asked.bound)
    print(report(counted, columns, coverages, known, after.folder))
    return 0


def _drawn(asked: argparse.Namespace, known: Any, after: Tree, before: Tree | None) -> tuple[list[Fault], list[Fault]]:
    versions = [tree.folder for tree in (after, before) if tree is not None]
    equivalent = {_key(entry["file"], entry["line"], entry["becomes"]) for entry in known.get("equivalent") or ()}
    counted: list[Fault] = []
    spare: list[Fault] = []
    for package, number in shares(packages(after.folder), asked.faults).items():
        if asked.packages and package not in asked.packages:
            continue
        drawn = (
            each for each in faults(after.folder, package, asked.seed, versions) if _key_of(each) not in equivalent
        )
        mine = [fault for fault, _ in zip(drawn, range(number + SPARE), strict=False)]
        counted += mine[:number]
        spare += mine[number:]
    return counted, spare


def _key(*parts: str) -> tuple[str, ...]:
    return tuple("".join(part.split()) for part in parts)


def _key_of(fault: Fault) -> tuple[str, ...]:
    return _key(fault.file, fault.was, fault.becomes)


@dataclass
class Results:
    """What was found, on disk after every fault: by tree and tests asked, then by fault."""

    path: Path
    lock: Any = field(default_factory=Lock)

    def read(self) -> dict[str, dict[str, Any]]:
        """All that is kept."""
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def add(self, key: str, name: str, verdict: Verdict) -> None:
        """Keep one more."""
        with self.lock:
            all_of_them = self.read()
            all_of_them.setdefault(key, {})[name] = asdict(verdict)
            new = self.path.with_suffix(".new")
            new.write_text(json.dumps(all_of_them, indent=1))
            new.replace(self.path)


def _column(
    results: Results,
    trees: Sequence[Tree],
    coverage: Reached,
    counted: Sequence[Fault],
    hints: Mapping[str, str],
    bound_s: float,
) -> dict[str, Verdict]:
    key = f"{trees[0].label} {trees[0].version} {' '.join(coverage.asked)}".strip()
    kept = results.read()
    earlier = {name: each["by"] for column in kept.values() for name, each in column.items() if each["by"]} | dict(
        hints
    )
    verdicts = {name: Verdict(**each) for name, each in kept.get(key, {}).items()}
    free: queue.SimpleQueue[Tree] = queue.SimpleQueue()
    for tree in trees:
        free.put(tree)

    stopped = Event()

    def one(fault: Fault) -> None:
        tree = free.get()
        try:
            verdict = judged(tree, fault, coverage, [earlier[fault.name]] if fault.name in earlier else [], bound_s)
        finally:
            free.put(tree)
        if stopped.is_set():  # what was killed says nothing about the fault
            return
        results.add(key, fault.name, verdict)
        verdicts[fault.name] = verdict
        outcome = f"caught by {verdict.by} ({verdict.how})" if verdict.by else f"survives {verdict.ran} tests"
        prefix = f"{trees[0].label}: {fault.file}:{fault.line} {fault.operator}"
        print(f"{prefix}: {outcome}, {verdict.seconds:.0f} s", flush=True)

    left = [fault for fault in counted if fault.name not in verdicts]
    with ThreadPoolExecutor(len(trees)) as pool:
        try:
            for _ in pool.map(one, left):
                pass
        except BaseException:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for tree in trees:
                tree.stop()
            raise
    return verdicts


# --- what is printed -------------------------------------------------------------------------------------------------
def report(
    counted: Sequence[Fault],
    columns: Mapping[str, Mapping[str, Verdict]],
    coverages: Mapping[str, Reached],
    known: Any,
    folder: Path,
) -> str:
    """Return the table, how its numbers came about, survivors, and tests left out."""
    labels, lines = sorted(columns, reverse=True), packages(folder)
    heads = "".join(f"{label:>9}" for label in labels)
    said = [f"{'package':10}{'lines':>7}{'faults':>8}{heads}"]
    for package in dict.fromkeys(fault.package for fault in counted):
        mine = [fault for fault in counted if fault.package == package]
        said.append(f"{package:10}{lines[package]:7}{len(mine):8}{_number_caught(mine, columns, labels)}")
    said.append(f"{'all':10}{sum(lines.values()):7}{len(counted):8}{_number_caught(counted, columns, labels)}")
    for label in labels:
        said += ["", *_how(label, counted, columns, coverages[label])]
    reasons = {
        _key(each["file"], each["line"], each["becomes"]): each["reason"] for each in known.get("survivors") or ()
    }
    for label in labels:
        said += ["", f"survivors, {label}:"]
        for fault in counted:
            verdict = columns[label][fault.name]
            if verdict.by is None:
                asked = f"{verdict.directly} tests reach it, {verdict.ran} ran" if verdict.ran else "no test reaches it"
                said += [f"  {fault.package} {fault.file}:{fault.line} {fault.operator} ({asked})"]
                said += [f"    - {line.strip()}" for line in fault.was.splitlines() if line.strip()]
                said += [f"    + {line.strip()}" for line in fault.becomes.splitlines() if line.strip()]
                said += [f"    {reasons.get(_key_of(fault), 'no reason given')}"]
    dropped = known.get("equivalent") or ()
    said += ["", f"dropped by hand, as nothing that can be seen changes ({len(dropped)}):"]
    said += [f"  {each['file']}: {each['line']} -> {each['becomes']}: {each['reason']}" for each in dropped]
    return "\n".join(said)


def _number_caught(some: Sequence[Fault], columns: Mapping[str, Mapping[str, Verdict]], labels: Sequence[str]) -> str:
    return "".join(f"{sum(columns[label][fault.name].by is not None for fault in some):9}" for label in labels)


def _how(
    label: str, counted: Sequence[Fault], columns: Mapping[str, Mapping[str, Verdict]], coverage: Reached
) -> Iterator[str]:
    verdicts = [columns[label][fault.name] for fault in counted]
    by_how = {how: sum(each.how == how for each in verdicts) for how in ("failed", "hung", "ended", "collecting")}
    passed = sum(test.outcome == "passed" for test in coverage.tests.values())
    yield (
        f"{label}: {passed} tests that pass; {by_how['failed']} faults by a test that fails, {by_how['hung']} by one "
        f"that hangs, {by_how['ended']} by one whose process ends, {by_how['collecting']} where tests are collected"
    )
    if label != "after":
        same = sum(columns[label][f.name].by == columns["after"][f.name].by is not None for f in counted)
        yield f"  {same} by the test that catches them after, run here too; the others by what reaches them here"
    left_out = [name for name, test in coverage.tests.items() if test.outcome in {"failed", "not run"}]
    yield f"  left out, as they fail without a fault: {len(left_out)}"
    yield from (f"    {name}" for name in left_out)
    lucky = {name for each in verdicts for name in each.passed_again}
    yield from (f"    failed once with a fault, then passed with it: {name}" for name in sorted(lucky))


if __name__ == "__main__":
    sys.exit(main())
