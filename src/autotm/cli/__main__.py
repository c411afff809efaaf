"""`python -m autotm.cli`."""

from __future__ import annotations

import sys

from autotm.cli.process import program

sys.exit(program())
