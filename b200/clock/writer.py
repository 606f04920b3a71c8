"""The translator with a clock: it writes block functions that also move `w.time`.

The instructions of a block are put into the order of ptxas first (order.py). Those that do not
touch the state of the machine are scheduled at translation. Each takes its issue slot and its pipe
at its place, but its result is ready one latency after its operands are, however late it is
written. An instruction with state waits for its operands, and so does the branch at the end. The
instructions between two waits take as long as their issue or their busiest pipe, whichever is
longer. A warp waits for the result of a load where it is used (`need`), so several loads can be in
flight.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from b200.clock import code_motion, costs, if_conversion
from b200.clock.ptxas_order import PtxasOrder
from b200.clock.rates import EITHER, PIPES, Rate, rate
from b200.clock.wait import wrap
from b200.effects import Jumps
from b200.program.analysis import Block, Op, Uniformity, is_broadcast
from b200.program.module import CLOCKS, TYPE_BITS, Instr, Kernel, Label, Operand, Special
from b200.program.translated import Translated
from b200.program.writer import Writer


class TimedWriter(Writer):
    """Emits `w.spend(clk, pipes)`, `w.need(...)` and `w.loaded(...)` among the instructions."""

    packs = False

    @staticmethod
    def body(kernel: Kernel) -> list[Instr | Label]:
        """With short branches as guards, as ptxas has them."""
        return if_conversion.guarded(kernel)

    def __init__(self, out: Translated, info: Uniformity):
        super().__init__(out, info)
        blocks, in_place = out.structure, info.is_warp_index
        self.sunk = code_motion.sunk(blocks, info)
        self.hoisted = code_motion.hoisted(blocks, info.ipdom)
        self.in_loops = {id(op) for ops in self.hoisted.values() for op in ops}
        self.late = self._late_registers()
        self.order = PtxasOrder(
            out.kernel, blocks, self.late, self._words, in_place, self._live_out
        )

    def _late_registers(self) -> set[str]:
        """Registers that may hold the result of a load under way."""
        late: set[str] = set()
        before = -1
        while len(late) != before:
            before = len(late)
            for block in self.out.structure:
                for op in block.ops:
                    moves = costs.is_copy(op.ins) or id(op) in self.sunk
                    handed_on = moves and any(r.name in late for r in op.srcs)
                    if handed_on or op.entry is not None and costs.result_is_late(op.ins):
                        late.update(r.name for r in op.dsts)
        return late

    def _words(self, name: str) -> float:
        """How many 32-bit registers of a thread a register takes; one of the warp takes none."""
        register = self.out.kernel.registers[name]
        if register.type == "pred" or not self._varying(register):
            return 0.0
        return TYPE_BITS[register.type] / 32

    def _live_out(self, block: Block) -> Iterator[str]:
        return self.info.named(self.info.live_out[block.index])

    # --- the schedule of a block ------------------------------------------------------------------
    def _groups(self, body: list[Op]) -> list[list[Op]]:
        return [[op] for op in self.order.arrange(self.block)]

    def _block(self, block: Block) -> None:
        self.block = block
        self.now = self.spent = 0.0
        self.taken: dict[str, float] = defaultdict(float)  # of each pipe since the last flush
        self.ready: dict[str, float] = {}
        self.known: set[str] = set()  # late registers waited for in this block already
        super()._block(block)

    def _await(self, op: Op) -> None:
        """The operands are there no earlier than when they are ready."""
        for reg in op.srcs:
            at = self.ready.get(reg.name, 0.0)
            if at > self.now:
                self.now = at

    def _take(self, cost: Rate) -> None:
        self.now += cost.issues
        self.taken["issue"] += cost.issues
        for pipe, clk in cost.takes.items():
            self.taken[pipe] += clk

    def _flush(self) -> None:
        """Hand the time since the last flush to the warp."""
        taken, self.taken = self.taken, defaultdict(float)
        either, alu, fma = taken.pop(EITHER, 0.0), taken["alu"], taken["fma"]
        taken["alu"] = max(alu, min(alu + either, (alu + fma + either) / 2))
        taken["fma"] = fma + either - (taken["alu"] - alu)
        self.now = max(self.now, self.spent + max(taken.values()))
        pipes = "".join(f"({i}, {taken[p]:g}), " for i, p in enumerate(PIPES) if taken[p])
        if pipes or self.now > self.spent:
            self._line(f"w.spend({self.now - self.spent:g}, ({pipes}))")
        self.spent = self.now

    def _need(self, op: Op) -> None:
        """Wait for the loads whose results the instruction reads."""
        guarded = op.entry is not None and op.ins.pred is not None
        kept = {r.name for r in op.dsts} if guarded else set[str]()
        asked = dict.fromkeys(r.name for r in op.srcs)
        names = [n for n in asked if n in self.late and n not in self.known and n not in kept]
        if names:
            self._flush()
            self.known.update(names)
            ids = ", ".join(str(self.info.id[n]) for n in names)
            self._line(f"w.need(({ids},), {self._constant(op.ins)})", op.ins)

    def _issue(self, op: Op, cost: Rate) -> None:
        ready = self.now + cost.latency
        self._take(cost)
        for reg in op.dsts:
            self.ready[reg.name] = ready

    # --- instructions -----------------------------------------------------------------------------
    def _op(self, op: Op):
        ins = op.ins
        if costs.is_copy(ins) and ins.operands[1].name in self.late:
            dst, src = (self.info.id[o.name] for o in ins.operands)
            self._line(f"w.hand_on({dst}, {src})")
            self.known.discard(ins.operands[0].name)
            return super()._op(op)
        if id(op) in self.sunk and any(r.name in self.late for r in op.srcs):
            return self._sink(op)
        self._need(op)
        assert op.entry is not None
        in_place = is_broadcast(ins) or self.info.is_warp_index(op)
        if op.entry.style == "pure" or in_place or costs.is_parameter(ins):
            found = self._cost(op)
            if id(op) in self.in_loops:  # ready before the loop
                for reg in op.dsts:
                    self.ready.pop(reg.name, None)
            elif not costs.is_constant(ins):
                start = max((self.ready.get(r.name, 0.0) for r in op.srcs), default=0.0)
                self._take(found)
                for reg in op.dsts:  # a compiler moves it up to where its operands are ready
                    self.ready[reg.name] = start + found.latency
            return super()._op(op)
        self._await(op)
        self._issue(op, costs.cost(ins))
        self._flush()
        super()._op(replace(op, made=wrap(ins, op.made)))
        if costs.result_is_late(ins):
            ids = ", ".join(str(self.info.id[r.name]) for r in op.dsts)
            self.known.difference_update(r.name for r in op.dsts)
            if ids:
                self._line(f"w.loaded(({ids},))", ins)

    def _cost(self, op: Op) -> Rate:
        varies = any(map(self._varying, op.dsts))
        return costs.cost(op.ins) if varies else costs.uniform_cost(op.ins)

    def _sink(self, op: Op):
        """Carry out what ptxas puts into a later block: its result is as late as its operands."""
        self._take(self._cost(op))
        late = ", ".join(str(self.info.id[r.name]) for r in op.srcs if r.name in self.late)
        for register in op.dsts:
            self._line(f"w.hand_on({self.info.id[register.name]}, {late})")
            self.known.discard(register.name)
        return super()._op(op)

    def _operand(self, operand: Operand, width: int | None) -> tuple[str, bool]:
        if isinstance(operand, Special) and operand.name in CLOCKS:
            self._flush()
            digits = 16 if operand.name in ("clock64", "globaltimer") else 8
            return f"(w.read_clock({operand.name!r}) & 0x{'F' * digits})", False
        return super()._operand(operand, width)

    def _stores(self, block: Block, body: list[Op]) -> None:
        last = block.ops[-1]
        for op in self.hoisted.get(block.index, ()):
            if not costs.is_constant(op.ins):
                self._take(self._cost(op))
        if last.entry is None:
            self._need(last)
            self._await(last)
            effect = last.ins.effect
            if isinstance(effect, Jumps) and not effect.leaves:
                back = any(s <= block.index for s in block.targets.values())
                branch = rate("loop" if back else "branch")
                self.taken["issue"] += branch.issues
                self.now += branch.latency
        self._flush()
        super()._stores(block, body)
