"""Stages as jobs of a study: their logs, why they failed, and how they end."""

from autotm.stages.jobs.failure import FailedJob, page
from autotm.stages.jobs.rule_script import rule
from autotm.stages.jobs.terminate import end_jobs_when_asked

__all__ = ["FailedJob", "end_jobs_when_asked", "page", "rule"]
