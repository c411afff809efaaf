"""From `config/` to a study whose every file is known: what the rules and the commands start from."""

from autotm.study.setup import inputs
from autotm.study.setup.inputs import comparison_records, front_records, large_files, predicted_records
from autotm.study.setup.series import CACHED, FIRST_TOUCH, MOVER
from autotm.study.setup.study import (
    CONVENTIONAL,
    Study,
    compiler_path,
    load_study,
    machine_named,
    machine_settings,
    network_source,
    require_compiler,
    require_optimizer,
)

__all__ = [
    "CACHED",
    "CONVENTIONAL",
    "FIRST_TOUCH",
    "MOVER",
    "Study",
    "comparison_records",
    "compiler_path",
    "front_records",
    "inputs",
    "large_files",
    "load_study",
    "machine_named",
    "machine_settings",
    "network_source",
    "predicted_records",
    "require_compiler",
    "require_optimizer",
]
