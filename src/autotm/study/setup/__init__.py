"""From `config/` to a study whose every file is known: what the rules and the commands start from."""

from autotm.study.setup import inputs
from autotm.study.setup.compiler import compiler_path, require_compiler
from autotm.study.setup.inputs import (
    comparison_records,
    device_machines,
    device_records,
    front_records,
    large_files,
    measured_steps,
    predicted_records,
    rival_records,
)
from autotm.study.setup.machines import machine_named, machine_settings
from autotm.study.setup.series import CACHED, FIRST_TOUCH, GPU_BASELINE, MOVER, SPILLED
from autotm.study.setup.study import (
    CONVENTIONAL,
    Study,
    load_study,
    network_source,
    require_optimizer,
)

__all__ = [
    "CACHED",
    "CONVENTIONAL",
    "FIRST_TOUCH",
    "GPU_BASELINE",
    "MOVER",
    "SPILLED",
    "Study",
    "comparison_records",
    "compiler_path",
    "device_machines",
    "device_records",
    "front_records",
    "inputs",
    "large_files",
    "load_study",
    "machine_named",
    "machine_settings",
    "measured_steps",
    "network_source",
    "predicted_records",
    "require_compiler",
    "require_optimizer",
    "rival_records",
]
