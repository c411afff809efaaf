"""The command `schema`."""

from __future__ import annotations

import json

import click

from autotm.model.study import StudyConfig


@click.command()
def schema() -> None:
    """Editors read it: defaults, limits and meanings of every key."""
    click.echo(json.dumps(StudyConfig.model_json_schema(), indent=1))
