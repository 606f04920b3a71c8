"""Block-scaled tcgen05.mma: kinds, scale vectors, scale-factor ids and layouts, CTA pairs.

Scales are powers of two, so that every sum is exact and a float64 matrix product is the truth.
"""

from __future__ import annotations

import numpy as np
import pytest

from b200.errors import Fault
from b200.formats import encode
from tests.b200.chip.tensor_support import check_d, idesc, lane_run, put_pair, warps


def put_scales(cta, codes: np.ndarray, column: int, first: int, two_by_two=False):
    """Scale codes [rows, count] to lane row % 32 of column row // 32, in all partitions; with
    two_by_two the first half of the rows in the lower two partitions, the second in the others."""
    cells = cta.tmem.view(np.uint8).reshape(128, 512, 4)
    half = len(codes) // 2
    for row, factors in enumerate(codes):
        at, partitions = row, range(4)
        if two_by_two:
            at, partitions = row % half, ((0, 1) if row < half else (2, 3))
        for q in partitions:
            cells[at % 32 + 32 * q, column + at // 32, first : first + len(factors)] = factors


def pack(nibbles: np.ndarray) -> np.ndarray:
    return (nibbles[:, ::2] | nibbles[:, 1::2] << 4).astype(np.uint8)


FORMS = {  # kind, vector -> (K, scale type, ids)
    "mxf4nvf4.block_scale.block16": (64, 16, "ue4m3", [0]),
    "mxf4nvf4.block_scale.scale_vec::4X": (64, 16, "ue8m0", [0]),
    "mxf4nvf4.block_scale.block32": (64, 32, "ue8m0", [0, 2]),
    "mxf4.block_scale": (64, 32, "ue8m0", [0, 2]),
    "mxf8f6f4.block_scale": (32, 32, "ue8m0", [0, 1, 2, 3]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("group, m, n", [(1, 128, 8), (1, 128, 200), (2, 256, 256), (2, 128, 96)])
def test_block_scaled(form, group, m, n):
    k, vector, sf_type, ids = FORMS[form]
    _, found = warps(group)
    rng = np.random.default_rng(n)
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    a, b = rng.integers(0, 16, (m, k)), rng.integers(0, 16, (n, k))
    if k == 64:
        words, types = put_pair(found, pack(a), pack(b)), {"d": 0, "a": 1, "b": 1}
    else:
        raw = encode(values[a], "e4m3"), encode(values[b], "e4m3")
        words, types = put_pair(found, *raw), {"d": 0}
    exponents = [rng.integers(-3, 4, (rows, k // vector)) for rows in (m, n)]
    codes = [encode(2.0**e, sf_type) for e in exponents]
    sfa_id, sfb_id = ids[-1], ids[0]
    for c, warp in enumerate(found):
        put_scales(warp.cta, codes[0][c * m // group : (c + 1) * m // group], 300, sfa_id)
        put_scales(warp.cta, codes[1], 402, sfb_id, (group, m) == (2, 128))
    word = idesc(m, n, **types) | (sf_type == "ue8m0") << 23 | sfa_id << 29 | sfb_id << 4
    text = (
        f"tcgen05.mma.cta_group::{group}.kind::{form}.collector::a::discard [d] a b i [sfa] [sfb] p"
    )
    lane_run(text, found[0], 0, *words, word, 300 | sfa_id << 30, 402 | sfb_id << 30, False)
    scaled = [values[x] * np.repeat(2.0**e, vector, axis=1) for x, e in zip((a, b), exponents)]
    check_d(found, scaled[0] @ scaled[1].T, group=group)
    for warp in found:  # onto what others have left there
        warp.cta.tmem.view(np.float32)[:, :256] = 64
    lane_run(text, found[0], 0, *words, word, 300 | sfa_id << 30, 402 | sfb_id << 30, True)
    check_d(found, 64 + scaled[0] @ scaled[1].T, group=group)


def test_scale_factors_must_be_in_all_partitions():
    _, (warp,) = warps()
    words = put_pair([warp], np.zeros((128, 32), np.uint8), np.zeros((8, 32), np.uint8))
    warp.cta.tmem[:, 300:304] = warp.cta.tmem[:, 310] = 0x38383838
    text = "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16 [d] a b i [x] [y] p"
    args = (0, *words, idesc(128, 8, 0, 1, 1), 300, 310, False)
    warp.cta.tmem[40, 310] = 0  # row 8 of B: not used with N = 8
    lane_run(text, warp, *args)
    warp.cta.tmem[100, 302] = 0x38003838
    with pytest.raises(Fault) as fault:
        lane_run(text, warp, *args)
    for part in ("of A", "column 302", "lane 100 holds 38380038", "lane 4 38383838", "warpx4"):
        assert part in str(fault.value), str(fault.value)
