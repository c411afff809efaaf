"""Stages of the steps that no machine at hand could run: modelled, never measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from autotm.model.files import BadInputError, load, save
from autotm.model.machine import provenance
from autotm.model.measurement import Profile, read_profile, write_profile
from autotm.model.step import Graph
from autotm.profile import extrapolate
from autotm.stages.context import Context


def extrapolate_stage(
    context: Context,
    scale: str,
    sizes: Mapping[str, int],
    *,
    graphs: Sequence[Path],
    profiles: Sequence[Path],
    graph: Path,
    profile: Path,
) -> None:
    """Model the step at `sizes` from its profiles at small batches.

    Raises:
        BadInputError: the network has no batch, or its steps cannot be compared.
    """
    if "batch" not in sizes:
        raise BadInputError(f"scale {scale}: sizes {dict(sizes)} have no batch, so nothing can be extrapolated over it")
    steps = [(load(g, "graph", Graph), read_profile(p)) for g, p in zip(graphs, profiles, strict=True)]
    found = extrapolate(steps, sizes["batch"], scale)
    came_from = {
        **provenance(context.machine, context.seed, sizes=dict(sizes)),
        "tier_reality": "modelled",
        "extrapolated": {
            "batches": list(found.batches),
            "step_error": found.step_error,
            "kernel_error": found.kernel_error,
        },
    }
    save(graph, "graph", found.graph, came_from)
    modelled = found.profile
    write_profile(profile, Profile(modelled.graph_hash, modelled.timings, {**came_from, **modelled.provenance}))
