"""Files and errors: what is read is checked, what is wrong is said with its remedy."""

from autotm.model.files.config_errors import explain
from autotm.model.files.errors import (
    AutotmError,
    BadInputError,
    DamagedFileError,
    FileVersionError,
    IllegalPlanError,
    InfeasibleLimitError,
    made_by_another,
    no_such_file,
    unknown_name,
)
from autotm.model.files.files import (
    SCHEMA_VERSION,
    cache_folder,
    content_hash,
    damaged,
    hash_of,
    load,
    load_with_provenance,
    read_json,
    require_version,
    require_writable,
    save,
    write_atomically,
    write_json,
)
from autotm.model.files.results_archive import damaged_results, outdated_results, read_results, write_results
from autotm.model.files.yaml_text import parsed_yaml

__all__ = [
    "SCHEMA_VERSION",
    "AutotmError",
    "BadInputError",
    "DamagedFileError",
    "FileVersionError",
    "IllegalPlanError",
    "InfeasibleLimitError",
    "cache_folder",
    "content_hash",
    "damaged",
    "damaged_results",
    "explain",
    "hash_of",
    "load",
    "load_with_provenance",
    "made_by_another",
    "no_such_file",
    "outdated_results",
    "parsed_yaml",
    "read_json",
    "read_results",
    "require_version",
    "require_writable",
    "save",
    "unknown_name",
    "write_atomically",
    "write_json",
    "write_results",
]
