"""On the path of a job: tells, when it ends, what autotm's code imported in it and which files that came from.

One JSON file a process in the folder that `WATCHED_IMPORTS` names: `script`, and `files`, a file for each module.
Without the variable, nothing happens.
"""

import atexit
import builtins
import json
import os
import sys
from pathlib import Path

_import, _found = builtins.__import__, {}


def _watching_import(name, importer=None, *rest, **named):
    module = _import(name, importer, *rest, **named)
    level = rest[2] if len(rest) > 2 else named.get("level", 0)
    importer = (importer or named.get("globals") or {}).get("__name__") or ""
    if level == 0 and importer.split(".")[0] in {"autotm", "__main__"}:
        top = name.split(".")[0]
        _found[top] = getattr(sys.modules.get(top), "__file__", None)
    return module


def _tell():
    record = {"script": Path(sys.argv[0]).name, "files": _found}
    Path(os.environ["WATCHED_IMPORTS"], f"{os.getpid()}.json").write_text(json.dumps(record), encoding="utf-8")


if "WATCHED_IMPORTS" in os.environ:
    builtins.__import__ = _watching_import
    atexit.register(_tell)
