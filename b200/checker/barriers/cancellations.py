"""Rule of cluster launch control: a CTA whose try_cancel has failed must not ask again.

A request after an observed failure is undefined (PTX ISA 9.7.13.16). Generic loads read the
response, and the async proxy writes the next one to the same place, so a proxy fence must stand
between the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from b200.checker import words
from b200.checker.accesses import Record, known
from b200.checker.finding import PORTABILITY
from b200.checker.vector_clocks import ASYNC
from b200.chip.operations import StorePlace, TryCancel
from b200.program.module import Instr

if TYPE_CHECKING:
    from b200.checker.agent import Agent
    from b200.checker.observer import Observer


class Cancellations:
    """The rule for one launch. failures: cluster -> the reads that found a failed response."""

    def __init__(self, observer: Observer):
        self.observer = observer
        self.failures: dict[object, list[Record]] = {}

    def failed(self, agent: Agent, ins: Instr) -> None:
        record = Record.of_warp(agent, ins, "finds that a request failed")
        seen = self.failures.setdefault(agent.cta.cluster, [])
        seen[:] = [old for old in seen if old.agent is not agent] + [record]

    def requested(self, agent: Agent, ins: Instr, cancel: TryCancel) -> None:
        """A warp asks for a cluster's work."""
        for old in self.failures.get(agent.cta.cluster, ()):
            if known(agent, old):
                self._again(agent, ins, old)
                break
        for place in cancel.places:
            self._reused(agent, ins, place, cancel.nbytes)

    def _again(self, agent: Agent, ins: Instr, old: Record) -> None:
        self.observer.found(
            "protocol",
            "a cluster's launch is requested again after a response has said that none is left: "
            "undefined",
            f"this access: {words.line(ins)}, by {words.name(agent)}",
            f"the failure was seen at {words.line(old.ins)}, by {words.name(old.agent)}",
            "missing: a way out of the loop at the first response that is not canceled "
            "(clusterlaunchcontrol.query_cancel.is_canceled), for all warps that ask",
            at=ins,
            other=old.ins,
        )

    def _reused(self, agent: Agent, ins: Instr, place: StorePlace, nbytes: int) -> None:
        """Report generic reads of the previous response that no proxy fence follows."""
        rules = self.observer.shared(place.cta)
        low, high = place.offset // 4, (place.offset + nbytes) // 4
        for slot in rules.shadow.readers(place.offset, place.offset + nbytes - 1):
            for number in {int(n) for n in rules.shadow.loaded[slot][low:high]}:
                if not number:
                    continue
                old = rules.state.records[number]
                if known(agent, old) and not agent.knows(ASYNC, old.component, old.step):
                    self._unfenced(agent, ins, old)
                    return

    def _unfenced(self, agent: Agent, ins: Instr, old: Record) -> None:
        self.observer.found(
            "proxy",
            "a response of cluster launch control is asked for anew where the one before was read, "
            "with no fence.proxy.async in between",
            f"this access: {words.line(ins)}, by {words.name(agent)}",
            f"read at {words.line(old.ins)}, by {words.name(old.agent)}",
            "missing: fence.proxy.async.shared::cta after the read, before the barrier that "
            "frees the response",
            at=ins,
            other=old.ins,
            severity=PORTABILITY,
        )
