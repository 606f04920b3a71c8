"""Tensormaps in global memory that the device edits.

Not while an operation uses them, and with fences of their own (PTX ISA 9.7.13.4,
fence.proxy.tensormap; 9.7.9.28, tensormap.replace).
"""

from __future__ import annotations

from b200.checker import naming as words
from b200.checker.accesses import Record, issued_before, known
from b200.checker.finding import ERROR, PORTABILITY
from b200.chip.copies.tensormap import BYTES
from b200.spaces import WINDOW_MASK


class TensorMaps:
    """Uses and edits of each tensormap, by its address."""

    def __init__(self, observer):
        self.observer = observer
        self.uses: dict[int, list[Record]] = {}
        self.edits: dict[int, Record] = {}
        # (CTA, address) -> the fences that made the latest edit visible to the CTA's TMA unit
        self.acquired: dict[tuple, list[tuple[Record, Record]]] = {}

    def used(self, agent, address: int, record: Record):
        """A TMA operation reads the object at a generic address; only those in global memory can
        change.
        """
        if address & ~WINDOW_MASK:
            return
        uses = self.uses.setdefault(address, [])
        uses.append(record)
        del uses[:-16]
        edit = self.edits.get(address)
        if edit is None:
            return
        if edit.agent.cta.cluster is not agent.cta.cluster:
            self._of_another_cta(agent, record, edit, "used")
        elif not known(agent, edit):
            self._found(
                "a tensormap is used that another warp edits, with nothing to order the two",
                record,
                edit,
                words.barrier_between(agent, edit),
            )
        elif not self._acquired(agent, address, edit):
            self._found(
                "a tensormap is used without a fence behind its edit",
                record,
                edit,
                "missing: fence.proxy.tensormap::generic.acquire.SCOPE [address], 128 by the warp "
                "that uses it, or by one of its CTA that it has waited for",
            )

    def _acquired(self, agent, address: int, edit: Record) -> bool:
        """Whether a fence of the CTA lies between an edit and what `agent` does now. Any thread's
        counts: PTX ISA 8.9.5 (proxy-preserved base causality order) asks for one along the path.
        """
        return any(
            of is edit and known(agent, fence)
            for of, fence in self.acquired.get((agent.cta, address), ())
        )

    def edited(self, agent, address: int):
        """The device writes the object at a global address."""
        state = self.observer.state(agent.cta)
        edit = Record(agent, self.observer.ins, agent.component, 0, "generic", "edits a tensormap")
        edit.step = edit.epoch
        before = self.edits.get(address)
        if before is not None and before.agent.cta is not agent.cta:
            self._of_another_cta(agent, edit, before, "edited")
        for use in self.uses.get(address, ()):
            if use.agent.cta.cluster is state.cluster and not known(agent, use):
                self._found(
                    "a tensormap is edited while an operation that uses it is under way",
                    edit,
                    use,
                    words.missing_step(agent, use),
                    PORTABILITY
                    if use.agent.cta is agent.cta and issued_before(agent, use)
                    else ERROR,
                )
        self.edits[address] = edit

    def _of_another_cta(self, agent, new: Record, edit: Record, how: str):
        """Whose object is it? Only a flag in global memory or a barrier could tell."""
        if agent.cta in self.observer.globals.synchronised or (
            edit.agent.cta.cluster is agent.cta.cluster and known(agent, edit)
        ):
            return
        self._found(
            f"a tensormap is {how} that another CTA edits, with nothing to order the two",
            new,
            edit,
            "missing: a tensormap of its own for each CTA (a slot by its index), or an order",
        )

    def fenced(self, agent, address: int):
        """fence.proxy.tensormap::generic.acquire."""
        edit = self.edits.get(address)
        if edit is not None and known(agent, edit):
            fence = Record(agent, self.observer.ins, agent.component, 0, "generic", "fences")
            fence.step = fence.epoch
            found = self.acquired.setdefault((agent.cta, address), [])
            found[:] = [pair for pair in found if pair[0] is edit] + [(edit, fence)]

    def _found(self, diagnosis: str, new: Record, old: Record, missing: str, severity: str = ERROR):
        self.observer.report(
            "tensormap",
            diagnosis,
            (
                f"this access: {words.act(new)}",
                f"conflicts with: {words.act(old)}",
                f"in the {BYTES} bytes of the tensormap",
                missing,
            ),
            new,
            old,
            severity,
        )
