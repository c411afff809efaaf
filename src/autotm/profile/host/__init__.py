"""What runs from a bundle on a host without a compiler: a program checked, run and profiled from the bundle's files."""

from autotm.profile.host.commands import main
from autotm.profile.host.contents import CPU, CUDA, Contents, CoRunners, Settings

__all__ = ["CPU", "CUDA", "CoRunners", "Contents", "Settings", "main"]
