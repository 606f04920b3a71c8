"""torch.compile: inductor's kernels run in the emulator, and what does not is said.

Expected values: the same functions in float64 on the CPU.
"""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

PROGRAM = r"""
import torch
x, y = torch.randn(2, 24, 96, device="cuda")

def against(got, want, name):
    assert got.device.type == "cuda", got.device
    error = (got.cpu().double() - want).abs().max()
    assert error < 1e-4, error
    print(name, "right")

@torch.compile
def rows(x, y):
    ramp = torch.arange(96, device=x.device) / 96
    return torch.relu(x * 2 + y + ramp).sum(-1)

a, b = x.cpu().double(), y.cpu().double()
against(rows(x, y), torch.relu(a * 2 + b + torch.arange(96) / 96).sum(-1), "rows")
against(rows(y, x), torch.relu(b * 2 + a + torch.arange(96) / 96).sum(-1), "again")

module = torch.nn.Sequential(torch.nn.Linear(96, 32), torch.nn.GELU()).cuda()
with torch.no_grad():
    got = torch.compile(module)(x)
with torch.no_grad():
    against(got, module.cpu().double()(a), "module")
assert module[0].weight.requires_grad

def breaks(x):
    print("in the middle")
    return x + 1
against(torch.compile(breaks)(x), a + 1, "breaks")

library = torch.library.Library("program", "DEF")
library.define("twice(Tensor x) -> Tensor")

@torch.library.impl(library, "twice", "CUDA")
def twice(x):
    assert x.is_cuda
    return x * 2

torch.library.register_fake("program::twice")(torch.empty_like)
with_operator = torch.compile(lambda x: torch.ops.program.twice(x + 1) - 1, fullgraph=True)
against(with_operator(x), (a + 1) * 2 - 1, "operator")

leaf = torch.ones(3, device="cuda", requires_grad=True)
torch.compile(lambda v: (v * v).sum())(leaf).backward()
print("gradient", leaf.grad.tolist())
print("of the CPU", torch.compile(lambda v: v + 1)(torch.zeros(2)).tolist())
for mode in ("max-autotune",):
    try:
        torch.compile(rows, mode=mode)
    except RuntimeError as error:
        print(error)
print("backend", torch.compile(lambda v: v + 1, backend="eager")(x).device)
"""


def test_kernels_of_inductor_run_and_what_does_not_is_said(tmp_path, fork_server):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = fork_server.run("-m", "b200", "run", "--no-again", "program.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("rows", "again", "module", "breaks", "operator"):
        assert f"{name} right" in done.stdout, done.stdout + done.stderr
    assert done.stderr.count("b200: triton_per_fused_") + done.stderr.count("2 times: b200") >= 1
    assert "triton_poi_fused_" in done.stderr  # GELU
    for said in (
        "torch.compile: breaks runs as it is written: Unsupported, Explanation: Dynamo does not",
        "runs as it is written: a torch without CUDA cannot trace gradients of cuda",
        "runs as it is written: backend='eager' makes no kernels for the GPU",
    ):
        assert said in done.stderr, done.stderr
    assert "gradient [2.0, 2.0, 2.0]" in done.stdout
    assert "of the CPU [1.0, 1.0]" in done.stdout
    assert "torch.compile(mode='max-autotune') is not in the software B200" in done.stdout
