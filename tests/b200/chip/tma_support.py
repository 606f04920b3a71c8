"""A bench of the TMA unit, an oracle that moves one element at a time, and the boxes it draws."""

import itertools
import math

import numpy as np
from hypothesis import strategies as st

from b200.chip.copies.tensormap import TensorMap
from b200.hardware import SMEM_BASE
from tests.b200.chip.async_support import address, aligned, cluster, run

# (swizzle mode, atomicity) -> pairs of (address bit that changes, address bit it is xor-ed with)
SWIZZLES = {
    (0, 0): [],
    (1, 0): [(4, 7)],
    (2, 0): [(4, 7), (5, 8)],
    (3, 0): [(4, 7), (5, 8), (6, 9)],
    (3, 1): [(5, 7), (6, 8)],
    (3, 2): [(5, 7), (6, 8), (3, 7)],
    (3, 3): [(6, 7)],
}
SPAN = {0: 0, 1: 32, 2: 64, 3: 128}
BITS = {0: 8, 1: 16, 2: 32, 4: 64, 6: 16, 7: 32, 9: 64, 10: 16, 11: 4, 12: 4, 13: 6}
LOAD = "cp.async.bulk.tensor.{}d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.{}d.global.shared::cta.tile.bulk_group"
MBAR = 0  # offset of the mbarrier after the reserved bytes


def swizzled(a, key):
    out = a
    for changed, by in SWIZZLES[key]:
        out ^= (a >> by & 1) << changed
    return out


def get_bits(memory, at, n):
    """n bits, all of one byte, at bit `at` of little-endian memory."""
    return int(memory[at // 8]) >> at % 8 & (1 << n) - 1


def put_bits(memory, at, n, value):
    mask = (1 << n) - 1
    memory[at // 8] = int(memory[at // 8]) & ~(mask << at % 8) | (value & mask) << at % 8


def elements(t: TensorMap, coords, dst):
    """Bit addresses of each piece of each element: (in the tensor, None out of bounds; in shared
    memory; in the element). No piece crosses a byte.
    """
    bits = BITS[t.format]
    piece = math.gcd(bits, 8)
    counts = [t.box[0]] + [-(-b // s) for b, s in zip(t.box[1:], t.steps[1:])]
    padded = t.format in (12, 13)
    pitch = SPAN[t.swizzle] or (t.box[0] if padded else t.box[0] * bits // 8)
    for index in itertools.product(*(range(n) for n in reversed(counts))):
        index = index[::-1]
        where = [c + i * s for c, i, s in zip(coords, index, (1,) + t.steps[1:])]
        inside = all(0 <= w < d for w, d in zip(where, t.dims))
        source = 8 * sum(w * s for w, s in zip(where[1:], t.strides)) + where[0] * bits
        row = 0
        for i, n in zip(reversed(index[1:]), reversed(counts[1:])):
            row = row * n + i
        in_row = index[0] // 16 * 128 + index[0] % 16 * bits if padded else index[0] * bits
        linear = 8 * (dst + row * pitch) + in_row
        for i in range(0, bits, piece):
            byte, bit = divmod(linear + i, 8)
            at = 8 * swizzled(byte, (t.swizzle, t.atomicity)) + bit
            yield source + i if inside else None, at, i


def oracle_load(t, tensor, coords, dst, smem):
    out = smem.copy()
    piece = math.gcd(BITS[t.format], 8)
    fill = int("7ff7" * 4, 16) if t.fill_nan else 0
    for source, at, i in elements(t, coords, dst):
        value = fill >> i if source is None else get_bits(tensor, source, piece)
        put_bits(out, at, piece, value)
    return out


def oracle_store(t, tensor, coords, src, smem):
    out = tensor.copy()
    piece = math.gcd(BITS[t.format], 8)
    for target, at, _ in elements(t, coords, src):
        if target is not None:
            put_bits(out, target, piece, get_bits(smem, at, piece))
    return out


class Bench:
    """One CTA or more, a tensor of random bytes, mbarriers at MBAR."""

    def __init__(self, nbytes=1 << 16, ctas=1, seed=0):
        self.machine, self.warps = cluster(ctas)
        self.warp = self.warps[0]
        self.tensor = aligned(nbytes)
        rng = np.random.default_rng(seed)
        self.tensor[:] = rng.integers(0, 256, nbytes, np.uint8)
        self.base = self.machine.tensor(self.tensor)
        for warp in self.warps:
            warp.cta.smem.u8[:] = rng.integers(0, 256, warp.cta.smem.size, np.uint8)
            run("mbarrier.init.shared.b64")(warp, 0, address(warp, MBAR), 1)

    def load(self, t, coords, dst, text=None, *rest, warp=None, mbar=None):
        warp = warp or self.warp
        f = run(text or LOAD.format(t.rank))
        mbar = address(warp, MBAR) if mbar is None else mbar
        unsigned = tuple(c & 0xFFFFFFFF for c in coords)
        f(warp, 0, dst, self.machine.param(t.encode()), unsigned, mbar, *rest)

    def store(self, t, coords, src, text=None, mask=1):
        f = run(text or STORE.format(t.rank))
        unsigned = tuple(c & 0xFFFFFFFF for c in coords)
        f(self.warp, mask, self.machine.param(t.encode()), unsigned, src)

    def tx(self, rank=0, offset=MBAR):
        """Bytes completed on the mbarrier of a CTA."""
        return -self.warps[rank].cta.mbarriers[SMEM_BASE + offset].tx


@st.composite
def boxes(draw, store=False):
    """(tensormap at address 0, coordinates, shared offset); small, in bounds or not."""
    rank = draw(st.integers(1, 5))
    format = draw(st.sampled_from([0, 1, 2, 4, 6, 7, 9, 10, 11, *((13,) if store else (12, 13))]))
    bits = BITS[format]
    swizzle, atomicity = draw(st.sampled_from(sorted(SWIZZLES)))
    if format in (12, 13):
        swizzle, atomicity = (3, atomicity) if swizzle == 3 else (0, 0)
        box0, align = 128, 32
        dims = [128 * draw(st.integers(1, 2))]
        coords = [128 * draw(st.integers(0 if store else -1, 2))]
    else:
        unit = 128 // bits
        box0 = unit * draw(st.integers(1, max(1, min(SPAN[swizzle] or 64, 64) // 16)))
        align = 16
        even = 2 if format == 11 else 1
        dims = [even * draw(st.integers(1, 40))]
        coords = [unit * draw(st.integers(0 if store else -box0 // unit - 2, dims[0] // unit + 1))]
    stride = -(-dims[0] * bits // 8 // align) * align + align
    box, steps, strides = [box0], [draw(st.integers(1, 8))], []
    left = max(1, 256 // box0)
    for _ in range(rank - 1):
        dims.append(draw(st.integers(1, 4)))
        steps.append(draw(st.sampled_from([1, 1, 1, 2, 3])))
        box.append(draw(st.integers(1, max(1, min(left, 5)))))
        left //= box[-1]
        strides.append(stride)
        stride = stride * dims[-1] + align * draw(st.integers(0, 1))
        coords.append(draw(st.integers(0 if store else -box[-1] - 1, dims[-1] + 1)))
    t = TensorMap(
        0, format, tuple(dims), tuple(strides), tuple(box), tuple(steps), swizzle, atomicity,
        fill_nan=format in (6, 7, 9, 10) and draw(st.booleans()),
    )  # fmt: skip
    return t, tuple(coords), SMEM_BASE + 128 * draw(st.integers(1, 20))
