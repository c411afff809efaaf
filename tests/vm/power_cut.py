"""Before and after a power cut, in two boots: what was written through memory is on DAX, a run's pool is not.

Call: power_cut.py before|after FOLDER. `before` leaves a process with a pool open, and syncs nothing after it. Plain
asserts, no pytest: the second boot imports nothing that takes a minute.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
from pathlib import Path

MAP_SHARED_VALIDATE, MAP_SYNC = 0x03, 0x80000
SIZE_BYTES, POOL_BYTES = 4 << 20, 64 << 20
TEXT = b"written through memory, never synced"


def free_bytes(folder: Path) -> int:
    """Free bytes of the file system that a folder is on."""
    filesystem = os.statvfs(folder)
    return filesystem.f_bfree * filesystem.f_frsize


def before(folder: Path) -> None:
    """Write through memory, and leave a pool open in another process."""
    from autotm.memory.opening import open_tiers
    from autotm.model.machine import DaxTier, Machine

    (folder / "free").write_text(str(free_bytes(folder)))
    os.sync()
    file = os.open(folder / "written", os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, SIZE_BYTES)
    memory = mmap.mmap(file, SIZE_BYTES, flags=MAP_SHARED_VALIDATE | MAP_SYNC)
    memory[: len(TEXT)] = TEXT
    read, write = os.pipe()
    if os.fork() == 0:
        tier = DaxTier(kind="dax", path=str(folder), fast_nodes=(0,))
        tiers = open_tiers(
            Machine("guest", 1, (0,), "host", tier, "0" * 16), None, 0, POOL_BYTES, Path("config/devices")
        )
        os.write(write, b"!")
        signal.pause()
        tiers.close()
    assert os.read(read, 1)
    assert free_bytes(folder) < int((folder / "free").read_text()) - POOL_BYTES


def after(folder: Path) -> None:
    """Find what was written, and no pool."""
    with (folder / "written").open("rb") as file:
        assert file.read(len(TEXT)) == TEXT
    assert sorted(path.name for path in folder.iterdir()) == ["free", "lost+found", "written"]
    taken = int((folder / "free").read_text()) - free_bytes(folder)
    assert taken <= SIZE_BYTES + (1 << 20), taken
    print(f"after a power cut: {TEXT.decode()!r} is there, {taken} B are taken by it, none by the pool")


{"before": before, "after": after}[sys.argv[1]](Path(sys.argv[2]))
