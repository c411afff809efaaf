"""The command `compare`."""

from __future__ import annotations

from pathlib import Path

import click

from autotm.cli.answer import Answer, answering
from autotm.cli.options import FILE
from autotm.study.explain import compare as compare_files


@click.command()
@click.argument("first", type=FILE, metavar="A")
@click.argument("second", type=FILE, metavar="B")
@click.option("--most", type=click.IntRange(min=1), default=10, show_default=True, help="How many differences to name.")
@answering
def compare(first: Path, second: Path, most: int) -> Answer:
    """A and B are two plan.json, or two record.json."""
    found = compare_files(first, second)
    return Answer(found, found.text(most))
