"""The pipeline's stages: each reads files, asks the packages, and writes its files whole, saying where they come from.

Snakemake's scripts and the commands call these; nothing else decides how files and packages meet.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotm.stages.bundle import bundle_stage
    from autotm.stages.context import Context, PlacementInputs
    from autotm.stages.exchange import (
        Imported,
        export_results_stage,
        export_store_stage,
        import_results_stage,
        import_store_stage,
        imported_plans,
    )
    from autotm.stages.figures import (
        convolution_profile_stage,
        figure_stage,
        placed_of,
        stays_stage,
        timing_figure_stage,
        view_stage,
    )
    from autotm.stages.gpu import save_on_cpu_stage
    from autotm.stages.modelled import extrapolate_stage, model_kernels_stage, modelled_step_stage
    from autotm.stages.profile import (
        calibrate_stage,
        compile_and_profile,
        kernel_profile_stage,
        kernel_report_stage,
        profile_of_study,
        timing_study_stage,
    )
    from autotm.stages.run import (
        RunsStage,
        disturbed_before,
        disturbed_records,
        remeasure,
        run_of_study,
        run_stage,
        trace_stage,
    )
    from autotm.stages.solve import (
        check_stage,
        compile_stage,
        export_program_stage,
        ilp_solve_stage,
        place,
        place_each,
        potential_stage,
        program_of,
        sensitivity_stage,
        sweep_stage,
    )
    from autotm.stages.sweep import SWEEP_S, sweep_of_study


_HOMES = {
    "Context": "autotm.stages.context",
    "PlacementInputs": "autotm.stages.context",
    "Imported": "autotm.stages.exchange",
    "RunsStage": "autotm.stages.run",
    "SWEEP_S": "autotm.stages.sweep",
    "bundle_stage": "autotm.stages.bundle",
    "calibrate_stage": "autotm.stages.profile",
    "check_stage": "autotm.stages.solve",
    "compile_and_profile": "autotm.stages.profile",
    "compile_stage": "autotm.stages.solve",
    "convolution_profile_stage": "autotm.stages.figures",
    "disturbed_before": "autotm.stages.run",
    "disturbed_records": "autotm.stages.run",
    "export_program_stage": "autotm.stages.solve",
    "export_results_stage": "autotm.stages.exchange",
    "export_store_stage": "autotm.stages.exchange",
    "extrapolate_stage": "autotm.stages.modelled",
    "figure_stage": "autotm.stages.figures",
    "ilp_solve_stage": "autotm.stages.solve",
    "import_results_stage": "autotm.stages.exchange",
    "import_store_stage": "autotm.stages.exchange",
    "imported_plans": "autotm.stages.exchange",
    "kernel_profile_stage": "autotm.stages.profile",
    "kernel_report_stage": "autotm.stages.profile",
    "model_kernels_stage": "autotm.stages.modelled",
    "modelled_step_stage": "autotm.stages.modelled",
    "place": "autotm.stages.solve",
    "place_each": "autotm.stages.solve",
    "placed_of": "autotm.stages.figures",
    "potential_stage": "autotm.stages.solve",
    "profile_of_study": "autotm.stages.profile",
    "program_of": "autotm.stages.solve",
    "remeasure": "autotm.stages.run",
    "run_of_study": "autotm.stages.run",
    "run_stage": "autotm.stages.run",
    "save_on_cpu_stage": "autotm.stages.gpu",
    "sensitivity_stage": "autotm.stages.solve",
    "stays_stage": "autotm.stages.figures",
    "sweep_of_study": "autotm.stages.sweep",
    "sweep_stage": "autotm.stages.solve",
    "timing_figure_stage": "autotm.stages.figures",
    "timing_study_stage": "autotm.stages.profile",
    "trace_stage": "autotm.stages.run",
    "view_stage": "autotm.stages.figures",
}
__all__ = [
    "SWEEP_S",
    "Context",
    "Imported",
    "PlacementInputs",
    "RunsStage",
    "bundle_stage",
    "calibrate_stage",
    "check_stage",
    "compile_and_profile",
    "compile_stage",
    "convolution_profile_stage",
    "disturbed_before",
    "disturbed_records",
    "export_program_stage",
    "export_results_stage",
    "export_store_stage",
    "extrapolate_stage",
    "figure_stage",
    "ilp_solve_stage",
    "import_results_stage",
    "import_store_stage",
    "imported_plans",
    "kernel_profile_stage",
    "kernel_report_stage",
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
    "view_stage",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: a hundred jobs are a hundred processes, of one stage each."""
    if name not in _HOMES:
        raise AttributeError(f"module 'autotm.stages' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
