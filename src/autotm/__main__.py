"""`python -m autotm`."""

from __future__ import annotations

import sys

from autotm.cli.process import program

sys.exit(program())
