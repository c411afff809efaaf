"""What a study asks for, and where its files are."""

from autotm.model.study.config_values import ALL_FAST, ALL_SLOW
from autotm.model.study.figures_config import CaseStudyConfig, KernelPlotConfig, PricesConfig, StyleConfig
from autotm.model.study.gpu_file import GpuFile, load_gpu
from autotm.model.study.paths import FRAMEWORK_FILE, ConvolutionPaths, MachinePaths, Paths
from autotm.model.study.scale import MODELLED, ScaleFile, scale_named, sizes_at
from autotm.model.study.study_config import (
    ProfileConfig,
    RunConfig,
    SolveConfig,
    StudyConfig,
    TuneConfig,
    parse_study,
    read_yaml,
)

__all__ = [
    "ALL_FAST",
    "ALL_SLOW",
    "FRAMEWORK_FILE",
    "MODELLED",
    "CaseStudyConfig",
    "ConvolutionPaths",
    "GpuFile",
    "KernelPlotConfig",
    "MachinePaths",
    "Paths",
    "PricesConfig",
    "ProfileConfig",
    "RunConfig",
    "ScaleFile",
    "SolveConfig",
    "StudyConfig",
    "StyleConfig",
    "TuneConfig",
    "load_gpu",
    "parse_study",
    "read_yaml",
    "scale_named",
    "sizes_at",
]
