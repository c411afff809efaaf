"""The study as a person writes it: `config/config.yaml`, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from autotm.model.files import BadInputError, explain, no_such_file, parsed_yaml
from autotm.model.machine import PATIENCE_S
from autotm.model.study.config_values import LimitText, Names, Strict
from autotm.model.study.figures_config import FiguresConfig, StyleConfig, WorkloadConfig


class ProfileConfig(Strict):
    """How kernels are compiled and timed (rule kernel_profile)."""

    implementations: Literal["default", "all"] = Field(
        "all",
        description="all: kernels that take much workspace are compiled and timed in a lean form too, for plans to "
        "choose; on a GPU every way to compute a kernel, those of cuDNN and cuBLAS too; default: one form each",
    )
    configurations: Literal["additive", "full"] = Field(
        "additive",
        description="additive: all fast, then each tensor slow alone (k + 1 timings a kernel of k tensors); "
        "full: all 2^k placements",
    )
    min_repeats: int = Field(7, ge=1, le=1000, description="least number of timed runs of a step or a configuration")
    max_repeats: int = Field(200, ge=1, le=10_000, description="most timed runs of a step or a configuration")
    step_s: float = Field(
        20.0, ge=0, le=86_400, description="time for which all-fast steps run, in which kernels are timed, s"
    )
    kernel_s: float = Field(
        0.15,
        ge=0,
        le=3600,
        description="time after which a kernel with enough repeats is done that is timed alone (real slow memory), s",
    )
    spread: float = Field(
        0.003,
        ge=0,
        le=1,
        description="steps or a kernel are done earlier once the standard errors of their medians are below this share",
    )
    rotation_bytes: int = Field(
        128_000_000,
        ge=0,
        description="operands rotate over copies that fill this many bytes, so that caches help no more than in a step",
    )
    patience_s: float = Field(
        PATIENCE_S,
        ge=0,
        le=86_400,
        description="steps, kernels and (rule calibrate) copies timed while others held the cores are timed again "
        "for so long, s, or three times as long as the others take",
    )

    step_tolerance: float = Field(
        0.03,
        gt=0,
        description="a warning says where kernels sum up to another time than the all-fast step, run in turn, by more "
        "than this share",
    )

    compare: bool = Field(
        True,
        description="a step that came from a module of PyTorch is compared with PyTorch before its kernels are timed",
    )

    @property
    def timing(self) -> dict[str, Any]:
        """What concerns the timing of a kernel, whatever its implementation."""
        return self.model_dump(exclude={"implementations", "step_tolerance", "compare"})

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_repeats > self.max_repeats:
            raise ValueError(f"min_repeats {self.min_repeats} should be at most max_repeats {self.max_repeats}")
        return self


class TuneConfig(Strict):
    """How schedules are searched for (rule tune, optional), and when a found one replaces our own."""

    trials: int = Field(64, ge=1, le=100_000, description="schedules tried for each kernel")
    min_gain: float = Field(
        0.03,
        ge=0,
        le=10,
        description="a tuned schedule is taken where ours was measured to take longer by more than this share",
    )


class SolveConfig(Strict):
    """When a placement is good enough (rule ilp_solve)."""

    gap: float = Field(0.01, ge=0, lt=1, description="accepted share of the objective that is not proven necessary")
    time_limit_s: float = Field(
        60.0, gt=0, le=86_400, description="wall time after which the best plan found is taken, s"
    )
    additive_tolerance: float = Field(
        0.02,
        ge=0,
        le=1,
        description="slow operands of a kernel that was measured in full are added up where that misses no measured "
        "time by more than this share of its all-fast time; else its table is taken as it is",
    )


class RunConfig(Strict):
    """How a program is timed (rule run)."""

    min_steps: int = Field(3, ge=1, le=10_000, description="least number of timed steps")
    min_seconds: float = Field(2.0, ge=0, le=3600, description="least total time of the timed steps, s")
    precision: float = Field(
        0.015,
        gt=0,
        description="steps that scatter are timed up to three times as long, until the standard error of their "
        "slow-down, a ratio of medians, is at most this share of it",
    )
    verify_steps: int = Field(
        2, ge=0, le=100, description="steps whose losses and weights are compared with the plain step, bit for bit"
    )
    instrumented_steps: int = Field(1, ge=1, le=100, description="steps in which every kernel is timed")
    side_by_side: bool = Field(
        default=True, description="time the all-fast step in turn with the planned one; needs memory for both"
    )
    poison: bool = Field(default=False, description="while verifying, overwrite dead memory with NaN")
    patience_s: float = Field(
        PATIENCE_S,
        ge=0,
        le=86_400,
        description="steps that were timed while others held the cores are timed again for so long, s, or three times "
        "as long as the good ones take; then all count, and the record says so",
    )


class ExtrapolationConfig(Strict):
    """Steps too large to run, modelled: scales named `NAME-modelled`."""

    batches: list[Annotated[int, Field(ge=1)]] = Field(
        [2, 4, 8], min_length=3, description="samples a step that are profiled for it, ascending"
    )

    @field_validator("batches")
    @classmethod
    def _ascends(cls, batches: list[int]) -> list[int]:
        if batches != sorted(set(batches)):
            raise ValueError(f"should ascend, got {batches}")
        return batches


class OwnNetworkConfig(Strict):
    """A network that a function returns: one in a Python file, or one of a package, for modules of PyTorch."""

    file: str = Field("", description="the Python file; relative to the folder that holds config/")
    function: str = Field("", description="the function in it that returns a network; takes the sizes as arguments")
    torch: str = Field(
        "",
        description="instead of both, package.module:function, which returns a module of PyTorch and its inputs, or "
        "the arguments of autotm.from_torch by name; the package is installed or lies beside config/",
    )
    sizes: dict[str, Annotated[int, Field(ge=1)]] = Field({}, description="e.g. {batch: 16}, the same at every scale")

    @model_validator(mode="after")
    def _has_one_address(self) -> Self:
        if bool(self.torch) == bool(self.file or self.function) or bool(self.file) != bool(self.function):
            raise ValueError("give file and function, or torch: package.module:function")
        return self


class TimingStudyConfig(Strict):
    """Does timing many kernels at once give what one at a time gives (rule timing_study)?"""

    network: str = Field("mnist", description="a small network: every configuration of each kernel runs whole steps")
    repeats: int = Field(15, ge=3, le=1000, description="timed steps for each configuration or set of them")
    recorded: str | None = Field(
        None, description="a table of kernels recorded on Optane memory, .csv or .csv.gz, to judge sums by, too"
    )


class VerificationConfig(Strict):
    """Which programs are compared with the plain step (rule verification)."""

    limit: LimitText = Field("4:1", description="the limit of all optimizers but all-fast")
    networks: Literal["all"] | Names = Field("all", description="networks of the scale")
    optimizers: Literal["all"] | Names = Field("all", description="of those that there are")


class StudyConfig(Strict):
    """The whole study."""

    scale: str = Field(description="a file in config/scales, without .yaml: tiny, laptop, paper or your own")
    machine: str = Field(description="a file in config/machines, without .yaml")
    threads: Literal["auto"] | Annotated[int, Field(ge=1)] = Field(
        "auto", description="kernel threads; auto = as the machine file says"
    )
    seed: int = Field(20, ge=0, lt=2**31, description="of weights, data and the solver")
    counts: Literal["intermediates", "all"] = Field(
        "intermediates",
        description="what plans place and limits count: intermediates and workspaces, as in the paper, or parameters, "
        "inputs and results too",
    )
    profile: ProfileConfig = ProfileConfig()
    tune: TuneConfig = TuneConfig()
    solve: SolveConfig = SolveConfig()
    run: RunConfig = RunConfig()
    extrapolate: ExtrapolationConfig = ExtrapolationConfig()
    workloads: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], WorkloadConfig] = Field(
        {}, description="sets of networks by name; the figures of `conventional` have no folder of their own"
    )
    own_networks: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], OwnNetworkConfig] = Field(
        {}, description="one's own networks by name, to be used like those of the zoo"
    )
    verification: VerificationConfig = VerificationConfig()
    timing_study: TimingStudyConfig = TimingStudyConfig()
    figures: FiguresConfig
    style: StyleConfig = StyleConfig()


def parse_study(raw: Mapping[str, Any], source: object) -> StudyConfig:
    """Check a study that was read from `source`.

    Raises:
        BadInputError: names source, key, value and what is allowed.
    """
    try:
        return StudyConfig.model_validate(dict(raw))
    except ValidationError as error:
        raise BadInputError(explain(source, error, StudyConfig)) from None


def read_yaml(path: Path, kind: str) -> object:
    """The contents of a YAML file that a person wrote.

    Raises:
        BadInputError: no such file, or not YAML.
    """
    try:
        return parsed_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise no_such_file(kind, path) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
