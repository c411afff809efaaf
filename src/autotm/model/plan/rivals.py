"""What others do on a GPU where a step exceeds its memory, and that runs there: plans that nobody searched for.

None of them is held to its limit by its plan. Managed memory has one pool, which its driver keeps within the limit;
paging and swapping take the device memory that they take, and a program that takes more than the limit does not run.
"""

from __future__ import annotations

MANAGED_MEMORY = "managed-memory"
"""The plain step in one pool, whose pages the GPU's driver moves."""
LRU_PAGING = "lru-paging"
"""Whole tensors come in on demand and leave by least recent use."""
SWAP_ALL = "swap-all"
"""Every feature map leaves after the forward pass, and comes back one kernel ahead (vDNN)."""
RUN_RIVALS = (MANAGED_MEMORY, LRU_PAGING, SWAP_ALL)
SAVE_ON_CPU = "save-on-cpu"
"""What PyTorch's autograd saves waits in host memory: no plan, a step of its own."""
