"""Run hand-written PTX on the emulator: `run("add.s32 ...", out=tensor, ...)`."""

from __future__ import annotations

import struct

import torch

from emulator.ptx import parse
from emulator.runtime import Gpu

HEADER = ".version 8.8\n.target sm_100a\n.address_size 64\n"


def kernel(body: str, params: list[str], smem: str = "", name: str = "k", reqntid: int = 32) -> str:
    """PTX text of one kernel; params are ".u64 out" and the like; registers %p %r %rd %rs %f are
    declared.
    """
    listed = ",\n".join(f".param {p}" for p in params)
    return f"""{HEADER}
.extern .shared .align 1024 .b8 dyn[];
{smem}
.visible .entry {name}({listed})
.reqntid {reqntid}, 1, 1
{{
.reg .pred %p<40>;
.reg .b16 %rs<60>;
.reg .b32 %r<200>;
.reg .b64 %rd<100>;
.reg .b128 %rq<4>;
.loc 1 1 0
{body}
ret;
}}
.file 1 "kernel.py"
"""


def run(
    text: str,
    *args,
    grid=(1, 1, 1),
    block=(32, 1, 1),
    cluster=(1, 1, 1),
    smem=0,
    gpu: Gpu | None = None,
):
    """Launch the only kernel of a module; args are tensors (their address), ints (u32) or (int,
    bytes).
    """
    gpu = gpu or Gpu()
    program = parse(text)
    (name,) = program.kernels
    data = bytearray(program.kernels[name].param_bytes)
    for parameter, arg in zip(program.kernels[name].params, args, strict=True):
        value = arg.data_ptr() if isinstance(arg, torch.Tensor) else arg
        code = {1: "<B", 2: "<H", 4: "<I", 8: "<Q"}[parameter.size]
        struct.pack_into(code, data, parameter.offset, value & ((1 << 8 * parameter.size) - 1))
    return gpu.launch(program, name, grid, block, cluster, smem, bytes(data))
