"""How far a synchronising instruction reaches, and whether it orders memory (PTX ISA 8.3 to 8.9).

A release and an acquire order memory if the scope of each includes the other's thread. So each
scope must be at least as wide as the distance of the two CTAs.
"""

from __future__ import annotations

from b200.chip import state
from b200.effects import Ordered
from b200.program.module import Instr

CTA, CLUSTER, GPU = range(3)
DISTANCES = (CTA, CLUSTER, GPU)
_SCOPES = {"cta": CTA, "cluster": CLUSTER, "gpu": GPU, "sys": GPU}


def scope_of(ins: Instr, default: int) -> int:
    """The scope of an instruction: its `.scope`, or `default` if it has none."""
    effect = ins.effect
    return _SCOPES.get(effect.scope, default) if isinstance(effect, Ordered) else default


def distance(cta: state.CTA, other: state.CTA) -> int:
    """The smallest scope that includes threads of both CTAs."""
    if cta is other:
        return CTA
    return CLUSTER if cta.cluster is other.cluster else GPU
