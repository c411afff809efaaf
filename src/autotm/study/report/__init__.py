"""What captions in `snakemake --report` are made of. Importing this imports docutils, a quarter of a second."""

from autotm.study.report.directives import register_directives

__all__ = ["register_directives"]
