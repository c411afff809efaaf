"""The pipeline's stages: each reads files, asks the packages, and writes its files whole, saying where they come from.

Snakemake's scripts and the commands call these; nothing else decides how files and packages meet.
"""

from autotm.stages.calibrate import calibrate_stage
from autotm.stages.compile import check_stage, compile_stage, program_of
from autotm.stages.context import Context
from autotm.stages.exchange import (
    Bundled,
    Imported,
    bundle_stage,
    coverage_stage,
    export_results_stage,
    export_store_stage,
    import_results_stage,
    import_store_stage,
    imported_plans,
    tune_stage,
)
from autotm.stages.figures import (
    convolution_profile_stage,
    figure_8_stage,
    figure_12_stage,
    figure_of_devices_stage,
    figure_of_records_stage,
    heap_stage,
    kernel_plot_stage,
    links_stage,
    placed_of,
    stays_stage,
    timing_figure_stage,
    view_stage,
)
from autotm.stages.gpu import save_on_cpu_stage
from autotm.stages.modelled import extrapolate_stage, model_kernels_stage, modelled_step_stage
from autotm.stages.profile import (
    compile_and_profile,
    kernel_profile_stage,
    kernel_report_stage,
    profile_of_study,
    timing_study_stage,
)
from autotm.stages.run import disturbed_before, disturbed_records, remeasure, run_of_study, run_stage, trace_stage
from autotm.stages.solve import (
    Given,
    export_program_stage,
    ilp_solve_stage,
    place,
    place_each,
    potential_stage,
    sensitivity_stage,
    sweep_stage,
)
from autotm.stages.sweep import SWEEP_S, sweep_of_study

__all__ = [
    "SWEEP_S",
    "Bundled",
    "Context",
    "Given",
    "Imported",
    "bundle_stage",
    "calibrate_stage",
    "check_stage",
    "compile_and_profile",
    "compile_stage",
    "convolution_profile_stage",
    "coverage_stage",
    "disturbed_before",
    "disturbed_records",
    "export_program_stage",
    "export_results_stage",
    "export_store_stage",
    "extrapolate_stage",
    "figure_8_stage",
    "figure_12_stage",
    "figure_of_devices_stage",
    "figure_of_records_stage",
    "heap_stage",
    "ilp_solve_stage",
    "import_results_stage",
    "import_store_stage",
    "imported_plans",
    "kernel_plot_stage",
    "kernel_profile_stage",
    "kernel_report_stage",
    "links_stage",
    "model_kernels_stage",
    "modelled_step_stage",
    "place",
    "place_each",
    "placed_of",
    "potential_stage",
    "profile_of_study",
    "program_of",
    "remeasure",
    "run_of_study",
    "run_stage",
    "save_on_cpu_stage",
    "sensitivity_stage",
    "stays_stage",
    "sweep_of_study",
    "sweep_stage",
    "timing_figure_stage",
    "timing_study_stage",
    "trace_stage",
    "tune_stage",
    "view_stage",
]
