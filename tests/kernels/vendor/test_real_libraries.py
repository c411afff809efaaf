"""On a real GPU with nvcc and NVIDIA's libraries: every algorithm that they offer, against float64."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import replace

import numpy as np
import pytest
import small_step
from vendor_cases import CASES, computed, laid

from autotm.kernels.cuda.device import device_named
from autotm.kernels.cuda.dispatch import turned_weights, vendor_problem
from autotm.kernels.cuda.source import fatbin
from autotm.kernels.vendor import VENDORS, Vendors
from autotm.memory.gpu.cuda_device import CudaCode
from autotm.memory.gpu.facts import gpu_facts
from autotm.memory.gpu.opening import open_device
from autotm.model.errors import AutotmError
from autotm.model.machine import CudaTier


def here() -> bool:
    try:
        found = bool(gpu_facts()) and shutil.which("nvcc") is not None
    except AutotmError:
        return False
    return found and all(importlib.util.find_spec(name) is not None for name in ("cudnn", "nvmath"))


pytestmark = pytest.mark.skipif(not here(), reason="no GPU, no nvcc, or no cuDNN and cuBLAS")
MACHINE = replace(small_step.machine(), slow_tier=CudaTier(kind="cuda"))
DEVICE = device_named("h100")


@pytest.mark.parametrize("name", CASES)
def test_every_algorithm_computes_the_contraction(name: str) -> None:
    case, vendors = CASES[name], Vendors()
    problem = vendor_problem(case.func, DEVICE)
    assert problem is not None
    with open_device(MACHINE, 0, 0):
        assert vendors.installed().keys() == VENDORS.keys()
        kernels = [problem.kernel(one) for one in vendors.offers(problem.problem)]
    assert kernels
    # One kernel at least, whatever a case launches of ours.
    own = {one.symbol: one for kernel in kernels for one in kernel.own}
    image = fatbin(own.values() or [turned_weights((1, 1, 1, 1), DEVICE)]).image
    for kernel in kernels:
        with open_device(MACHINE, laid(kernel, case)[2], 0) as device:
            found = computed(kernel, case, device, CudaCode.load(image, device.index))
        np.testing.assert_allclose(found[0], case.exact, rtol=1e-4, atol=1e-3)
        assert found[0].tobytes() == found[1].tobytes()
