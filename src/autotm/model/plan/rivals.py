"""What others do on a GPU where a step exceeds its memory, and that runs there: plans that nobody searched for.

None of them is held to its limit by its plan. Managed memory has one pool, which its driver keeps within the limit;
the others take the device memory that they take, and a program that takes more than the limit does not run.
"""

from __future__ import annotations

MANAGED_MEMORY = "managed-memory"
"""The plain step in one pool, whose pages the GPU's driver moves."""
LRU_PAGING = "lru-paging"
"""Whole tensors come in on demand and leave by least recent use."""
SWAP_ALL = "swap-all"
"""Every feature map leaves after the forward pass, and comes back one kernel ahead (vDNN)."""
RECOMPUTE = "recompute"
"""Nothing leaves: feature maps inside segments of the forward pass are dropped, and computed again."""
RUN_RIVALS = (MANAGED_MEMORY, LRU_PAGING, SWAP_ALL, RECOMPUTE)
"""Those that are programs."""
SAVE_ON_CPU = "save-on-cpu"
"""What PyTorch's autograd saves waits in host memory: no plan, a step of its own."""
GPU_RIVALS = (*RUN_RIVALS, SAVE_ON_CPU)
"""All of them; `solve.rivals` simulates each."""
