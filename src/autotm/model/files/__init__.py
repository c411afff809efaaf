"""Files and errors: what is read is checked, what is wrong is said with its remedy."""

from autotm.model.files.config_errors import explain
from autotm.model.files.errors import (
    AutotmError,
    BadInputError,
    DamagedFileError,
    IllegalPlanError,
    InfeasibleLimitError,
    no_such_file,
    unknown_name,
)
from autotm.model.files.files import (
    SCHEMA_VERSION,
    content_hash,
    damaged,
    hash_of,
    load,
    load_with_provenance,
    read_json,
    require_writable,
    save,
    write_atomically,
    write_json,
)
from autotm.model.files.results_archive import damaged_results, read_results, write_results
from autotm.model.files.yaml_text import parsed_yaml

__all__ = [
    "SCHEMA_VERSION",
    "AutotmError",
    "BadInputError",
    "DamagedFileError",
    "IllegalPlanError",
    "InfeasibleLimitError",
    "content_hash",
    "damaged",
    "damaged_results",
    "explain",
    "hash_of",
    "load",
    "load_with_provenance",
    "no_such_file",
    "parsed_yaml",
    "read_json",
    "read_results",
    "require_writable",
    "save",
    "unknown_name",
    "write_atomically",
    "write_json",
    "write_results",
]
