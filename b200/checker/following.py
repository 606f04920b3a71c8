"""A cluster that repeats, step by step, what a checked one did is not checked again.

Most clusters of a grid do the same at other coordinates, and the rules find in them what they found
in the first. So a cluster that is checked writes down its steps, and a later one runs unchecked as
long as each of its steps is one that some cluster has taken from the same point: it *follows*. One
that takes another step starts again, checked, from its beginning.

What this relies on, and why it is sound:

1.  A rule for clusters is a function of the cluster's steps. A step is an instruction that the
    checker looks at, the warp and the lanes that execute it, and all its operands but two kinds:
    values that are stored, and places in global memory (addresses, coordinates). So equal steps
    leave the rules in equal states, and what they would find has been found, under the same lines
    (finding.py keeps one finding a pair of lines). What a rule takes from the left-out operands is
    part of the step: whether lanes store different values at one place, how much of a box lies in
    its tensor, whether a lane names the same place as the one before.
2.  Rules for all clusters see all of them: places that two CTAs write (global_memory.py), what is
    loaded and what is not (coverage.py). What a cluster that follows does there is kept until it
    has ended, and told then, in its order. If a finding comes of that, or of anything else that is
    looked at meanwhile, the cluster starts again, checked, so that the finding is the checker's
    own.
3.  Starting again repeats nothing that shows. A cluster that follows is alone: before another
    begins, it starts again. Its shared and tensor memory, its barriers and its counts are dropped.
    Where another cluster had stored before it, its stores are taken back, as the rules compare
    values there (global_conflicts.py). And no allocation is both read and written in a launch whose
    clusters follow one by one, so that it reads the same again, and writes the same again.
4.  A launch may follow clusters of an earlier one of the same kernel, grid and CTAs (Traces), for
    nothing in a step is of one launch only. What rules for the whole launch keep of a cluster
    (Left) is kept with the end of its steps, and told in the launch that follows. So is what the
    rules for clusters remarked of a cluster, if the one that follows is in the same place of the
    grid; else it is checked. A launch with any other finding is not followed: the next one has to
    find it, too.
5.  Where launches overlap, accesses of a cluster that follows are held against the footprints of
    other launches once it has ended. Whether a griddepcontrol.wait comes before them is known of
    the clusters that it follows, as waits and barriers are steps: if it does before each access,
    or if no launch is there to conflict with, clusters follow (dependent_launch.py).

abreast/ has what it takes to run clusters that follow side by side.

Clusters do not follow in a launch with an instruction whose wrapper (instrument.py) or operation
(steps.py) does not say what its steps are: atomics of which somebody uses the result,
accesses that synchronise, edits of tensormaps, cancelled launches, output of the device, and
whatever a rule is added for that says nothing of it. Nor under a schedule: effects that are put off
would have to be taken back. Fences are steps as any other: across clusters they order what strong
accesses and atomics hand over, and nobody receives that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from b200.checker.launches.dependent_launch import Seen
from b200.checker.memory.global_shadow import holds
from b200.checker.memory.parts import by_region
from b200.checker.memory.stores_at_once import tell_all
from b200.checker.steps import (
    OPERATIONS,
    OWN_OPERATIONS,
    READS,
    UNRULED,
    UPDATES,
    WRITES,
    GlobalTouch,
    Look,
)
from b200.checker.streams import LatestCopies
from b200.chip.operations import Operation
from b200.effects import Access
from b200.errors import Fault
from b200.program.module import Instr

if TYPE_CHECKING:
    from b200.checker.agent import Agent
    from b200.checker.checked import CheckedFragment
    from b200.checker.finding import Finding
    from b200.checker.memory.global_shadow import ShadowContents
    from b200.checker.observer import Observer
    from b200.checker.tensor.partly_written import Partly
    from b200.chip.fragment import Fragment, WarpState
    from b200.chip.global_memory import GlobalMemory, Region
    from b200.chip.state import Cluster

MOST_STEPS = 1 << 20  # steps remembered of a launch


class Departed(BaseException):
    """A cluster that follows takes a step that no cluster has taken: it must start again. This is
    no Exception, so that nobody takes it for a fault of the kernel.
    """


class Left(NamedTuple):
    """The state that a cluster leaves to the rules for the whole launch. roles: (CTA rank, warp) ->
    what the warp was seen doing. unread, partly: as in Coverage. ranks: as DescriptorRanks.fields.
    """

    roles: dict[tuple[int, int], frozenset[str]]
    unread: list[tuple]
    partly: list[Partly]
    ranks: dict[tuple, dict[int, int | None]]


@dataclass(slots=True, eq=False)
class TrailNode:
    """The point that a cluster has reached after a step. next: the node after the step first taken
    from here. more: step -> node, for the other steps taken from here.
    left: the state left by the first cluster that has ended here.
    """

    step: tuple | None
    next: TrailNode | None = None
    more: dict[tuple, TrailNode] | None = None
    left: Left | None = None

    def beside(self, step: tuple) -> TrailNode | None:
        """The node after `step`, where that is not the one first taken from here."""
        return self.more.get(step) if self.more is not None else None

    def add(self, step: tuple) -> TrailNode:
        node = TrailNode(step)
        if self.next is None:
            self.next = node
        else:
            if self.more is None:
                self.more = {}
            self.more[step] = node
        return node


class Remark(NamedTuple):
    """A finding that the rules for clusters made of the cluster with this index."""

    cluster: tuple[int, int, int]
    finding: Finding


@dataclass(eq=False)
class Traces:
    """The steps that clusters have taken in launches of one kernel, as a tree from `root`. remarks:
    node -> the remarks on the clusters that ended there. seen: of the clusters, where launches
    overlap. in_place: whether clusters access one allocation in several ways, or update one by
    atomics. judged: whether they may go ways of their own (thread_order.py). apart: whether they
    do. met: what Trail.met has told of checked clusters.
    """

    judged: bool = False
    root: TrailNode = field(default_factory=lambda: TrailNode(None))
    steps: int = 0
    seen: Seen = field(default_factory=Seen)
    in_place: bool = False
    apart: bool = False
    met: set[tuple] = field(default_factory=set[tuple])
    remarks: dict[TrailNode, list[Remark]] = field(default_factory=dict[TrailNode, list[Remark]])


class Following:
    """The following of one launch. traces: the steps that its clusters follow, and add to.

    bases: way (steps.py) -> the allocations that are accessed so, by their bases; latest: the one
    of the last access. holder: where all lanes of the last access by several were in the same one
    as those of such an access before, this one. follower: the trail of the cluster that follows.
    told: last nodes whose `left` the rules of this launch have been told.
    """

    def __init__(self, observer: Observer, memory: GlobalMemory, traces: Traces):
        self.observer, self.memory, self.traces = observer, memory, traces
        self.bases: dict[str, set[int]] = {READS: set(), WRITES: set(), UPDATES: set()}
        self.latest: dict[str, Region] = {}
        self.holder: Region | None = None
        self.touched: set[GlobalTouch] = set()  # accesses of one address
        self.in_place: set[int] = set()  # bases of what is accessed in several ways
        self.on = True
        self.trails: dict[Cluster, Trail] = {}  # of the clusters that run
        self.follower: Trail | None = None
        self.followed = 0  # clusters that have followed to their end
        self.told: set[TrailNode] = set()
        self.names: dict[int, str] = {}  # address of a tensor -> its name

    def begin(self, cluster: Cluster, alone: bool) -> None:
        """A cluster becomes resident. alone: no other cluster runs."""
        if self.in_place:
            self.stop()  # such clusters follow abreast only
        trail = self.trails[cluster] = Trail(self, cluster)
        follows = self.on and not self.traces.in_place
        if alone and follows and self.traces.root.next is not None:
            self.follower, trail.follows = trail, True

    def left_by(self, cluster: Cluster, roles: dict) -> Left:
        """The state that a checked cluster leaves to the rules for the whole launch."""

        def of_cluster(found: list[Any]) -> list[Any]:
            return [entry for entry in found if entry[0].agent.cta.cluster is cluster]

        coverage, state = self.observer.coverage, self.observer.clusters.get(cluster)
        ranks = state.ranks if state is not None else {}
        unread, partly = of_cluster(coverage.unread), of_cluster(coverage.partly)
        return Left(roles, unread, partly, ranks)

    def leave(self, node: TrailNode, agents: Iterable[tuple[tuple[int, int], Agent]]) -> None:
        """Clusters, or one, have followed others to their end: what the rules for the whole launch
        are to know of that. agents: (CTA rank, warp), its agent.
        """
        left = node.left
        assert left is not None  # whoever took these steps has ended here
        for place, agent in agents:
            agent.roles |= left.roles.get(place, frozenset())
        if node not in self.told:
            self.told.add(node)
            self.observer.coverage.unread += left.unread
            self.observer.coverage.partly += left.partly
            self.observer.descriptors.tell_left(left.ranks)

    def stop(self) -> None:
        """From now on no cluster of the launch follows."""
        self.on, self.traces = False, Traces()

    def touches(self, touch: GlobalTouch) -> bool:
        """Note an access of global memory. False if an allocation is now accessed in two ways."""
        if isinstance(touch.addresses, int):
            if touch not in self.touched:  # a repeated touch changes nothing
                self.touched.add(touch)
                return self._touches(touch.way, np.array([touch.addresses]), touch.nbytes)
            return True
        return self._touches(touch.way, touch.addresses, touch.nbytes)

    def _touches(self, way: str, left: np.ndarray, nbytes: int) -> bool:
        latest = self.latest.get(way)
        self.holder = latest if latest is not None and holds(latest, left, nbytes) else None
        if self.holder is not None:
            return True  # as before
        mine, write = self.bases[way], way != READS
        self.observer.wrote |= write
        self.traces.in_place |= way == UPDATES
        try:
            for region, _ in by_region(self.memory, left, nbytes):
                others = any(region.base in of for of in self.bases.values() if of is not mine)
                if others and region.base not in self.in_place:
                    if self.followed or self.follower is not None:
                        return False
                    self.in_place.add(region.base)
                    self.traces.in_place = True
                if write and region.base not in mine:
                    self.observer.unwritten.writes_to(region)
                mine.add(region.base)
                self.latest[way] = region
        except Fault:
            pass  # whoever makes the access says so
        return True


class Trail:
    """The steps of one cluster so far. `node` is the point that it has reached.

    over: what lay where it has stored while it followed, and others had before. tell, note: calls
    to rules that see all clusters, kept until the cluster has ended. latest: (warp, instruction) ->
    the place in global memory that the instruction named last. copied: warp -> what its cp.async
    have copied last. meetings: warp -> its steps but for accesses of memory, in its own order; None
    where nobody asks.
    """

    def __init__(self, following: Following, cluster: Cluster):
        self.following, self.cluster, self.node = following, cluster, following.traces.root
        self.follows = False  # whether the cluster runs unchecked
        self.tell: list[Callable[[], None]] = []
        self.note: list[Callable[[], None]] = []
        self.over: list[ShadowContents] = []
        self.latest: dict[tuple, Any] = {}
        self.copied: dict[tuple[int, int], LatestCopies] = {}
        self.meetings: dict[int, list[tuple]] | None = {} if following.traces.judged else None

    def step(self, step: tuple) -> None:
        """The cluster is about to take a step. Raises Departed if it follows and that is new."""
        node = self.node.next  # in nearly all cases it is that
        if node is None or node.step != step:
            node = self.node.beside(step) or self._first(step)
        self.node = node

    def _first(self, step: tuple) -> TrailNode:
        """The node after a step that no cluster has taken; this one, if steps are kept no more."""
        if self.follows:
            raise Departed
        following = self.following
        following.traces.steps += 1
        if following.traces.steps > MOST_STEPS:
            following.stop()
        return self.node.add(step) if following.on else self.node

    def take(self, ins: Instr, warp: Fragment, who: int, operands: tuple) -> None:
        """Take the step of an instruction with these operands. who: the lanes or the lane."""
        self.step((ins.key, warp.cta.rank, warp.index, who, operands))
        if self.meetings is not None and not isinstance(ins.effect, Access):
            self.meet(ins, warp, who, operands)

    def meet(self, ins: Instr, warp: Fragment, who: int, operands: tuple) -> None:
        """A warp takes such a step, which is none where it goes on after a wait."""
        if warp.token is None:
            assert self.meetings is not None
            self.meetings.setdefault(warp.index, []).append((ins.key, who, operands))

    def met(self) -> tuple:
        """Those of all warps."""
        assert self.meetings is not None
        return tuple((w, tuple(steps)) for w, steps in sorted(self.meetings.items()))

    def look(
        self, ins: Instr, warp: Fragment, who: int, look: Look, operation: Operation | None = None
    ) -> None:
        """Take the step of an instruction that is about to be executed, or of an operation that it
        issues. who: the lanes or the lane.
        """
        self.take(ins, warp, who, look.operands)
        touch = look.touch
        if touch is not None and not self.following.touches(touch):
            self.stop()
        if not self.follows:
            return
        if look.differs is not None and look.differs():
            raise Departed
        if look.tell is not None:
            self.tell.append(look.tell)
        if look.note is not None:
            self.note.append(look.note)
        if touch is not None and touch.way == WRITES and operation is None:
            self._keep(warp, touch)
        if touch is not None and self.following.observer.dependence is not None:
            self.tell.append(partial(self._beside_grids, ins, warp, touch, operation))

    def _keep(self, warp: Fragment, touch: GlobalTouch) -> None:
        """Keep what lies where a store is about to be, if another cluster has written it."""
        observer = self.following.observer
        shadow = observer.globals.shadow
        if not shadow.cells:
            return
        agent, at, holder = observer.agent(warp), touch.addresses, self.following.holder
        if isinstance(at, int):
            at, holder = np.array([at]), None
        if holder is None or shadow.has_others(agent, holder, at - holder.base):
            self.over += shadow.contested(agent, at, touch.nbytes) or ()

    def put_back(self) -> None:
        """The cluster starts again: others' values lie there again."""
        for region, at, old in reversed(self.over):
            region.u8[at] = old

    def _beside_grids(
        self, ins: Instr, warp: Fragment, touch: GlobalTouch, operation: Operation | None
    ) -> None:
        """Tell the rule of launches that overlap of an access to global memory."""
        observer = self.following.observer
        agent, rule = observer.agent(warp), observer.dependence
        assert rule is not None
        rule.follows(agent, self.following.traces.seen)
        if operation is not None:
            rule.operation(agent, operation, ins)
        else:
            addresses = np.atleast_1d(np.asarray(touch.addresses, np.int64))
            rule.lanes(agent, addresses, touch.nbytes, touch.way != READS, ins)

    def issue(self, operation: Operation, warp: Fragment) -> None:
        """Take the step of an asynchronous operation that is about to be issued."""
        observer = self.following.observer
        who = -1 if observer.lane is None else observer.lane
        operands_of = OWN_OPERATIONS.get(type(operation))
        if operands_of is not None:
            self.take(observer.executed, warp, who, operands_of(operation))
            return
        look = OPERATIONS.get(type(operation))
        if look is not None:
            self.look(observer.executed, warp, who, look(self, warp, operation), operation)
        elif not isinstance(operation, UNRULED):
            self.stop()

    def stop(self) -> None:
        """Stop following: no cluster of this launch follows any more, this one included."""
        self.following.stop()
        if self.follows:
            raise Departed

    def again(self, warp: CheckedFragment, place: object) -> bool:
        """Whether a warp names the same place in global memory as when it last executed the same
        instruction: lanes of one execution do (checker/operations/repeats.py).
        """
        ins = self.following.observer.executed
        key = warp.cta.rank, warp.index, ins.key
        before, self.latest[key] = self.latest.get(key), place
        return before == place

    def exited(self, state: WarpState) -> None:
        """A warp has exited. Raises Departed if a rule that sees all clusters finds something."""
        self.step(("exit", state.cta.rank, state.index))
        warps = [warp for cta in self.cluster.ctas for warp in cta.warps]
        if any(warp.live for warp in warps):
            return
        following, observer = self.following, self.following.observer
        mine = observer.clusters.get(self.cluster)
        agents = {} if mine is None else mine.agents
        if not self.follows:
            roles = {place: frozenset(agent.roles) for place, agent in agents.items()}
            self.node.left = following.left_by(self.cluster, roles)
            following.told.add(self.node)
            if self.meetings is not None:
                following.traces.met.add(self.met())
            if observer.dependence is not None:
                following.traces.seen.add(observer.dependence.seen)
            return
        remarks = following.traces.remarks.get(self.node, ())
        if self.node in following.told:
            remarks = ()
        elif any(remark.cluster != self.cluster.index for remark in remarks):
            raise Departed
        tell_all(observer, self.tell)
        for call in self.note:
            call()
        if observer.dependence is not None:
            observer.dependence.seen.add(following.traces.seen)
        following.leave(self.node, agents.items())
        following.follower, self.follows = None, False
        for remark in remarks:
            observer.remarked(remark.finding, self)
        following.followed += 1
        observer.let_go(self.cluster)
