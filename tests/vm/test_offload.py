"""`autotm.offload(slow="node:1")` on real second memories: what waits there is on that node, and no bit differs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

TORCH = Path(".venv-torch/bin/python")
pytestmark = [
    pytest.mark.slow,  # PyTorch is imported twice as long as all else takes
    pytest.mark.timeout(0),  # run.sh limits all together
    pytest.mark.skipif(not TORCH.exists(), reason="make test-torch installs PyTorch"),
]
PROGRAM = """
import copy, json, sys
import torch
import autotm
from autotm.memory.linux.system_calls import pages_by_node
from autotm.model.errors import InfeasibleLimitError

torch.manual_seed(0)
layers = (part for _ in range(6) for part in (torch.nn.Linear(128, 128), torch.nn.Tanh()))
module, batch = torch.nn.Sequential(*layers), torch.randn(512, 128)
twin = copy.deepcopy(module)
optimizer, other = (torch.optim.AdamW(each.parameters()) for each in (module, twin))


def made(budget, node):
    return autotm.offload(
        module, batch, torch.sum, budget, optimizer=optimizer, slow=node, recompute=False, kernel_s=1e-4
    )


try:
    made(1, "node:1")
except InfeasibleLimitError as error:
    least = error.smallest_bytes
found = {}
for node in ("node:1", "node:2"):
    with made(least, node) as step:
        for _ in range(2):
            loss = step(batch)
            plain = twin(batch).sum()
            plain.backward()
            other.step()
            other.zero_grad()
        pools = [step._executor.pool, *(update._pool for update in step._updates)]
        pages = [pages_by_node(pool.data_ptr(), pool.numel()) for pool in pools if pool.numel() > 8192]
        found[node] = {
            "same": all(map(torch.equal, module.parameters(), twin.parameters())) and torch.equal(loss, plain),
            "nodes": sorted({name for each in pages for name in each}),
            "moved_bytes": step.summary().moved_out_bytes,
        }
try:
    made(least, "node:7")
except autotm.AutotmError as error:
    found["absent"] = str(error)
print(json.dumps(found))
"""


def test_what_waits_is_on_the_node() -> None:
    done = subprocess.run([TORCH, "-c", PROGRAM], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for number in ("1", "2"):
        of_node = found[f"node:{number}"]
        assert of_node["same"]
        assert of_node["nodes"] == [number]
        assert of_node["moved_bytes"] > 0
    assert "node 7 does not exist on this machine" in found["absent"]
