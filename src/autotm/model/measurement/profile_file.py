"""`profile.parquet`: one row per (kernel identity, implementation, configuration); `.json` where pyarrow is missing."""

from __future__ import annotations

import json
from dataclasses import astuple, fields
from pathlib import Path

from autotm.model.files import SCHEMA_VERSION, damaged, read_json, require_version, write_atomically, write_json
from autotm.model.measurement.profile import Profile, Timing

KEY_COLUMNS = {
    "identity": "of the kernel",
    "implementation": "the way it is computed",
    "configuration": "a letter for each of its slots, D fast, P slow",
}
"""What identifies a row, with its meaning; the other columns are the fields of `Timing`."""
_TYPES = {
    **dict.fromkeys(KEY_COLUMNS, "string"),
    "min_ns": "int64",
    "median_ns": "int64",
    "lower_quartile_ns": "int64",
    "upper_quartile_ns": "int64",
    "repeats": "int64",
    "beyond_ns": "int64",
    "beyond_error_ns": "int64",
    "default_identity": "string",
    "disturbed": "bool",
}
"""Arrow's names of the columns' types."""


def write_profile(path: Path, profile: Profile) -> None:
    """Write the table, rows sorted by key, with graph hash and provenance in the Parquet metadata.

    A path that ends with .json gets the same as JSON, which needs no library: for computers that have a bundle only.
    """
    if path.suffix == ".json":
        rows = [[*key, *astuple(timing)] for key, timing in sorted(profile.timings.items(), key=lambda item: item[0])]
        columns = [*KEY_COLUMNS, *(field.name for field in fields(Timing))]
        write_json(
            path,
            "profile",
            {
                "graph_hash": profile.graph_hash,
                "provenance": dict(profile.provenance),
                "columns": columns,
                "timings": rows,
            },
        )
        return
    import pyarrow as pa  # noqa: PLC0415 - who reads no profile need not wait for it
    import pyarrow.parquet as pq  # noqa: PLC0415 - as above

    rows_by_name = [
        dict(zip(_TYPES, (*key, *astuple(timing)), strict=True))
        for key, timing in sorted(profile.timings.items(), key=lambda item: item[0])
    ]
    metadata = {
        "kind": "profile",
        "schema_version": str(SCHEMA_VERSION),
        "graph_hash": profile.graph_hash,
        "provenance": json.dumps(dict(profile.provenance)),
    }
    schema = pa.schema(list(_TYPES.items()), metadata=metadata)
    table = pa.Table.from_pylist(rows_by_name, schema=schema)
    write_atomically(path, lambda temporary: pq.write_table(table, temporary))


def read_profile(path: Path) -> Profile:
    """Read what `write_profile` wrote; files from before configurations were paired lack their differences.

    Raises:
        DamagedFileError: the file is missing or cut.
        FileVersionError: it is of another schema version.
    """
    if path.suffix == ".json":
        return _read_text(path)
    import pyarrow as pa  # noqa: PLC0415 - who reads no profile need not wait for it
    import pyarrow.parquet as pq  # noqa: PLC0415 - as above

    try:
        table = pq.ParquetFile(path).read()  # `pq.read_table` imports pandas.
        metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        version = metadata.get("schema_version", "")
        require_version(path, "profile", int(version) if version.isdecimal() else version)
        timings = {tuple(row.pop(name) for name in KEY_COLUMNS): Timing(**row) for row in table.to_pylist()}
        return Profile(metadata["graph_hash"], timings, json.loads(metadata["provenance"]))
    except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise damaged(path, "profile", str(error)) from None


def _read_text(path: Path) -> Profile:
    document = read_json(path, "profile")
    try:
        rows = [dict(zip(document["columns"], row, strict=True)) for row in document["timings"]]
        timings = {tuple(row.pop(name) for name in KEY_COLUMNS): Timing(**row) for row in rows}
        return Profile(document["graph_hash"], timings, document["provenance"])
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, "profile", str(error)) from None
