"""A launch one step at a time: what a step is, and who can take one.

A step is what a fragment does from one visible instruction to the next, or an asynchronous
operation that takes effect. Visible is what others may see or may decide over: synchronisation, the
end of lanes, atomics, strong stores, and all reads and writes of memory, if a value from memory
decides over a step anywhere in the kernel. The kernel is translated anew, with a block cut in front
of each visible instruction.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, cast

from b200 import effects as e
from b200.checker.dependents import Dependents
from b200.chip.fragment import Fragment
from b200.chip.machine import Machine
from b200.chip.meeting import let_others_go
from b200.chip.operations import Action, Operation, TensorCoreOperation
from b200.chip.sync.barriers import NamedBarrier
from b200.explore.control import MOVING, OF_OTHERS, memory_decides
from b200.explore.touches import Pending, Touches
from b200.program.analysis import EXIT, Block, Op
from b200.program.module import CLOCKS, Instr, Label, Special
from b200.program.translate import translate
from b200.program.translated import Translated
from b200.program.writer import Writer
from b200.registry import FULL, Blocked

BLOCKS = 20_000  # of one step, at most
UNSTEPPED = (e.Multiplies, e.CopiesToTensor, e.ShiftsRows, e.RequestsWork, e.CallsSystem)


class Declined(Exception):
    """The launch cannot be carried out step by step; str() says why."""


class Steppable(NamedTuple):
    """A kernel cut into steps. visible: blocks that begin with a visible instruction, which is
    given. far: those of them that more than its cluster can tell.
    """

    code: Translated
    visible: dict[int, Instr]
    far: frozenset[int]


def steppable(code: Translated, writer: type[Writer] | None, fences: bool) -> Steppable:
    """A kernel cut into steps. fences: whether those of memory are visible. Raises Declined."""
    instructions = [item for item in code.kernel.body if isinstance(item, Instr)]
    paces = _paces(code.structure)
    for ins in instructions:
        moving = [o for o in ins.operands if isinstance(o, Special) and o.name in MOVING]
        if moving and ins.key not in paces or isinstance(ins.effect, UNSTEPPED):
            raise Declined(f"its kernel has {ins.mods[0]} {moving[0].name if moving else ''}")
    reads = memory_decides(code.structure)
    body: list[Instr | Label] = []
    seen = {ins.key for ins in instructions if _is_visible(ins, reads)}
    if fences:
        seen |= {ins.key for ins in instructions if isinstance(ins.effect, e.FencesMemory)}
    for item in code.kernel.body:
        if isinstance(item, Instr) and item.key in seen:
            body.append(Label(f"$step.{len(body)}"))
        body.append(item)
    cut = translate(code.program, replace(code.kernel, body=body), writer)
    first = {block.index: block.ops[0].ins for block in cut.structure}
    visible = {index: ins for index, ins in first.items() if ins.key in seen}
    far = frozenset(index for index, ins in visible.items() if _is_far(ins))
    return Steppable(cut, visible, far)


def _paces(blocks: list[Block]) -> set[int]:
    """Keys of the instructions that read a clock and decide no more by it than how long to sleep.

    Nothing but registers, branches and nanosleep depends on such a clock, and the branches lead to
    no loop and past no visible instruction. So the steps of every order are the same whatever it
    tells, and a walk in which it stands still has them all.
    """
    reads = [op for block in blocks for op in block.ops if op.entry is not None and _is_clock(op)]
    if not reads:
        return set()
    kernel = Dependents(blocks)
    reach = [found for op in reads if (found := kernel.reach(op)) is not None]
    return {f.op.ins.key for f in reach if not f.looks and not kernel.goes_round(f)}


def _is_clock(op: Op) -> bool:
    special = (o for o in op.ins.operands if isinstance(o, Special))
    is_pure = op.entry is not None and op.entry.style == "pure"
    return is_pure and any(o.name in CLOCKS for o in special)


def _is_far(ins: Instr) -> bool:
    """Whether it may access global memory."""
    asked = ins.effect.properties
    return "global" in asked.reads + asked.writes


def _is_visible(ins: Instr, reads: bool) -> bool:
    """reads: whether a value from memory decides over a step. Where none does, an atomic or strong
    store still tells others what its warp has accessed before: no race is to reach over it.
    """
    effect, asked = ins.effect, ins.effect.properties
    if asked.synchronises or isinstance(effect, e.Jumps) and effect.leaves:
        return True
    if asked.lanes:
        tells = bool(asked.reads and asked.writes) or isinstance(effect, e.Stores) and effect.strong
        return tells or reads and bool(OF_OTHERS & {*asked.reads, *asked.writes})
    return bool(OF_OTHERS & {*asked.reads, *asked.writes})


class Steps:
    """Who can take a step in a launch, and the taking of one.

    queue: fragments that can run. pending: operations under way, in order of issue.
    """

    def __init__(self, machine: Machine, cut: Steppable, touches: Touches):
        self.machine, self.cut, self.touches = machine, cut, touches
        names = machine.code.kernel.registers
        self.register = {name: i for i, name in enumerate(names)}
        self.queue: list[Fragment] = []
        self.pending: list[Pending] = []

    def issue(self, operation: Operation, warp: Fragment, apply: Action) -> None:
        in_order = isinstance(operation, TensorCoreOperation)
        queue = (warp.cta, warp.index) if in_order else apply
        ins = self.machine.code.structure[warp.pc].ops[0].ins
        self.pending.append(Pending(type(operation).__name__, warp, ins, queue, apply))

    def can(self) -> tuple[list[Fragment | Pending], list[Fragment | Pending]]:
        """Who can take a step, in two parts: the others need not be tried where one of the first
        leads on. The first is somebody whose step nobody else can tell, or a cluster whose steps
        no other cluster can tell.
        """
        for fragment in self.queue:
            if self.is_quiet(fragment):
                return [fragment], []
        first = {pending.queue: pending for pending in reversed(self.pending)}
        every = [*self.queue, *filter(self.touches.may_come, reversed(first.values()))]
        far = {p.fragment.cta.cluster for p in self.pending}
        far |= {f.cta.cluster for f in self.queue if f.pc in self.cut.far}
        near = next((f.cta.cluster for f in self.queue if f.cta.cluster not in far), None)
        if near is None:
            return every, []
        here: list[Fragment | Pending] = [f for f in self.queue if f.cta.cluster is near]
        return here, [who for who in every if who not in here]

    def is_quiet(self, warp: Fragment) -> bool:
        """Whether nobody else can tell its next step: nothing visible, or all have come."""
        ins = self.cut.visible.get(warp.pc)
        if ins is None:
            return True
        if ins.pred is not None and not isinstance(ins.effect, e.Jumps):
            guard = warp.register_file[self.register[ins.pred.name]]
            return not (guard ^ (FULL if ins.negated else 0)) & warp.mask
        held: Any = warp.token
        token = cast("tuple[Any, ...]", held) if isinstance(held, tuple) else (None, 0)
        return isinstance(token[0], NamedBarrier) and token[0].generation != token[1]

    def take(self, who: Fragment | Pending) -> None:
        """Take a step. Raises Fault."""
        if isinstance(who, Pending):
            self.pending.remove(who)
            who.apply()
            return
        self.queue.remove(who)
        if (ins := self.cut.visible.get(who.pc)) is not None:
            self.touches.starts(who, ins.effect)
        who.queued = False
        who.spin = None
        try:
            goes_on = self._run(who)
        except Blocked as blocked:
            if blocked.waitable is not None:
                who.waits_for = blocked.waitable
                blocked.waitable.waiters.append(who)
                return
            goes_on = True
        if goes_on and not who.queued:
            self.machine.enqueue(who)

    def _run(self, warp: Fragment) -> bool:
        """Run a fragment up to its next visible instruction. False if it has ended."""
        blocks = self.machine.code.blocks
        for _ in range(BLOCKS):
            pc = blocks[warp.pc](warp, warp.register_file)
            if pc == EXIT or pc == warp.reconv:
                pc = warp.arrive_or_exit(pc)
                if pc is None:
                    return False
            warp.pc = pc
            if pc in self.cut.visible:
                return True
        raise Declined(f"a step of more than {BLOCKS:,} blocks")

    def let_others_go(self) -> bool:
        """Where nothing changes, lanes that others need go on. False if there are none."""
        spinning = self.machine.spinning
        spinning.standing.update((f.state, f.state.live) for f in self.queue)
        try:
            return let_others_go(self.machine)
        finally:
            spinning.standing.clear()
