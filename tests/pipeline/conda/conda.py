"""What Snakemake asks of `conda`, on py-rattler: solves and installs for real, from channels in local folders only.

Called as `python conda.py ROOT ARGUMENTS...`: channel NAME is the folder `ROOT/channels/NAME`. The `pip:` part of a
file, which conda leaves to the pip of the environment that it has just made, is left to uv where there is one: the same
pins from the same index, in a tenth of the time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import rattler
import yaml

VERSION = "24.11.0"


def create(root: Path, file: Path, prefix: Path) -> None:
    """Make what an environment file asks for."""
    asked = yaml.safe_load(file.read_text(encoding="utf-8"))
    names = [name for name in asked["channels"] if name != "nodefaults"]
    channels = [rattler.Channel((root / "channels" / name).resolve(strict=True).as_uri()) for name in names]
    specs = [entry for entry in asked["dependencies"] if isinstance(entry, str)]
    pins = [pin for entry in asked["dependencies"] if isinstance(entry, dict) for pin in entry["pip"]]
    asyncio.run(install(channels, specs, prefix, root / "packages"))
    if pins:
        listed = prefix / "pip.txt"
        listed.write_text("\n".join(pins) + "\n", encoding="utf-8")
        python, uv = prefix / "bin" / "python", shutil.which("uv")
        pip = [uv, "pip", "install", "--python", python] if uv else [python, "-m", "pip", "install"]
        subprocess.run([*pip, "--quiet", "-r", listed], check=True)


async def install(channels: list[rattler.Channel], specs: list[str], prefix: Path, cache: Path) -> None:
    """Solve, and install the packages found."""
    platforms, here = ["linux-64", "noarch"], rattler.VirtualPackage.detect()
    packages = await rattler.solve(channels, specs, platforms=platforms, virtual_packages=here)
    await rattler.install(packages, prefix, cache_dir=cache, show_progress=False)


def main(root: Path, arguments: list[str]) -> int:
    """Answer one call; the exit status."""
    match arguments:
        case ["--version"]:
            print(f"conda {VERSION}")
        case ["info", "--json"]:
            print(json.dumps({"conda_prefix": str(root), "platform": "linux-64", "conda_version": VERSION}))
        case ["config", "--get", "channel_priority", "--json"]:
            print(json.dumps({"get": {"channel_priority": "strict"}}))
        case ["clean", "-y", *_]:
            pass  # packages stay for the next environment
        case ["env", "create", *options]:
            parser = argparse.ArgumentParser()
            parser.add_argument("--quiet", action="store_true")
            parser.add_argument("--no-default-packages", action="store_true")
            parser.add_argument("--file", type=Path, required=True)
            parser.add_argument("--prefix", type=Path, required=True)
            asked = parser.parse_args(options)
            create(root, asked.file, asked.prefix)
        case _:
            print(f"not a call that Snakemake makes: conda {' '.join(arguments)}", file=sys.stderr)
            return 2
    return 0


def end(status: int) -> NoReturn:
    """End at once: py-rattler 0.28 crashes when the interpreter shuts down."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    try:
        ended = main(Path(sys.argv[1]), sys.argv[2:])
    except Exception as error:  # noqa: BLE001 - whatever it is, Snakemake shows it
        print(type(error).__name__, error, file=sys.stderr)
        ended = 1
    end(ended)
