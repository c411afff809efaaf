"""A noisy neighbour: takes one core in bursts, half of the time, until it is killed.

    python benchmarks/burst.py & make figures/fig10.pdf SCALE=tiny; kill $!
    python benchmarks/burst.py --cpu 1 --seconds 5

With it, the pipeline has to end, with profiles that agree with their all-fast steps and hardly a hollow point.
"""

from __future__ import annotations

import argparse
import os
import time
from time import monotonic


def main() -> None:
    """Work and rest in turn, for ever."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", type=int, default=max(os.sched_getaffinity(0)), help="core to take (the last)")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a burst, and of the rest after it")
    asked = parser.parse_args()
    os.sched_setaffinity(0, {asked.cpu})
    while True:
        end = monotonic() + asked.seconds
        while monotonic() < end:
            pass
        time.sleep(asked.seconds)


if __name__ == "__main__":
    main()
