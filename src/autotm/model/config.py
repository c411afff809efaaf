"""The study as a person writes it, checked before anything runs.

Its files are `config/config.yaml` and `config/scales/*.yaml`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from autotm.model.cores import PATIENCE_S
from autotm.model.errors import validated
from autotm.model.files import read_yaml
from autotm.model.limit import ALL_FAST, Limit

Value = TypeVar("Value")


def _distinct(values: list[Value]) -> list[Value]:
    twice = sorted({str(value) for value in values if values.count(value) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)} appears twice")
    return values


def _has_all_fast(values: list[Limit]) -> list[Limit]:
    if ALL_FAST not in values:
        raise ValueError(f'it should contain "{ALL_FAST}", the all-fast run that slow-downs are divided by')
    return values


AnyLimits = Annotated[list[Limit], Field(min_length=1), AfterValidator(_distinct)]
Limits = Annotated[list[Limit], Field(min_length=2), AfterValidator(_distinct), AfterValidator(_has_all_fast)]
Names = Annotated[list[str], Field(min_length=1), AfterValidator(_distinct)]


class Strict(BaseModel):
    """Unknown keys and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class CaseStudyConfig(Strict):
    """Figure 10: one network over many limits."""

    network: str = Field("inception_v4", description="a network of the zoo that the scale gives sizes for")
    optimizers: Names = Field(["static", "synchronous"], description="one line each")
    limits: Limits = Field(description='fast-memory limits: ratios slow:fast such as "8:1", or bytes such as "4500MB"')


class WorkloadConfig(Strict):
    """Networks compared over a few limits: figures 7, 8, 9 and 11, and those drawn from the same runs."""

    networks: Names = Field(description="networks of the zoo that the scale gives sizes for")
    optimizers: Names = Field(["numa", "static", "synchronous"], description="one bar each in figures 7 and 8")
    limits: AnyLimits = Field(
        description='ratios slow:fast, or bytes; all figures but 8 need "1:0" and "0:1", which others are compared with'
    )
    predicted: dict[str, AnyLimits] = Field(
        {}, description="further optimizers, each with its limits, whose predictions figure 11 judges too"
    )
    rivals: dict[str, AnyLimits] = Field(
        {}, description="further optimizers, each with its limits, that figures 7 and 8 compare with: one bar each"
    )


class PricesConfig(Strict):
    """Prices of memory, in any currency, for figure 9 and the price plots."""

    fast_per_gb: float = Field(2.1, gt=0, description="price of a GB of fast memory; by default the paper's ratio")
    slow_per_gb: float = Field(1.0, gt=0, description="price of a GB of slow memory")
    rest: float = Field(0.0, ge=0, description="price of the rest of the machine (the price plots only)")


class LargeConfig(Strict):
    """Figure 8: speed-up over memory-mode where fast memory is a cache."""

    workload: str = Field("large", description="a workload with optimizer memory-mode and one limit")


class FrontConfig(Strict):
    """The front figure: one network at one ratio, from all slow to all fast."""

    network: str = Field("inception_v4", description="a network of the zoo that the scale gives sizes for")
    limit: Limit = Field("4:1", validate_default=True, description="the limit between the two ends")


class KernelPlotConfig(Strict):
    """The kernel plot: one 3 x 3 convolution (padding 1) in all placements; its batch is the scale's."""

    image: int = Field(48, ge=1, le=4096, description="height and width of the images")
    channels: int = Field(128, ge=1, le=4096, description="channels that it reads, and that it writes")


class DevicesConfig(Strict):
    """The figure of devices: one network on several machines, which differ in their slow memory only."""

    network: str = Field("inception_v4", description="a network of the zoo that the scale gives sizes for")
    optimizers: Names = Field(["numa", "synchronous"], description="a bar each, beside all slow")
    limit: Limit = Field("4:1", validate_default=True, description="of fast memory: a ratio slow:fast, or bytes")
    machines: Names = Field(
        ["laptop", "remote-socket", "cxl-x16", "cxl-x8", "ddr5-beside-hbm"],
        description="files in config/machines, each measured for itself",
    )


class PaperGpuConfig(Strict):
    """Figure 12 at scale paper: AutoTM's batch sizes, one scale for each."""

    scales: Names = Field(["paper-gpu-1", "paper-gpu-2", "paper-gpu-3"], description="files in config/scales")
    limit: Limit = Field(
        "11GB-800MB-io", validate_default=True, description="the GPU's memory less overhead less arguments"
    )


class GpuConfig(Strict):
    """Figure 12: training beyond the memory of a GPU, on a machine that is modelled or has one."""

    machine: str = Field("modelled-rtx-2080-ti", description="a file in config/machines, of kind modelled or cuda")
    networks: Names = Field(
        ["inception_v4", "resnet200", "densenet264", "vgg19"],
        description="networks of the zoo, each where the scale gives sizes for it",
    )
    optimizers: Names = Field(["synchronous", "asynchronous"], description="a bar each in the first panel")
    rivals: list[Literal["lru-paging", "swap-all", "recompute", "save-on-cpu"]] = Field(
        ["lru-paging", "swap-all", "recompute", "save-on-cpu"],
        description="a bar each in the second panel; save-on-cpu on a GPU only where PyTorch is; see figures.md",
    )
    limit: Limit = Field(
        "2:3", validate_default=True, description="of device memory for what is placed: a ratio host:device, or bytes"
    )
    paper: PaperGpuConfig = PaperGpuConfig()
    timeline: str = Field("inception_v4", description="the network whose step is drawn engine by engine")


class HeapConfig(Strict):
    """The heap plot: the addresses of one plan's tensors over time."""

    network: str = Field("inception_v4", description="a network of the zoo that the scale gives sizes for")
    optimizer: str = Field("synchronous", description="how its tensors are placed")
    limit: Limit = Field("4:1", validate_default=True, description="a ratio slow:fast, or bytes")


class FiguresConfig(Strict):
    """Settings of single figures, one section each."""

    fig8: LargeConfig = LargeConfig()
    fig10: CaseStudyConfig
    front: FrontConfig = FrontConfig()
    kernel_plot: KernelPlotConfig = KernelPlotConfig()
    heap: HeapConfig = HeapConfig()
    devices: DevicesConfig = DevicesConfig()
    fig12: GpuConfig = GpuConfig()
    prices: PricesConfig = PricesConfig()


class StyleConfig(Strict):
    """How figures look; changing it redraws, and measures nothing."""

    panel_width_cm: float = Field(8.0, gt=2, le=50, description="width of one panel, cm")
    panel_height_cm: float = Field(6.0, gt=2, le=50, description="height of one panel, cm")
    font_size_pt: float = Field(8.0, ge=4, le=30, description="size of axis labels, pt")
    dots_per_inch: int = Field(200, ge=50, le=1200, description="resolution of the .png")
    palette: str = Field("colorblind", description="a seaborn palette")
    caption: bool = Field(default=True, description="machine, threads, versions and seed under the panels")


class ProfileConfig(Strict):
    """How kernels are compiled and timed (rule kernel_profile)."""

    implementations: Literal["default", "all"] = Field(
        "all",
        description="all: kernels that take much workspace are compiled and timed in a lean form too, for plans to "
        "choose; on a GPU every way to compute a kernel; default: one form each",
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
        """Settings for timing a kernel, whatever its implementation."""
        return self.model_dump(exclude={"implementations", "step_tolerance", "compare"})

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_repeats > self.max_repeats:
            raise ValueError(f"min_repeats {self.min_repeats} should be at most max_repeats {self.max_repeats}")
        return self


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


class ControlFlowConfig(Strict):
    """Control flow within compiled functions (rules control_flow and control_flow_search)."""

    hidden: Annotated[list[int], Field(min_length=2)] = Field(
        [16, 32, 64, 128, 256, 512], description="hidden sizes that the share of control flow is shown against"
    )
    ratios: Annotated[list[int], Field(min_length=2)] = Field(
        [0, 25, 50, 75, 100], description="percent of the blocks of a network that are computed"
    )
    threads: int = Field(1, ge=1, description="of every system")
    other_threads: int = Field(2, ge=1, description="of the same, for figure 19")
    rounds: int = Field(15, ge=3, description="samples of each system, in turn")
    build_s: float = Field(45, gt=0, description="seconds that a system may take until the first results are there")


class FusionConfig(Strict):
    """Which operators share a kernel (rules fusion_exhaustive and fusion_search)."""

    training: Names = Field(
        [], description="networks that a policy learns from: of the scale, its blocks, or one's own"
    )
    held_out: Names = Field([], description="networks that a policy is judged by")
    max_groups: int = Field(
        1000, ge=1, description="operators that share kernels in more ways than this keep those of TVM's fusion"
    )
    best: int = Field(20, ge=1, description="cheapest groupings, by sums of kernels, that are measured as whole steps")
    random: int = Field(10, ge=0, description="random groupings that are measured beside them")
    copies: int = Field(3, ge=0, description="fresh copies of TVM's fusion that are measured beside them: the noise")
    step_s: float = Field(0.3, ge=0, description="each grouping's steps are timed for so long, s")
    searched: Names = Field([], description="of these networks, those whose training step algorithms search, too")
    trials: int = Field(60, ge=1, description="groupings that a search tries")
    search_seeds: Annotated[list[int], Field(min_length=1)] = Field([1, 2], description="a search for each")
    trial_s: float = Field(120.0, gt=0, description="a trial that takes longer has failed, s")
    kernel_s: float = Field(
        0.15, gt=0, description="in place of profile.kernel_s, for the kernels of fusion_exhaustive, which are many, s"
    )
    rotation_bytes: int = Field(
        1_000_000,
        gt=0,
        description="in place of profile.rotation_bytes: about a core's own cache, filled by the kernels before",
    )
    random_policies: int = Field(20, ge=0, description="random policies that are measured on each held-out network")
    placed: Names = Field([], description="networks of the zoo whose tensor placements are searched as decisions are")
    placed_limit: Limit = Field("4:1", validate_default=True, description="of fast memory, for these placements")
    placements: int = Field(2000, ge=1, description="placements that a search looks at")

    @property
    def exhaustive_settings(self) -> dict[str, Any]:
        """What rule fusion_exhaustive depends on; another value measures all its steps anew."""
        return self.model_dump(
            include={"max_groups", "best", "random", "copies", "step_s", "kernel_s", "rotation_bytes"}
        )

    @property
    def search_settings(self) -> dict[str, Any]:
        """What rule fusion_search depends on; another value repeats all its searches."""
        return self.model_dump(include={"step_s", "trials", "trial_s"})


class VerificationConfig(Strict):
    """Which programs are compared with the plain step (rule verification)."""

    limit: Limit = Field("4:1", validate_default=True, description="the limit of all optimizers but all-fast")
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
    control_flow: ControlFlowConfig = ControlFlowConfig()
    fusion: FusionConfig = FusionConfig()
    figures: FiguresConfig
    style: StyleConfig = StyleConfig()


MODELLED = "-modelled"
_BATCH = re.compile(r"^(.+)-batch-([1-9]\d*)$")


class ScaleFile(Strict):
    """A scale: how large each network is, and how long to look at it; never what is done with it."""

    description: str = Field(description="for people")
    networks: dict[str, dict[str, int]] = Field(
        description="sizes by network, e.g. inception_v4: {batch: 8, image: 139}"
    )
    control_flow: dict[str, dict[str, int]] = Field(
        {}, description="sizes of the models with control flow, e.g. nasrnn: {steps: 1000, hidden: 256}"
    )
    blocks: dict[str, dict[str, int]] = Field(
        {},
        description="sizes of repeated blocks of known networks, e.g. bert_block: {batch: 4, sequence: 64, width: 128}",
    )
    convolution_batch: int = Field(8, ge=1, description="images in the single convolution of the kernel plot")
    measuring: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of the study's profile.step_s, profile.kernel_s, run.min_seconds, fusion.step_s, "
        "fusion.kernel_s and of both patience_s that its measurements take: steps of a few ms need fewer seconds",
    )
    memory_mb: int = Field(gt=0, description="memory of a job that profiles or runs the largest network, MB")
    minutes: int = Field(gt=0, description="time of the longest such job on a cluster, minutes")

    def of_profile(self, config: ProfileConfig) -> ProfileConfig:
        """Return how kernels of this scale are timed in a study that says `config`."""
        return config.model_copy(update=self._shorter(config, "step_s", "kernel_s", "patience_s"))

    def of_run(self, config: RunConfig) -> RunConfig:
        """Return how steps of this scale are timed in a study that says `config`."""
        return config.model_copy(update=self._shorter(config, "min_seconds", "patience_s"))

    def of_fusion(self, config: FusionConfig) -> FusionConfig:
        """Return how groupings of operators are timed at this scale in a study that says `config`."""
        return config.model_copy(update=self._shorter(config, "step_s", "kernel_s"))

    def _shorter(self, config: ProfileConfig | RunConfig | FusionConfig, *names: str) -> dict[str, float]:
        return {name: self.measuring * getattr(config, name) for name in names}


def load_scale(path: Path) -> ScaleFile:
    """Read a scale file.

    Raises:
        BadInputError: no such file, not YAML, an unknown key or a bad value.
    """
    return validated(ScaleFile, read_yaml(path, "scale"), path)


def sizes_at(name: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return a network's sizes, the same at every scale, at the scale `name`: `NAME-batch-4` changes its batch."""
    match = _BATCH.match(name)
    return {**sizes, "batch": int(match[2])} if match and "batch" in sizes else dict(sizes)


def scale_named(folder: Path, name: str) -> ScaleFile:
    """Return the scale `name` of a folder of scale files.

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
