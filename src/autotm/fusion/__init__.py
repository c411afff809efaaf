"""Which operators share a kernel: decisions, the groups they ask for, and what a step of those takes."""

import sys

if "torch" not in sys.modules:
    # TVM imports PyTorch where it is installed, 3 s of each of the study's jobs; nothing of this package needs it.
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        import tvm  # noqa: F401
    finally:
        del sys.modules["torch"]
