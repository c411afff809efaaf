"""What a machine has, what of it autotm can use, and why not the rest."""

from autotm.study.doctor.facts import findings, found_slow
from autotm.study.doctor.finding import Finding, Use
from autotm.study.doctor.report import findings_text, write_machine_file

__all__ = ["Finding", "Use", "findings", "findings_text", "found_slow", "write_machine_file"]
