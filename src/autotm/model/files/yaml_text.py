"""YAML that a person wrote: Snakemake asks for the same few files once for each of hundreds of jobs."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any

import yaml


def parsed_yaml(text: str) -> Any:
    """What a text says; each text is parsed once in a process.

    Raises:
        yaml.YAMLError: it is no YAML.
    """
    return copy.deepcopy(_parsed(text))


@lru_cache(maxsize=128)
def _parsed(text: str) -> Any:
    return yaml.safe_load(text)
