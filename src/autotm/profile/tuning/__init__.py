"""Searching for better schedules of a step's kernels, and what the store has of a step."""

from autotm.profile.tuning.coverage import Coverage, coverage, table
from autotm.profile.tuning.tuner import TuneOptions, tune_kernels

__all__ = ["Coverage", "TuneOptions", "coverage", "table", "tune_kernels"]
