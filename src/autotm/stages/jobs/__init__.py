"""Stages as jobs of a study: their logs, why they failed, what they share, and how they end."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotm.stages.jobs.ahead import Call, Job, Waiting, take, work
    from autotm.stages.jobs.failure import FailedJob, page
    from autotm.stages.jobs.rule_script import rule
    from autotm.stages.jobs.terminate import end_jobs_when_asked

_HOMES = {
    "Call": "autotm.stages.jobs.ahead",
    "FailedJob": "autotm.stages.jobs.failure",
    "Job": "autotm.stages.jobs.ahead",
    "Waiting": "autotm.stages.jobs.ahead",
    "end_jobs_when_asked": "autotm.stages.jobs.terminate",
    "page": "autotm.stages.jobs.failure",
    "rule": "autotm.stages.jobs.rule_script",
    "take": "autotm.stages.jobs.ahead",
    "work": "autotm.stages.jobs.ahead",
}
__all__ = ["Call", "FailedJob", "Job", "Waiting", "end_jobs_when_asked", "page", "rule", "take", "work"]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: a job that only takes its output must not wait for the rest."""
    if name not in _HOMES:
        raise AttributeError(f"module 'autotm.stages.jobs' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
