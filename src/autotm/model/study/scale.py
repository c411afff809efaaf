"""How large each network is: `config/scales/*.yaml`, checked, and the scales that are made from them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, ValidationError

from autotm.model.files import BadInputError, explain
from autotm.model.study.config_values import Strict
from autotm.model.study.study_config import ProfileConfig, RunConfig, read_yaml

MODELLED = "-modelled"
_BATCH = re.compile(r"^(.+)-batch-([1-9]\d*)$")


class ScaleFile(Strict):
    """A scale: how large each network is, and how long to look at it; never what is done with it."""

    description: str = Field(description="for people")
    networks: dict[str, dict[str, int]] = Field(
        description="sizes by network, e.g. inception_v4: {batch: 8, image: 139}"
    )
    convolution_batch: int = Field(8, ge=1, description="images in the single convolution of the kernel plot")
    measuring: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of the study's profile.step_s, profile.kernel_s, run.min_seconds and of both patience_s "
        "that its measurements take: steps of a few ms need fewer seconds",
    )
    memory_mb: int = Field(gt=0, description="memory of a job that profiles or runs the largest network, MB")
    minutes: int = Field(gt=0, description="time of the longest such job on a cluster, minutes")

    def of_profile(self, config: ProfileConfig) -> ProfileConfig:
        """How kernels of this scale are timed in a study that says `config`."""
        return config.model_copy(update=self._shorter(config, "step_s", "kernel_s", "patience_s"))

    def of_run(self, config: RunConfig) -> RunConfig:
        """How steps of this scale are timed in a study that says `config`."""
        return config.model_copy(update=self._shorter(config, "min_seconds", "patience_s"))

    def _shorter(self, config: ProfileConfig | RunConfig, *names: str) -> dict[str, float]:
        return {name: self.measuring * getattr(config, name) for name in names}


def load_scale(path: Path) -> ScaleFile:
    """Read a scale file.

    Raises:
        BadInputError: no such file, not YAML, an unknown key or a bad value.
    """
    try:
        return ScaleFile.model_validate(read_yaml(path, "scale"))
    except ValidationError as error:
        raise BadInputError(explain(path, error, ScaleFile)) from None


def sizes_at(name: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes, given for every scale alike, of a network at the scale `name`: `NAME-batch-4` changes its batch."""
    match = _BATCH.match(name)
    return {**sizes, "batch": int(match[2])} if match and "batch" in sizes else dict(sizes)


def scale_named(folder: Path, name: str) -> ScaleFile:
    """The scale `name` of a folder of scale files.

    Two more are made from each file: `NAME-batch-4` has 4 samples for every network that has a batch, `NAME-modelled`
    the same sizes, for steps that are modelled from small batches instead of compiled.

    Raises:
        BadInputError: as `load_scale`.
    """
    if name.endswith(MODELLED):
        return load_scale(folder / f"{name.removesuffix(MODELLED)}.yaml")
    match = _BATCH.match(name)
    if match is None:
        return load_scale(folder / f"{name}.yaml")
    base, batch = load_scale(folder / f"{match[1]}.yaml"), int(match[2])
    with_batch = {network: sizes for network, sizes in base.networks.items() if "batch" in sizes}
    share = max((batch / sizes["batch"] for sizes in with_batch.values()), default=1.0)
    return ScaleFile(
        description=f"{base.description} Here with {batch} samples.",
        measuring=base.measuring,
        networks={network: {**sizes, "batch": batch} for network, sizes in with_batch.items()},
        memory_mb=max(4000, math.ceil(base.memory_mb * share)),
        minutes=max(60, math.ceil(base.minutes * share)),
    )
