"""Reductions of floating-point numbers, whose result depends on their order."""

from __future__ import annotations

from b200.checker import naming as words
from b200.checker.finding import NOTE
from b200.checker.vector_clocks import Agent
from b200.effects import Copies, Updates
from b200.program.module import Instr


def reduced(rules, agent: Agent, address: int, nbytes: int, ins: Instr) -> None:
    """Report a reduction of floating-point numbers by several CTAs: the sum depends on
    their order.
    """
    effect = ins.effect
    if not (isinstance(effect, (Copies, Updates)) and effect.operation == "add" and effect.floats):
        return
    region = rules.observer.machine.memory.region(address, 1)
    first = rules.reductions.setdefault(region.base, (agent, ins))
    if first[0].cta is not agent.cta:
        rules.observer.found(
            "order",
            "floating-point sums of several CTAs meet in one tensor: the result depends on "
            "which comes first",
            (
                f"this access: {words.line(ins)}, by {words.name(agent)}",
                f"and: {words.line(first[1])}, by {words.name(first[0])}",
                f"in {rules.observer.operand(region.base)}",
                "missing: an order of the partial sums (a buffer for each, added up by one CTA)",
            ),
            ins,
            first[1],
            NOTE,
        )
