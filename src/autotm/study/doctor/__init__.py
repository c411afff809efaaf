"""What a machine has, what of it autotm can use, and why not the rest."""

from autotm.study.doctor.facts import Finding, Use, findings
from autotm.study.doctor.report import findings_text, write_machine_file

__all__ = ["Finding", "Use", "findings", "findings_text", "write_machine_file"]
