"""Machine code that copies bytes: streaming stores, threads of its own, and no interpreter in between."""
