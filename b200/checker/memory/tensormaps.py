"""Rules for tensormaps in global memory, which the device, the host or an earlier launch may write.

Nobody may write a tensormap while an operation uses it, and a write needs a fence of its own before
the next use (PTX ISA 9.7.13.4, fence.proxy.tensormap; 9.7.9.28, tensormap.replace). The TMA unit
reads the tensormap through the tensormap proxy. Only an acquire of its 128 bytes, by the CTA that
uses it, makes writes of the generic proxy visible there. A kernel launch does not, so a tensormap
that the host has copied needs the fence as well (CUDA programming guide, "Usage of a modified
tensor map"). A tensormap that is a kernel parameter or in constant memory does not change, and
needs none.

Edits by tensormap instructions are recorded, and so are plain writes to a tensormap that was used
before. The checker sees all other writes by the change of the tensormap's bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from b200.checker import words
from b200.checker.accesses import Record, known
from b200.checker.barriers.fences import orders_memory
from b200.checker.finding import ERROR, PORTABILITY
from b200.checker.memory.lane_sync import part_of
from b200.checker.memory.parts import WINDOW, lane_addresses
from b200.checker.memory.shadow import ALL_LANES
from b200.checker.memory.shared_accesses import shared_access
from b200.checker.steps import Call, observes
from b200.checker.vector_clocks import CTA, scope_of
from b200.chip.copies.tensormap import BYTES
from b200.effects import EditsTensormap, FencesTensormap, PublishesTensormap
from b200.registry import LaneValues
from b200.spaces import WINDOW_MASK

if TYPE_CHECKING:
    from b200.checker.agent import Agent
    from b200.checker.checked import CheckedFragment
    from b200.checker.observer import Observer

ACQUIRE = "fence.proxy.tensormap::generic.acquire.SCOPE [address], 128"


class Edit(NamedTuple):
    """A write of this launch to a tensormap, and the tensormap's bytes after it."""

    record: Record
    content: bytes


class Acquire(NamedTuple):
    """A fence of a CTA, and the bytes of the tensormap that it made visible."""

    record: Record
    content: bytes
    edit: Record | None


class TensorMaps:
    """Uses and edits of each tensormap, by the tensormap's address."""

    def __init__(self, observer: Observer):
        self.observer = observer
        self.uses: dict[int, list[Record]] = {}
        self.edits: dict[int, Edit] = {}
        self.acquired: dict[tuple, list[Acquire]] = {}  # (CTA, address) -> fences there

    def used(self, agent: Agent, address: int, record: Record) -> None:
        """A TMA operation reads the tensormap at a generic address. Only tensormaps in global
        memory can change, so others are not checked.
        """
        if address & ~WINDOW_MASK:
            return
        uses = self.uses.setdefault(address, [])
        uses.append(record)
        del uses[:-16]
        content = self._content(address)
        edit = self._edit(address, content)
        if edit is None:
            self._used_as_written(agent, address, content, record)
        elif edit.agent.cta.cluster is not agent.cta.cluster:
            self._of_another_cta(agent, record, edit, "used")
        elif not known(agent, edit):
            self._found(
                "a tensormap is used that another warp edits, with nothing to order the two",
                record,
                edit,
                words.barrier_between(agent, edit),
            )
        elif not self._acquired(agent, address, edit, content):
            self._found(
                "a tensormap is used without a fence after its edit",
                record,
                edit,
                f"missing: {ACQUIRE} by the warp that uses it, or by one of its CTA that it has "
                f"waited for{self._elsewhere(agent)}",
            )
        self.observer.checker.used_tensormaps[address] = content

    def _content(self, address: int) -> bytes:
        region = self.observer.machine.memory.region(address, BYTES)
        return bytes(region.mem[address - region.base : address - region.base + BYTES])

    def _edit(self, address: int, content: bytes) -> Record | None:
        """The edit that wrote the tensormap's present bytes; None if something else wrote them."""
        edit = self.edits.get(address)
        return edit.record if edit is not None and edit.content == content else None

    def _used_as_written(self, agent: Agent, address: int, content: bytes, record: Record) -> None:
        """Check the use of a tensormap whose bytes come from plain writes."""
        region = self.observer.machine.memory.region(address, BYTES)
        if region.constant or self._acquired(agent, address, None, content):
            return
        before = self.observer.checker.used_tensormaps.get(address)
        writer = self.observer.globals.shadow.writer(address, BYTES)
        changed = before is not None and before != content
        if writer is not None:
            diagnosis = "a tensormap is used that plain writes of this launch made, without a fence"
        elif changed:
            diagnosis = (
                "a tensormap is used without a fence, and its bytes have changed since it was used "
                "last: the old ones may be taken"
            )
        else:
            diagnosis = "a tensormap in global memory is used without a fence after what wrote it"
        source = "by the host, or by an earlier launch"
        if writer is not None:
            source = f"at {words.line(writer[1])}, by {words.name(writer[0])}"
        self.observer.found(
            "tensormap",
            diagnosis,
            f"this access: {words.act(record)}",
            f"its {BYTES} bytes, at {address:#x} in {region.name}, were written {source}",
            f"missing: {ACQUIRE} by the CTA that uses it, before the use"
            f"{self._elsewhere(agent)}; or the tensormap as a kernel parameter",
            at=record.ins,
            other=writer[1] if writer is not None else None,
            severity=ERROR if writer is not None or changed else PORTABILITY,
        )

    def _elsewhere(self, agent: Agent) -> str:
        """ "; its CTA has fenced" and which tensormaps; "" if there are none."""
        other = [f"{address:#x}" for cta, address in self.acquired if cta is agent.cta]
        return f"; its CTA has fenced the {BYTES} bytes at {', '.join(other)}" if other else ""

    def _acquired(self, agent: Agent, address: int, edit: Record | None, content: bytes) -> bool:
        """Whether a fence of the CTA lies between an edit and what `agent` does now. A fence by
        any thread counts: PTX ISA 8.9.5 (proxy-preserved base causality order) asks for one along
        the path.
        """
        return any(
            fence.edit is edit and fence.content == content and known(agent, fence.record)
            for fence in self.acquired.get((agent.cta, address), ())
        )

    def stored(self, agent: Agent, low: int, high: int) -> None:
        """Plain writes somewhere in bytes [low, high): note those that change a tensormap."""
        for address in self.uses:
            if low < address + BYTES and address < high:
                edit = self.edits.get(address)
                before = edit.content if edit else self.observer.checker.used_tensormaps[address]
                if self._content(address) != before:
                    self.edited(agent, address)

    def edited(self, agent: Agent, address: int) -> None:
        """The device writes the tensormap at a global address."""
        edit = Record.of_warp(agent, self.observer.ins, "edits a tensormap")
        before = self.edits.get(address)
        if before is not None and before.record.agent.cta is not agent.cta:
            self._of_another_cta(agent, edit, before.record, "edited")
        for use in self.uses.get(address, ()):
            if use.agent.cta.cluster is agent.cta.cluster and not known(agent, use):
                self._found(
                    "a tensormap is edited while an operation that uses it is under way",
                    edit,
                    use,
                    words.missing_step(agent, use),
                )
        self.edits[address] = Edit(edit, self._content(address))

    def _of_another_cta(self, agent: Agent, new: Record, edit: Record, how: str) -> None:
        """Report a use or an edit of a tensormap that another CTA edits, if no flag in global
        memory and no barrier orders the two.
        """
        if self.observer.globals.order.known(agent, edit.agent, edit.component, edit.step):
            return
        self._found(
            f"a tensormap is {how} that another CTA edits, with nothing to order the two",
            new,
            edit,
            "missing: a tensormap of its own for each CTA (a slot by its index), or an order",
        )

    def fenced(self, agent: Agent, address: int) -> None:
        """fence.proxy.tensormap::generic.acquire of the tensormap at a generic address."""
        if address & ~WINDOW_MASK:
            return
        content = self._content(address)
        edit = self._edit(address, content)
        if edit is None or known(agent, edit):
            fence = Record.of_warp(agent, self.observer.ins, "fences")
            found = self.acquired.setdefault((agent.cta, address), [])
            found[:] = [a for a in found if a.content == content and a.edit is edit]
            found.append(Acquire(fence, content, edit))

    def _found(self, diagnosis: str, new: Record, old: Record, missing: str) -> None:
        self.observer.report(
            "tensormap",
            diagnosis,
            *words.conflict(new, old, f"the {BYTES} bytes of the tensormap"),
            missing,
            of=(new, old),
        )


# --- around instructions --------------------------------------------------------------------------


@observes(EditsTensormap)
def replace(
    call: Call[EditsTensormap], warp: CheckedFragment, lane: int, address: int, *operands: Any
) -> Any:
    """Observe tensormap.replace, which edits a tensormap in shared or global memory."""
    observer, in_shared = warp.observer, call.effect.space == "shared"
    if not in_shared and address & WINDOW == 0:
        observer.unwritten.writes(np.array([address], np.int64), BYTES)
    result = call.run(warp, lane, address, *operands)
    if in_shared:
        at, text = np.array([address], np.int64), "edits a tensormap in shared memory"
        shared_access(warp, call.ins, at, BYTES, True, ALL_LANES, text=text)
    elif address & WINDOW == 0:
        observer.globals.maps.edited(observer.agent(warp), address)
    return result


@observes(PublishesTensormap)
def copy(
    call: Call[PublishesTensormap],
    warp: CheckedFragment,
    mask: int,
    dst: LaneValues,
    src: LaneValues,
    size: LaneValues,
) -> Any:
    """Observe tensormap.cp_fenceproxy: it writes a tensormap, then is a release fence."""
    observer = warp.observer
    observer.unwritten.writes(lane_addresses(mask, dst), BYTES)
    result = call.run(warp, mask, dst, src, size)
    at = np.array([int(lane_addresses(mask, src)[0])], np.int64)
    text = "copies a tensormap out of shared memory"
    shared_access(warp, call.ins, at, BYTES, False, ALL_LANES, text=text)
    agent = observer.agent(warp)
    observer.globals.maps.edited(agent, int(lane_addresses(mask, dst)[0]))
    agent.fence_release(scope_of(call.ins, CTA))
    return result


@observes(FencesTensormap)
def fence(call: Call[FencesTensormap], warp: CheckedFragment, lane: int, *place: int) -> None:
    """Observe fence.proxy.tensormap::generic. A release one and relaxed writes behind it
    synchronise with relaxed reads and an acquire one behind these (PTX ISA 9.7.13.4).
    """
    call.run(warp, lane, *place)
    observer = warp.observer
    agent = observer.agent(warp)
    agent.lanes = 1 << lane
    agent.lane_acquire = part_of(warp, agent.lanes, call.ins)
    orders_memory(observer, agent, call.effect.order, scope_of(call.ins, CTA))
    agent.lane_acquire = None
    if place:
        observer.globals.maps.fenced(agent, place[0])
