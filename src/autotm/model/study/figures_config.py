"""What is compared, what each figure shows, and how figures look: the parts of the study that measure nothing new."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from autotm.model.study.config_values import AnyLimits, Limits, LimitText, Names, Strict


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
    """What memory costs, in any currency: figure 9 and the price plots."""

    fast_per_gb: float = Field(2.1, gt=0, description="price of a GB of fast memory; by default the paper's ratio")
    slow_per_gb: float = Field(1.0, gt=0, description="price of a GB of slow memory")
    rest: float = Field(0.0, ge=0, description="price of the rest of the machine (the price plots only)")


class LargeConfig(Strict):
    """Figure 8: speed-up over memory-mode where fast memory is a cache."""

    workload: str = Field("large", description="a workload with optimizer memory-mode and one limit")


class FrontConfig(Strict):
    """The front figure: one network at one ratio, from all slow to all fast."""

    network: str = Field("inception_v4", description="a network of the zoo that the scale gives sizes for")
    limit: LimitText = Field("4:1", description="the limit between the two ends")


class KernelPlotConfig(Strict):
    """The kernel plot: one 3 x 3 convolution (padding 1) in all placements; its batch is the scale's."""

    image: int = Field(48, ge=1, le=4096, description="height and width of the images")
    channels: int = Field(128, ge=1, le=4096, description="channels that it reads, and that it writes")


class DevicesConfig(Strict):
    """The figure of devices: one network on several machines, which differ in their slow memory only."""

    network: str = Field("inception_v4", description="a network of the zoo that the scale gives sizes for")
    optimizers: Names = Field(["numa", "synchronous"], description="a bar each, beside all slow")
    limit: LimitText = Field("4:1", description="of fast memory: a ratio slow:fast, or bytes")
    machines: Names = Field(
        ["laptop", "remote-socket", "cxl-x16", "cxl-x8", "ddr5-beside-hbm"],
        description="files in config/machines, each measured for itself",
    )


class PaperGpuConfig(Strict):
    """Figure 12 at scale paper: AutoTM's batch sizes, one scale for each."""

    scales: Names = Field(["paper-gpu-1", "paper-gpu-2", "paper-gpu-3"], description="files in config/scales")
    limit: LimitText = Field("11GB-800MB-io", description="the GPU's memory less overhead less arguments")


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
    limit: LimitText = Field("2:3", description="of device memory for what is placed: a ratio host:device, or bytes")
    paper: PaperGpuConfig = PaperGpuConfig()
    timeline: str = Field("inception_v4", description="the network whose step is drawn engine by engine")


class HeapConfig(Strict):
    """The heap plot: the addresses of one plan's tensors over time."""

    network: str = Field("inception_v4", description="a network of the zoo that the scale gives sizes for")
    optimizer: str = Field("synchronous", description="how its tensors are placed")
    limit: LimitText = Field("4:1", description="a ratio slow:fast, or bytes")


class FiguresConfig(Strict):
    """What each figure shows."""

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
