"""Writes a kernel as Python source: a function for each basic block, lines for each instruction."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any

import numpy as np

from b200.errors import Unsupported
from b200.program import packing
from b200.program.analysis import EXIT, Block, Op
from b200.program.meeting import meeting
from b200.program.module import TYPE_BITS, Imm, Instr, Kernel, Label, Reg, Sym, Vec
from b200.program.operands import dtype_name
from b200.program.pack_writer import PackWriter, flat
from b200.program.translated import located
from b200.registry import DTYPES, INLINE_NAMES, Pure


def _for_lanes(made: Pure, all_lanes: int) -> Callable[..., Any]:
    """A scalar form with predicates as masks of more lanes than 32."""
    scalar, kinds = made.scalar, made.outs
    assert scalar is not None

    def called(*args: Any) -> Any:
        result = scalar(*args)
        if len(kinds) == 1:
            return all_lanes if result else 0
        values = zip(kinds, result, strict=True)
        return tuple((all_lanes if v else 0) if kind == "pred" else v for kind, v in values)

    return called


def _loads_parameter(ins: Instr) -> bool:
    """Whether it is a load of a parameter by its name."""
    is_load = ins.mods[0] == "ld" and ins.has("param", "param::entry")
    return is_load and isinstance(ins.operands[1].base, Sym)


class Writer(PackWriter):
    """Writes the Python source of one kernel. packs: whether alike instructions become one call."""

    packs = True

    @staticmethod
    def body(kernel: Kernel) -> list[Instr | Label]:
        """The instructions of a kernel that are translated, with their labels."""
        return kernel.body

    def write(self) -> None:
        for block in self.out.structure:
            self._block(block)
        self.out.source = "\n".join(self.text)
        self.space.update(INLINE_NAMES)
        exec(compile(self.out.source, f"<{self.out.kernel.name}>", "exec"), self.space)
        self.out.live = self.info.live_in
        self.out.blocks = [self.space[f"b{b.index}"] for b in self.out.structure]
        zeros = {bits: np.zeros(self.width, dtype) for bits, dtype in DTYPES.items()}
        for array in zeros.values():
            array.flags.writeable = False
        for reg in self.out.kernel.registers.values():
            is_array = self._varying(reg) and reg.type not in ("pred", "b128")
            self.out.initial.append(zeros[TYPE_BITS[reg.type]] if is_array else 0)

    # --- blocks
    def _block(self, block: Block) -> None:
        self.block = block
        self.text.append(f"def b{block.index}(w, R):")
        self._line("m = w.mask")
        defined: set[str] = set()
        loads: dict[str, Reg] = {}
        for op in block.ops:
            for reg in op.srcs:
                if reg.name not in defined:
                    loads.setdefault(reg.name, reg)
            defined.update(r.name for r in op.dsts)
        for reg in loads.values():
            self._line(f"{self._reg(reg)} = R[{self.info.id[reg.name]}]")
        last = block.ops[-1]
        body = block.ops if last.entry is not None else block.ops[:-1]
        self.packed, self.unpacked = {}, []
        for group in self._groups(body):
            with located(group[0].ins):
                if len(group) > 1:
                    self._pack(group)
                else:
                    self._forget(group)
                    self._op(group[0])
        self._stores(block, body)
        if last.entry is None:
            self._branch(block, last)
        else:
            self._line(f"return {block.successors[0]}")
        self._drop_unread()

    def _stores(self, block: Block, body: list[Op]) -> None:
        live = self.info.live_out[block.index]
        written = {r.name: r for op in body for r in op.dsts}
        for reg in written.values():
            i = self.info.id[reg.name]
            if not live >> i & 1:
                continue
            name = self._reg(reg)
            if self._varying(reg) and self.info.needs_merge(reg):
                mask = f"R[{i}] & ~m | {name} & m"
                kept = mask if reg.type == "pred" else f"merge(R[{i}], {name}, m)"
                name = f"{name} if m == FULL else {kept}"
            self._line(f"R[{i}] = {name}")

    def _branch(self, block: Block, op: Op):
        ins = op.ins
        after = block.index + 1 if block.index + 1 < len(self.out.structure) else EXIT
        if ins.mods[0] == "brx":
            return self._indexed_branch(block, ins)
        if ins.mods[0] == "trap":
            self._line(f"if {self._guard(op)[0]}: w.trap()", ins)
        target = block.targets[ins.operands[0].name] if ins.mods[0] == "bra" else EXIT
        if ins.pred is None:
            self._line(f"return {target}", ins)
            return
        pred = self._reg(ins.pred)
        if not self._varying(ins.pred):
            yes, no = (after, target) if ins.negated else (target, after)
            self._line(f"return {yes} if {pred} else {no}", ins)
            return
        self._line(f"g = m & {'~' if ins.negated else ''}{pred}", ins)
        self._line(f"if g == m: return {target}")
        self._line(f"if not g: return {after}")
        self._line(f"return w.split(g, {target}, {after}, {self.info.ipdom[block.index]})", ins)

    def _indexed_branch(self, block: Block, ins: Instr) -> None:
        index = ins.operands[0]
        if ins.pred is not None or self._varying(index):
            text = "brx.idx is modelled without a guard, with an index that all lanes share"
            raise Unsupported(text)
        names = self.out.kernel.branch_targets[ins.operands[1].name]
        targets = tuple(block.targets[name] for name in names)
        self._line(f"return {targets!r}[{self._reg(index)}]", ins)

    # --- instructions
    def _op(self, op: Op) -> None:
        ins = op.ins
        if self.info.is_broadcast(ins) and not op.waits:
            self._broadcast(op)
        elif self.info.is_warp_index(op):
            dst, src = ins.operands[0], ins.operands[1]
            value = f"int({self._reg(src)}[0])" if self._varying(src) else self._reg(src)
            self._line(f"{self._reg(dst)} = {value} >> {ins.operands[2].value}", ins)
        elif _loads_parameter(ins):
            self._load_param(op)
        elif op.entry is not None and op.entry.style == "pure":
            self._pure(op)
        else:
            self._stateful(op)

    def _broadcast(self, op: Op) -> None:
        dst, src, lane = op.ins.operands[:3]
        code, varying = self._operand(src, 32)
        value = f"int({code}[{lane.value}])" if varying else code
        if self._varying(dst):
            value = f"full({value}, np.uint32)"
        self._line(f"{self._reg(dst)} = {value}", op.ins)

    def _load_param(self, op: Op) -> None:
        ins = op.ins
        kind = next(m for m in reversed(ins.mods) if m in TYPE_BITS)
        address = ins.operands[1]
        at = self.out.symbols[address.base.name] + address.offset
        dst = ins.operands[0]
        for i, reg in enumerate(dst.items if isinstance(dst, Vec) else (dst,)):
            n = TYPE_BITS[kind] // 8
            if reg is not None:
                of = f"w.params[{at + i * n}:{at + (i + 1) * n}]"
                value = f"int.from_bytes({of}, 'little', signed={kind[0] == 's'})"
                self._assign(op, reg, f"{value} & {(1 << TYPE_BITS[reg.type]) - 1:#x}", False, None)

    def _guard(self, op: Op) -> tuple[str, bool | None]:
        """Code of the mask of lanes that execute, and whether the guard varies (None: no guard)."""
        ins = op.ins
        if ins.pred is None:
            return "m", None
        inverse = "~" if ins.negated else ""
        return f"(m & {inverse}{self._reg(ins.pred)})", self._varying(ins.pred)

    def _assign(self, op: Op, reg: Reg, code: str, varying: bool, kind: str | None) -> None:
        """Write a value to a register: widen it, broadcast it, keep the lanes a guard excludes."""
        ins, name = op.ins, self._reg(reg)
        if kind is not None and "pred" not in (kind, reg.type):
            if TYPE_BITS[kind] != TYPE_BITS[reg.type]:
                code = self._resize(code, varying, kind, TYPE_BITS[reg.type])
        if self._varying(reg) and not varying and reg.type != "pred":
            code = f"full({code}, {dtype_name(TYPE_BITS[reg.type])})"
        mask, guard_varies = self._guard(op)
        if guard_varies is None:
            self._line(f"{name} = {code}", ins)
        elif not self._varying(reg):
            self._line(f"if {mask}: {name} = {code}", ins)
        elif reg.type == "pred":
            self._line(f"g = {mask}; {name} = {name} & ~g | ({code}) & g", ins)
        else:
            self._line(f"{name} = merge({name}, {code}, {mask})", ins)

    # --- pure instructions
    def _pure(self, op: Op) -> None:
        ins, made = op.ins, op.made
        dst = ins.operands[0]
        dsts = list(dst.items) if isinstance(dst, Vec) else [dst]
        args: list[tuple[str, bool, str]] = []
        for operand, kind in zip(flat(ins.operands[1:]), made.ins, strict=True):
            if kind == "pred" and isinstance(operand, Imm):
                args.append(("FULL" if operand.value else "0", False, kind))
            else:
                args.append((*self._operand(operand, TYPE_BITS.get(kind)), kind))
        codes, any_varying = [code for code, _, _ in args], any(v for _, v, _ in args)
        has_scalar = made.expr is not None or made.scalar is not None
        if not any_varying and has_scalar:
            code = made.expr.format(*codes) if made.expr else self._call(self._scalar(made), codes)
        elif made.vexpr is not None and any(v and k != "pred" for _, v, k in args):
            code = made.vexpr.format(*codes)
        elif made.vector is not None:
            arrays = [c if k == "pred" else self._array(c, v, TYPE_BITS[k]) for c, v, k in args]
            code = self._vector([op], arrays, self._guard(op)[0])
        elif made.expr is not None:  # predicate logic: masks either way
            code = made.expr.format(*codes)
        else:
            raise Unsupported("this form is modelled for values that all lanes share only")
        varying = any_varying or not has_scalar
        if len(dsts) == 1 and len(made.outs) == 1:
            if dsts[0] is not None:
                self._assign(op, dsts[0], code, varying, made.outs[0])
            return
        self._line(f"t = {code}", ins)
        for i, (reg, kind) in enumerate(zip(dsts, made.outs, strict=True)):
            if reg is not None:
                self._assign(op, reg, f"t[{i}]", varying, kind)

    def _scalar(self, made: Pure) -> Callable[..., Any] | None:
        """The scalar form, whose predicates are all lanes or none."""
        if self.width == 32 or "pred" not in made.outs:
            return made.scalar
        return _for_lanes(made, self.all_lanes)

    # --- alike instructions at once
    def _groups(self, body: list[Op]) -> list[list[Op]]:
        """The instructions in the order in which they are written, alike ones together."""
        if not self.packs:
            return [[op] for op in body]
        return packing.arrange(body, self._kind, self._stays)

    def _kind(self, op: Op) -> Hashable | None:
        """What instructions have in common that are written as one; None for one by itself."""
        in_place = self.info.is_broadcast(op.ins) or self.info.is_warp_index(op)
        if in_place or not self.info.result_varies(op):
            return None
        varies = any(map(self.info.operand_varies, op.ins.operands[1:]))
        return packing.kind_of(op) if varies and all(map(self._varying, op.dsts)) else None

    def _stays(self, op: Op) -> bool:
        """Whether an instruction keeps its place among others that do."""
        return op.entry is None or op.entry.style != "pure"

    # --- lane and warp instructions
    def _stateful(self, op: Op) -> None:
        ins, entry = op.ins, op.entry
        assert entry is not None
        n = op.results
        args: list[str] = []
        any_varying = False
        for operand in op.arguments:
            code, varying = self._argument(operand, entry.style)
            args.extend(code)
            any_varying |= varying
        mask, guard = self._guard(op)
        made = op.made
        if op.waits:
            made = meeting(ins, n, made, self.info.ipdom[self.block.index])
        active_mask = "g" if guard is not None else "m"
        given = active_mask if entry.style == "warp" else "i"
        call = f"{self._constant(made)}(w, {given}, {', '.join(args)})"
        dsts = flat(ins.operands[:n])
        used = [i for i, d in enumerate(dsts) if d is not None and d.name in self._read]
        indent = 1
        if guard is not None:
            self._line(f"g = {mask}")
            self._line("if g:", ins)
            indent = 2
        if ins.effect.changes:
            self._line("w.spin = None", ins, indent)
        if entry.rows and guard is None and n == 1 and self._takes_rows(dsts):
            name = f"p{next(self.names)}"
            self._line(f"{name} = {call}", ins)
            self._unpack(dsts, f"{name}.reshape(-1)", name, ins)
        elif entry.style == "warp":
            self._line(f"t = {call}" if used else call, ins, indent)
            for i in used:
                code = f"t[{i}]" if self._is_tuple(ins, n) else "t"
                self._result(op, dsts[i], code, active_mask, indent)
        elif not used:
            self._line(f"for i in active({active_mask}): {call}", ins, indent)
        else:
            self._lane_results(op, dsts, used, call, active_mask, indent)

    def _takes_rows(self, dsts: list[Reg | None]) -> bool:
        """Whether each row of a result goes to a register of 32 values, as it is."""
        words = [r for r in dsts if r is not None and TYPE_BITS.get(r.type) == 32]
        return len(dsts) > 1 and len(words) == len(dsts) and all(map(self._varying, words))

    @staticmethod
    def _is_tuple(ins: Instr, n: int) -> bool:
        return n > 1 or ins.dual or isinstance(ins.operands[0], Vec)

    @cached_property
    def _read(self) -> set[str]:
        """Registers that some instruction reads."""
        return {r.name for b in self.out.structure for op in b.ops for r in op.srcs}

    def _result(self, op: Op, reg: Reg, code: str, mask: str, indent: int) -> None:
        name = self._reg(reg)
        keeps = op.ins.pred is not None and self._varying(reg)
        if reg.type == "pred":
            value = f"{name} & ~g | {code} & g" if keeps else code
        elif self._varying(reg):
            value = f"to_varying({code}, {dtype_name(TYPE_BITS[reg.type])})"
            value = f"merge({name}, {value}, g)" if keeps else value
        else:
            value = f"to_uniform({code}, {mask})"
        self._line(f"{name} = {value}", op.ins, indent)

    def _lane_results(
        self, op: Op, dsts: list[Reg], used: list[int], call: str, mask: str, indent: int
    ) -> None:
        """Results of an instruction executed lane by lane."""
        ins = op.ins
        for i in used:
            if self._varying(dsts[i]):
                name = self._reg(dsts[i])
                if dsts[i].type == "pred":
                    start = name if ins.pred is not None else "0"
                elif ins.pred is not None:
                    start = f"{name}.copy()"
                else:
                    start = f"np.zeros(32, {dtype_name(TYPE_BITS[dsts[i].type])})"
                self._line(f"{name} = {start}", ins, indent)
        self._line(f"for i in active({mask}):", ins, indent)
        self._line(f"t = {call}", ins, indent + 1)
        for i in used:
            reg, name = dsts[i], self._reg(dsts[i])
            code = f"t[{i}]" if self._is_tuple(ins, 1) else "t"
            if reg.type != "pred":
                text = f"{name}[i] = {code}" if self._varying(reg) else f"{name} = {code}"
            elif self._varying(reg):
                text = f"{name} = {name} & ~(1 << i) | (({code} != 0) << i)"
            else:
                text = f"{name} = FULL if {code} else 0"
            self._line(text, ins, indent + 1)
