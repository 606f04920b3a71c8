"""All planted bugs in PTX, of small kernels. Those in CuTe DSL and of whole pipelines are run apart."""

import zlib

from tests.planted_bugs import (
    accesses,
    cancels,
    clusters,
    core,
    counted,
    covered,
    cta,
    flags,
    gemm,
    grid,
    hangs,
    lanes,
    numbers,
    one_lane,
    orders,
    polls,
    refills,
    rules,
    scopes,
    swizzle,
    tensormaps,
    tmem,
    unwritten,
    waits,
    words,
)
from tests.planted_bugs.case import PlantedBug

PLANTED = [
    *flags.PLANTED,
    *gemm.PLANTED,
    *cta.PLANTED,
    *cancels.PLANTED,
    *clusters.PLANTED,
    *core.PLANTED,
    *grid.PLANTED,
    *hangs.PLANTED,
    *lanes.PLANTED,
    *numbers.PLANTED,
    *one_lane.PLANTED,
    *tensormaps.PLANTED,
    *tmem.PLANTED,
    *unwritten.PLANTED,
    *waits.PLANTED,
    *polls.PLANTED,
    *refills.PLANTED,
    *words.PLANTED,
    *rules.PLANTED,
    *orders.PLANTED,
    *scopes.PLANTED,
    *swizzle.PLANTED,
    *accesses.PLANTED,
    *counted.PLANTED,
    *covered.PLANTED,
]


def part(planted: PlantedBug, parts: int) -> int:
    """Which of so many parts, alike in size, one is in: the same at any time."""
    return zlib.crc32(planted.name.encode()) % parts
