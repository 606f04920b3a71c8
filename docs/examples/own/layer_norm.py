"""Layer norm with a weight and a bias: a problem of one's own, and a Triton kernel for it.

Run it without a B200: python eval.py test --problem docs/examples/own/layer_norm.py
"""

import torch
import triton
import triton.language as tl

EPSILON = 1e-5

# --- the problem
CASES = ({"rows": 8, "columns": 128}, {"rows": 6, "columns": 200})
TOLERANCE = (1e-4, 1e-4)


def inputs(rows, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    x = 1 + 2 * torch.randn(rows, columns, generator=generator)
    weight, bias = torch.randn(2, columns, generator=generator)
    return x, weight, bias


def reference(x, weight, bias):
    x, weight, bias = x.double(), weight.double(), bias.double()
    return torch.nn.functional.layer_norm(x, x.shape[1:], weight, bias, EPSILON).float()


def mistakes(x, weight, bias):
    """Mistakes of this problem, which `diff` tries beside those that it knows."""
    x, weight, bias = x.double(), weight.double(), bias.double()
    centred = x - x.mean(1, keepdim=True)
    spread = (centred.square().mean(1, keepdim=True) + EPSILON).sqrt()
    yield (
        "the mean is not taken off (RMS norm)",
        x / x.square().mean(1, True).sqrt() * weight + bias,
    )
    yield "the variance is taken for its root", centred / spread.square() * weight + bias
    yield "the bias comes before the weight", (centred / spread + bias) * weight


# --- the kernel
@triton.jit
def layer_norm(x, weight, bias, y, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row * columns + at, mask=inside, other=0.0)
    mean = tl.sum(value, 0) / columns
    centred = tl.where(inside, value - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / columns + epsilon)
    w = tl.load(weight + at, mask=inside)
    b = tl.load(bias + at, mask=inside)
    tl.store(y + row * columns + at, centred * scale * w + b, mask=inside)


def custom_kernel(data):
    x, weight, bias = data
    y = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    layer_norm[(len(x),)](x, weight, bias, y, x.shape[1], EPSILON, block)
    return y
