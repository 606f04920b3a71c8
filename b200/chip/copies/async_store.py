"""Stores and reductions into a CTA of the cluster that count bytes on an mbarrier there.

st.async (PTX ISA 9.7.9.12) and red.async (9.7.13.8): each thread writes at most 16 bytes; the
mbarrier lies in the CTA of the destination.
"""

from __future__ import annotations

import numpy as np

from b200.chip.copies.bulk import check_mods
from b200.chip.copies.landing import Landing, complete
from b200.chip.copies.reductions import SHARED, combiner
from b200.chip.operations import RedAsync, StAsync
from b200.contract import lane
from b200.errors import Unsupported
from b200.program.module import Instr

SCALARS = {f"{k}{n}": n // 8 for k in "busf" for n in (32, 64)}
VECTORS = {"v2": 2, "v4": 4}
COMPLETION = "mbarrier::complete_tx::bytes"
MODS = {"async", "weak", "relaxed", "cluster", "shared::cluster", COMPLETION}


def _bytes(value, size: int) -> np.ndarray:
    items = value if isinstance(value, tuple) else (value,)
    raw = b"".join((x & ((1 << 8 * size) - 1)).to_bytes(size, "little") for x in items)
    return np.frombuffer(raw, np.uint8)


def _only_mbarrier_form(ins: Instr):
    if not ins.has(COMPLETION):
        raise Unsupported(f"{ins.opcode}: only the form with an mbarrier is modelled")


@lane("st.async")
def st_async(ins: Instr):
    """st.async{.weak}{.shared::cluster}.COMPLETION{.v2|.v4}.TYPE [addr], value, [mbar]"""
    _only_mbarrier_form(ins)
    check_mods(ins, MODS | {"st"} | VECTORS.keys() | SCALARS.keys())
    size = SCALARS[ins.mods[-1]]
    nbytes = size * VECTORS.get(ins.mods[-2], 1)
    find = Landing(ins, nbytes, "shared::cluster")

    def run(warp, lane, address, value, mbar):
        warp.spin = None
        (place,) = find(warp, address, nbytes, mbar)
        data = _bytes(value, size)

        def apply():
            place.cta.smem.u8[place.offset : place.offset + nbytes] = data
            complete(place, nbytes, warp, ins)

        warp.machine.issue(StAsync(nbytes, place), warp, apply)

    return run


@lane("red.async")
def red_async(ins: Instr):
    """red.async.relaxed.cluster{.shared::cluster}.COMPLETION.OP.TYPE [addr], value, [mbar]"""
    _only_mbarrier_form(ins)
    op, kind = ins.mods[-2:]
    check_mods(ins, MODS | {"red", op, kind})
    combine = combiner(op, kind, SHARED)
    nbytes = SCALARS[kind]
    find = Landing(ins, nbytes, "shared::cluster")

    def run(warp, lane, address, value, mbar):
        warp.spin = None
        (place,) = find(warp, address, nbytes, mbar)
        data = _bytes(value, nbytes)

        def apply():
            to = place.cta.smem.u8[place.offset : place.offset + nbytes]
            to[:] = combine(to, data)
            complete(place, nbytes, warp, ins)

        warp.machine.issue(RedAsync(nbytes, place), warp, apply)

    return run
