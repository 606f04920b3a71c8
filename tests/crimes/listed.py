"""All crimes in PTX, of small kernels. Those in CuTe DSL and of whole pipelines are run apart."""

from tests.crimes import (
    cancels,
    clusters,
    cta,
    flags,
    gemm,
    grid,
    lanes,
    numbers,
    orders,
    polls,
    rules,
    scopes,
    tensormaps,
    tmem,
    waits,
    words,
)

CRIMES = [
    *flags.CRIMES,
    *gemm.CRIMES,
    *cta.CRIMES,
    *cancels.CRIMES,
    *clusters.CRIMES,
    *grid.CRIMES,
    *lanes.CRIMES,
    *numbers.CRIMES,
    *tensormaps.CRIMES,
    *tmem.CRIMES,
    *waits.CRIMES,
    *polls.CRIMES,
    *words.CRIMES,
    *rules.CRIMES,
    *orders.CRIMES,
    *scopes.CRIMES,
]
