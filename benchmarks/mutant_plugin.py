"""What `mutants.py` adds to pytest: a log of what tests did and share; it runs only the tests that it is told.

Environment: AUTOTM_MUTANTS_LOG, a file for lines of JSON; AUTOTM_MUTANTS_TESTS, a file with the tests, if not all.
The functions are those that pytest asks a plugin for, by its names.
"""

# ruff: noqa: D103
from __future__ import annotations

import json
import os
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

LOG, TESTS = Path(os.environ["AUTOTM_MUTANTS_LOG"]), os.environ.get("AUTOTM_MUTANTS_TESTS")
AT = "AUTOTM_MUTANTS_AT"
WORKER = os.environ.get("PYTEST_XDIST_WORKER")


def note(**entry: object) -> None:
    with LOG.open("a") as file:
        file.write(json.dumps(entry) + "\n")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if TESTS is not None:
        _choose(config, items)
    elif WORKER in {None, "gw0"}:
        for number, item in enumerate(items):
            note(test=item.nodeid, order=number, fixtures=_shared(item))


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    if TESTS is None and WORKER in {None, "gw0"}:
        for item in items:
            note(deselected=item.nodeid)


def _choose(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests asked for, and new ones of the same functions: a fault may change what is listed."""
    asked = json.loads(Path(TESTS or "").read_text())
    seconds, known = asked["seconds"], set(asked["known"])
    functions = {_function(test): seconds[test] for test in seconds}
    chosen: list[pytest.Item] = []
    for item in items:
        allowed = seconds.get(item.nodeid)
        if allowed is None and item.nodeid not in known:
            allowed = functions.get(_function(item.nodeid))
        if allowed is not None:
            item.add_marker(pytest.mark.timeout(allowed), append=False)
            chosen.append(item)
    config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
    items[:] = chosen


def _function(test: str) -> str:
    return test.partition("[")[0]


def _shared(item: pytest.Item) -> list[str]:
    """Names of the fixtures that a test shares with others: those of a wider scope than a function."""
    info: Any = getattr(item, "_fixtureinfo", None)
    definitions: list[Any] = [each for fixtures in info.name2fixturedefs.values() for each in fixtures] if info else []
    return sorted({_name(each) for each in definitions if each.scope != "function"})


def _name(definition: Any) -> str:
    return f"{definition.baseid}::{definition.argname}"


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Generator[None, Any, Any]:
    return (yield from _at("" if fixturedef.scope == "function" else f"fixture {_name(fixturedef)}"))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    return (yield from _at(f"file {collector.nodeid.partition('::')[0]}"))


def _at(place: str) -> Generator[None, Any, Any]:
    """Note that what runs meanwhile, in this process and its children, is done for more than the one test."""
    before = os.environ.get(AT)
    if place:
        os.environ[AT] = place
    try:
        return (yield)
    finally:
        if before is not None:
            os.environ[AT] = before
        else:
            os.environ.pop(AT, None)


def pytest_runtest_logstart(nodeid: str) -> None:
    if WORKER is None:
        note(start=nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if WORKER is None:
        note(
            report=report.nodeid,
            when=report.when,
            outcome=report.outcome,
            seconds=report.duration,
            text=_reason(report),
        )


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if WORKER is None and report.failed:
        note(collect=report.nodeid, text=str(report.longrepr)[-300:])


def _reason(report: pytest.TestReport) -> str:
    if not report.failed:
        return ""
    crash: Any = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr)[:300]
