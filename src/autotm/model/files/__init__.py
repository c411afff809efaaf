"""Files and errors: what is read is checked, what is wrong is said with its remedy."""

from autotm.model.files.config_errors import explain
from autotm.model.files.errors import (
    AutotmError,
    BadInputError,
    DamagedFileError,
    IllegalPlanError,
    InfeasibleLimitError,
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
    save,
    write_atomically,
    write_json,
)
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
    "explain",
    "hash_of",
    "load",
    "load_with_provenance",
    "parsed_yaml",
    "read_json",
    "save",
    "unknown_name",
    "write_atomically",
    "write_json",
]
