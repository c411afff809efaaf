"""`python -m autotm.cli`."""

import sys

from autotm.cli import main

sys.exit(main())
