"""Reductions of floating-point numbers, whose result depends on their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from b200.checker import words
from b200.checker.agent import Agent
from b200.checker.finding import NOTE
from b200.effects import Copies, Effect, Updates
from b200.program.module import Instr

if TYPE_CHECKING:
    from b200.checker.memory.global_memory import GlobalRules


@dataclass
class FirstSum:
    """Who has added floats to an allocation first. several: whether another CTA has done so."""

    agent: Agent
    ins: Instr
    several: bool = False


def is_sum(effect: Effect) -> bool:
    """Whether an instruction adds floating-point numbers up in memory."""
    return isinstance(effect, (Copies, Updates)) and effect.operation == "add" and effect.floats


def reduced(rules: GlobalRules, agent: Agent, address: int, ins: Instr) -> None:
    """Report a floating-point reduction by several CTAs: the sum depends on their order."""
    if not is_sum(ins.effect):
        return
    region = rules.observer.machine.memory.region(address, 1)
    first = rules.reductions.setdefault(region.base, FirstSum(agent, ins))
    if first.agent.cta is not agent.cta:
        first.several = True
        rules.observer.found(
            "order",
            "floating-point sums of several CTAs meet in one tensor: the result depends on "
            "which comes first",
            f"this access: {words.line(ins)}, by {words.name(agent)}",
            f"and: {words.line(first.ins)}, by {words.name(first.agent)}",
            f"in {rules.observer.operand(region.base)}",
            "missing: an order of the partial sums (a buffer for each, added up by one CTA)",
            at=ins,
            other=first.ins,
            severity=NOTE,
        )
