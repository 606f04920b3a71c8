"""Row softmax, quantised to NVFP4: a problem of one's own, and a Triton kernel for it.

Run it without a B200: python eval.py test --problem docs/examples/own/softmax_nvfp4.py
"""

import torch
import triton
import triton.language as tl

GROUP = 16  # elements that share a scale
MAGNITUDES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])

# --- the problem
CASES = ({"rows": 8, "columns": 64}, {"rows": 5, "columns": 208})
NAMES = ("codes", "scales")
# The kernel's exp and sums are fp32: a scale may be the neighbouring e4m3 number, and a value next
# to the middle of two codes may get either.
TOLERANCE = {"scales": (0.13, 2**-9), "values": (0.35, 2**-8)}


def inputs(rows, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(rows, columns, generator=generator, dtype=torch.float32),)


def reference(x):
    """Codes, two a byte, uint8 [rows, columns / 2], and scales, e4m3 [rows, columns / 16]."""
    return quantised(torch.softmax(x.double(), 1), largest=6)


def quantised(x, largest):
    groups = x.view(len(x), -1, GROUP)
    scales = (groups.amax(2) / largest).clamp(max=448).float().to(torch.float8_e4m3fn)
    step = scales.double().unsqueeze(2)
    wanted = torch.where(step > 0, groups / step, 0.0)
    codes = (wanted.unsqueeze(3) - MAGNITUDES.double()).abs().argmin(3).view(len(x), -1)
    return (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8), scales


def values(codes, scales):
    """What is compared: the scales, and the values that codes and scales stand for."""
    unpacked = torch.stack((codes & 15, codes >> 4), 2).view(len(codes), -1).long()
    sizes = MAGNITUDES[unpacked & 7] * (1 - 2 * (unpacked >> 3))
    step = scales.float()
    return {"scales": step, "values": sizes * step.repeat_interleave(GROUP, 1)}


def mistakes(x):
    """Mistakes of this problem, which `diff` tries beside those that it knows."""
    yield "exp2 in the place of exp", reference(x * 0.6931471805599453)
    codes, scales = reference(x)
    yield "the halves of each byte are exchanged", (codes >> 4 | codes << 4, scales)
    yield "a scale is the largest, not a sixth of it", quantised(torch.softmax(x.double(), 1), 1)


# --- the kernel
@triton.jit
def softmax_nvfp4(x, codes, scales, columns, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
    e = tl.exp(value - tl.max(value, 0))
    groups = tl.reshape(e / tl.sum(e, 0), (BLOCK // GROUP, GROUP))
    scale = tl.minimum(tl.max(groups, 1) / 6.0, 448.0).to(tl.float8e4nv)
    step = scale.to(tl.float32)
    wanted = groups * tl.where(step > 0, 1.0 / step, 0.0)[:, None]
    code = (wanted > 0.25).to(tl.int32) + (wanted >= 0.75) + (wanted > 1.25) + (wanted >= 1.75)
    code += (wanted > 2.5).to(tl.int32) + (wanted >= 3.5) + (wanted > 5.0)
    low, high = tl.split(tl.reshape(code, (BLOCK // 2, 2)))
    pair, group = tl.arange(0, BLOCK // 2), tl.arange(0, BLOCK // GROUP)
    packed = (low | high << 4).to(tl.uint8)
    tl.store(codes + row * (columns // 2) + pair, packed, mask=pair < columns // 2)
    tl.store(scales + row * (columns // GROUP) + group, scale, mask=group < columns // GROUP)


def custom_kernel(data):
    (x,) = data
    rows, columns = x.shape
    codes = torch.empty(rows, columns // 2, dtype=torch.uint8, device=x.device)
    scales = torch.empty(rows, columns // GROUP, dtype=torch.float8_e4m3fn, device=x.device)
    block = triton.next_power_of_2(columns)
    softmax_nvfp4[(rows,)](x, codes, scales, columns, block, GROUP)
    return codes, scales
