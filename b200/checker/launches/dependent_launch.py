"""Dependent launches: rules for a grid that runs while the grid before it may still run.

A launch with the programmatic attribute starts when every CTA of its predecessor has executed
griddepcontrol.launch_dependents, or has ended (PTX ISA 9.7.13.17; CUDA programming guide,
"Programmatic Dependent Launch"). Accesses of a warp race with the predecessor until the warp knows
of a griddepcontrol.wait, its own or one that a barrier orders before it. A wait covers the grids
before the predecessor only if the predecessor has waited for them itself: else it may end while
they run.

The emulator runs launches one after the other, so each launch that lets its dependents start leaves
a footprint: which words it wrote and read, and by which instruction. Accesses of later launches are
checked against the footprint. Two atomics do not conflict, nor do two strong accesses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from b200 import sparse
from b200.checker import words
from b200.checker.agent import Agent
from b200.checker.finding import ERROR, PORTABILITY
from b200.checker.launches import other_queues
from b200.checker.launches.other_queues import Act, ActAccess, Beside, Conflict, commute
from b200.checker.memory.parts import by_region
from b200.checker.vector_clocks import HB
from b200.chip import operations as ops
from b200.chip.copies.tma import TensorBoxes
from b200.chip.global_memory import Region
from b200.program.module import Instr
from b200.registry import lanes_text

UNIT = 4  # bytes of an entry


def units(at: int, nbytes: int) -> slice:
    """The entries of contiguous bytes of an allocation."""
    return slice(at // UNIT, -(-(at + nbytes) // UNIT))


@dataclass
class Touched:
    """A launch's accesses to an allocation: for each UNIT the number of the instruction, or 0."""

    region: Region
    written: np.ndarray
    read: np.ndarray


Found = tuple[dict[int, Touched], list[Instr | None]]


class Footprint:
    """The global memory that a launch has written and read. late: finds the places and the
    instructions, when somebody asks for them (late_footprint.py).
    """

    def __init__(self, kernel: str, late: Callable[[], Found] | None = None):
        self.kernel = kernel
        self.instructions: list[Instr | None] = [None]
        self._places: dict[int, Touched] = {}
        self._late = late
        self._numbers: dict[int, int] = {}

    @property
    def places(self) -> dict[int, Touched]:
        """By address of an allocation."""
        if self._late is not None:
            (self._places, self.instructions), self._late = self._late(), None
        return self._places

    def add(self, region: Region, index: slice | np.ndarray, write: bool, ins: Instr) -> None:
        found = self.places.get(region.base)
        if found is None or not found.region.is_again(region):
            entries = -(-region.size // UNIT)
            arrays = (sparse.zeros(entries, np.uint16) for _ in range(2))
            found = self.places[region.base] = Touched(region, *arrays)
        number = self._numbers.get(id(ins))
        if number is None:
            number = self._numbers[id(ins)] = len(self.instructions)
            self.instructions.append(ins)
        noted = found.written if write else found.read
        if other_queues.may_meet(ins):  # what conflicts with more stays noted beneath it
            number = np.where(noted[index] == 0, number, noted[index])
        noted[index] = number

    def conflicts(self, access: ActAccess, by: Instr | Act) -> list[Conflict]:
        """The accesses of the launch that conflict with one by an instruction or an act."""
        place = self.places.get(access.region.base)
        if place is None or not place.region.is_again(access.region):
            return []
        for noted, how in ((place.written, "writes"), (place.read, "reads")):
            numbers = np.unique(noted[access.index]).tolist()
            olds = [self.instructions[n] for n in numbers if n]
            found = [Conflict(self.kernel, old, how) for old in olds if not commute(by, old)]
            if found or not access.write:
                return found
        return []


@dataclass
class InFlight:
    """Grids that may still run: `early` at a dependent launch's start, `late` after its wait."""

    early: list[Footprint] = field(default_factory=list[Footprint])
    late: list[Footprint] = field(default_factory=list[Footprint])


@dataclass
class Seen:
    """What clusters have been seen doing. ahead: one has accessed global memory ahead of any wait.
    waited: one has waited. started: one has let dependents start; started_first: ahead of any wait.
    """

    ahead: bool = False
    waited: bool = False
    started: bool = False
    started_first: bool = False

    def add(self, other: Seen) -> None:
        self.ahead |= other.ahead
        self.waited |= other.waited
        self.started |= other.started
        self.started_first |= other.started_first


class DependentLaunch:
    """The rule for one launch. before: the grids that may still run while it runs. kept: the
    launch's own footprint, None if it lets no dependents start before it ends. beside: launches of
    other queues, None where there is one queue. seen: of its clusters. observer: set by the
    machine.
    """

    observer: Any

    def __init__(
        self, before: InFlight, kernel: str, lets_start: bool, beside: Beside | None = None
    ):
        self.before, self.beside = before, beside
        self.kept = Footprint(kernel) if lets_start or beside is not None else None
        self.behind: set[Agent] = set()
        self.waits: dict[object, list[tuple[int, int]]] = {}  # cluster -> component, step
        self.partly: dict[Agent, tuple[int, int]] = {}  # warp -> lanes that have waited, its turn
        self.seen = Seen()

    # --- griddepcontrol ---------------------------------------------------------------------------
    def waited(self, agent: Agent, lanes: int | None) -> None:
        """lanes: those that have waited, None if all have that have not exited."""
        self.seen.waited = True
        before, turn = self.partly.pop(agent, (0, agent.turn))
        if lanes is not None and agent not in self.behind:
            self.partly[agent] = lanes | (before if turn == agent.turn else 0), agent.turn
        self.behind.add(agent)
        self.waits.setdefault(agent.cta.cluster, []).append((agent.component, agent.now()))

    def let_start(self, agent: Agent) -> None:
        self.seen.started = True
        self.seen.started_first |= not self._is_behind(agent)

    def _is_behind(self, agent: Agent) -> bool:
        """Whether a griddepcontrol.wait is ordered before what the warp does now."""
        if agent in self.behind:
            return True
        waits = self.waits.get(agent.cta.cluster, ())
        if any(agent.knows(HB, component, step) for component, step in waits):
            self.behind.add(agent)
            return True
        return False

    def after(self) -> InFlight:
        """The grids that may still run while a launch that depends on this one runs."""
        late = self.before.late if self.seen.waited else self.before.early
        if not self.seen.started or self.kept is None:
            return InFlight(late, late)
        early = self.before.early if self.seen.started_first else late
        return InFlight([*early, self.kept], late)

    # --- clusters that do what others have done (following.py) ------------------------------------
    def can_be_followed(self, seen: Seen) -> bool:
        """Whether clusters may follow those of which this was seen. What an access conflicts with
        is known without the order in the cluster if all accesses come behind a wait, or if no grid
        is there that may still run.
        """
        return self.beside is None and not (seen.ahead and self.before.early)

    def follows(self, agent: Agent, seen: Seen) -> None:
        """A warp belongs to a cluster that follows: it accesses memory as the warps seen have."""
        if not seen.ahead:
            self.behind.add(agent)

    # --- accesses ---------------------------------------------------------------------------------
    def operation(self, agent: Agent, operation: ops.Operation, ins: Instr) -> None:
        """Check the global memory that an operation reads and writes."""
        if isinstance(operation, ops.BulkLoad) and operation.nbytes:
            self.span(agent, operation.source, operation.nbytes, False, ins)
        elif isinstance(operation, ops.CpAsync) and operation.nbytes:
            self.lanes(agent, operation.sources, operation.nbytes, False, ins)
        elif isinstance(operation, (ops.BulkStore, ops.BulkReduce)):
            self.span(agent, operation.destination, operation.nbytes, True, ins)
        elif isinstance(operation, ops.TmaLoad):
            self.boxes(agent, operation.access, False, ins)
        elif isinstance(operation, (ops.TmaStore, ops.TmaReduce)):
            self.boxes(agent, operation.access, True, ins)

    def lanes(
        self,
        agent: Agent,
        addresses: np.ndarray,
        nbytes: int,
        write: bool,
        ins: Instr,
        mask: int = 0,
    ) -> None:
        """Check an access of `nbytes` at each of the addresses (int64). mask: the lanes that make
        it, 0 if it is their warp's.
        """
        apart = self._apart(agent, mask)
        for region, at in by_region(self.observer.machine.memory, addresses, nbytes):
            first = at // UNIT
            if nbytes > UNIT:
                first = (first[:, None] + np.arange(-(-nbytes // UNIT))).reshape(-1)
            self._access(agent, ActAccess(region, first, write), ins, apart)

    def _apart(self, agent: Agent, mask: int) -> int:
        """Lanes of an access that have not waited, nor met those of their warp that have."""
        waited, turn = self.partly.get(agent, (0, -1))
        return mask & ~waited if turn == agent.turn else 0

    def span(self, agent: Agent, address: int, nbytes: int, write: bool, ins: Instr) -> None:
        """Check an access of `nbytes` contiguous bytes."""
        region = self.observer.machine.memory.region(address, nbytes)
        self._access(agent, ActAccess(region, units(address - region.base, nbytes), write), ins)

    def boxes(self, agent: Agent, access: TensorBoxes, write: bool, ins: Instr) -> None:
        for rows, nbytes in access.spans():
            self.lanes(agent, rows, nbytes, write, ins)

    def _access(self, agent: Agent, access: ActAccess, ins: Instr, apart: int = 0) -> None:
        before = self.before
        if self.beside is not None:
            other_queues.tell(self.observer, agent, access, ins, self.beside)
        waited = self._is_behind(agent)
        if not waited:
            self.seen.ahead = True
            if before.early and self.observer.following is not None:
                self.observer.following.stop()
        for footprint in before.late if waited else before.early:
            for conflict in footprint.conflicts(access, ins):
                self._tell(agent, access, ins, conflict, waited)
        for footprint in before.early if waited and apart else ():
            for conflict in footprint.conflicts(access, ins):
                self._tell(agent, access, ins, conflict, False, apart)
        if self.kept is not None:
            self.kept.add(*access, ins)

    def _tell(
        self,
        agent: Agent,
        access: ActAccess,
        ins: Instr,
        conflict: Conflict,
        waited: bool,
        apart: int = 0,
    ) -> None:
        kernel, old, how = conflict
        does = "written" if access.write else "read"
        diagnosis = (
            f"global memory is {does} that {kernel}, a launch before, {how}, with no "
            "griddepcontrol.wait"
        )
        missing = (
            "missing: griddepcontrol.wait by the warp, or by one that a barrier orders before it, "
            "in front of the access"
        )
        if waited:
            diagnosis += " between the two in the launch that lies between them"
            missing = (
                "missing: griddepcontrol.wait in each launch in between: one that has not waited "
                f"may end while {kernel} runs, and the wait here is over"
            )
        if apart:
            diagnosis += f" by {lanes_text(apart)}: another lane of the warp has waited"
            missing = "missing: bar.warp.sync (__syncwarp) after the wait, or a wait by every lane"
        self.observer.found(
            "global",
            diagnosis,
            f"this access: {words.line(ins)}, by {words.name(agent)}",
            f"{kernel} {how} it at {words.line(old)}, and lets its dependents start before it ends "
            "(griddepcontrol.launch_dependents)",
            f"in {self.observer.operand(access.region.base)}",
            missing,
            at=ins,
            other=old,
            severity=PORTABILITY if apart else ERROR,
        )
