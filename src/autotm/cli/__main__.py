"""`python -m autotm.cli`."""

import sys

from autotm.cli.process import program

sys.exit(program())
