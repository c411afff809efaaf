"""The stages around the kernel store, and what goes to other machines and comes from them."""

from autotm.stages.exchange.bundle import Bundled, bundle_stage
from autotm.stages.exchange.results import Imported, export_results_stage, import_results_stage, imported_plans
from autotm.stages.exchange.store import coverage_stage, export_store_stage, import_store_stage, tune_stage

__all__ = [
    "Bundled",
    "Imported",
    "bundle_stage",
    "coverage_stage",
    "export_results_stage",
    "export_store_stage",
    "import_results_stage",
    "import_store_stage",
    "imported_plans",
    "tune_stage",
]
