"""Real cuDNN, where its packages are: it plans for an H100 by that GPU's facts alone, without a GPU or a driver.

Nothing runs. Libraries of CUDA want a driver to load, so a file plays one that answers every call with "no GPU".
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("cudnn") is None or shutil.which("gcc") is None, reason="no package of cuDNN, or no gcc"
)
NAMES = [
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuCtxGetCurrent",
    "cuGetErrorString",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    "cuInit",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuTensorMapEncodeIm2col",
    "cuTensorMapEncodeTiled",
]
H100 = {
    "cudaDeviceId": 0, "deviceVer": 900, "driverVer": 13000, "multiProcessorCount": 132, "smCountOrigin": 0,
    "warpSize": 32, "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536,
    "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 232448, "oversizedSharedMemoryPerBlock": 232448,
    "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0, "supportCoopLaunch": 1, "smClockRateKHz": 1980000,
    "memClockRateKHz": 2619000, "memoryBusWidth": 5120, "l2CacheSize": 52428800, "totalGlobalMem": 85520809984,
    "deviceName": "NVIDIA H100 80GB HBM3",
}  # fmt: skip
"""As cuDNN's description of a device has them."""
PROGRAM = """
import json, sys
import cudnn as real
from autotm.kernels.vendor import Cudnn
from autotm.model.launch import Convolution

try:
    facts = real.create_device_properties(sys.argv[1])
except Exception as error:
    sys.exit("facts refused: " + str(error))

class Library:
    # Without a GPU there is no handle, and what a plan needs of the driver is not looked at.
    def __getattr__(self, name):
        return getattr(real, name)

    def pygraph(self, *, handle, **given):
        graph = real.pygraph(device_property=facts, **given)
        graph.check_support = lambda: None
        return graph

opened = Cudnn.__new__(Cudnn)
opened._library, opened._handle, opened.version = Library(), None, real.backend_version_string()
shapes = [
    ((8, 56, 56, 64), (3, 3, 64, 64), (8, 56, 56, 64), (1, 1), (1, 1, 1, 1)),
    ((8, 57, 57, 64), (3, 3, 64, 128), (8, 28, 28, 128), (2, 2), (0, 0, 0, 0)),
    ((2, 9, 8, 12), (3, 3, 4, 18), (2, 9, 8, 18), (1, 1), (1, 1, 1, 1)),
]
found = []
for kind in ("conv2d", "conv2d_data_gradient", "conv2d_weight_gradient"):
    for shape in shapes:
        problem = Convolution(kind, *shape)
        offered = opened.algorithms(problem)
        for one in offered:
            opened.bound(problem, one, [0, 0, 0], 0, 0)
        found.append([one.key for one in offered])
print(json.dumps(found))
"""


def test_every_pass_is_planned_and_each_plan_found_again(tmp_path: Path) -> None:
    source = tmp_path / "driver.c"
    source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in NAMES))
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", "-o", tmp_path / "libcuda.so.1", source],
        check=True,
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(H100)],
        env={**os.environ, "LD_LIBRARY_PATH": f"{tmp_path}:{os.environ.get('LD_LIBRARY_PATH', '')}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if "facts refused" in done.stderr:
        pytest.skip("this version of cuDNN describes devices otherwise")
    assert not done.returncode, done.stderr[-3000:]
    offered = json.loads(done.stdout.splitlines()[-1])
    assert len(offered) == 9
    for keys in offered:
        assert len(keys) == len(set(keys)) >= 2
