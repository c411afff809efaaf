"""The study that a command's options name."""

from __future__ import annotations

import argparse

from autotm.model.step import Counts
from autotm.model.study import Paths, read_yaml
from autotm.stages import Context
from autotm.study.setup import Study, load_study


def study_of(options: argparse.Namespace) -> Study:
    """The study of `--config`, with what other options put in its place."""
    raw = read_yaml(options.config, "study")
    overrides = {
        key: getattr(options, key) for key in ("scale", "machine", "threads", "counts") if getattr(options, key)
    }
    if not isinstance(raw, dict):
        raw = {}
    return load_study(raw | overrides, options.config, options.config.parent, options.results)


def context_of(study: Study) -> Context:
    """Where and with which randomness the study's stages run."""
    return Context(study.machine, study.devices_dir, study.config.seed, Counts(study.config.counts))


def paths_of(study: Study, network: str) -> Paths:
    """The files of a network.

    Raises:
        BadInputError: neither the study's scale nor its own networks give sizes for it.
    """
    study.network(network)
    return study.paths(network)
